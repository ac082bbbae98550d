"""When the kernel begins to make room, and by what: swappiness, min_free_kbytes, watermark_scale_factor."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.setup.sysctls import SWAPPINESS, SWAPPINESS_EVEN, SWAPPINESS_ZRAM
from tidegate.units import format_size

#: Not that of tidegate setup, and after it.
_FILE = "/etc/sysctl.d/90-memory.conf"
#: Documentation/admin-guide/sysctl/vm.rst: below it the system "will become subtly broken, and prone to deadlock".
_LEAST_MIN_FREE = 1024
_MOST_MIN_FREE = 0.05
_DEFAULT_SCALE = 10
_WANTED_SCALE = 125


def check(board: Board) -> Iterator[Finding]:
    """The sysctls that are there and out of place. Sysctls in a container are the host's."""
    if not board.total or board.is_container:
        return
    yield from _swappiness(board)
    yield from _min_free(board)
    scale = board.sysctls.get("vm.watermark_scale_factor")
    if scale is not None and scale <= _DEFAULT_SCALE and board.total >= 4 << 30:
        yield Finding(
            id="reclaim.watermark_scale_factor",
            severity=Severity.INFO,
            summary=f"vm.watermark_scale_factor={scale}: kswapd begins late",
            evidence=f"vm.watermark_scale_factor={scale}: {scale / 100:.1f} % of the RAM, "
            f"{format_size(board.total * scale / 10000)}, lie between its low and high marks",
            why="a model that loads at 1 GiB/s passes them in the blink of an eye, and every task then reclaims "
            "for itself",
            fix=f"sysctl -w vm.watermark_scale_factor={_WANTED_SCALE}, and vm.watermark_scale_factor = "
            f"{_WANTED_SCALE} in "
            f"{_FILE}",
        )


def _swappiness(board: Board) -> Iterator[Finding]:
    value = board.sysctls.get("vm.swappiness")
    if value is None or not board.swaps:
        return
    if all(area.is_zram for area in board.swaps):
        if value <= SWAPPINESS_EVEN:
            yield Finding(
                id="reclaim.swappiness",
                severity=Severity.INFO,
                summary=f"vm.swappiness={value} with zram alone: mapped weights are dropped where idle pages could "
                "be packed",
                evidence=f"vm.swappiness={value}; swap: {', '.join(area.path for area in board.swaps)}",
                why="zram is faster than reading weights from disk again; above 100 the kernel prefers it",
                fix=f"sysctl -w vm.swappiness={SWAPPINESS_ZRAM}, and vm.swappiness = {SWAPPINESS_ZRAM} in {_FILE}; "
                "vm.page-cluster = 0 beside it",
            )
        return
    if value > SWAPPINESS:
        slow = [area.path for area in board.swaps if not area.is_zram]
        yield Finding(
            id="reclaim.swappiness",
            severity=Severity.INFO if board.info is not None and board.info.swap_total < 64 << 20 else Severity.WARNING,
            summary=f"vm.swappiness={value} with swap on storage",
            evidence=f"vm.swappiness={value}; swap: {', '.join(slow)}",
            why="KV caches are swapped out while they are in use: seconds a token, the card wears out, and a "
            "process that "
            "was told to end is paged in first to die",
            fix=f"sysctl -w vm.swappiness={SWAPPINESS}, and vm.swappiness = {SWAPPINESS} in {_FILE}"
            + ("; memory.swap.max = 0 (MemorySwapMax=0) for the server" if board.can_limit_swap else ""),
        )


def _min_free(board: Board) -> Iterator[Finding]:
    value = board.sysctls.get("vm.min_free_kbytes")
    if value is None:
        return
    default = min(max(int(4 * (board.total >> 10) ** 0.5), 128), 262144)
    share = (value << 10) / board.total
    if value < _LEAST_MIN_FREE:
        said, why = "is below 1024", "the kernel calls that subtly broken and prone to deadlock under load"
    elif share > _MOST_MIN_FREE:
        said = f"keeps {share:.0%} of the RAM free"
        why = "all of it is lost for models, and near it the OOM killer strikes although that much is free"
    else:
        return
    yield Finding(
        id="reclaim.min_free_kbytes",
        severity=Severity.WARNING,
        summary=f"vm.min_free_kbytes={value} {said}",
        evidence=f"vm.min_free_kbytes={value}; the kernel's own default for this board is about {default}",
        why=why,
        fix=f"sysctl -w vm.min_free_kbytes={max(default, 16384)}, and vm.min_free_kbytes = {max(default, 16384)} "
        f"in {_FILE}",
    )
