"""A cgroup of the worker's own, where one may be made: everything that it starts is then ended by one write."""

from __future__ import annotations

import os

#: systemd marks a delegated unit's directory so (systemd.resource-control(5), Delegate=).
_DELEGATE_MARKS = ("user.delegate", "trusted.delegate")


def may_make_groups(directory: str) -> bool:
    """Whether groups may be made below ``directory``, a v2 group: it is delegated, or the top one that can be seen (a
    container's, or a machine without a cgroup manager). Elsewhere the tree belongs to systemd."""
    if not os.path.exists(os.path.join(os.path.dirname(directory), "cgroup.controllers")):
        return not os.path.isdir("/run/systemd/system")
    for mark in _DELEGATE_MARKS:
        try:
            if os.getxattr(directory, mark) == b"1":
                return True
        except OSError:
            pass
    return False


def make_group(parent: str, name: str) -> str:
    """The directory of a new, empty group ``name`` below ``parent``, or "" if it cannot be made."""
    directory = os.path.join(parent, name)
    try:
        os.mkdir(directory)
    except FileExistsError:
        # A dead guard's. Empty it is as good as new; with somebody in it it is not ours.
        try:
            os.rmdir(directory)
            os.mkdir(directory)
        except OSError:
            return ""
    except OSError:
        return ""
    return directory


def sweep(parent: str) -> None:
    """Remove the empty groups below ``parent`` that guards made which are gone: a killed one cannot tidy up."""
    try:
        names = os.listdir(parent)
    except OSError:
        return
    for name in names:
        words = name.split("-")
        if words[0] != "tidegate" or len(words) < 3 or not words[2].isdigit() or os.path.exists(f"/proc/{words[2]}"):
            continue
        try:
            os.rmdir(os.path.join(parent, name))
        except OSError:
            # Somebody lives in it: an adopted worker, or a guard in another pid namespace.
            pass
