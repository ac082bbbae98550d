"""Mapped model weights: the kernel counts them as available, and a worker cannot do without them."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.units import format_size

#: Programs and libraries of a board without a desktop come to 100-300 MB; above this it is a model.
_MUCH_OF_AVAILABLE = 0.25


def check(board: Board) -> Iterator[Finding]:
    """Mapped against MemAvailable."""
    info = board.info
    if info is None or board.is_container or not info.available:
        return
    if info.mapped < info.available * _MUCH_OF_AVAILABLE or info.mapped < board.total // 10:
        return
    yield Finding(
        id="weights.mapped",
        severity=Severity.INFO,
        summary=f"MemAvailable counts mapped pages as free: {format_size(info.mapped)} are in use by running programs",
        evidence=f"Mapped {info.mapped >> 10} kB, MemAvailable {info.available >> 10} kB",
        why="mapped weights are file pages that every token needs: refaults begin at 88 % in use, and at 92 % a "
        "pass over "
        "them goes from 5 to 190 ms (measured), long before MemAvailable reaches 0",
        fix=f"reckon with {format_size(max(0, info.available - info.mapped))}, as tidegate does; leave swappiness and "
        "memory.reclaim alone",
    )
