"""From looks to a judgement: nearest axis, fill rate, level, diagnosis, and the numbers that the ladder needs."""

from __future__ import annotations

import time

from tidegate.frozen import frozen
from tidegate.policy.diagnosis import Baseline, Diagnosis, diagnose, is_livelock, is_thrash
from tidegate.policy.forecast import Fill
from tidegate.policy.headroom import BUDGET, COMMIT, Axis, headroom, nearest
from tidegate.policy.ladder import AxisUse
from tidegate.policy.level import LEAD_SAMPLES, Level, LevelState, Lines, Reading, advance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.guard.sensors import Look, Sensors
    from tidegate.settings.model import MemorySettings


@frozen
class WorkerFacts:
    """What the judgement depends on: whether a worker loads, the bytes its profile is known to need, and the bytes it
    may take at once for a moment (a saved prompt and its copy)."""

    loading: bool
    known_bytes: int
    burst_bytes: int


class Judge:
    """Keeps the last look and what was concluded. ``level_time`` is Unix seconds, all other times are monotonic."""

    def __init__(self, sensors: Sensors, memory: MemorySettings, now: float) -> None:
        self.memory = memory
        self.level = LevelState(since=now)
        self.level_time = time.time()
        self.diagnosis = Diagnosis.NONE
        self.time_to_limit = float("inf")
        self.rate = 0.0
        self.worker_moved = False
        self._sensors = sensors
        self.last: Look = sensors.look(now)
        self._histories: dict[str, Fill] = {}
        self._baseline: dict[str, Baseline] = {}

    @property
    def nearest(self) -> Axis:
        """The axis with the highest share in use at the last look."""
        return nearest(self.last.axes)

    @property
    def headroom(self) -> int:
        """The fewest bytes left on any axis at the last look."""
        return headroom(self.last.axes)

    @property
    def worker_bytes(self) -> int:
        """Anonymous, shared and swapped bytes of the worker at the last look; 0 without one."""
        return 0 if self.last.worker is None else self.last.worker.unreclaimable

    @property
    def pressing(self) -> bool:
        """Whether critical holds at this moment, not only by its hold time."""
        stalled = self.level.level is Level.CRITICAL and self.diagnosis in (Diagnosis.THRASH, Diagnosis.LIVELOCK)
        return self.nearest.ratio >= self.memory.critical or self.level.leads >= LEAD_SAMPLES or stalled

    def glance(self, now: float) -> None:
        """Read again without judging: while a worker goes, the level has its own time."""
        self.last = self._sensors.look(now)

    def observe(self, now: float, facts: WorkerFacts) -> bool:
        """One look, and everything that follows from it. Whether the level changed."""
        before = self.worker_bytes
        self.glance(now)
        # 1 MiB: less is the engine's own breathing (threads, malloc arenas), not a request.
        self.worker_moved = abs(self.worker_bytes - before) >= 1 << 20
        self._forecast(now, facts)
        return self._judge(now, facts)

    def worker_is_ready(self, now: float) -> None:
        """A new worker stands: from here on growth is measured."""
        self.glance(now)
        self._baseline = {axis.name: Baseline(axis.used, self.worker_bytes) for axis in self.last.axes}

    def worker_is_gone(self, now: float) -> None:
        """The old worker is gone: its slope and its baseline say nothing any more."""
        self.glance(now)
        self._histories.clear()
        self._baseline.clear()

    def used_on(self, name: str) -> int | None:
        """Use of the axis ``name`` at the last look, or None if there is no such axis (any more)."""
        return next((axis.used for axis in self.last.axes if axis.name == name), None)

    def axis_uses(self) -> tuple[AxisUse, ...]:
        """The axes for the ladder, nearest first."""
        ordered = sorted(self.last.axes, key=lambda axis: axis.ratio, reverse=True)
        return tuple(
            AxisUse(
                axis.name,
                axis.limit,
                axis.used,
                min(axis.used, self._worker_part(axis)),
                counts_file=axis.name not in (BUDGET, COMMIT),
            )
            for axis in ordered
        )

    def _worker_part(self, axis: Axis) -> int:
        worker = self.last.worker
        if worker is None:
            return 0
        if axis.name == BUDGET:
            return worker.unreclaimable
        resident = worker.rss_anon + worker.rss_shmem
        return resident if axis.name == COMMIT else resident + self.last.hot_file

    def _forecast(self, now: float, facts: WorkerFacts) -> None:
        for axis in self.last.axes:
            self._histories.setdefault(axis.name, Fill()).add(now, axis.used)
        near = self.nearest
        foreign = self._histories.setdefault("foreign", Fill())
        foreign.add(now, near.used - self._worker_part(near))
        # Up to its known bytes the worker's growth is planned (the buffers of its first long prefill), not a flood.
        planned = self.worker_bytes <= facts.known_bytes
        history = foreign if planned else self._histories[near.name]
        burst = 0 if planned else facts.burst_bytes
        self.rate, self.time_to_limit = history.forecast(near.available, burst)

    def _judge(self, now: float, facts: WorkerFacts) -> bool:
        memory, before = self.memory, self.level
        lines = Lines(memory.warn, memory.critical, memory.release, memory.hold, memory.lead)
        stall = self.last.stall
        # Refaults alone are ordinary where memory is not short; a brake that holds the worker still is none of memory's
        # levels.
        stalled = is_livelock(stall) or (before.level is not Level.NORMAL and is_thrash(stall))
        reading = Reading(
            now,
            self.nearest.ratio,
            self.time_to_limit,
            loading=facts.loading,
            stalled=stalled,
        )
        self.level = advance(before, lines, reading)
        self.diagnosis = diagnose(
            pressed=self.level.level is not Level.NORMAL,
            axis_used=self.nearest.used,
            worker_bytes=self.worker_bytes,
            baseline=self._baseline.get(self.nearest.name),
            stall=stall,
        )
        if self.level.level is before.level:
            return False
        self.level_time = time.time()
        return True
