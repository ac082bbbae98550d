"""Why memory is short: the worker grows, it thrashes, it is throttled to death, or somebody else takes it."""

from __future__ import annotations

from enum import StrEnum

from tidegate.frozen import frozen


class Diagnosis(StrEnum):
    """The cause; each has its own cure."""

    NONE = "none"
    GROWTH = "growth"
    THRASH = "thrash"
    LIVELOCK = "livelock"
    ELSEWHERE = "elsewhere"


@frozen
class Baseline:
    """Use at the moment the worker became ready, in bytes."""

    axis_used: int
    worker_bytes: int


@frozen
class StallWindow:
    """Reclaim evidence over the last seconds. Ratios are 0 to 1, rates are per second; None = cannot be read here.

    ``psi_full`` is the share of the window in which every task was stalled on memory (the worker's cgroup where it has
    one, else the system). ``refault_bytes`` are file pages read back after they had been dropped.
    """

    seconds: float
    psi_full: float | None = None
    refault_bytes: float | None = None
    steal_per_scan: float | None = None
    high_events: float | None = None
    max_events: float | None = None
    oom_kills: float | None = None


#: Stalls shorter than this are ordinary reclaim.
_LEAST_STALL_S = 3.0
#: A pass over hot weights that no longer fit reads them back at disk speed; an SD card gives 20-90 MB/s.
_THRASH_REFAULT = 16e6
_THRASH_PSI_FULL = 0.40
_LIVELOCK_PSI_FULL = 0.50
#: A livelocked cgroup was measured at 3 % (556,267 `high` events, no kill, 90 minutes).
_LIVELOCK_STEAL = 0.05


def diagnose(
    *, pressed: bool, axis_used: int, worker_bytes: int, baseline: Baseline | None, stall: StallWindow
) -> Diagnosis:
    """The cause of pressure, or ``NONE``.

    ``pressed`` is whether the level is above normal; ``axis_used`` and ``worker_bytes`` are bytes now. PSI alone never
    makes a verdict: thrash needs refaults beside it, livelock needs failing reclaim and climbing `high` events.
    """
    if is_livelock(stall):
        return Diagnosis.LIVELOCK
    if pressed and is_thrash(stall):
        return Diagnosis.THRASH
    if not pressed or baseline is None:
        return Diagnosis.NONE
    rise = axis_used - baseline.axis_used
    grown = worker_bytes - baseline.worker_bytes
    if rise <= 0 and grown <= 0:
        return Diagnosis.NONE
    return Diagnosis.GROWTH if grown * 2 >= rise else Diagnosis.ELSEWHERE


def is_thrash(stall: StallWindow) -> bool:
    """Working set does not fit: every task stalls while dropped file pages are read back."""
    return (
        stall.seconds >= _LEAST_STALL_S
        and stall.psi_full is not None
        and stall.refault_bytes is not None
        and stall.psi_full >= _THRASH_PSI_FULL
        and stall.refault_bytes >= _THRASH_REFAULT
    )


def is_livelock(stall: StallWindow) -> bool:
    """Throttled by memory.high without progress: `high` climbs, reclaim frees nothing, nothing is ever killed."""
    return (
        stall.seconds >= _LEAST_STALL_S
        and stall.psi_full is not None
        and stall.steal_per_scan is not None
        and stall.high_events is not None
        and stall.psi_full >= _LIVELOCK_PSI_FULL
        and stall.steal_per_scan < _LIVELOCK_STEAL
        and stall.high_events > 0
        and not stall.max_events
        and not stall.oom_kills
    )
