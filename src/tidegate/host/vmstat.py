"""/proc/vmstat: the kernel's own counts of OOM kills, refaults and reclaim, since boot."""

from __future__ import annotations

from tidegate.frozen import frozen
from tidegate.host.files import number, read_file, rooted

#: Counters that were split by kind in 4.9-5.9 (refaults) and are split by reclaimer (scan, steal): summed up here.
_REFAULT = (b"workingset_refault_file", b"workingset_refault")
_SCAN = (b"pgscan_kswapd", b"pgscan_direct")
_STEAL = (b"pgsteal_kswapd", b"pgsteal_direct")


@frozen
class VmStat:
    """Counts since boot: OOM kills (None before Linux 4.13), file pages refaulted, pages scanned and stolen."""

    oom_kills: int | None
    refault_file: int
    scanned: int
    stolen: int


def parse_vmstat(data: bytes) -> VmStat:
    """The counters in ``data``; what is missing or no number counts 0. Never raises."""
    found: dict[bytes, int] = {}
    for line in data.split(b"\n"):
        key, _, value = line.partition(b" ")
        count = number(value)
        if count is not None:
            found[key] = count
    refault = next((found[key] for key in _REFAULT if key in found), 0)
    return VmStat(
        found.get(b"oom_kill"),
        refault,
        sum(found.get(key, 0) for key in _SCAN),
        sum(found.get(key, 0) for key in _STEAL),
    )


def read_vmstat(root: str = "/") -> VmStat | None:
    """The counters now, or None without /proc/vmstat. About 100 us: not for every look."""
    data = read_file(rooted(root, "/proc/vmstat"), 65536)
    return None if data is None else parse_vmstat(data)
