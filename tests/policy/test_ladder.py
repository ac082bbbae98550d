from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.frozen import replace
from tidegate.policy.diagnosis import Diagnosis
from tidegate.policy.ladder import (
    AxisUse,
    LadderState,
    Rung,
    Situation,
    Step,
    StepKind,
    Tuning,
    WorkerPhase,
    begin,
    clamp_prompt_cache,
    decide,
    finish,
    first_profile,
    fits,
)
from tidegate.policy.level import Level, LevelState, Lines, Reading, advance

MIB = 1 << 20
TUNING = Tuning(warn=0.82, release=0.05, hold=10.0, step_up_after=60.0)
FULL, LEAN, SMALL = Rung("full", 136 * MIB), Rung("lean", 57 * MIB), Rung("small", 30 * MIB)
RUNGS = (FULL, LEAN, SMALL)
LIMIT = 450 * MIB


def budget(used: int, worker: int | None = None, limit: int = LIMIT) -> tuple[AxisUse, ...]:
    return (AxisUse("budget", limit, used, used if worker is None else worker),)


def situation(used: int, *, time: float = 100.0, running: int | None = 0, **changes: object) -> Situation:
    ratio = used / LIMIT
    level = Level.CRITICAL if ratio >= 0.91 else Level.WARN if ratio >= 0.82 else Level.NORMAL
    made = Situation(
        time=time,
        level=level,
        level_since=0.0,
        ratio=ratio,
        pressing=level is Level.CRITICAL,
        diagnosis=Diagnosis.GROWTH if level is not Level.NORMAL else Diagnosis.NONE,
        axes=budget(used),
        rate=0.0,
        phase=WorkerPhase.READY,
        running=running,
        worker_bytes=used,
        quiet=True,
        rungs=RUNGS,
    )
    return replace(made, **changes)


def test_warn_must_last_before_ground_is_given() -> None:
    state, step = decide(LadderState(), situation(370 * MIB, time=10.0), TUNING)
    assert step is None
    state, step = decide(state, situation(370 * MIB, time=11.9), TUNING)
    assert step is None
    state, step = decide(state, situation(370 * MIB, time=12.0), TUNING)
    assert step is not None
    assert (step.kind, step.profile, step.drain, step.expected_bytes) == (StepKind.DOWN, "lean", 5.0, 370 * MIB)


def test_a_dip_starts_the_two_seconds_again() -> None:
    state, _ = decide(LadderState(), situation(370 * MIB, time=10.0), TUNING)
    state, _ = decide(state, situation(300 * MIB, time=11.0), TUNING)
    state, step = decide(state, situation(370 * MIB, time=12.5), TUNING)
    assert step is None


def test_critical_takes_the_highest_profile_that_fits_without_a_drain() -> None:
    _, step = decide(LadderState(), situation(420 * MIB), TUNING)
    assert step == Step(StepKind.RESET, "full", "growth at 93% of budget", 420 * MIB, 0.0)
    tight = (AxisUse("budget", LIMIT, 420 * MIB, 180 * MIB),)
    _, step = decide(LadderState(), situation(420 * MIB, axes=tight, worker_bytes=180 * MIB), TUNING)
    assert step is not None and (step.kind, step.profile) == (StepKind.DOWN, "lean")


def test_thrash_is_never_cured_by_the_same_shape() -> None:
    _, step = decide(LadderState(), situation(420 * MIB, diagnosis=Diagnosis.THRASH), TUNING)
    assert step is not None and step.profile == "lean"


def test_a_livelock_is_ended_by_a_restart_whatever_that_frees() -> None:
    stuck = situation(
        200 * MIB, level=Level.CRITICAL, pressing=True, diagnosis=Diagnosis.LIVELOCK, worker_bytes=150 * MIB
    )
    state, step = decide(LadderState(), stuck, TUNING)
    assert step is not None and (step.kind, step.profile, step.drain) == (StepKind.RESET, "full", 0.0)
    state, _ = finish(state, 101.0, 0)
    # The same shape was throttled to death again.
    _, step = decide(state, replace(stuck, time=110.0), TUNING)
    assert step is not None and step.profile == "lean"


def test_critical_at_the_last_profile_parks() -> None:
    now = situation(420 * MIB, running=2, axes=budget(420 * MIB, 40 * MIB), worker_bytes=40 * MIB)
    state, step = decide(LadderState(), now, TUNING)
    assert step is not None and (step.kind, step.profile) == (StepKind.PARK, None)
    assert state.pending == step


def test_growth_elsewhere_counts_what_will_be_taken() -> None:
    foreign = (AxisUse("system", LIMIT, 412 * MIB, 136 * MIB),)
    slow = situation(412 * MIB, axes=foreign, worker_bytes=136 * MIB, diagnosis=Diagnosis.ELSEWHERE, rate=1.0)
    _, step = decide(LadderState(), slow, TUNING)
    assert step is not None and step.profile == "lean"
    _, step = decide(LadderState(), replace(slow, rate=10.0 * MIB), TUNING)
    assert step is not None and step.kind is StepKind.PARK


