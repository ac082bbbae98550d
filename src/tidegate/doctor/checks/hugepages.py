"""RAM that was set aside for huge pages and can be used for nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.units import format_size

_MUCH = 0.05


def check(board: Board) -> Iterator[Finding]:
    """More than a twentieth of the RAM; free ones are the pity."""
    size = board.lines.get("Hugepagesize", 0)
    total, free = board.lines.get("HugePages_Total", 0), board.lines.get("HugePages_Free", 0)
    held = max(board.lines.get("Hugetlb", 0), total * size)
    if not board.total or held < board.total * _MUCH:
        return
    idle = min(free, total) * size
    yield Finding(
        id="hugepages.reserved",
        severity=Severity.WARNING if idle >= board.total * _MUCH else Severity.INFO,
        summary=f"{format_size(held)} of the RAM is reserved as hugepages (HugePages_Total {total})",
        evidence=f"HugePages_Total {total}, HugePages_Free {free}, Hugepagesize {size >> 10} kB, Hugetlb "
        f"{held >> 10} kB: "
        f"{format_size(idle)} of it is idle",
        why="reserved huge pages are neither free nor reclaimable, and llama.cpp does not use them; they are in no "
        "process's size either",
        fix="sysctl -w vm.nr_hugepages=0 (and out of /etc/sysctl.d, hugepages= out of the boot command line), unless a "
        "database or DPDK needs them",
    )
