"""What reclaim has cost over the last seconds: of the worker's cgroup where it has one, else of the whole system."""

from __future__ import annotations

import os

from tidegate.frozen import frozen
from tidegate.host import cgroup_memory, psi, vmstat
from tidegate.host.files import read_file, read_word
from tidegate.policy.diagnosis import StallWindow

#: PSI counters are compared over this long; the kernel's averages move every 2 s.
_WINDOW_S = 3.0
#: Looks come every 10 ms while memory is short, and sooner with events.
_LEAST_APART_S = 0.009
_MOST_POINTS = 400
_PAGE = os.sysconf("SC_PAGESIZE")
#: How often it is asked anew which groups have a memory.high, while tasks stall.
_THROTTLES_EVERY_S = 1.0
#: Deeper than any real tree.
_MOST_LEVELS = 64


@frozen
class _Counters:
    """Counts since boot, or since the group was made. ``high`` .. are memory.events, None outside a cgroup."""

    refaults: int
    scanned: int
    stolen: int
    high: int | None = None
    max: int | None = None
    oom_kills: int | None = None


class Stalls:
    """One reading a look. The system's pressure needs *all* tasks to stall, which a single busy neighbour hides; a
    group's own does not."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._system = psi.HeldPressure.open(psi.pressure_path(root))
        self._group: psi.HeldPressure | None = None
        self._directory = ""
        self._throttles: tuple[str, ...] = ()
        self._throttles_at = float("-inf")
        self._points: list[tuple[float, int, _Counters | None]] = []

    @property
    def readable(self) -> bool:
        """Whether this kernel tells the pressure at all."""
        return self._system is not None

    @property
    def throttles(self) -> tuple[str, ...]:
        """The directories of the groups at and above the worker's that have a memory.high."""
        return self._throttles

    def follow(self, directory: str) -> None:
        """Read the v2 group at ``directory`` from now on; "": the system."""
        if directory == self._directory:
            return
        if self._group is not None:
            self._group.close()
        self._directory = directory
        self._group = psi.HeldPressure.open(f"{directory}/memory.pressure") if directory else None
        self._throttles = ()
        self._throttles_at = float("-inf")
        self._points.clear()

    def read(self, now: float) -> StallWindow:
        """The window that ends ``now``, in monotonic seconds."""
        pressure = self._group.read() if self._group is not None else None
        if pressure is None:
            if self._group is not None:
                # The group is gone: what the system says is no continuation of it.
                self.follow("")
            pressure = self._system.read() if self._system is not None else None
        if pressure is None:
            return StallWindow(0.0)
        # The counters cost 100 us: only while tasks do stall.
        moved = bool(self._points) and pressure.full_total_us > self._points[-1][1]
        counters = self._count(now) if moved else None
        points = self._points
        if len(points) > 1 and now - points[-1][0] < _LEAST_APART_S:
            # Events come up to 100 times a second: the window is to hold 3 s of them.
            points.pop()
        points.append((now, pressure.full_total_us, counters))
        while len(points) > 2 and (now - points[1][0] >= _WINDOW_S or len(points) > _MOST_POINTS):
            del points[0]
        start, full_before, _ = points[0]
        span = now - start
        if span <= 0:
            return StallWindow(0.0)
        share = min(1.0, max(0.0, (pressure.full_total_us - full_before) / 1e6 / span))
        known = [(time, values) for time, _, values in points if values is not None]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return StallWindow(span, psi_full=share)
        (first_time, first), (last_time, last) = known[0], known[-1]
        seconds = last_time - first_time
        scanned = last.scanned - first.scanned
        return StallWindow(
            span,
            psi_full=share,
            refault_bytes=(last.refaults - first.refaults) * _PAGE / seconds,
            # Without swap anonymous pages are not even scanned: rounds of reclaim that find nothing are no progress.
            steal_per_scan=(last.stolen - first.stolen) / scanned if scanned > 0 else 0.0,
            high_events=_rate(first.high, last.high, seconds),
            max_events=_rate(first.max, last.max, seconds),
            oom_kills=_rate(first.oom_kills, last.oom_kills, seconds),
        )

    def close(self) -> None:
        """Give every descriptor back."""
        self.follow("")
        if self._system is not None:
            self._system.close()

    def _count(self, now: float) -> _Counters | None:
        stat = read_file(f"{self._directory}/memory.stat", 65536) if self._directory else None
        if stat is None:
            counted = vmstat.read_vmstat(self._root)
            return None if counted is None else _Counters(counted.refault_file, counted.scanned, counted.stolen)
        values = cgroup_memory.parse_keyed(stat)
        if now - self._throttles_at >= _THROTTLES_EVERY_S:
            self._throttles_at = now
            found = throttles(self._directory)
            if found != self._throttles:
                # The sum over other groups is no continuation of the one before.
                self._points = [(time, total, None) for time, total, _ in self._points]
                self._throttles = found
        own = cgroup_memory.read_events(self._directory) or {}
        # A group's event is told to those above it, not to those below: each that throttles has to be asked.
        events = [cgroup_memory.read_events(directory) or {} for directory in self._throttles]
        return _Counters(
            values.get("workingset_refault_file", 0),
            values.get("pgscan", 0),
            values.get("pgsteal", 0),
            sum(each.get("high", 0) for each in events),
            own.get("max", 0),
            own.get("oom_kill", 0),
        )


def throttles(directory: str) -> tuple[str, ...]:
    """The directories of the v2 group at ``directory`` and of its ancestors that have a memory.high, nearest first."""
    found = []
    for _ in range(_MOST_LEVELS):
        high = read_word(f"{directory}/memory.high")
        if high is not None and high != b"max":
            found.append(directory)
        directory = os.path.dirname(directory)
        if not os.path.exists(f"{directory}/cgroup.controllers"):
            break
    return tuple(found)


def _rate(first: int | None, last: int | None, seconds: float) -> float | None:
    return None if first is None or last is None else max(0, last - first) / seconds