def test_a_critical_level_that_only_holds_is_no_reason_to_act() -> None:
    _, step = decide(LadderState(), situation(100 * MIB, level=Level.CRITICAL, pressing=False), TUNING)
    assert step is None


def test_a_worker_that_grows_critical_while_loading_is_replaced_by_a_lower_one() -> None:
    _, step = decide(LadderState(), situation(420 * MIB, phase=WorkerPhase.STARTING), TUNING)
    assert step is not None and step.profile == "lean"


def test_up_only_in_lasting_quiet_and_if_it_fits() -> None:
    calm = situation(50 * MIB, running=1, level_since=40.0)
    cases: list[tuple[dict[str, Any], StepKind | None]] = [
        ({}, StepKind.UP),
        ({"level_since": 41.0}, None),
        ({"quiet": False}, None),
        ({"running": 0}, None),
        ({"axes": budget(300 * MIB, 50 * MIB)}, None),
    ]
    for change, expected in cases:
        _, step = decide(LadderState(), replace(calm, **change), TUNING)
        assert (None if step is None else step.kind) == expected, change


def test_a_quick_fall_back_doubles_the_wait_for_the_next_try() -> None:
    state = begin(LadderState(), 0.0, Step(StepKind.UP, "full", ""), Diagnosis.NONE, TUNING)
    state, _ = finish(state, 1.0, 0)
    state = begin(state, 100.0, Step(StepKind.DOWN, "lean", ""), Diagnosis.GROWTH, TUNING)
    state, _ = finish(state, 101.0, 0)
    calm = situation(50 * MIB, running=1, level_since=101.0)
    assert decide(state, replace(calm, time=101.0 + 61), TUNING)[1] is None
    up = decide(state, replace(calm, time=101.0 + 121), TUNING)[1]
    assert up is not None and up.kind is StepKind.UP


def test_parked_until_it_fits_and_longer_each_time() -> None:
    state = begin(LadderState(), 0.0, Step(StepKind.PARK, None, "", 40 * MIB), Diagnosis.ELSEWHERE, TUNING)
    state, _ = finish(state, 0.0, 40 * MIB)
    parked = situation(100 * MIB, axes=budget(100 * MIB, 0), phase=WorkerPhase.PARKED, running=None, worker_bytes=0)
    assert decide(state, replace(parked, time=19.0), TUNING)[1] is None
    full = replace(parked, time=21.0, axes=budget(340 * MIB, 0))
    assert decide(state, full, TUNING)[1] is None
    after, step = decide(state, replace(parked, time=21.0), TUNING)
    assert step == Step(StepKind.UNPARK, "small", "its bytes fit again")
    after, _ = finish(after, 22.0, 0)
    again = begin(after, 30.0, Step(StepKind.PARK, None, "", 40 * MIB), Diagnosis.ELSEWHERE, TUNING)
    again, _ = finish(again, 30.0, 40 * MIB)
    assert again.park_delay == 40.0


def test_an_ineffective_step_is_told_from_an_effective_one() -> None:
    state = begin(LadderState(), 0.0, Step(StepKind.DOWN, "lean", "", 100), Diagnosis.GROWTH, TUNING)
    assert finish(state, 1.0, 30)[1]
    assert not finish(state, 1.0, 29)[1]
    assert finish(LadderState(), 1.0, 30) == (LadderState(), False)


def test_first_profile_and_fit_look_at_every_axis() -> None:
    axes = (AxisUse("system", 1000 * MIB, 700 * MIB, 0, counts_file=True), AxisUse("budget", LIMIT, 0, 0))
    assert fits(axes, FULL, 0.84)
    assert not fits(axes, replace(FULL, hot_file=10 * MIB), 0.84)
    assert first_profile(axes, RUNGS, TUNING) == 1
    assert (
        first_profile(axes, (replace(FULL, known_bytes=110 * MIB), replace(LEAN, known_bytes=121 * MIB)), TUNING) == 0
    )
    assert first_profile((AxisUse("system", 1000 * MIB, 900 * MIB, 0),), RUNGS, TUNING) is None


def test_the_prompt_cache_is_clamped_to_what_is_left() -> None:
    size = clamp_prompt_cache(budget(0), FULL, entry_bytes=90 * MIB, configured=8 << 30, tuning=TUNING)
    assert size == pytest.approx(LIMIT * 0.77 - 226 * MIB, abs=1)
    assert clamp_prompt_cache(budget(0), FULL, entry_bytes=0, configured=MIB, tuning=TUNING) == MIB
    tight = clamp_prompt_cache(budget(300 * MIB, 0), FULL, entry_bytes=0, configured=MIB, tuning=TUNING)
    assert tight == 0


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[float, float, bool, bool]]:
    """(pause, foreign share, worker grows, quiet) per look."""
    return draw(
        st.lists(
            st.tuples(st.floats(0.05, 20.0), st.floats(0.0, 1.1), st.booleans(), st.booleans()),
            min_size=20,
            max_size=150,
        )
    )


