"""The summary of a board's memory: what is there, what controls it, and how much may still be taken."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tidegate.doctor.board import Board
from tidegate.policy.headroom import Axis, commit_axis, group_axis, system_axis


@dataclass(frozen=True)
class MemorySummary:
    """Sizes are kB, as in /proc/meminfo; None where the kernel does not say.

    ``mem_available_kb`` is the file's own value, ``mem_available_source`` "MemAvailable", or "estimate" without one.
    ``cgroup`` is "v2", "v1", "hybrid" or "none"; ``psi``: system pressure can be read. ``headroom_kb`` is what
    may still be taken before the nearest limit is reached, see :func:`headroom_axes`.
    """

    mem_total_kb: int | None
    mem_available_kb: int | None
    mem_available_source: str
    swap_total_kb: int
    swap_free_kb: int
    cgroup: str
    memory_controller: bool
    psi: bool
    headroom_kb: int

    def to_json(self) -> dict[str, str | int | bool | None]:
        """The summary as ``doctor --json`` prints it."""
        return asdict(self)


def headroom_axes(board: Board) -> tuple[Axis, ...]:
    """Every way to run out, system first; () where /proc/meminfo cannot be used.

    File pages that programs have mapped are no headroom: model weights are such pages, and reading them again from
    disk costs more than they give (refaults begin at 88 % in use, measured). In a group no more of them are taken off
    than its active file pages, because the inactive ones go first and cost least. memory.high counts like memory.max:
    a worker throttled at it is as good as dead. Free swap is no headroom.
    """
    if board.info is None:
        return ()
    found = [system_axis(board.info, board.info.mapped)]
    if board.sysctls.get("vm.overcommit_memory") == 2 and board.info.commit_limit > 0:
        found.append(commit_axis(board.info))
    limited = {limit.path for limit in board.limits}
    for group in board.chain:
        if group.reading.path in limited:
            axis = group_axis(group.reading, group.reading.active_file)
            if axis is not None:
                found.append(axis)
    return tuple(found)


def summarise(board: Board) -> MemorySummary:
    """The summary of ``board``."""
    info = board.info
    available = board.lines.get("MemAvailable")
    return MemorySummary(
        mem_total_kb=info.total >> 10 if info else None,
        mem_available_kb=None if available is None else available >> 10,
        mem_available_source=info.available_source if info else "none",
        swap_total_kb=info.swap_total >> 10 if info else 0,
        swap_free_kb=info.swap_free >> 10 if info else 0,
        cgroup=board.hierarchy.kind.value,
        memory_controller=board.hierarchy.memory,
        psi=board.pressure is not None,
        headroom_kb=min((axis.available for axis in headroom_axes(board)), default=0) >> 10,
    )
