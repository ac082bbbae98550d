"""vm.overcommit_memory=2: allocations that fail with memory to spare, and no kill to show for it."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.units import format_size

#: What some guides advise: mode 2 with a ratio of 80.
_ADVISED_RATIO = 80


def check(board: Board) -> Iterator[Finding]:
    """Mode 2 in force; and where it is not, whether following such a guide would break this board."""
    if board.info is None:
        return
    if board.sysctls.get("vm.overcommit_memory") == 2:
        yield _in_force(board)
        return
    limit = (board.total - board.lines.get("Hugetlb", 0)) * _ADVISED_RATIO // 100 + board.info.swap_total
    if board.info.committed_as > limit and not board.is_container:
        yield Finding(
            id="overcommit.advice",
            severity=Severity.INFO,
            summary="vm.overcommit_memory=2 with overcommit_ratio=80, as some guides advise, would break this board",
            evidence=f"Committed_AS is {format_size(board.info.committed_as)} already; CommitLimit would be "
            f"{format_size(limit)} (80 % of RAM and swap)",
            why="every allocation would fail at once, fork() too, although most of what is committed is never touched",
            fix="leave it: vm.overcommit_memory = 0",
        )


def _in_force(board: Board) -> Finding:
    assert board.info is not None
    limit, used = board.info.commit_limit, board.info.committed_as
    left = max(0, limit - used)
    ratio, fixed = board.sysctls.get("vm.overcommit_ratio", 50), board.sysctls.get("vm.overcommit_kbytes", 0)
    # The two exclude each other: whichever was written last sets the other to 0.
    by = f"overcommit_kbytes {fixed}" if fixed else f"overcommit_ratio {ratio}"
    close = left < board.available // 2 or left < limit // 10
    return Finding(
        id="overcommit.strict",
        severity=Severity.CRITICAL if close else Severity.WARNING,
        summary="vm.overcommit_memory=2: allocations fail at CommitLimit, not when memory runs out",
        evidence=f"Committed_AS {used >> 10} kB of CommitLimit {limit >> 10} kB ({by}): "
        f"{format_size(left)} left, while {format_size(board.available)} are available",
        why="KV caches, --no-mmap weights and fork() are counted in full before they are touched: a model does "
        "not load, "
        "or a server gets ENOMEM, with no OOM kill and nothing in dmesg. Mapped weights (mmap) cost nothing here",
        fix="sysctl -w vm.overcommit_memory=0, and vm.overcommit_memory = 0 in /etc/sysctl.d/90-memory.conf"
        f"; to keep it: vm.overcommit_ratio = {max(80, min(100, ratio + 30))} at least",
    )
