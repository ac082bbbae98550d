"""Swap areas, and what zram really costs.

zram "swap" is RAM: the pages are compressed, not gone. Its free space is no headroom.
"""

from __future__ import annotations

import os

from tidegate.frozen import frozen
from tidegate.host.files import number, read_file, rooted


@frozen
class SwapArea:
    """One line of /proc/swaps; ``size`` and ``used`` in bytes, ``kind`` "partition" or "file".

    ``ram_used``: bytes of RAM that a zram device takes for what is in it; None if it is no zram (or does not tell).
    """

    path: str
    kind: str
    size: int
    used: int
    priority: int
    is_zram: bool
    ram_used: int | None


def parse_swaps(data: bytes) -> list[tuple[str, str, int, int, int]]:
    """(path, kind, size, used, priority) of each area in /proc/swaps, sizes in bytes. Other lines are skipped."""
    found = []
    for line in data.split(b"\n")[1:]:
        # A path may contain spaces only as \040, so five words from the right are safe.
        words = line.rsplit(None, 4)
        if len(words) != 5:
            continue
        size, used = number(words[2]), number(words[3])
        priority = number(words[4].removeprefix(b"-"))
        if size is None or used is None or priority is None:
            continue
        path = os.fsdecode(words[0].replace(b"\\040", b" "))
        sign = -1 if words[4].startswith(b"-") else 1
        found.append((path, words[1].decode("ascii", "replace"), size << 10, used << 10, sign * priority))
    return found


def parse_mm_stat(data: bytes) -> int | None:
    """mem_used_total of /sys/block/zramN/mm_stat: bytes of RAM in use by the device, the third number
    (Documentation/admin-guide/blockdev/zram.rst), or None."""
    words = data.split()
    return number(words[2]) if len(words) >= 3 else None


def read_swaps(root: str = "/") -> tuple[SwapArea, ...]:
    """The swap areas in use; () where there are none. Never raises."""
    areas = []
    for path, kind, size, used, priority in parse_swaps(read_file(rooted(root, "/proc/swaps"), 65536) or b""):
        device = path.removeprefix("/dev/")
        is_zram = device.startswith("zram") and device[4:].isdigit()
        ram = None
        if is_zram:
            ram = parse_mm_stat(read_file(rooted(root, f"/sys/block/{device}/mm_stat"), 4096) or b"")
        areas.append(SwapArea(path, kind, size, used, priority, is_zram, ram))
    return tuple(areas)
