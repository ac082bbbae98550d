"""Every event in every stage of a request's life."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidegate.gateway import flight as module
from tidegate.gateway.flight import FAILED_S, LOADING_S, Cause, Death, Flight, Loss, Next, Stage, Verdict, judge


def lose(
    flight: Flight, loss: Loss, *, generation: int = 1, epoch: int = 1, now: float = 0.0, resumable: bool = True
) -> Next:
    return flight.lost(loss, generation=generation, epoch=epoch, now=now, resumable=resumable)


EVENTS: dict[str, Callable[[Flight], object]] = {
    "sent": Flight.sent,
    "content": Flight.content,
    "finished": Flight.finished,
    "retracted": Flight.retracted,
    "ended": Flight.ended,
    "lost": lambda flight: lose(flight, Loss.DIED),
    "lost for good": lambda flight: lose(flight, Loss.DIED, resumable=False),
}

TABLE = {
    Stage.WAITING: {"sent": Stage.SENT, "ended": Stage.DONE},
    Stage.SENT: {
        "content": Stage.ANSWERING,
        "finished": Stage.DONE,
        "retracted": Stage.WAITING,
        "ended": Stage.DONE,
        "lost": Stage.WAITING,
        "lost for good": Stage.WAITING,
    },
    Stage.ANSWERING: {
        "content": Stage.ANSWERING,
        "finished": Stage.DONE,
        "ended": Stage.DONE,
        "lost": Stage.WAITING,
        "lost for good": Stage.DONE,
    },
    Stage.DONE: {"ended": Stage.DONE},
}


def flight_in(stage: Stage) -> Flight:
    flight = Flight()
    flight.stage = stage
    return flight


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("event", list(EVENTS))
def test_the_table(stage: Stage, event: str) -> None:
    flight = flight_in(stage)
    after = TABLE[stage].get(event)
    if after is None:
        with pytest.raises(RuntimeError, match="cannot take"):
            EVENTS[event](flight)
        assert flight.stage is stage
    else:
        EVENTS[event](flight)
        assert flight.stage is after


def test_the_docstring_shows_the_table() -> None:
    assert module.__doc__ is not None
    for stage in Stage:
        assert stage.value in module.__doc__
    for event in EVENTS:
        assert event.split()[0] in module.__doc__


def test_what_the_engine_sent_back_unread_is_no_replay() -> None:
    flight = Flight()
    flight.sent()
    flight.retracted()
    assert flight.sends == 0
    flight.sent()
    assert not flight.replayed


def test_orders_of_the_guard_never_count() -> None:
    flight = Flight()
    for _ in range(10):
        flight.sent()
        assert lose(flight, Loss.ORDERED, now=5.0) is Next.AGAIN
        assert flight.ready_at(1) == 0.0
    assert flight.replayed
    assert flight.deaths == []


def test_what_was_not_delivered_is_no_death() -> None:
    flight = Flight()
    for _ in range(5):
        flight.sent()
        assert lose(flight, Loss.UNREACHABLE) is Next.AGAIN
    assert flight.deaths == []
    flight.sent()
    assert not flight.replayed


def test_a_failed_generation_is_left_alone_until_announced_anew() -> None:
    flight = Flight()
    flight.sent()
    lose(flight, Loss.DIED, epoch=3, now=10.0)
    assert flight.ready_at(3) == 10.0 + FAILED_S
    assert flight.ready_at(4) == 0.0
    flight.sent()
    lose(flight, Loss.LOADING, epoch=4, now=20.0)
    assert flight.ready_at(4) == 20.0 + LOADING_S


def test_an_answer_that_cannot_go_on_is_cut() -> None:
    flight = Flight()
    flight.sent()
    flight.content()
    assert lose(flight, Loss.ORDERED, resumable=False) is Next.CUT


@pytest.mark.parametrize(
    ("deaths", "causes", "verdict"),
    [
        ([], {}, Verdict.INNOCENT),
        ([Death(1, True)], {1: Cause.CRASHED}, Verdict.INNOCENT),
        ([Death(1, False), Death(2, False)], {1: Cause.CRASHED, 2: Cause.OOM}, Verdict.SUSPECT),
        ([Death(1, True), Death(2, False)], {1: Cause.CRASHED, 2: Cause.CRASHED}, Verdict.SUSPECT),
        ([Death(1, False), Death(2, True)], {1: Cause.CRASHED, 2: Cause.CRASHED}, Verdict.GUILTY),
        ([Death(1, True), Death(2, True)], {1: Cause.OOM, 2: Cause.OOM}, Verdict.GUILTY),
        ([Death(1, False), Death(2, False), Death(3, True)], dict.fromkeys((1, 2, 3), Cause.OOM), Verdict.GUILTY),
        # Somebody else's SIGKILL says nothing of the request.
        ([Death(n, True) for n in range(1, 9)], dict.fromkeys(range(1, 9), Cause.KILLED), Verdict.INNOCENT),
        ([Death(1, True), Death(2, True)], {1: Cause.CRASHED, 2: Cause.KILLED}, Verdict.INNOCENT),
        # A guard that was away says nothing of the first: a death is a death then.
        ([Death(1, True), Death(2, True)], {2: Cause.CRASHED}, Verdict.GUILTY),
        # Of the newest it has yet to tell.
        ([Death(1, True), Death(9, True)], {1: Cause.CRASHED}, Verdict.INNOCENT),
        # One that comes back under the same number has died at least once before.
        ([Death(9, True), Death(9, True), Death(9, True)], {}, Verdict.GUILTY),
    ],
)
def test_who_is_to_blame(deaths: list[Death], causes: dict[int, Cause], verdict: Verdict) -> None:
    assert judge(deaths, causes, generation=9) is verdict
