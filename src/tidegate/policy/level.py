"""How high the water stands: normal, warn, critical, with a release below each line and a hold before it is left."""

from __future__ import annotations

from enum import IntEnum

from tidegate.frozen import frozen, replace


class Level(IntEnum):
    """Ordered: a higher level is more pressure."""

    NORMAL = 0
    WARN = 1
    CRITICAL = 2

    @property
    def label(self) -> str:
        """The name in status, headers and logs."""
        return self.name.lower()


#: Samples in a row whose forecast must reach the limit within ``lead`` before that alone makes the level critical:
#: one sample may be a page-cache hiccup, three at the fast rate are still only 30 ms.
LEAD_SAMPLES = 3


@frozen
class Lines:
    """Where the lines are: ratios of the nearest limit, ``hold`` and ``lead`` in seconds."""

    warn: float
    critical: float
    release: float
    hold: float
    lead: float


@frozen
class Reading:
    """What one look says. ``time`` is monotonic seconds; ``ratio`` is use of the nearest axis (may exceed 1);
    ``time_to_limit`` is the forecast in seconds (infinity when not rising); ``stalled`` is a verdict that the worker
    cannot go on: it thrashes, or is throttled to death."""

    time: float
    ratio: float
    time_to_limit: float = float("inf")
    loading: bool = False
    stalled: bool = False


@frozen
class LevelState:
    """The level and what is needed to leave it. ``below_*`` is since when use has been released from that line."""

    level: Level = Level.NORMAL
    since: float = 0.0
    below_warn: float | None = None
    below_critical: float | None = None
    leads: int = 0


def advance(state: LevelState, lines: Lines, reading: Reading) -> LevelState:
    """The level after ``reading``.

    A line is crossed at once; critical also by a forecast of ``LEAD_SAMPLES`` samples running within ``lead`` (never
    while a worker loads: a load is meant to be steep) and by a verdict of thrash or livelock. A level is left only when
    use has been ``release`` below its line for ``hold``, and then falls to the highest level that is not released yet.
    """
    now = reading.time
    leads = state.leads + 1 if reading.time_to_limit <= lines.lead and not reading.loading else 0
    pressing = reading.stalled or leads >= LEAD_SAMPLES
    below_critical = _below(state.below_critical, now, reading.ratio, lines.critical - lines.release, pressing)
    below_warn = _below(state.below_warn, now, reading.ratio, lines.warn - lines.release, pressing)

    if reading.ratio >= lines.critical or pressing:
        level = Level.CRITICAL
    elif state.level is Level.CRITICAL and not _held(below_critical, now, lines.hold):
        level = Level.CRITICAL
    elif reading.ratio >= lines.warn or (state.level is not Level.NORMAL and not _held(below_warn, now, lines.hold)):
        level = Level.WARN
    else:
        level = Level.NORMAL

    since = now if level is not state.level else state.since
    return replace(state, level=level, since=since, below_warn=below_warn, below_critical=below_critical, leads=leads)


def _below(since: float | None, now: float, ratio: float, line: float, pressing: bool) -> float | None:
    if ratio >= line or pressing:
        return None
    return now if since is None else since


def _held(since: float | None, now: float, hold: float) -> bool:
    return since is not None and now - since >= hold
