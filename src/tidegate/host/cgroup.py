"""Which cgroup hierarchy controls the memory of a process, and where the process is in it.

Judged by cgroup.controllers and by the memory.* files that are there, never by /proc/cgroups: on Raspberry Pi OS
(6.12 without CONFIG_MEMCG_V1) that file has no memory row although v2 works (raspberrypi/linux#6980).
"""

from __future__ import annotations

import os
from enum import StrEnum

from tidegate.frozen import frozen
from tidegate.host.files import number, read_file, rooted

# Deeper than any real tree; a hostile or looping mount must not make the chain endless.
_MOST_LEVELS = 64


class CgroupKind(StrEnum):
    """The hierarchies that are mounted. ``HYBRID``: memory is on v1, and a v2 hierarchy is mounted beside it."""

    V2 = "v2"
    V1 = "v1"
    HYBRID = "hybrid"
    NONE = "none"


@frozen
class Hierarchy:
    """Where a process is.

    ``memory``: the memory controller works here. ``mount`` is the directory of the hierarchy that has it (or would),
    ``group`` the process's group below it ("/" for the top one that can be seen), both as seen from this mount
    namespace. ``unified`` is the directory of the process's v2 group (cgroup.events, cgroup.kill, memory.pressure),
    the same as :attr:`directory` on plain v2, or None.
    """

    kind: CgroupKind
    memory: bool
    mount: str
    group: str
    unified: str | None

    @property
    def directory(self) -> str:
        """The directory of the process's group."""
        return self.directory_of(self.group)

    def directory_of(self, group: str) -> str:
        """The directory of ``group``."""
        return self.mount if group == "/" else self.mount + group

    @property
    def is_v1(self) -> bool:
        """The memory files are those of v1 (memory.limit_in_bytes ..)."""
        return self.kind in (CgroupKind.V1, CgroupKind.HYBRID)

    def chain(self) -> tuple[str, ...]:
        """The process's group and every ancestor that can be seen, own group first, "/" last."""
        groups = [self.group]
        while groups[-1] != "/" and len(groups) < _MOST_LEVELS:
            groups.append(groups[-1].rpartition("/")[0] or "/")
        return tuple(groups)


_NOWHERE = Hierarchy(CgroupKind.NONE, memory=False, mount="", group="/", unified=None)


@frozen
class _Mount:
    root: str  # the part of the hierarchy that is mounted, "/" for all of it
    point: str
    options: tuple[str, ...]
    is_v2: bool


def find_hierarchy(pid: int | None = None, root: str = "/") -> Hierarchy:
    """The memory hierarchy of process ``pid`` (None: the caller), below the directory ``root``.

    A vanished process reads as a member of the top group. Never raises.
    """
    mounts = _mounts(root)
    if not mounts:
        return _NOWHERE
    who = "self" if pid is None else str(pid)
    v2_path, v1_path = parse_proc_cgroup(read_file(rooted(root, f"/proc/{who}/cgroup"), 65536) or b"")
    v2 = next((mount for mount in mounts if mount.is_v2), None)
    v1 = next((mount for mount in mounts if not mount.is_v2 and "memory" in mount.options), None)
    unified = None
    v2_group = "/"
    if v2 is not None:
        v2_group = _visible_group(v2, v2_path, pid, root)
        unified = rooted(root, v2.point) + ("" if v2_group == "/" else v2_group)
    if v1 is not None:
        mount = rooted(root, v1.point)
        kind = CgroupKind.V1 if v2 is None else CgroupKind.HYBRID
        memory = os.path.exists(f"{mount}/memory.limit_in_bytes")
        return Hierarchy(kind, memory, mount, _visible_group(v1, v1_path, pid, root), unified)
    if v2 is not None:
        found = Hierarchy(CgroupKind.V2, False, rooted(root, v2.point), v2_group, unified)
        return Hierarchy(CgroupKind.V2, _v2_controls(found), found.mount, found.group, unified)
    return Hierarchy(CgroupKind.V1, False, rooted(root, mounts[0].point), "/", None)


def directories(group: str, root: str = "/") -> tuple[str, ...]:
    """Where the group ``group`` (a path below the mount, "/ai_inference") is: v2 first, then the v1 hierarchies that
    have it. () while there is no such group."""
    mounts = sorted(_mounts(root), key=lambda mount: not mount.is_v2)
    paths = (rooted(root, mount.point) + _below(mount, group) for mount in mounts)
    return tuple(path for path in paths if os.path.isdir(path))


def members(group: str, root: str = "/") -> tuple[int, ...]:
    """The pids of the processes in ``group`` and its descendants, in the first hierarchy that has any."""
    for directory in directories(group, root):
        found = members_of(directory)
        if found:
            return found
    return ()


