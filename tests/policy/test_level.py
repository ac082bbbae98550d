from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy.level import LEAD_SAMPLES, Level, LevelState, Lines, Reading, advance

LINES = Lines(warn=0.82, critical=0.91, release=0.05, hold=10.0, lead=3.0)


def run(readings: list[Reading], lines: Lines = LINES) -> list[Level]:
    state = LevelState()
    levels = []
    for reading in readings:
        state = advance(state, lines, reading)
        levels.append(state.level)
    return levels


def test_a_line_is_crossed_at_once() -> None:
    assert run([Reading(0, 0.5), Reading(1, 0.82), Reading(2, 0.91)]) == [Level.NORMAL, Level.WARN, Level.CRITICAL]


def test_a_level_is_left_only_after_the_hold_below_the_release() -> None:
    just_below = [Reading(time, 0.78) for time in range(1, 30)]
    assert set(run([Reading(0, 0.83), *just_below])[1:]) == {Level.WARN}
    released = [Reading(time, 0.76) for time in range(1, 12)]
    assert run([Reading(0, 0.83), *released]) == [Level.WARN] * 11 + [Level.NORMAL]


def test_one_reading_above_the_release_starts_the_hold_again() -> None:
    readings = [Reading(0, 0.83)] + [Reading(t, 0.7) for t in range(1, 10)] + [Reading(10, 0.78)]
    readings += [Reading(t, 0.7) for t in range(11, 21)]
    assert run(readings)[-1] is Level.WARN
    assert run([*readings, Reading(21, 0.7)])[-1] is Level.NORMAL


def test_critical_falls_to_warn_first_where_warn_is_not_released() -> None:
    readings = [Reading(0, 0.95)] + [Reading(t, 0.80) for t in range(1, 12)]
    assert run(readings)[-2:] == [Level.CRITICAL, Level.WARN]


def test_a_forecast_needs_three_samples_running() -> None:
    soon = [Reading(t / 100, 0.6, time_to_limit=1.0) for t in range(LEAD_SAMPLES - 1)]
    assert set(run(soon)) == {Level.NORMAL}
    assert run([*soon, Reading(0.5, 0.6, time_to_limit=1.0)])[-1] is Level.CRITICAL
    assert run([*soon, Reading(0.5, 0.6), Reading(0.6, 0.6, time_to_limit=1.0)])[-1] is Level.NORMAL


def test_no_forecast_while_a_worker_loads() -> None:
    loading = [Reading(t / 100, 0.6, time_to_limit=0.5, loading=True) for t in range(10)]
    assert set(run(loading)) == {Level.NORMAL}


def test_thrash_is_critical() -> None:
    assert run([Reading(0, 0.85), Reading(1, 0.85, stalled=True)])[-1] is Level.CRITICAL


ratios = st.lists(st.floats(0, 1.5), min_size=1, max_size=60)


@given(ratios, ratios)
def test_more_pressure_is_never_a_lower_level(first: list[float], second: list[float]) -> None:
    size = min(len(first), len(second))
    low = [Reading(t, min(a, b)) for t, (a, b) in enumerate(zip(first[:size], second[:size], strict=True))]
    high = [Reading(t, max(a, b)) for t, (a, b) in enumerate(zip(first[:size], second[:size], strict=True))]
    assert all(a <= b for a, b in zip(run(low), run(high), strict=True))


@given(st.lists(st.tuples(st.floats(0.001, 5), st.floats(0, 1.2)), max_size=80))
def test_a_level_once_entered_lasts_at_least_the_hold(steps: list[tuple[float, float]]) -> None:
    state, now, entered = LevelState(), 0.0, 0.0
    for pause, ratio in steps:
        now += pause
        after = advance(state, LINES, Reading(now, ratio))
        if after.level > state.level:
            entered = now
        if after.level < state.level:
            assert now - entered >= LINES.hold
        state = after
