"""Every line of /proc/meminfo, for who looks once and at everything: :mod:`tidegate.host.meminfo` keeps a few, fast."""

from __future__ import annotations

from tidegate.host.files import number, read_file, rooted

# 2**50 kB is 2**60 bytes, the most that tidegate.units accepts as a size; what is above has wrapped below zero.
_MOST_KB = 1 << 50


def parse_memory_lines(data: bytes) -> dict[str, int]:
    """Name -> bytes, or a plain count for a line without a unit (HugePages_Total). Lines that are no number, or out of
    range, are left out; of a name that comes twice the first counts. Never raises."""
    found: dict[str, int] = {}
    for line in data.split(b"\n"):
        name, _, rest = line.partition(b":")
        words = rest.split()
        if not name.isascii() or not 1 <= len(words) <= 2 or words[1:] not in ([], [b"kB"]):
            continue
        amount = number(words[0])
        if amount is not None and amount < _MOST_KB:
            found.setdefault(name.decode("ascii"), amount << 10 if len(words) == 2 else amount)
    return found


def read_memory_lines(root: str = "/") -> dict[str, int]:
    """The lines of /proc/meminfo below ``root``; {} where there is none."""
    return parse_memory_lines(read_file(rooted(root, "/proc/meminfo"), 65536) or b"")
