"""The memory files of cgroups, v2 and v1: limits, use, statistics, events. All sizes are bytes."""

from __future__ import annotations

import os

from tidegate.frozen import frozen
from tidegate.host.files import HeldFile, number, read_file, read_number, read_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.host.cgroup import Hierarchy

# v1 prints "no limit" as PAGE_COUNTER_MAX pages: about 2**63 on 64 bits, 2**43 - 4096 on 32 bits. No board has 8 TiB.
_NO_LIMIT = (1 << 43) - (1 << 16)

# The fields of GroupReading in memory.stat. v1: total_* counts the group with its descendants, as v2 always does;
# its "cache" contains shmem, as "file" of v2 does, and it does not tell reclaimable slab.
_V2_KEYS = {
    b"anon": "anon",
    b"file": "file",
    b"file_mapped": "file_mapped",
    b"inactive_file": "inactive_file",
    b"active_file": "active_file",
    b"shmem": "shmem",
    b"slab_reclaimable": "slab_reclaimable",
}
_V1_KEYS = {
    b"total_rss": "anon",
    b"total_cache": "file",
    b"total_mapped_file": "file_mapped",
    b"total_inactive_file": "inactive_file",
    b"total_active_file": "active_file",
    b"total_shmem": "shmem",
    b"total_swap": "swap",
    b"hierarchical_memory_limit": "hierarchical_limit",
}


@frozen
class GroupLimit:
    """A group that has a limit: ``limit`` bytes, set in the file (or memory.stat key) ``limit_name``."""

    path: str
    limit: int
    limit_name: str


@frozen
class GroupReading:
    """One look at a group with its descendants; sizes in bytes >= 0.

    ``path`` is the group below the mount ("/" for the top). ``limit`` None: no limit now. ``file`` contains ``shmem``;
    ``file_mapped`` is the part of file and shmem that processes have mapped. ``swap`` None: not looked at (a held v2
    group has no descriptor for it).
    """

    path: str
    limit: int | None
    limit_name: str
    current: int
    anon: int
    file: int
    file_mapped: int
    inactive_file: int
    active_file: int
    shmem: int
    slab_reclaimable: int
    swap: int | None


def parse_limit(data: bytes | None) -> int | None:
    """The content of a limit file in bytes; None for "max", for v1's huge number and for what is not a number."""
    value = None if data is None else number(data.strip())
    return None if value is None or value >= _NO_LIMIT else value


def parse_keyed(data: bytes) -> dict[str, int]:
    """Lines ``key number`` (memory.events, memory.stat, cgroup.events); other lines are skipped, all keys accepted."""
    found: dict[str, int] = {}
    for line in data.split(b"\n"):
        key, _, value = line.partition(b" ")
        amount = number(value)
        if amount is not None and key.isascii():
            found[key.decode("ascii")] = amount
    return found


