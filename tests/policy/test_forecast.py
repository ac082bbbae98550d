from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy.forecast import POINTS, FillHistory, fill_rate, next_look, time_to


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


def test_a_saved_prompt_is_no_flood() -> None:
    # A 17 MiB prompt-cache entry is copied within one look; before and after it use stands still.
    points = tuple((n * 0.05, 200 << 20 if n < 6 else 217 << 20) for n in range(12))
    assert fill_rate(points) < 60e6
    assert fill_rate(points[:9]) < 100e6


def test_history_keeps_recent_points_in_order() -> None:
    history = FillHistory()
    for n in range(40):
        history.add(n * 0.01, n)
    history.add(0.0, 999)
    assert len(history.points) == POINTS
    assert history.points[-1] == (0.39, 39)
    history.add(100.0, 5)
    assert len(history.points) == 2
    history.clear()
    assert not history.points


def test_time_to_limit() -> None:
    assert time_to(600_000_000, 200_000_000.0) == 3.0
    assert time_to(1 << 30, 0.0) == math.inf
    assert time_to(1 << 30, -5e9) == math.inf
    assert time_to(-5, 1e9) == 0.0


def test_pace_follows_the_headroom() -> None:
    assert next_look(100 << 30, 3.0, rest=True) == 3.0
    assert next_look(100 << 30, 3.0, rest=False) == 3.0
    assert next_look(400_000_000, 3.0, rest=False) == pytest.approx(0.1)
    assert next_look(0, 3.0, rest=False) == 0.010
    assert next_look(-1, 3.0, rest=False) == 0.010
