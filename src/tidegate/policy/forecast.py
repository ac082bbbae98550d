"""How fast an axis fills, robustly, and when it would be full."""

from __future__ import annotations

#: Points kept for one window. 12 points make 66 slopes, about 20 us; at the fastest rate they span 120 ms.
POINTS = 12
#: Spacing of the slow window: 12 points span 1.2 s, enough to foresee 20 MB/s three seconds ahead.
SLOW_SPACING_S = 0.1
#: Older points say nothing about a burst that begins now.
WINDOW_S = 6.0
#: A forecast reaches at most twice as far as the rise was observed: it must already have taken half of what is left.
EVIDENCE = 0.5
#: Two looks closer than this differ by the page-batch noise of the counters, not by a rate.
_LEAST_APART_S = 0.004
#: A rise below 1 MB/s takes more than an hour to cross a Raspberry Pi: no forecast is made of it.
_LEAST_RATE = 1_000_000.0


class FillHistory:
    """The last points of one axis, oldest first, at least ``spacing`` seconds apart. Times are monotonic seconds,
    values bytes."""

    def __init__(self, spacing: float = 0.0) -> None:
        self._spacing = spacing
        self._points: list[tuple[float, int]] = []

    def add(self, time: float, used: int) -> None:
        """Append a point; one that comes too early (or whose time does not advance) is ignored, points out of the
        window are dropped."""
        points = self._points
        if points and (time <= points[-1][0] or time - points[-1][0] < self._spacing):
            return
        points.append((time, used))
        if len(points) > POINTS:
            del points[0]
        while time - points[0][0] > WINDOW_S and len(points) > 2:
            del points[0]

    @property
    def points(self) -> tuple[tuple[float, int], ...]:
        return tuple(self._points)


class Fill:
    """One axis over a fast and a slow window: bursts of gigabytes a second, and floods of tens of megabytes."""

    def __init__(self) -> None:
        self._windows = (FillHistory(), FillHistory(SLOW_SPACING_S))

    def add(self, time: float, used: int) -> None:
        """Append a point to both windows."""
        for window in self._windows:
            window.add(time, used)

    def forecast(self, available: int, burst: int = 0) -> tuple[float, float]:
        """Fill rate in bytes a second, and seconds until ``available`` bytes are gone; (0, infinity) without enough
        evidence. Of the two windows the one with the nearer end counts.

        ``burst`` is bytes that may come at once and are no flood: while llama.cpp saves a prompt it holds the old state
        and its copy. On a busy board 35 MiB of that took 0.3 s; extrapolated, it once reset a worker at 66 % of its
        budget and once at 78 %.
        """
        best = (0.0, float("inf"))
        for window in self._windows:
            points = window.points
            rate = fill_rate(points)
            if not points or rate * (points[-1][0] - points[0][0]) < max(EVIDENCE * available, burst):
                continue
            ahead = time_to(available, rate)
            if ahead < best[1]:
                best = (rate, ahead)
        return best


def fill_rate(points: tuple[tuple[float, int], ...]) -> float:
    """Bytes a second at which the axis fills: the median slope over all pairs (Theil-Sen), 0 below three points.

    The median ignores up to 29 % outliers (Theil 1950, Sen 1968), so a freed buffer or one late look does not move it.
    """
    if len(points) < 3:
        return 0.0
    slopes = []
    for number, (start, before) in enumerate(points):
        for end, after in points[number + 1 :]:
            if end - start >= _LEAST_APART_S:
                slopes.append((after - before) / (end - start))
    if not slopes:
        return 0.0
    slopes.sort()
    middle = len(slopes) // 2
    return slopes[middle] if len(slopes) % 2 else (slopes[middle - 1] + slopes[middle]) / 2


def time_to(available: int, rate: float) -> float:
    """Seconds until ``available`` bytes are filled at ``rate`` bytes a second; infinity when it does not fill."""
    if rate < _LEAST_RATE:
        return float("inf")
    return max(0, available) / rate


def next_look(available: int, interval: float, *, rest: bool) -> float:
    """Seconds to sleep before the next look, for ``available`` bytes on the axis that has the fewest.

    The time in which 4 GB/s would fill them, faster than page faults fill a board's memory; at least 10 ms and at most
    ``interval``. At rest, with nothing in flight, 1 GB/s and 100 ms: a worker that grows then does so by itself,
    and the kernel's own events come besides.
    """
    rate, least = (1e9, 0.1) if rest else (4e9, 0.01)
    return min(max(available / rate, least), interval)