def members_of(directory: str) -> tuple[int, ...]:
    """The pids of the processes in the group at ``directory`` and its descendants, ascending."""
    found: set[int] = set()
    for path, _, _ in os.walk(directory):
        data = read_file(f"{path}/cgroup.procs", 1 << 20) or b""
        found.update(pid for pid in map(number, data.split()) if pid)
    return tuple(sorted(found))


def _below(mount: _Mount, group: str) -> str:
    """``group`` as a path below the mount point: a container has only a part of the hierarchy mounted."""
    if mount.root != "/" and group.startswith(mount.root + "/"):
        return group[len(mount.root) :]
    return group


def parse_proc_cgroup(data: bytes) -> tuple[str, str]:
    """The v2 path and the v1 memory path in a /proc/PID/cgroup file; "/" where the file does not say."""
    v2 = v1 = "/"
    for line in data.split(b"\n"):
        number, _, rest = line.partition(b":")
        controllers, separator, path = rest.partition(b":")
        if not separator or not path.startswith(b"/"):
            continue
        # " (deleted)" is appended while a process of a removed group is still being torn down.
        text = os.fsdecode(path.removesuffix(b" (deleted)"))
        if number == b"0" and not controllers:
            v2 = text
        elif b"memory" in controllers.split(b","):
            v1 = text
    return v2, v1


def _v2_controls(hierarchy: Hierarchy) -> bool:
    controllers = read_file(f"{hierarchy.mount}/cgroup.controllers", 4096) or b""
    if b"memory" in controllers.split():
        return True
    # A container's top group may hide cgroup.controllers; the files themselves are proof enough.
    return any(os.path.exists(f"{hierarchy.directory_of(group)}/memory.current") for group in hierarchy.chain())


def _visible_group(mount: _Mount, path: str, pid: int | None, root: str) -> str:
    """``path`` of /proc/PID/cgroup as a group below the mount point; "/" if it lies outside of what is mounted.

    In a container without a cgroup namespace the path is the host's (/docker/ID) while only that group is mounted:
    the mounted part is cut off, and where it is not known, leading parts are dropped until the directory exists.
    """
    point = rooted(root, mount.point)
    if "/.." in path:
        return _outside_namespace(point, path, pid)
    if mount.root != "/" and (path == mount.root or path.startswith(mount.root + "/")):
        path = path[len(mount.root) :] or "/"
    path = path.rstrip("/") or "/"
    while path != "/" and not os.path.isdir(point + path):
        _, _, rest = path[1:].partition("/")
        path = "/" + rest
    return path


def _outside_namespace(point: str, path: str, pid: int | None) -> str:
    """A path like "/../other": the process is outside of our cgroup namespace, its group is usually not mounted here.

    It may be (the host's tree is often mounted into a container): then the members of the group with the same name
    prove it. Otherwise the top group stands in, whose limits hold for us if not for the process.
    """
    parts = [part for part in path.split("/") if part and part != ".."]
    group = "/" + "/".join(parts)
    members = read_file(f"{point}{group}/cgroup.procs") if parts else None
    wanted = str(os.getpid() if pid is None else pid).encode()
    return group if members is not None and wanted in members.split() else "/"


def _mounts(root: str) -> list[_Mount]:
    """The cgroup mounts, in mount order."""
    data = read_file(rooted(root, "/proc/self/mountinfo"))
    if data is not None:
        return _parse_mountinfo(data)
    return _parse_mounts(read_file(rooted(root, "/proc/mounts")) or b"")


def _parse_mountinfo(data: bytes) -> list[_Mount]:
    found = []
    for line in data.split(b"\n"):
        before, separator, after = line.partition(b" - ")
        fields, tail = before.split(b" "), after.split(b" ")
        if separator and len(fields) >= 6 and len(tail) >= 3 and tail[0] in (b"cgroup", b"cgroup2"):
            options = tuple(os.fsdecode(tail[2]).split(","))
            found.append(_Mount(_unescape(fields[3]), _unescape(fields[4]), options, tail[0] == b"cgroup2"))
    return found


def _parse_mounts(data: bytes) -> list[_Mount]:
    found = []
    for line in data.split(b"\n"):
        fields = line.split(b" ")
        if len(fields) >= 4 and fields[2] in (b"cgroup", b"cgroup2"):
            options = tuple(os.fsdecode(fields[3]).split(","))
            found.append(_Mount("/", _unescape(fields[1]), options, fields[2] == b"cgroup2"))
    return found


def _unescape(word: bytes) -> str:
    """A path of the mount table: white space and backslash are written as three octal digits."""
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        word = word.replace(code, char)
    return os.fsdecode(word)
