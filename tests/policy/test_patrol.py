"""The one step for a server that somebody else starts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.test_ladder import LIMIT, MIB, TUNING, situation
from tidegate.frozen import replace
from tidegate.policy.diagnosis import Diagnosis
from tidegate.policy.ladder import LadderState, Rung, StepKind, WorkerPhase, finish
from tidegate.policy.level import Level
from tidegate.policy.patrol import DRAIN_S, decide

#: A server of which nobody knows what it needs when it is fresh, and one of which that is known.
UNKNOWN, KNOWN = (Rung("attached", 0),), (Rung("attached", 120 * MIB),)
FRESH = LadderState()
WARN, CRITICAL = 375 * MIB, 415 * MIB


def test_growth_at_critical_is_reset_without_a_drain() -> None:
    state, step = decide(FRESH, situation(CRITICAL, rungs=KNOWN), TUNING)
    assert step is not None
    assert (step.kind, step.profile, step.drain, step.expected_bytes) == (StepKind.RESET, "attached", 0.0, CRITICAL)
    assert state.pending == step
    assert decide(state, situation(CRITICAL, rungs=KNOWN, time=101.0), TUNING)[1] is None


def test_what_a_reset_would_not_give_back_is_no_reason_for_one() -> None:
    needed = (Rung("attached", CRITICAL - 20 * MIB),)
    assert decide(FRESH, situation(CRITICAL, rungs=needed), TUNING)[1] is None


def test_an_unknown_server_is_reset_once_at_critical_and_never_at_warn() -> None:
    state, step = decide(FRESH, situation(CRITICAL, rungs=UNKNOWN), TUNING)
    assert step is not None
    state, _ = finish(state, 101.0, CRITICAL)
    assert decide(state, situation(CRITICAL, rungs=UNKNOWN, time=200.0), TUNING)[1] is None
    late, _ = decide(FRESH, situation(WARN, rungs=UNKNOWN, time=10.0), TUNING)
    assert decide(late, situation(WARN, rungs=UNKNOWN, time=60.0), TUNING)[1] is None


def test_at_warn_it_waits_for_a_quiet_moment() -> None:
    state, step = decide(FRESH, situation(WARN, rungs=KNOWN, time=10.0), TUNING)
    assert step is None
    state, step = decide(state, situation(WARN, rungs=KNOWN, time=13.0, quiet=False), TUNING)
    assert step is None
    _, step = decide(state, situation(WARN, rungs=KNOWN, time=13.1), TUNING)
    assert step is not None
    assert (step.kind, step.drain) == (StepKind.RESET, DRAIN_S)


def test_growth_again_at_critical_does_not_wait_for_the_hold_time() -> None:
    state, _ = decide(FRESH, situation(CRITICAL, rungs=KNOWN, time=10.0), TUNING)
    state, effective = finish(state, 10.1, CRITICAL)
    assert effective
    assert decide(state, situation(CRITICAL, rungs=KNOWN, time=11.0), TUNING)[1] is not None
    assert decide(state, situation(WARN, rungs=KNOWN, time=14.0), TUNING)[1] is None


def test_a_livelock_is_ended_whatever_that_frees_but_not_in_a_loop() -> None:
    needed = (Rung("attached", 150 * MIB),)
    stuck = situation(
        200 * MIB,
        rungs=needed,
        level=Level.CRITICAL,
        pressing=True,
        diagnosis=Diagnosis.LIVELOCK,
        worker_bytes=150 * MIB,
        time=10.0,
    )
    state, step = decide(FRESH, stuck, TUNING)
    assert step is not None
    state, _ = finish(state, 11.0, 0)
    assert decide(state, replace(stuck, time=12.0), TUNING)[1] is None
    assert decide(state, replace(stuck, time=11.0 + TUNING.hold), TUNING)[1] is not None


@pytest.mark.parametrize("phase", [phase for phase in WorkerPhase if phase is not WorkerPhase.READY])
def test_one_that_is_not_there_is_left_alone(phase: WorkerPhase) -> None:
    assert decide(FRESH, situation(CRITICAL, rungs=KNOWN, phase=phase), TUNING)[1] is None


@given(
    used=st.integers(0, LIMIT),
    worker=st.integers(0, LIMIT),
    known=st.integers(0, LIMIT),
    quiet=st.booleans(),
    diagnosis=st.sampled_from(Diagnosis),
    over_since=st.none() | st.floats(0, 100),
)
def test_whatever_happens_there_is_only_one_kind_of_step_and_never_at_normal(
    used: int, worker: int, known: int, quiet: bool, diagnosis: Diagnosis, over_since: float | None
) -> None:
    now = situation(
        used,
        worker_bytes=min(used, worker),
        rungs=(Rung("attached", known),),
        quiet=quiet,
        diagnosis=diagnosis,
    )
    _, step = decide(LadderState(over_since=over_since), now, TUNING)
    if step is not None:
        assert used >= TUNING.warn * LIMIT
        assert (step.kind, step.profile) == (StepKind.RESET, "attached")
