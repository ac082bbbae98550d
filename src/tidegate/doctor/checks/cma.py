"""The contiguous area (CMA) that cameras, video and display take their buffers from."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.units import format_size

#: Raspberry Pi and most boards reserve 64 MB, under 1 % of 8 GB: nothing to say about.
_LARGE = 0.02
_NEARLY_USED = 0.1


def check(board: Board) -> Iterator[Finding]:
    """Asked for and not there; nearly used up; large enough to be missed elsewhere."""
    total, free = board.lines.get("CmaTotal", 0), board.lines.get("CmaFree", 0)
    asked = [word for word in board.command_line if word.startswith(("cma=", "hugetlb_cma="))]
    if asked and "CmaTotal" in board.lines and total == 0 and asked[-1] not in ("cma=0", "cma=0M"):
        yield Finding(
            id="cma.not_reserved",
            severity=Severity.WARNING,
            summary=f"CMA was not reserved: {asked[-1]} failed at boot and CmaTotal is 0",
            evidence=f"/proc/cmdline has {asked[-1]}; CmaTotal 0 kB",
            why="every contiguous buffer (camera, video, display) fails although gigabytes are free: an area that does "
            "not fit below the device's address limit is not made smaller but left out",
            fix="a smaller cma= on the boot command line (cma=256M), then reboot; dmesg | grep -i cma tells what was "
            "reserved",
        )
    if not total:
        return
    evidence = f"CmaTotal {total >> 10} kB, CmaFree {free >> 10} kB"
    if asked:
        evidence += f"; /proc/cmdline has {asked[-1]}"
    if free < total * _NEARLY_USED:
        yield Finding(
            id="cma.used_up",
            severity=Severity.WARNING,
            summary="the contiguous area is nearly used up: CmaFree is under a tenth of CmaTotal",
            evidence=evidence,
            why="the next camera or dma-buf buffer fails with gigabytes free: the area is too small, or pinned pages "
            "cannot be moved out of it",
            fix="who holds it: /sys/kernel/debug/cma/*/used, /sys/kernel/debug/dma_buf/bufinfo; more: cma= on the boot "
            "command line",
        )
    elif board.total and total >= board.total * _LARGE:
        yield Finding(
            id="cma.large",
            severity=Severity.INFO,
            summary=f"CMA keeps {format_size(total)} of the RAM ({total / board.total:.0%}) for contiguous buffers",
            evidence=evidence,
            why="CmaFree counts as MemFree and MemAvailable, but KV caches and kernel memory cannot have all of "
            "it: only "
            "pages that can be moved go there",
            fix="if no camera or video buffer needs so much: a smaller cma= on the boot command line, then reboot; "
            "otherwise reckon with MemAvailable less CmaFree",
        )
