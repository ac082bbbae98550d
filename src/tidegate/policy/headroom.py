"""How much memory is left, on every axis that can run out. Pure: the readings come in, axes go out.

The weights of a model are mapped file pages. The kernel counts half or more of them as available, but a worker that
has to read them again from disk is as slow as a dead one: measured on a 640 MB board, refaults begin at 88 % and a pass
over the weights goes from 5 to 190 ms at 92 %. So the worker's hot mapped weights count as used.
"""

from __future__ import annotations

from tidegate.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tidegate.host.cgroup_memory import GroupReading
    from tidegate.host.meminfo import MemInfo

SYSTEM = "system"
BUDGET = "budget"
COMMIT = "commit"


@frozen
class Axis:
    """One way to run out: "system", "cgroup:/path", "budget" or "commit". All sizes are bytes >= 0.

    ``available`` is ``limit - used``, not below 0; ``used`` may be above ``limit`` (memory.high is a brake, no wall).
    """

    name: str
    limit: int
    used: int
    available: int

    @property
    def ratio(self) -> float:
        """The share in use, 0.0 and up; a limit of 0 is full."""
        return self.used / self.limit if self.limit > 0 else 1.0

    def to_json(self) -> dict[str, str | int | float]:
        """The axis as the status shows it."""
        return {
            "name": self.name,
            "limit_bytes": self.limit,
            "used_bytes": self.used,
            "available_bytes": self.available,
            "used_ratio": round(self.ratio, 4),
        }


def _axis(name: str, limit: int, used: int) -> Axis:
    used = max(0, used)
    return Axis(name, limit, used, max(0, limit - used))


def system_axis(meminfo: MemInfo, hot_file: int = 0) -> Axis:
    """The whole machine: MemAvailable less ``hot_file`` bytes of mapped weights that must stay resident."""
    available = max(0, min(meminfo.available, meminfo.total) - max(0, hot_file))
    return Axis(SYSTEM, meminfo.total, meminfo.total - available, available)


def group_axis(reading: GroupReading, hot_file: int = 0) -> Axis | None:
    """A limited group: limit - (current - what can be reclaimed); None if it has no limit now.

    Reclaimable are the file LRUs and reclaimable slab, less the hot weights. Weights are charged to the group that
    touched them first, which may be another one, so no more than this group's own mapped file pages count as hot.
    """
    if reading.limit is None:
        return None
    lru = reading.inactive_file + reading.active_file
    hot = min(max(0, hot_file), reading.file_mapped, lru)
    used = reading.current - (lru - hot) - reading.slab_reclaimable
    return _axis(f"cgroup:{reading.path}", reading.limit, used)


def budget_axis(budget: int, worker_memory: int) -> Axis:
    """The worker's own budget. ``worker_memory``: RssAnon + RssShmem + VmSwap, or its group's anon + shmem + swap."""
    return _axis(BUDGET, budget, worker_memory)


def commit_axis(meminfo: MemInfo) -> Axis:
    """What may still be allocated under vm.overcommit_memory=2: beyond CommitLimit every allocation fails at once.

    Only meaningful in that mode; in the others Committed_AS is routinely above CommitLimit.
    """
    return _axis(COMMIT, meminfo.commit_limit, meminfo.committed_as)


def axes(
    meminfo: MemInfo,
    groups: Iterable[GroupReading],
    *,
    hot_file: int = 0,
    budget: int | None = None,
    worker_memory: int = 0,
    own_fences: Collection[str] = (),
    strict_commit: bool = False,
) -> tuple[Axis, ...]:
    """Every axis, system first. Sizes are bytes.

    ``groups`` are the limited ancestors; those whose path is in ``own_fences`` were limited by tidegate itself and are
    no axis. ``budget`` None: no such axis. ``strict_commit``: vm.overcommit_memory is 2.
    """
    found = [system_axis(meminfo, hot_file)]
    if strict_commit and meminfo.commit_limit > 0:
        found.append(commit_axis(meminfo))
    for reading in groups:
        if reading.path not in own_fences:
            axis = group_axis(reading, hot_file)
            if axis is not None:
                found.append(axis)
    if budget is not None:
        found.append(budget_axis(budget, worker_memory))
    return tuple(found)


def nearest(found: tuple[Axis, ...]) -> Axis:
    """The axis with the highest share in use; of equals the one with the fewest bytes left.

    Raises:
        ValueError: no axis at all.
    """
    return max(found, key=lambda axis: (axis.ratio, -axis.available))


def headroom(found: tuple[Axis, ...]) -> int:
    """The fewest bytes left on any axis: how much may be allocated before the first limit is reached.

    Raises:
        ValueError: no axis at all.
    """
    return min(axis.available for axis in found)
