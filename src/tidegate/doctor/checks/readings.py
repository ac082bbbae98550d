"""What /proc/meminfo says that cannot be: each such line is read in a safe way, and said."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity


def check(board: Board) -> Iterator[Finding]:
    """No usable /proc/meminfo; single lines out of range; no MemAvailable."""
    if board.info is None:
        yield Finding(
            id="readings.meminfo",
            severity=Severity.CRITICAL,
            summary="/proc/meminfo cannot be used: how much memory there is, is not known",
            evidence=board.problem,
            why="without MemTotal nothing can be guarded",
            fix="mount -t proc proc /proc",
        )
        return
    for note in board.info.notes:
        yield Finding(
            id="readings.line",
            severity=Severity.WARNING,
            summary=f"/proc/meminfo: {note}",
            evidence=f"the line {note.split(' ', 1)[0]} of /proc/meminfo is not what a kernel prints"
            + ("; lxcfs, which makes this file in a container, subtracts below zero" if "wrapped" in note else ""),
            why="a guard that takes it as printed sees endless memory, or none, or ends with an error of its own",
            fix=f"nothing has to be done for tidegate; other guards here must not rely on {note.split(' ', 1)[0]}"
            + (" (lxcfs: update it on the host)" if "wrapped" in note else ""),
        )
    if board.info.swap_free > board.info.swap_total:
        yield Finding(
            id="readings.swap",
            severity=Severity.WARNING,
            summary="SwapFree is above SwapTotal",
            evidence=f"SwapFree {board.info.swap_free >> 10} kB, SwapTotal {board.info.swap_total >> 10} kB",
            why="swap in use would come out below zero; it is read as 0",
            fix="nothing has to be done for tidegate, for which free swap is no headroom",
        )
    if board.info.available_source != "MemAvailable" and "MemAvailable" not in " ".join(board.info.notes):
        yield Finding(
            id="readings.available",
            severity=Severity.INFO,
            summary="there is no MemAvailable: available memory is estimated",
            evidence=f"/proc/meminfo has no such line; estimated {board.info.available >> 10} kB from MemFree, "
            "the file "
            "pages and the low watermarks, as the kernel does since 3.14",
            why="the estimate was within 5 % of the RAM of the kernel's own figure on every board it was compared on",
            fix="a kernel of 3.14 or later, or a container that does not hide the line",
        )
