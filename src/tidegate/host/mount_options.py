"""With which options the unified cgroup hierarchy is mounted."""

from __future__ import annotations

import os

from tidegate.host.files import read_file, rooted


def parse_cgroup2_options(mounts: bytes) -> tuple[str, ...] | None:
    """The options of the first cgroup2 line of /proc/mounts, or None without one."""
    for line in mounts.split(b"\n"):
        fields = line.split(b" ")
        if len(fields) >= 4 and fields[2] == b"cgroup2":
            return tuple(os.fsdecode(fields[3]).split(","))
    return None


def read_cgroup2_options(root: str = "/") -> tuple[str, ...] | None:
    """The options of the cgroup2 mount ("memory_recursiveprot" ..), or None: there is none, or it cannot be seen."""
    for path in ("/proc/self/mounts", "/proc/mounts"):
        data = read_file(rooted(root, path))
        if data is not None:
            return parse_cgroup2_options(data)
    return None