def _parse_stat(data: bytes, keys: dict[bytes, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in data.split(b"\n"):
        key, _, value = line.partition(b" ")
        name = keys.get(key)
        if name is not None:
            amount = number(value)
            if amount is not None:
                found[name] = amount
    return found


def read_limit(hierarchy: Hierarchy, group: str) -> GroupLimit | None:
    """The limit in force on ``group``, or None.

    v2: the lower of memory.high and memory.max (a worker throttled at high is as good as dead). v1:
    memory.limit_in_bytes; for the top group that can be seen also hierarchical_memory_limit, which knows the
    ancestors outside of the container.
    """
    directory = hierarchy.directory_of(group)
    found: list[tuple[int, str]] = []
    names = ("memory.limit_in_bytes",) if hierarchy.is_v1 else ("memory.high", "memory.max")
    for name in names:
        limit = parse_limit(read_word(f"{directory}/{name}"))
        if limit is not None:
            found.append((limit, name))
    if hierarchy.is_v1 and group == "/":
        inherited = _inherited(_parse_stat(read_file(f"{directory}/memory.stat", 65536) or b"", _V1_KEYS))
        if inherited is not None:
            found.append((inherited, "hierarchical_memory_limit"))
    if not found:
        return None
    limit, name = min(found)
    return GroupLimit(group, limit, name)


def _inherited(stat: dict[str, int]) -> int | None:
    limit = stat.get("hierarchical_limit", _NO_LIMIT)
    return limit if limit < _NO_LIMIT else None


def find_limits(hierarchy: Hierarchy) -> tuple[GroupLimit, ...]:
    """Every limit on the process, own group first. Opens a few files a level: for start-up and slow rounds only."""
    if not hierarchy.memory:
        return ()
    limits = []
    for level, group in enumerate(hierarchy.chain()):
        # v1 before 5.11: an ancestor with use_hierarchy 0 is not charged with what its children use.
        if level and hierarchy.is_v1:
            flag = read_word(f"{hierarchy.directory_of(group)}/memory.use_hierarchy")
            if flag == b"0":
                continue
        limit = read_limit(hierarchy, group)
        if limit is not None:
            limits.append(limit)
    return tuple(limits)


def read_group(hierarchy: Hierarchy, group: str) -> GroupReading | None:
    """One look at ``group``, limited or not, with swap; None if it is gone. Opens its files: not for the hot path."""
    directory = hierarchy.directory_of(group)
    limit = read_limit(hierarchy, group)
    current = read_number(f"{directory}/{_current_name(hierarchy)}")
    stat = read_file(f"{directory}/memory.stat", 65536)
    if current is None or stat is None:
        return None
    values = _parse_stat(stat, _V1_KEYS if hierarchy.is_v1 else _V2_KEYS)
    swap = values.get("swap") if hierarchy.is_v1 else read_number(f"{directory}/memory.swap.current")
    if limit is None:
        return _reading(group, None, "", current, values, swap or 0)
    return _reading(group, limit.limit, limit.limit_name, current, values, swap or 0)


def _current_name(hierarchy: Hierarchy) -> str:
    return "memory.usage_in_bytes" if hierarchy.is_v1 else "memory.current"


def _reading(
    path: str, limit: int | None, limit_name: str, current: int, values: dict[str, int], swap: int | None
) -> GroupReading:
    get = values.get
    return GroupReading(
        path,
        limit,
        limit_name,
        current,
        get("anon", 0),
        get("file", 0),
        get("file_mapped", 0),
        get("inactive_file", 0),
        get("active_file", 0),
        get("shmem", 0),
        get("slab_reclaimable", 0),
        swap,
    )


class GroupFiles:
    """Three descriptors of one limited group: use, statistics and the file that limits it; re-read by pread.

    The other limit file (memory.max while memory.high is the lower) is not watched: compare :func:`find_limits` with
    :attr:`limit_name` in slow rounds and open anew when it differs.
    """

    __slots__ = ("_current", "_is_v1", "_limit", "_stat", "limit_name", "path")

    def __init__(
        self, path: str, limit_name: str, *, is_v1: bool, current: HeldFile, stat: HeldFile, limit: HeldFile | None
    ) -> None:
        self.path = path
        self.limit_name = limit_name
        self._is_v1 = is_v1
        self._current = current
        self._stat = stat
        self._limit = limit

    @classmethod
    def open(cls, hierarchy: Hierarchy, limit: GroupLimit) -> GroupFiles | None:
        """Hold the files of the group that ``limit`` is on, or None if it is gone by now."""
        directory = hierarchy.directory_of(limit.path)
        names = [_current_name(hierarchy), "memory.stat"]
        # hierarchical_memory_limit is a line of memory.stat.
        if limit.limit_name.startswith("memory."):
            names.append(limit.limit_name)
        held: list[HeldFile] = []
        for name in names:
            file = HeldFile.open(f"{directory}/{name}")
            if file is None:
                for other in held:
                    other.close()
                return None
            held.append(file)
        return cls(
            limit.path,
            limit.limit_name,
            is_v1=hierarchy.is_v1,
            current=held[0],
            stat=held[1],
            limit=held[2] if len(held) > 2 else None,
        )

    def read(self) -> GroupReading | None:
        """The group now, or None: it is gone (ENODEV), close and resolve again. Never raises."""
        current_data, stat = self._current.read(), self._stat.read()
        if current_data is None or stat is None:
            return None
        current = number(current_data.strip())
        if current is None:
            return None
        if self._is_v1:
            values = _parse_stat(stat, _V1_KEYS)
            swap: int | None = values.get("swap", 0)
        else:
            values = _parse_stat(stat, _V2_KEYS)
            swap = None
        if self._limit is None:
            limit = _inherited(values)
        else:
            data = self._limit.read()
            if data is None:
                return None
            limit = parse_limit(data)
        return _reading(self.path, limit, self.limit_name, current, values, swap)

    def close(self) -> None:
        """Give the descriptors back. May be called twice."""
        self._current.close()
        self._stat.close()
        if self._limit is not None:
            self._limit.close()


def open_limited(hierarchy: Hierarchy) -> tuple[GroupFiles, ...]:
    """The files of every limited group of the process, own group first; groups without a limit are not held."""
    opened = (GroupFiles.open(hierarchy, limit) for limit in find_limits(hierarchy))
    return tuple(files for files in opened if files is not None)


def read_events(directory: str, *, local: bool = False) -> dict[str, int] | None:
    """memory.events of a v2 group (``local``: memory.events.local, without descendants), or None where there is none.

    Unknown keys are kept: the kernel adds some (oom_group_kill, sock_throttled).
    """
    data = read_file(f"{directory}/memory.events{'.local' if local else ''}", 4096)
    return None if data is None else parse_keyed(data)


def is_populated(directory: str) -> bool | None:
    """Whether a v2 group or a descendant has a live process (cgroup.events), or None: no such group."""
    data = read_file(f"{directory}/cgroup.events", 4096)
    if data is None:
        return None
    value = parse_keyed(data).get("populated")
    return None if value is None else value != 0


def group_id(directory: str) -> int | None:
    """What makes the group behind a path the same one as before: its inode (the kernel's cgroup id on v2)."""
    try:
        return os.stat(directory).st_ino
    except OSError:
        return None
