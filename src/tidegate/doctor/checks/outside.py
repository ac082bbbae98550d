"""Memory outside every process: buffers of GPU, NPU, camera and video, which no kill of a process gives back."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.host.device_memory import EXPLAINED, unexplained
from tidegate.units import format_size

#: Below a tenth it may be what the kernel took at boot and drivers' ordinary buffers (pi5, stock: 2 %).
_MUCH = 0.1
#: Free blocks of 4 MiB and more, with 4 KiB pages: what a driver wants in one piece.
_LARGE_ORDER = 9


def check(board: Board) -> Iterator[Finding]:
    """What no line of /proc/meminfo explains; what drivers say; memory in pieces too small."""
    if not board.total:
        return
    pool = sum(device.ram or 0 for device in board.zram)
    rest = unexplained(board.lines, pool)
    told = "; ".join(f"{each.holder} {format_size(each.size)} ({each.source})" for each in board.devices)
    most = max((each.size for each in board.devices), default=0)
    if rest >= board.total * _MUCH and board.info is not None and "MemFree" in board.lines:
        processes = sum(row.memory.rss_anon + row.memory.rss_shmem for row in board.processes)
        evidence = (
            f"MemTotal {board.total >> 10} kB less {' '.join(EXPLAINED)}"
            + (f" and the zram pool ({pool >> 10} kB)" if pool else "")
            + f" leaves {rest >> 10} kB; AnonPages {board.info.anon_pages >> 10} kB"
            + (f", all processes together {processes >> 10} kB" if processes else "")
        )
        yield Finding(
            id="outside.device_memory",
            severity=Severity.WARNING,
            summary=f"{format_size(rest)} ({rest / board.total:.0%} of the RAM) is in no process and no cache: "
            f"{_holder(board)}",
            evidence=f"{evidence}; {told or 'no driver says how much it holds (debugfs is for root)'}",
            why="such buffers are in no RSS and in no cgroup's memory.current, so memory.max does not bound them; "
            "killing "
            "a process frees them only if it is the one that holds the device open, and the OOM killer cannot know",
            fix=_fix(board),
        )
    elif most >= board.total * _MUCH:
        yield Finding(
            id="outside.device_memory",
            severity=Severity.INFO,
            summary=f"devices hold {format_size(most)} of the RAM ({_holder(board)})",
            evidence=told,
            why="part of it is in no cgroup's memory.current: MemAvailable is the figure to go by, not the limit",
            fix=_fix(board),
        )
    yield from _fragmented(board)


def _holder(board: Board) -> str:
    if board.is_jetson:
        return "NvMap and dma-buf buffers of GPU and camera (CUDA takes its memory there)"
    if "rk3" in board.model.lower() or "rockchip" in board.release or "rk3" in board.release:
        return "dma-buf buffers of NPU (rknpu), GPU and video"
    if board.has_gpu and board.release and "amd64" in board.release:
        return "most likely graphics translation tables (GTT) and dma-buf buffers of the GPU"
    return (
        "most likely dma-buf buffers of GPU, NPU or video (on a Jetson: NvMap; on a PC: the GPU's translation tables)"
    )


def _fix(board: Board) -> str:
    look = "cat /sys/kernel/debug/dma_buf/bufinfo"
    if board.is_jetson:
        look += " /sys/kernel/debug/nvmap/iovmm/clients"
    return (
        f"see who holds it: {look} (root); restart that one, give it fewer or smaller buffers (camera, decoder, layers "
        "on the GPU or NPU), and let tidegate go by the system axis, not by the worker's size"
    )


def _fragmented(board: Board) -> Iterator[Finding]:
    blocks = board.free_blocks
    free = board.lines.get("MemFree", 0)
    if len(blocks) <= _LARGE_ORDER or any(blocks[_LARGE_ORDER:]) or free < board.total * _MUCH:
        return
    largest = max((order for order, count in enumerate(blocks) if count), default=0)
    yield Finding(
        id="outside.fragmented",
        severity=Severity.INFO,
        summary=f"free memory is in small pieces: the largest free block is of order {largest}",
        evidence=f"/proc/buddyinfo, all zones: {' '.join(map(str, blocks))}; MemFree {free >> 10} kB",
        why="one large buffer for a device may be refused with gigabytes free: that is no shortage, and nothing "
        "is killed",
        fix="echo 1 > /proc/sys/vm/compact_memory; smaller buffers, fewer layers on the GPU; a restart of the board",
    )
