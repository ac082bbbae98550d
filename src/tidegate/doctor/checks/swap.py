"""Swap: zram that eats the RAM it stands for, swap on cards, and workers that lie in it."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.host.swap import SwapArea
from tidegate.units import format_size

#: "warn above half to three quarters of the RAM": a 2 GB board stalled for ten minutes with as much zram as RAM.
_LARGE_ZRAM = 0.5
#: Below it a zram swap is what a guide would advise, as long as its pool is small.
_SOME_ZRAM = 0.25
_MUCH_POOL = 0.1
_SWAPPED_OUT = 0.5
_CARDS = ("/dev/mmcblk", "/dev/sd", "/var/swap", "/swapfile", "/swap")


def check(board: Board) -> Iterator[Finding]:
    """zram first, then storage, then who is in it."""
    if not board.total:
        return
    yield from _zram(board)
    for area in board.swaps:
        if not area.is_zram and area.path.startswith("/dev/mmcblk"):
            yield _card(board, area, "an SD card or eMMC")
        elif not area.is_zram and area.kind == "file" and board.is_raspberry_pi:
            yield _card(board, area, "a file, on a Raspberry Pi mostly the SD card")
    yield from _swapped_out(board)


def _zram(board: Board) -> Iterator[Finding]:
    areas = [area for area in board.swaps if area.is_zram]
    size = max(sum(area.size for area in areas), sum(device.size for device in board.zram) if areas else 0)
    pool = sum(device.ram or 0 for device in board.zram) or sum(area.ram_used or 0 for area in areas)
    if not size or (size < board.total * _SOME_ZRAM and pool < board.total * _MUCH_POOL):
        return
    # A limit bounds what the pool may take, so the size on paper does no harm.
    limit = sum(device.limit for device in board.zram if device.limit)
    large = size >= board.total * _LARGE_ZRAM and not 0 < limit < board.total * _LARGE_ZRAM
    used = sum(area.used for area in areas)
    evidence = (
        f"/proc/swaps: {', '.join(area.path for area in areas)} {format_size(size)} ({size / board.total:.0%} of "
        "the RAM), "
        f"{format_size(used)} in use"
    )
    if pool:
        evidence += f"; mem_used_total {format_size(pool)} of RAM in /sys/block/zram*/mm_stat"
        evidence += f" for {format_size(used)}" if used else ""
    if limit:
        evidence += f"; mem_limit {format_size(limit)}"
    device = areas[0].path.removeprefix("/dev/")
    half = board.total // 2 // len(areas) >> 20
    yield Finding(
        id="swap.zram",
        severity=Severity.WARNING if large or pool >= board.total * _MUCH_POOL else Severity.INFO,
        summary=f"zram swap as large as {size / board.total:.0%} of the RAM: its free space is no headroom",
        evidence=evidence,
        why="what is swapped to zram stays in RAM, compressed; KV caches and quantised weights hardly compress, so the "
        "pool eats what it was to save, and the board stalls for minutes before SwapFree reaches 0 and anything "
        "is killed",
        fix=f"at most half of the RAM: zram-size = ram / 2 in /etc/systemd/zram-generator.conf (or {device}: disksize "
        f"{half}M, echo {half}M > /sys/block/{device}/mem_limit)"
        + ("; memory.swap.max = 0 for the server" if board.can_limit_swap else ""),
    )


def _card(board: Board, area: SwapArea, what: str) -> Finding:
    swappiness = board.sysctls.get("vm.swappiness", 60)
    # The sysctl itself is named by the check of swappiness.
    return Finding(
        id="swap.card",
        severity=Severity.WARNING if area.used > board.total // 20 else Severity.INFO,
        summary=f"swap on slow storage: {area.path}, {what}",
        evidence=f"/proc/swaps: {area.path} {format_size(area.size)}, {format_size(area.used)} in use; vm.swappiness="
        f"{swappiness}",
        why="under pressure load climbs and logins die before anything is killed; a process that was told to end "
        "has to "
        "be paged in to die, so only SIGKILL of the whole group helps",
        fix=f"swapoff {area.path}, and zram of at most half of the RAM in its place"
        + ("; or MemorySwapMax=0 for the server" if board.can_limit_swap else ""),
    )


def _swapped_out(board: Board) -> Iterator[Finding]:
    for row in board.processes:
        memory = row.memory
        if memory.swap > board.total * 0.05 and memory.swap > (memory.rss_anon + memory.swap) * _SWAPPED_OUT:
            yield Finding(
                id="swap.process",
                severity=Severity.WARNING,
                summary=f"{row.name} (pid {row.pid}) lies in swap: VmSwap {format_size(memory.swap)}",
                evidence=f"/proc/{row.pid}/status: VmSwap {memory.swap >> 10} kB, RssAnon {memory.rss_anon >> 10} kB",
                why="its resident size looks harmless, while the board reads and writes it all the time; what "
                "counts is "
                "RssAnon + VmSwap",
                fix="restart it"
                + ("; MemorySwapMax=0 in its unit keeps it out of swap" if board.can_limit_swap else "; less swap"),
            )
