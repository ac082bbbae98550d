"""Who is next, who is told at once that it would wait too long, and what requests are predicted to cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.harness import Background, Scene, chat, scene, tokens, until
from tidegate.gateway.assemble import Json
from tidegate.gateway.costs import Costs
from tidegate.gateway.queue import MOST_WAITING, Line, LineFullError, Waiter


def anytime() -> float:
    return 0.0


def in_line(test: Callable[[Line], Any], places: int = 1) -> Any:
    """Run ``test`` with a line of ``places`` inside a loop."""

    async def run() -> Any:
        return test(Line(lambda: places, lambda: None))

    return asyncio.run(run())


def served(line: Line, waiters: list[Waiter]) -> list[int]:
    """In which order ``waiters`` get their turn, one at a time."""
    order = []
    while waiting := [index for index, waiter in enumerate(waiters) if waiter.placed]:
        (index,) = waiting
        order.append(index)
        line.leave(waiters[index])
    return order


@given(st.lists(st.floats(0, 100), max_size=20))
def test_one_client_is_served_as_it_came(costs: list[float]) -> None:
    def test(line: Line) -> list[int]:
        return served(line, [line.enter(anytime, client="a", cost=cost) for cost in costs])

    assert in_line(test) == list(range(len(costs)))


def test_clients_take_turns() -> None:
    def test(line: Line) -> list[int]:
        return served(line, [line.enter(anytime, client=name) for name in "aaaabbc"])

    # The first is at work when the others come.
    assert in_line(test) == [0, 4, 6, 1, 5, 2, 3]


def test_clients_that_came_once_are_forgotten() -> None:
    def test(line: Line) -> int:
        for number in range(3000):
            line.leave(line.enter(anytime, client=str(number)))
        return len(line._ends)

    assert in_line(test) == 0


def test_who_asks_much_waits_for_who_asks_little() -> None:
    def test(line: Line) -> list[int]:
        asked = [("a", 10.0), ("a", 10.0), ("b", 1.0), ("b", 1.0), ("b", 1.0)]
        return served(line, [line.enter(anytime, client=name, cost=cost) for name, cost in asked])

    assert in_line(test) == [0, 2, 3, 4, 1]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.5, 20)), min_size=1, max_size=30))
def test_nobody_waits_for_ever(asked: list[tuple[str, float]]) -> None:
    def test(line: Line) -> list[int]:
        return served(line, [line.enter(anytime, client=name, cost=cost) for name, cost in asked])

    assert sorted(in_line(test)) == list(range(len(asked)))


def test_back_in_line_it_is_before_who_came_later() -> None:
    def test(line: Line) -> list[int]:
        first, *others = [line.enter(anytime, client="a") for _ in range(3)]
        assert first.placed
        line.leave(others[0])
        line.back(first)
        return served(line, [first, *others[1:]])

    assert in_line(test) == [0, 1]


def test_the_expected_wait() -> None:
    def test(line: Line) -> list[float]:
        found = [line.expected_wait("a")]
        line.enter(anytime, client="a", cost=10.0)
        found.append(line.expected_wait("a"))
        line.enter(anytime, client="a", cost=20.0)
        found += [line.expected_wait("a"), line.expected_wait("b")]
        return found

    assert in_line(test) == pytest.approx([0.0, 10.0, 30.0, 10.0], abs=0.1)
    assert in_line(test, places=2) == pytest.approx([0.0, 0.0, 15.0, 15.0], abs=0.1)


def test_the_line_has_an_end() -> None:
    def test(line: Line) -> None:
        for _ in range(MOST_WAITING + 1):
            line.enter(anytime)
        with pytest.raises(LineFullError):
            line.enter(anytime)
        line.enter(anytime, counted=False)

    in_line(test)


# -- costs ------------------------------------------------------------------------------------------------------------

TIMINGS: dict[str, Json] = {"prompt_n": 500, "prompt_ms": 2000.0, "predicted_n": 40, "predicted_ms": 1000.0}


def test_nothing_costs_anything_before_it_was_measured() -> None:
    assert Costs().predict(10_000, None) == 0.0


def test_what_it_costs_is_learned() -> None:
    costs = Costs()
    costs.learn(TIMINGS, predicted=0.0)
    assert costs.predict(1000, None) == pytest.approx(4.0 + 1.0)
    assert costs.predict(1000, 10) == pytest.approx(4.0 + 0.25)
    costs.learn({**TIMINGS, "prompt_ms": 4000.0}, predicted=5.0)
    assert costs.prefill == pytest.approx(250 - 0.2 * 125)
    assert costs.to_json()["measured_s"] == 3.0 + 5.0
    assert costs.to_json()["predicted_s"] == 5.0


@pytest.mark.parametrize(
    "timings",
    [None, 3, {}, {"prompt_n": "x"}, {"prompt_n": 500, "prompt_ms": 0}, {"prompt_n": -5, "prompt_ms": 1.0},
     {"predicted_n": True, "predicted_ms": 1.0}, {"prompt_n": float("inf"), "prompt_ms": float("nan")},
     {"prompt_n": 2, "prompt_ms": 1.0}],
)  # fmt: skip
def test_wrong_timings_teach_nothing(timings: Any) -> None:
    costs = Costs()
    costs.learn(timings, predicted=1.0)
    assert costs.predict(1000, 100) == 0.0


# -- at the gateway ---------------------------------------------------------------------------------------------------


def test_who_would_wait_too_long_is_told_at_once() -> None:
    with scene(deadline=60.0) as stage:
        stage.start(1, "--fake-prefill-ms", "1000", "-np", "1", slots=1)
        # Ten tokens of prompt a second, as this worker shows.
        assert stage.chat(words=9, max_tokens=1).status == 200
        working = Background(lambda: stage.chat(words=150, max_tokens=1))
        until(lambda: stage.metric("tidegate_requests_in_flight") == 1)
        waiting = Background(lambda: stage.chat(words=400, max_tokens=1))
        until(lambda: stage.queued() == 1)
        reply = stage.chat(words=5, max_tokens=1)
        assert reply.status == 503
        assert reply.error["reason"] == "queue_full"
        assert "1 are waiting already and need about" in reply.error["message"]
        assert 1 <= int(reply.headers["retry-after"]) <= 120
        # Somebody else has hardly to wait.
        other = stage.post("/v1/chat/completions", chat(5, max_tokens=1), {"Authorization": "Bearer b"})
        assert other.status == 200
        assert [job.result().status for job in (working, waiting)] == [200] * 2
        costs = stage.get("/tidegate/status").json["gateway"]["costs"]
        assert costs["measured_s"] == pytest.approx(4.0, abs=0.2)


def test_a_client_with_one_request_is_not_behind_all_of_another(stage: Scene) -> None:
    stage.start(1, "--fake-token-ms", "10", "-np", "1", slots=1)
    many = [Background(lambda: stage.chat(max_tokens=30)) for _ in range(8)]
    until(lambda: stage.queued() == 7)
    one = Background(lambda: stage.post("/v1/chat/completions", chat(max_tokens=2), {"Authorization": "Bearer b"}))
    assert one.result().content == tokens(2)
    assert sum(job.done for job in many) <= 3
    assert all(job.result().status == 200 for job in many)
