"""Alive, silent or suspect: what a beat after beat of signs of life comes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy.pulse import MOST_SILENCES, SPINNING_S, STUCK_S, Beat, Pulse, Verdict, feel

EVERY = 5.0


def run(beats: list[Beat]) -> list[Verdict]:
    pulse, verdicts = Pulse(), []
    for beat in beats:
        pulse, verdict = feel(pulse, beat)
        verdicts.append(verdict)
    return verdicts


def steady(
    seconds: float, *, cpu_share: float, progress: int | None = 1, working: bool = True, moves: bool = False
) -> list[Beat]:
    times = [EVERY * number for number in range(int(seconds / EVERY) + 1)]
    return [
        Beat(time, True, working, None if progress is None else progress + (place if moves else 0), time * cpu_share)
        for place, time in enumerate(times)
    ]


def test_a_deadlock_is_suspect_after_ten_seconds() -> None:
    verdicts = run(steady(STUCK_S, cpu_share=0.0))
    assert verdicts == [Verdict.ALIVE] * (len(verdicts) - 1) + [Verdict.SUSPECT]


@pytest.mark.parametrize(
    "beats",
    [
        pytest.param(steady(600, cpu_share=1.9, moves=True), id="a long prefill: slots move with every batch"),
        pytest.param(steady(600, cpu_share=0.0, moves=True), id="the same on a GPU, without CPU"),
        pytest.param(steady(SPINNING_S - EVERY, cpu_share=1.9), id="one batch of a large model on a slow board"),
        pytest.param(steady(600, cpu_share=1.9, progress=None), id="no /slots, but it computes"),
        pytest.param(steady(600, cpu_share=0.0, working=False), id="nobody waits for it"),
    ],
)
def test_work_is_no_deadlock(beats: list[Beat]) -> None:
    assert set(run(beats)) == {Verdict.ALIVE}


def test_a_spinning_deadlock_is_suspect_later() -> None:
    verdicts = run(steady(SPINNING_S, cpu_share=1.0))
    assert verdicts == [Verdict.ALIVE] * (len(verdicts) - 1) + [Verdict.SUSPECT]


def test_no_slots_and_no_cpu_is_suspect() -> None:
    assert run(steady(STUCK_S, cpu_share=0.0, progress=None))[-1] is Verdict.SUSPECT


def test_a_busy_moment_makes_the_whole_wait_a_busy_one() -> None:
    beats = [*steady(STUCK_S - EVERY, cpu_share=1.0), Beat(STUCK_S, True, True, 1, STUCK_S - EVERY)]
    assert run(beats)[-1] is Verdict.ALIVE


@given(st.lists(st.booleans(), max_size=40))
def test_silent_is_silences_running(answers: list[bool]) -> None:
    beats = [Beat(place * EVERY, answered, False, None, 0.0) for place, answered in enumerate(answers)]
    running = 0
    for answered, verdict in zip(answers, run(beats), strict=True):
        running = 0 if answered else running + 1
        assert (verdict is Verdict.SILENT) == (running >= MOST_SILENCES)
