"""How fast an axis fills, robustly, and when it would be full."""

from __future__ import annotations

#: Points kept for one axis. 12 points make 66 slopes, about 20 us on a slow core; at the fastest rate they span 120 ms.
POINTS = 12
#: Older points say nothing about a burst that begins now.
WINDOW_S = 6.0
#: Two looks closer than this differ by the page-batch noise of the counters, not by a rate.
_LEAST_APART_S = 0.004
#: A rise below 1 MB/s takes more than an hour to cross a Raspberry Pi: no forecast is made of it.
_LEAST_RATE = 1_000_000.0


class FillHistory:
    """The last points of one axis, oldest first. Times are monotonic seconds, values bytes."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def add(self, time: float, used: int) -> None:
        """Append a point; a time that does not advance is ignored, points out of the window are dropped."""
        points = self._points
        if points and time <= points[-1][0]:
            return
        points.append((time, used))
        if len(points) > POINTS:
            del points[0]
        while time - points[0][0] > WINDOW_S and len(points) > 2:
            del points[0]

    def clear(self) -> None:
        """Forget all points: after the worker was changed, the slope of the old one says nothing."""
        self._points.clear()

    @property
    def points(self) -> tuple[tuple[float, int], ...]:
        return tuple(self._points)


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
    """Seconds to sleep before the next look.

    At rest one ``interval``; else ``available`` / 4 GB/s, which is faster than a board can fill memory by page faults,
    clamped to 10 ms at the least and ``interval`` at the most.
    """
    if rest:
        return interval
    return min(max(available / 4e9, 0.010), interval)
