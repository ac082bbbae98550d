"""Which limits the kernel is to hold on the worker's cgroup, as its last line behind ours. Pure."""

from __future__ import annotations

from tidegate.frozen import frozen
from tidegate.settings.model import MAX_OVER_BUDGET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.settings.model import FenceSettings

#: Half of what everybody else has: a prefill takes every core that it can get.
_CPU_WEIGHT = 50
#: The kernel rounds limits down to whole pages.
_PAGE = 4096


@frozen
class Fences:
    """Values for the cgroup's files; None: the file is left alone. Sizes are bytes."""

    high: int | None = None
    max: int | None = None
    swap_max: int | None = None
    oom_group: bool | None = None
    cpu_weight: int | None = None

    def files(self) -> tuple[tuple[str, str], ...]:
        """(file, value) in the order in which they are written: nothing that reclaims before the swap limit stands."""
        values = (
            ("memory.swap.max", self.swap_max),
            ("memory.oom.group", None if self.oom_group is None else int(self.oom_group)),
            ("memory.max", self.max),
            ("memory.high", self.high),
            ("cpu.weight", self.cpu_weight),
        )
        return tuple((name, str(value)) for name, value in values if value is not None)


def own_fences(given: FenceSettings, *, budget: int | None, mapped: int) -> Fences:
    """The fences of a worker of ours: what is set, and the rest from ``budget``.

    ``mapped`` is bytes of weights that the engine maps: they are charged to its cgroup beside the budget's bytes, and a
    limit without room for them would have the kernel drop and read them again and again. memory.high has no default: it
    is a brake that holds a worker still without ever ending it (556,267 events, no kill, 90 minutes).
    """
    most = None if budget is None else budget + budget // MAX_OVER_BUDGET + mapped
    return Fences(
        high=_whole_pages(given.high),
        max=_whole_pages(given.max if given.max is not None else most),
        swap_max=0 if given.swap_max is None else _whole_pages(given.swap_max),
        oom_group=True if given.oom_group is None else given.oom_group,
        cpu_weight=_CPU_WEIGHT if given.cpu_weight is None else given.cpu_weight,
    )


def foreign_fences(given: FenceSettings) -> Fences:
    """The fences of a server that somebody else starts: what is set, and nothing more."""
    return Fences(
        high=_whole_pages(given.high),
        max=_whole_pages(given.max),
        swap_max=_whole_pages(given.swap_max),
        oom_group=given.oom_group,
        cpu_weight=given.cpu_weight,
    )


def _whole_pages(size: int | None) -> int | None:
    return None if size is None else size - size % _PAGE