class Board:
    """A tiny world: a worker whose bytes grow, a foreign user, steps that take effect at the next look."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.now, self.state, self.level = 0.0, LadderState(), LevelState()
        self.running: int | None = 0
        self.extra = 0
        self.deaf = deaf
        self.steps: list[tuple[float, Step, Level, bool]] = []

    def look(self, pause: float, foreign: float, grows: bool, quiet: bool) -> None:
        self.now += pause
        if self.state.pending is not None:
            done = self.state.pending
            freed = 0 if self.deaf else done.expected_bytes
            self.running = None if done.profile is None else [r.name for r in RUNGS].index(done.profile)
            self.extra = self.extra if self.deaf else 0
            self.state, _ = finish(self.state, self.now, freed)
        self.extra += 60 * MIB if grows and self.running is not None else 0
        worker = 0 if self.running is None else RUNGS[self.running].known_bytes + self.extra
        used = worker + int(foreign * LIMIT)
        lines = Lines(0.82, 0.91, 0.05, TUNING.hold, 3.0)
        self.level = advance(self.level, lines, Reading(self.now, used / LIMIT))
        before = self.state
        now = Situation(
            self.now,
            self.level.level,
            self.level.since,
            used / LIMIT,
            used / LIMIT >= 0.91,
            Diagnosis.GROWTH if self.extra > foreign * LIMIT else Diagnosis.ELSEWHERE,
            (AxisUse("system", LIMIT, used, worker),),
            0.0,
            WorkerPhase.PARKED if self.running is None else WorkerPhase.READY,
            self.running,
            worker,
            quiet,
            RUNGS,
        )
        self.state, step = decide(before, now, TUNING)
        if step is not None:
            assert before.pending is None, "two actions in flight"
            self.steps.append((self.now, step, self.level.level, now.pressing))


@settings(max_examples=300)
@given(stories())
def test_whatever_happens_steps_do_not_flap(story: list[tuple[float, float, bool, bool]]) -> None:
    board = Board()
    for look in story:
        board.look(*look)
    for (before, _, _, _), (after, _, _, pressing) in zip(board.steps, board.steps[1:], strict=False):
        assert pressing or after - before >= TUNING.hold
    ups = [time for time, step, _, _ in board.steps if step.kind is StepKind.UP]
    assert all(b - a >= TUNING.step_up_after for a, b in pairwise(ups))


@settings(max_examples=200)
@given(stories())
def test_no_fall_is_repeated_within_an_episode(story: list[tuple[float, float, bool, bool]]) -> None:
    board = Board(deaf=True)
    seen: set[str] = set()
    for look in story:
        count = len(board.steps)
        board.look(*look)
        if not board.state.tried:
            seen.clear()
        if len(board.steps) > count:
            step = board.steps[-1][1]
            if step.kind in (StepKind.DOWN, StepKind.RESET):
                assert step.profile is not None and step.profile not in seen
                seen.add(step.profile)


def test_pressure_that_never_ends_ends_parked_and_stays_calm() -> None:
    board = Board()
    for _ in range(4000):
        board.look(1.0, 0.95 if board.running is not None else 0.3, False, True)
    kinds = [step.kind for _, step, _, _ in board.steps]
    # An hour of a board that is full whenever the worker runs: the delay doubles to ten minutes.
    assert kinds.count(StepKind.UNPARK) <= 12
    assert len(board.steps) <= 40


@settings(max_examples=300)
@given(st.integers(0, 500), st.integers(0, 500), st.sampled_from([0, 1, 2]))
def test_more_pressure_never_means_a_better_profile(first: int, second: int, running: int) -> None:
    """Monotone: with the same worker, more use elsewhere gives the same profile or a lower one, or parking."""
    order = {"full": 0, "lean": 1, "small": 2, None: 3}

    def target(foreign: int) -> int:
        worker = RUNGS[running].known_bytes + 60 * MIB
        used = foreign * MIB + worker
        now = situation(used, running=running, worker_bytes=worker, axes=budget(used, worker))
        state = replace(LadderState(), over_since=0.0)
        _, step = decide(state, replace(now, level_since=now.time), TUNING)
        return running if step is None else order[step.profile]

    low, high = sorted((first, second))
    assert target(low) <= target(high) or target(high) == running


@pytest.mark.parametrize("phase", [WorkerPhase.BUSY])
def test_nothing_is_decided_while_the_worker_is_busy(phase: WorkerPhase) -> None:
    assert decide(LadderState(), situation(440 * MIB, phase=phase), TUNING)[1] is None
