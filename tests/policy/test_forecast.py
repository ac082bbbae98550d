from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy.forecast import POINTS, Fill, FillHistory, fill_rate, next_look, time_to


def ramp(rate: float, count: int, every: float = 0.05) -> tuple[tuple[float, int], ...]:
    return tuple((n * every, int(n * every * rate)) for n in range(count))


def test_a_steady_fill_has_its_rate() -> None:
    assert fill_rate(ramp(60e6, 10)) == pytest.approx(60e6, rel=0.01)
    assert fill_rate(ramp(-60e6, 10)) == pytest.approx(-60e6, rel=0.01)


def test_below_three_points_nothing_is_forecast() -> None:
    assert fill_rate(ramp(1e9, 2)) == 0.0


@given(st.integers(0, 11), st.integers(0, 1 << 40))
def test_one_wild_point_does_not_move_the_rate(place: int, value: int) -> None:
    points = list(ramp(100e6, 12))
    points[place] = (points[place][0], value)
    assert fill_rate(tuple(points)) == pytest.approx(100e6, rel=0.02)


def test_history_keeps_recent_points_in_order() -> None:
    history = FillHistory()
    for n in range(40):
        history.add(n * 0.01, n)
    history.add(0.0, 999)
    assert len(history.points) == POINTS
    assert history.points[-1] == (0.39, 39)
    history.add(100.0, 5)
    assert len(history.points) == 2


def test_the_slow_window_spaces_its_points() -> None:
    history = FillHistory(0.1)
    for n in range(100):
        history.add(n * 0.04, n)
    times = [time for time, _ in history.points]
    assert len(times) == POINTS
    assert all(b - a >= 0.1 for a, b in pairwise(times))


def fill(rate: float, *, every: float, seconds: float, burst: float = float("inf"), start: float = 0.0) -> Fill:
    """An axis looked at every ``every`` seconds for ``seconds``, that fills at ``rate`` for ``burst`` seconds."""
    made, steps = Fill(), int(seconds / every)
    for n in range(steps + 1):
        now = n * every
        made.add(now, int(rate * max(0.0, min(now - start, burst))))
    return made


MB = 1_000_000


@pytest.mark.parametrize("rate", [20 * MB, 60 * MB, 300 * MB, 1000 * MB])
def test_a_flood_is_foreseen(rate: int) -> None:
    available = 2 * rate
    every = min(max(available / 4e9, 0.01), 3.0)
    found, ahead = fill(rate, every=every, seconds=max(1.5, 13 * every)).forecast(available)
    assert found == pytest.approx(rate, rel=0.05)
    assert ahead == pytest.approx(2.0, rel=0.05)


def test_a_gigabyte_a_second_is_foreseen_when_half_of_it_is_taken() -> None:
    _, ahead = fill(1e9, every=0.01, seconds=0.08).forecast(150 * MB)
    assert ahead == pytest.approx(0.15, rel=0.05)


@pytest.mark.parametrize("speed", [60 * MB, 120 * MB, 800 * MB])
@pytest.mark.parametrize("left", [154, 99])
@pytest.mark.parametrize("looks", range(1, 12))
def test_a_saved_prompt_is_no_flood(speed: int, left: int, looks: int) -> None:
    # While an entry of 17 MiB is saved, it and its copy are there; whenever one looks, that is no reason to expect all
    # that is left in three seconds.
    burst = 35.6 * MB / speed
    axis = fill(speed, every=0.04, seconds=1.0 + burst + looks * 0.04, burst=burst, start=1.0)
    assert axis.forecast(left * 1024 * 1024)[1] > 3.0


def test_a_larger_prompt_is_no_flood_where_its_size_is_known() -> None:
    # A whole context of 92 MiB, with 150 MB left.
    axis = fill(300 * MB, every=0.04, seconds=1.6, burst=0.6, start=1.0)
    assert axis.forecast(150 * MB)[1] < 3.0
    assert axis.forecast(150 * MB, burst=184 * 1024 * 1024)[1] > 3.0


def test_time_to_limit() -> None:
    assert time_to(600_000_000, 200_000_000.0) == 3.0
    assert time_to(1 << 30, 0.0) == math.inf
    assert time_to(1 << 30, -5e9) == math.inf
    assert time_to(-5, 1e9) == 0.0


def test_pace_follows_the_headroom() -> None:
    assert next_look(100 << 30, 3.0, rest=True) == 3.0
    assert next_look(400_000_000, 3.0, rest=True) == pytest.approx(0.4)
    assert next_look(0, 3.0, rest=True) == 0.1
    assert next_look(0, 0.05, rest=True) == 0.05
    assert next_look(100 << 30, 3.0, rest=False) == 3.0
    assert next_look(400_000_000, 3.0, rest=False) == pytest.approx(0.1)
    assert next_look(0, 3.0, rest=False) == 0.010
    assert next_look(-1, 3.0, rest=False) == 0.010
