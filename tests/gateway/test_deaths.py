"""Requests that workers die of: sent again, sent alone, given up and kept away for a while."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from gateway.harness import Background, Engine, Reply, Scene, chat, tokens, until
from tidegate.gateway.flight import Cause
from tidegate.gateway.quarantine import KEPT_S, Quarantine, fingerprint

POISON = {"messages": [{"role": "user", "content": "poison"}]}


class Board:
    """Starts the next generation after each death, as the guard does."""

    def __init__(self, stage: Scene, *options: str, slots: int = 4) -> None:
        self.stage = stage
        self.options = options
        self.slots = slots
        self.generation = 0
        self.deaths: list[dict[str, Any]] = []

    def start(self) -> None:
        self.generation += 1
        self.stage.engine(self.generation, "-np", str(self.slots), *self.options)
        self.stage.announce(self.generation, slots=self.slots, deaths=self.deaths)

    def died(self, cause: Cause) -> None:
        """What the guard says of a death."""
        self.deaths = [*self.deaths, {"generation": self.generation, "cause": cause.value}]
        self.stage.tell(gate="hold", worker={"state": "backoff", "url": "", "deaths": self.deaths})

    def crash_until(self, job: Background, most: int) -> None:
        """Crashes and starts, until the job is over."""
        for _ in range(most):
            self.start()
            engine = self.stage.engines[self.generation]
            until(partial(over, engine, job))
            if job.done:
                return
            self.died(Cause.CRASHED)
        until(lambda: job.done)


def over(engine: Engine, job: Background) -> bool:
    return job.done or engine.process.poll() is not None


def begun(engine: Engine, count: int) -> bool:
    return len(engine.events("start")) >= count


def good(stage: Scene, words: int) -> Background:
    return Background(lambda: stage.chat(words=words, max_tokens=20))


def ask(stage: Scene) -> Background:
    return Background(lambda: stage.post("/v1/chat/completions", POISON))


def given_up(reply: Reply) -> None:
    assert reply.status == 503
    assert reply.error["code"] == "worker_crashed"
    assert reply.headers["x-should-retry"] == "false"


def test_a_request_alone_in_two_crashes_is_given_up(stage: Scene) -> None:
    board = Board(stage, "--fake-crash-word", "poison")
    job = ask(stage)
    board.crash_until(job, most=3)
    given_up(job.result())
    assert "died 2 times" in job.result().error["message"]
    assert len(board.deaths) == 2


def test_a_poison_prompt_among_good_ones(stage: Scene) -> None:
    board = Board(stage, "--fake-crash-word", "poison", "--fake-token-ms", "5")
    jobs = [good(stage, words) for words in range(1, 11)]
    until(lambda: stage.queued() == 10)
    bad = ask(stage)
    until(lambda: stage.queued() == 11)
    jobs += [good(stage, words) for words in range(11, 21)]
    until(lambda: stage.queued() == 21)
    board.crash_until(bad, most=4)
    given_up(bad.result())
    if len(board.deaths) == board.generation:
        board.start()
    assert [(job.result().status, job.result().body[:300]) for job in jobs if job.result().status != 200] == []
    assert [job.result().content for job in jobs] == [tokens(20)] * 20
    assert len(board.deaths) <= 3


def test_the_same_request_is_kept_away_from_that_profile(stage: Scene) -> None:
    board = Board(stage, "--fake-crash-word", "poison")
    job = ask(stage)
    board.crash_until(job, most=3)
    board.died(Cause.CRASHED)
    board.start()
    again = stage.post("/v1/chat/completions", {**POISON, "stream": True, "temperature": 0.5})
    given_up(again)
    assert "is not tried again with the profile 'full' for 10 min" in again.error["message"]
    assert stage.metric("tidegate_requests_total", outcome="refused_quarantine") == 1
    assert stage.chat().status == 200
    # Another model may well survive it.
    stage.engines[board.generation].kill()
    board.died(Cause.KILLED)
    board.options = ()
    board.start()
    stage.tell(worker={"profile": "small"})
    assert stage.post("/v1/chat/completions", POISON).status == 200


def test_somebody_elses_kills_never_count(stage: Scene) -> None:
    board = Board(stage, "--fake-token-ms", "20")
    job = Background(lambda: stage.chat(max_tokens=100))
    for _ in range(4):
        board.start()
        engine = stage.engines[board.generation]
        until(partial(engine.events, "start"))
        engine.kill()
        board.died(Cause.KILLED)
    board.start()
    assert job.result().content == tokens(100)


def test_a_suspect_waits_until_the_others_are_out(stage: Scene) -> None:
    """Twice with others in flight it may have been any of them."""
    board = Board(stage, "--fake-prefill-ms", "300", slots=2)
    jobs = [Background(lambda: stage.chat(max_tokens=2)) for _ in range(2)]
    for _ in range(2):
        board.start()
        engine = stage.engines[board.generation]
        until(partial(begun, engine, 2))
        engine.kill()
        board.died(Cause.CRASHED)
    board.start()
    assert [job.result().content for job in jobs] == [tokens(2)] * 2
    events = [e["event"] for e in read(stage, board.generation) if e["event"] in ("start", "done")]
    assert events == ["start", "done", "start", "done"]


def read(stage: Scene, generation: int) -> list[dict[str, Any]]:
    with open(stage.engines[generation].log_path) as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("news", [{"state": "backoff"}, {"state": "starting", "generation": 2}])
def test_the_news_of_a_death_may_come_before_the_broken_connection(stage: Scene, news: dict[str, Any]) -> None:
    # A stopped process keeps its connections: only the guard's word tells.
    job = Background(lambda: stage.post("/v1/chat/completions", chat(max_tokens=2)))
    for generation in (1, 2):
        stage.engine(generation, "--fake-prefill-ms", "60000")
        stage.announce(generation)
        until(partial(begun, stage.engines[generation], 1))
        stage.tell(gate="hold", worker={"url": "", **news, **({"generation": 3} if generation == 2 else {})})
    stage.engine(3)
    stage.announce(3)
    given_up(job.result())


def test_the_deaths_in_a_message_are_checked(stage: Scene) -> None:
    stage.start()
    stage.tell(worker={"deaths": [3, {}, {"generation": "x"}, {"generation": 1, "cause": "boredom"}]})
    stage.tell(worker={"deaths": "no list"})
    assert stage.chat().status == 200


# -- the list itself --------------------------------------------------------------------------------------------------


def test_a_quarantine_ends() -> None:
    kept = Quarantine()
    mark = fingerprint(b"a", b"b")
    kept.add(mark, "full", now=100.0)
    assert kept.holds(mark, "full", now=130.0) == KEPT_S - 30
    assert kept.holds(mark, "small", now=130.0) == 0
    assert kept.holds(fingerprint(b"ab", b""), "full", now=130.0) == 0
    assert kept.holds(mark, "full", now=100.0 + KEPT_S) == 0


def test_a_quarantine_has_an_end_in_numbers_too() -> None:
    kept = Quarantine()
    for number in range(1000):
        kept.add(fingerprint(str(number).encode()), "full", now=float(number))
    assert len(kept) == 64
    assert kept.holds(fingerprint(b"999"), "full", now=1000.0)
    assert not kept.holds(fingerprint(b"0"), "full", now=1000.0)
