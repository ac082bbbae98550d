"""Every event in every stage of a request's life."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidegate.gateway import flight as module
from tidegate.gateway.flight import FAILED_S, LOADING_S, Flight, Loss, Next, Stage

EVENTS: dict[str, Callable[[Flight], object]] = {
    "sent": Flight.sent,
    "content": Flight.content,
    "finished": Flight.finished,
    "retracted": Flight.retracted,
    "ended": Flight.ended,
    "lost ordered": lambda flight: flight.lost(Loss.ORDERED, epoch=1, now=0.0),
    "lost died": lambda flight: flight.lost(Loss.DIED, epoch=1, now=0.0),
}

TABLE = {
    Stage.WAITING: {"sent": Stage.SENT, "ended": Stage.DONE},
    Stage.SENT: {
        "content": Stage.ANSWERING,
        "finished": Stage.DONE,
        "retracted": Stage.WAITING,
        "ended": Stage.DONE,
        "lost ordered": Stage.WAITING,
        "lost died": Stage.WAITING,
    },
    Stage.ANSWERING: {
        "content": Stage.ANSWERING,
        "finished": Stage.DONE,
        "ended": Stage.DONE,
        "lost ordered": Stage.DONE,
        "lost died": Stage.DONE,
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


def test_orders_of_the_guard_never_count() -> None:
    flight = Flight()
    for _ in range(10):
        flight.sent()
        assert flight.lost(Loss.ORDERED, epoch=1, now=5.0) is Next.AGAIN
        assert flight.ready_at(1) == 0.0
    assert flight.replayed


def test_a_request_alone_in_two_deaths_is_given_up() -> None:
    flight = Flight()
    flight.sent()
    assert flight.lost(Loss.DIED_ALONE, epoch=1, now=0.0) is Next.AGAIN
    flight.sent()
    assert flight.lost(Loss.DIED_ALONE, epoch=2, now=0.0) is Next.CRASHED
    assert flight.stage is Stage.DONE


def test_in_company_two_deaths_are_survived() -> None:
    flight = Flight()
    for _ in range(2):
        flight.sent()
        assert flight.lost(Loss.DIED, epoch=1, now=0.0) is Next.AGAIN
    flight.sent()
    assert flight.lost(Loss.DIED, epoch=1, now=0.0) is Next.CRASHED


def test_what_was_not_delivered_is_no_death() -> None:
    flight = Flight()
    for _ in range(5):
        flight.sent()
        assert flight.lost(Loss.UNREACHABLE, epoch=1, now=0.0) is Next.AGAIN
    assert flight.deaths == 0
    flight.sent()
    assert not flight.replayed


def test_a_failed_generation_is_left_alone_until_announced_anew() -> None:
    flight = Flight()
    flight.sent()
    flight.lost(Loss.DIED, epoch=3, now=10.0)
    assert flight.ready_at(3) == 10.0 + FAILED_S
    assert flight.ready_at(4) == 0.0
    flight.sent()
    flight.lost(Loss.LOADING, epoch=4, now=20.0)
    assert flight.ready_at(4) == 20.0 + LOADING_S


def test_content_makes_a_loss_final() -> None:
    flight = Flight()
    flight.sent()
    flight.content()
    assert flight.lost(Loss.ORDERED, epoch=1, now=0.0) is Next.CUT
