"""32-bit kernels: only low memory holds the kernel's own data, and it runs out with gigabytes free."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.units import format_size

_SHORT = 0.15


def check(board: Board) -> Iterator[Finding]:
    """HighTotal tells such a kernel."""
    low, free, high = (board.lines.get(name, 0) for name in ("LowTotal", "LowFree", "HighTotal"))
    if not high or not low:
        return
    short = free < low * _SHORT
    yield Finding(
        id="low_memory.zone",
        severity=Severity.WARNING if short else Severity.INFO,
        summary="a 32-bit kernel with HighMem: "
        + (f"low memory is nearly used up, LowFree {format_size(free)}" if short else "low memory is its own limit"),
        evidence=f"LowTotal {low >> 10} kB, LowFree {free >> 10} kB, HighTotal {high >> 10} kB, HighFree "
        f"{board.lines.get('HighFree', 0) >> 10} kB, Slab {board.lines.get('Slab', 0) >> 10} kB",
        why="page tables, slab and network buffers come from low memory alone: the OOM killer strikes with "
        "gigabytes of "
        "HighFree, and MemAvailable does not show it; a process has 3 GiB of addresses at most",
        fix="a 64-bit kernel (Raspberry Pi: arm_64bit=1 in config.txt); until then a smaller model",
    )
