"""zram devices: compressed RAM that is given out as a disk, mostly for swap."""

from __future__ import annotations

import os

from tidegate.frozen import frozen
from tidegate.host.files import number, read_file, read_number, rooted
from tidegate.host.swap import parse_mm_stat


@frozen
class ZramDevice:
    """One device; sizes in bytes. ``size`` is what it offers, ``data`` what was written to it, ``ram`` what it takes of
    the RAM for that (None: it does not tell), ``limit`` the most it may take (0: no limit)."""

    name: str
    size: int
    data: int
    ram: int | None
    limit: int


def read_zram(root: str = "/") -> tuple[ZramDevice, ...]:
    """The devices that are set up, by name. Fields of mm_stat: Documentation/admin-guide/blockdev/zram.rst. Never
    raises."""
    base = rooted(root, "/sys/block")
    try:
        names = sorted(name for name in os.listdir(base) if name.startswith("zram") and name[4:].isdigit())
    except OSError:
        return ()
    found = []
    for name in names[:64]:
        size = read_number(f"{base}/{name}/disksize")
        if not size:
            continue
        stat = read_file(f"{base}/{name}/mm_stat", 4096) or b""
        words = [number(word) for word in stat.split()[:4]]
        data, limit = (words[0] or 0, words[3] or 0) if len(words) == 4 else (0, 0)
        found.append(ZramDevice(name, size, data, parse_mm_stat(stat), limit))
    return tuple(found)
