"""A cgroup of the worker's own, where one may be made: everything that it starts is then ended by one write, and the
kernel's limits can be put around it alone.

A group whose children have the memory controller may have no process of its own (the "no internal processes" rule of
cgroups(7)), so a guard that was started in a delegated group moves itself into a leaf of it first.
"""

from __future__ import annotations

import os

from tidegate.host.files import number, read_file

#: systemd marks a delegated unit's directory so (systemd.resource-control(5), Delegate=).
_DELEGATE_MARKS = ("user.delegate", "trusted.delegate")
#: The guard's own leaf; the same name that the shipped unit gives to DelegateSubgroup=.
GUARD_LEAF = "guard"
#: What a worker's group needs: the limits on memory, and cpu.weight.
CONTROLLERS = ("memory", "cpu")


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


def find_parent(own: str) -> str:
    """The group below which a worker may have one of its own, for a guard in the group ``own``; "" if there is none.

    With DelegateSubgroup= (systemd 254) the guard is in a leaf of the delegated group from the start.
    """
    if may_make_groups(own):
        above = os.path.dirname(own)
        in_leaf = os.path.basename(own) == GUARD_LEAF and os.path.exists(f"{above}/cgroup.controllers")
        return above if in_leaf and may_make_groups(above) else own
    above = os.path.dirname(own)
    return above if os.path.exists(f"{above}/cgroup.controllers") and may_make_groups(above) else ""


def enable_controllers(parent: str) -> tuple[str, ...]:
    """Give the groups below ``parent`` the controllers that are to be had there, and return them.

    Where ``parent`` has processes of its own, all of them are moved into the leaf :data:`GUARD_LEAF` first if they are
    the caller's: the caller itself and its children. Else nothing is enabled: the kernel would take cpu alone, which
    makes ``parent`` a threaded domain, and no process could enter the groups below it any more.
    """
    wanted = _words(f"{parent}/cgroup.controllers") & set(CONTROLLERS)
    missing = wanted - _words(f"{parent}/cgroup.subtree_control")
    if missing and (_is_top(parent) or _move_into_leaf(parent)):
        for name in sorted(missing, reverse=True):
            # memory before cpu: where memory is refused, cpu must not be alone.
            try:
                _write(f"{parent}/cgroup.subtree_control", f"+{name}")
            except OSError:
                break
    return tuple(sorted(_words(f"{parent}/cgroup.subtree_control") & wanted))


def _is_top(parent: str) -> bool:
    """Whether ``parent`` is the root of the whole hierarchy, which may have processes and controllers."""
    return not os.path.exists(f"{parent}/cgroup.type")


def _move_into_leaf(parent: str) -> bool:
    """Whether ``parent`` has no processes of its own (any more)."""
    members = _members(parent)
    me = os.getpid()
    if any(pid != me and _parent_of(pid) != me for pid in members):
        return False
    try:
        os.makedirs(f"{parent}/{GUARD_LEAF}", exist_ok=True)
        for pid in members:
            _write(f"{parent}/{GUARD_LEAF}/cgroup.procs", str(pid))
    except OSError:
        return False
    return True


def _members(directory: str) -> list[int]:
    found = (number(word) for word in (read_file(f"{directory}/cgroup.procs") or b"").split())
    return [pid for pid in found if pid]


def _parent_of(pid: int) -> int | None:
    # After the name in parentheses, which may contain anything: state, parent.
    fields = (read_file(f"/proc/{pid}/stat", 4096) or b"").rpartition(b")")[2].split()
    return number(fields[1]) if len(fields) > 1 else None


def _words(path: str) -> set[str]:
    return set((read_file(path, 4096) or b"").decode(errors="replace").split())


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


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
