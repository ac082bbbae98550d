"""Which groups of the whole v2 hierarchy are protected, and how much of that the kernel honours."""

from __future__ import annotations

import os

from tidegate.frozen import frozen
from tidegate.host.files import read_number, read_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.host.cgroup import Hierarchy

_MOST_GROUPS = 20000


@frozen
class ProtectedGroup:
    """A group with memory.min or memory.low. ``path`` is below the mount; ``asked`` is its own value in bytes (2**63
    for "max"), ``weakest`` the lowest that an ancestor below the top has in the same file, and ``at`` that ancestor
    ("" if the group is directly below the top)."""

    path: str
    name: str
    asked: int
    weakest: int
    at: str


def read_protected(hierarchy: Hierarchy) -> tuple[ProtectedGroup, ...]:
    """Every protected group, by path; () on v1, which has no such thing. Never raises.

    The kernel caps a group's protection by that of each ancestor below the top (effective_protection(),
    mm/page_counter.c): one zero on the way makes it worthless, with memory_recursiveprot too, which only hands an
    ancestor's unclaimed protection *down*.
    """
    if hierarchy.is_v1 or not hierarchy.memory:
        return ()
    found = []
    for count, (directory, names, _) in enumerate(os.walk(hierarchy.mount)):
        if count >= _MOST_GROUPS:
            break
        names.sort()
        path = directory[len(hierarchy.mount) :]
        if path:
            found += [each for each in (_protection(hierarchy.mount, path, name) for name in _NAMES) if each]
    return tuple(sorted(found, key=lambda each: (each.path, each.name)))


_NAMES = ("memory.min", "memory.low")


def _protection(mount: str, path: str, name: str) -> ProtectedGroup | None:
    asked = _value(f"{mount}{path}/{name}")
    if not asked:
        return None
    weakest, at = asked, ""
    parent = path.rpartition("/")[0]
    while parent:
        value = _value(f"{mount}{parent}/{name}")
        if value is not None and (value < weakest or not at):
            weakest, at = value, parent
        parent = parent.rpartition("/")[0]
    return ProtectedGroup(path, name, asked, weakest, at)


def _value(path: str) -> int | None:
    return 1 << 63 if read_word(path) == b"max" else read_number(path)
