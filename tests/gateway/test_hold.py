"""Workers that die, change and load while requests are on their way."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from gateway.harness import Background, Scene, Stream, chat, content_of, readable, scene, tokens, until
from tidegate.gateway.carry import COMMENT_S


def wait_tokens(stage: Scene, generation: int, count: int) -> None:
    """Until the engine has begun this many answers."""
    until(lambda: len(stage.engines[generation].events("start")) >= count)


def test_a_request_without_a_worker_is_held(stage: Scene) -> None:
    job = Background(stage.chat)
    until(lambda: stage.queued() == 1)
    stage.start()
    reply = job.result()
    assert reply.status == 200
    assert "x-tidegate-degraded" not in reply.headers


@pytest.mark.parametrize("stream", [False, True])
def test_a_killed_worker_loses_no_answer_and_doubles_none(stage: Scene, stream: bool) -> None:
    engine = stage.start(1, "--fake-prefill-ms", "400", "-np", "8", slots=8)

    def one() -> str:
        if stream:
            return content_of(stage.stream(body=chat(stream=True, max_tokens=6)).rest())
        return stage.chat(max_tokens=6).content

    jobs = [Background(one) for _ in range(8)]
    wait_tokens(stage, 1, 8)
    engine.kill()
    # For some milliseconds the guard still says that generation 1 is ready.
    stage.tell()
    stage.tell(gate="hold", worker={"state": "backoff"})
    stage.engine(2)
    stage.announce(2, slots=8)
    assert [job.result() for job in jobs] == [tokens(6)] * 8
    assert len(stage.engines[2].bodies()) == 8
    assert stage.metric("tidegate_requests_total", outcome="answered") == 8


def test_a_plain_answer_is_begun_again_after_half_of_it(stage: Scene) -> None:
    engine = stage.start(1, "--fake-token-ms", "20")
    job = Background(lambda: stage.chat(max_tokens=50))
    wait_tokens(stage, 1, 1)
    until(lambda: stage.get("/fake/stats").json["tokens"] > 10)
    engine.kill()
    stage.engine(2)
    stage.announce(2)
    reply = job.result()
    assert reply.content == tokens(50)
    assert reply.json["usage"]["completion_tokens"] == 50
    assert reply.headers["x-tidegate-degraded"] == "replayed"


def test_a_generation_that_failed_is_not_tried_again_before_a_second(stage: Scene) -> None:
    engine = stage.start(1, "--fake-prefill-ms", "200")
    job = Background(lambda: stage.chat(max_tokens=1))
    wait_tokens(stage, 1, 1)
    engine.kill()
    killed = time.time()
    # The same generation comes back at the same place (a server that its own supervisor restarts).
    again = stage.engine(1)
    assert job.result().content == "tok0"
    assert 0.9 < again.events("start")[-1]["time"] - killed < 2.5


def test_nobody_else_runs_into_a_dead_worker(stage: Scene) -> None:
    engine = stage.start(1, "-np", "1", slots=1)
    engine.kill()
    jobs = [Background(lambda: stage.chat(max_tokens=1)) for _ in range(6)]
    until(lambda: stage.metric("tidegate_lost_attempts_total", how="unreachable") and stage.queued() == 6)
    stage.engine(2)
    stage.announce(2)
    assert all("x-tidegate-degraded" not in job.result().headers for job in jobs)
    assert stage.metric("tidegate_lost_attempts_total", how="unreachable") <= 2


def test_a_worker_that_is_still_loading_is_waited_for(stage: Scene) -> None:
    stage.engine(1, "--fake-load-ms", "600")
    stage.announce(1)
    assert stage.chat(max_tokens=2).content == tokens(2)


@pytest.mark.parametrize("loading", [False, True])
def test_a_worker_that_is_called_ready_and_never_is_has_a_deadline(loading: bool) -> None:
    with scene(deadline=1.0, hold=30.0) as short:
        engine = short.engine(1, *(["--fake-load-ms", "60000"] if loading else []))
        if not loading:
            engine.kill()
        short.announce()
        reply = short.chat()
        assert (reply.status, reply.error["reason"]) == (503, "deadline")


def test_drain_lets_answers_end_and_says_when(stage: Scene) -> None:
    stage.start(1, "--fake-token-ms", "20")
    running = Background(lambda: stage.chat(max_tokens=20))
    wait_tokens(stage, 1, 1)
    stage.guard.forget()
    stage.tell(gate="drain", worker={"state": "draining"})
    held = Background(lambda: stage.chat(max_tokens=2))
    until(lambda: stage.queued() == 1)
    assert not any("drained" in message for message in stage.guard.received)
    assert running.result().content == tokens(20)
    assert stage.guard.wait_for(lambda message: "drained" in message) == {"drained": 1}
    stage.engine(2)
    stage.announce(2)
    assert held.result().content == tokens(2)
    assert len(stage.engines[1].bodies()) == 1


def test_a_worker_that_dies_while_it_drains_is_no_crash(stage: Scene) -> None:
    job = Background(lambda: stage.chat(max_tokens=2))
    for generation in range(1, 5):
        engine = stage.engine(generation, "--fake-prefill-ms", "60000")
        stage.announce(generation)
        wait_tokens(stage, generation, 1)
        stage.tell(gate="drain", worker={"state": "draining"})
        engine.kill()
    stage.engine(5)
    stage.announce(5)
    assert job.result().content == tokens(2)


def test_drain_with_nothing_in_flight_is_done_at_once(stage: Scene) -> None:
    stage.start()
    for _ in range(2):
        stage.guard.forget()
        stage.tell(gate="drain")
        assert stage.guard.wait_for(lambda message: "drained" in message) == {"drained": 1}
        stage.tell(gate="open")


def test_hold_breaks_off_and_sends_again(stage: Scene) -> None:
    engine = stage.start(1, "--fake-token-ms", "50", "--fake-ignore-term")
    jobs = [Background(lambda: stage.chat(max_tokens=40)) for _ in range(3)]
    wait_tokens(stage, 1, 3)
    stage.tell(gate="hold", worker={"state": "stopping"})
    until(lambda: len(engine.events("cancelled")) == 3)
    stage.engine(2)
    stage.announce(2)
    assert [job.result().content for job in jobs] == [tokens(40)] * 3
    assert all(job.result().headers["x-tidegate-degraded"] == "replayed" for job in jobs)


def test_orders_of_the_guard_may_come_often(stage: Scene) -> None:
    job = Background(lambda: stage.chat(max_tokens=5))
    for generation in range(1, 6):
        stage.engine(generation, "--fake-prefill-ms", "500" if generation < 5 else "0")
        stage.announce(generation)
        wait_tokens(stage, generation, 1)
        if generation < 5:
            stage.tell(gate="hold", worker={"state": "stopping"})
    assert job.result().content == tokens(5)


def test_refuse_ends_what_is_in_flight(stage: Scene) -> None:
    stage.start(1, "--fake-token-ms", "50")
    job = Background(lambda: stage.chat(max_tokens=40))
    wait_tokens(stage, 1, 1)
    stage.tell(gate="refuse", reason="parked", retry_after_s=9.0, worker={"state": "stopping"})
    reply = job.result()
    assert (reply.status, reply.error["reason"]) == (503, "parked")


def test_an_admitted_long_prompt_survives_critical(stage: Scene) -> None:
    stage.start(1, "--fake-prefill-ms", "500")
    job = Background(lambda: stage.chat(words=600, max_tokens=2))
    wait_tokens(stage, 1, 1)
    stage.tell(level="critical", gate="hold", worker={"state": "stopping"})
    stage.engine(2)
    stage.announce(2)
    assert job.result().content == tokens(2)


# -- streams ------------------------------------------------------------------------------------------------------


def test_a_stream_without_content_is_begun_again_unseen(stage: Scene) -> None:
    # The engine sends its opening role delta, and dies before the first word.
    engine = stage.start(1, "--fake-crash-at", "1", "--fake-crash-tokens", "0")
    job = Background(lambda: stage.stream(body=chat(stream=True, max_tokens=4)).rest())
    engine.process.wait()
    stage.engine(2)
    stage.announce(2)
    body = job.result()
    assert content_of(body) == tokens(4)
    assert body.count(b'"role"') == 1


def test_a_held_stream_hears_comments_and_then_its_answer(stage: Scene) -> None:
    begun = time.monotonic()
    stream = stage.stream(body=chat(stream=True, max_tokens=2))
    assert COMMENT_S - 0.5 < time.monotonic() - begun < COMMENT_S + 1
    assert stream.status == 200
    stream.read_until(b": tidegate: waiting for the worker\n\n")
    stage.start(1, profile="small")
    body = stream.rest()
    assert content_of(body) == tokens(2)
    assert b": tidegate: degraded fallback\n\n" in body


def test_a_refusal_after_the_head_is_an_event(stage: Scene) -> None:
    stream = stage.stream(body=chat(stream=True))
    stream.read_until(b": tidegate")
    stage.tell(gate="refuse", reason="parked")
    body = stream.rest()
    assert b'"reason":"parked"' in body
    assert body.endswith(b"data: [DONE]\n\n")


def test_a_hold_ends(stage: Scene) -> None:
    with scene(hold=1.0) as short:
        short.tell(worker={"message": "loading big.gguf"})
        begun = time.monotonic()
        reply = short.chat()
        assert 0.9 < time.monotonic() - begun < 3.0
        assert reply.status == 503
        assert "loading big.gguf" in reply.error["message"]
        assert 1 <= int(reply.headers["retry-after"]) <= 120


def test_waiting_for_a_busy_worker_is_no_hold(stage: Scene) -> None:
    with scene(hold=0.5) as short:
        short.start(1, "--fake-token-ms", "50", "-np", "1", slots=1)
        jobs = [Background(lambda: short.chat(max_tokens=20)) for _ in range(2)]
        assert all(job.result().content == tokens(20) for job in jobs)


def test_a_turn_that_does_not_come_has_a_deadline(stage: Scene) -> None:
    with scene(deadline=1.0) as short:
        short.start(1, "--fake-token-ms", "100", "-np", "1", slots=1)
        working = Background(lambda: short.chat(max_tokens=25))
        until(lambda: short.metric("tidegate_requests_in_flight") == 1)
        late = [Background(lambda: short.chat(max_tokens=1)) for _ in range(2)]
        for job in late:
            reply = job.result()
            assert (reply.status, reply.error["reason"]) == (503, "deadline")
            assert "waited 1 s for its turn, its deadline" in reply.error["message"]
            assert "(memory level normal)" in reply.error["message"]
            assert 1 <= int(reply.headers["retry-after"]) <= 120
        assert working.result().content == tokens(25)


# -- clients that leave -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_generation(stage: Scene, stream: bool) -> None:
    engine = stage.start(1, "--fake-token-ms", "20")
    connection = stage.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(chat(stream=stream, max_tokens=4000)))
    wait_tokens(stage, 1, 1)
    left = time.time()
    if stream:
        leaver = Stream(connection, connection.getresponse())
        leaver.read_until(b"tok2")
        left = time.time()
        leaver.close()
    else:
        connection.close()
    until(lambda: engine.events("cancelled"))
    assert engine.events("cancelled")[0]["time"] - left < 0.5
    assert stage.metric("tidegate_requests_total", outcome="client_gone") == 1
    assert stage.metric("tidegate_requests_in_flight") == 0


def test_a_client_that_leaves_while_it_waits_leaves_the_line(stage: Scene) -> None:
    connection = stage.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(chat()))
    until(lambda: stage.queued() == 1)
    connection.close()
    until(lambda: stage.queued() == 0)
    engine = stage.start()
    assert stage.chat().status == 200
    assert len(engine.bodies()) == 1


def test_a_slow_reader_holds_nobody_up(stage: Scene) -> None:
    stage.start(1, "-c", "400000", "-np", "4", context=100000)
    stage.tell(best_context=100000)
    slow = stage.connect()
    slow.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True, max_tokens=50000)))
    until(lambda: stage.metric("tidegate_requests_in_flight") == 1)
    assert stage.chat(max_tokens=3).content == tokens(3)
    # It reads nothing at first, and gets everything in the end.
    assert slow.sock is not None and readable(slow.sock, 5)
    with slow.getresponse() as response:
        body = response.read()
    assert content_of(body) == tokens(50000)
    slow.close()


# -- the guard goes -----------------------------------------------------------------------------------------------


def test_without_the_guard_it_goes_on_and_finds_a_new_one(stage: Scene) -> None:
    stage.start()
    stage.guard.die()
    until(lambda: stage.metric("tidegate_guard_connected") == 0)
    assert stage.chat().status == 200
    stage.guard.forget()
    stage.guard.listen()
    until(lambda: stage.metric("tidegate_guard_connected") == 1)
    assert stage.guard.wait_for(lambda message: message.get("hello") == "gateway")["pid"] == stage.process.pid
    assert stage.chat().status == 200


def test_what_the_guard_sends_never_kills_the_link(stage: Scene) -> None:
    stage.start()
    junk = [b"\n", b"no json\n", b"[1]\n", b'{"state": 3}\n', b'{"state": {"level": "x"}}\n', b'{"id": 77, "ok": 1}\n']
    junk += [b'{"stop": "x"}\n', b"\xff\xfe\n", b"[" * 50_000 + b"\n", b"x" * 200_000 + b"\n"]
    for line in junk:
        stage.guard.raw(line)
    stage.tell(level="warn")
    until(lambda: stage.metric("tidegate_level", level="warn") == 1)
    assert stage.guard.connections == 1
    assert stage.chat().status == 200


def test_the_ledger_tells_what_is_carried(stage: Scene) -> None:
    stage.start(1, "--fake-token-ms", "50", "-np", "1", slots=1)
    stage.guard.forget()
    jobs = [Background(lambda: stage.chat(words=9, max_tokens=10)) for _ in range(3)]
    ledger = stage.guard.wait_for(lambda message: message.get("ledger", {}).get("queued") == 2)["ledger"]
    assert ledger["in_flight"] == 1
    assert ledger["prompt_tokens"] >= 10
    for job in jobs:
        assert job.result().status == 200
    nothing = {"in_flight": 0, "queued": 0, "prompt_tokens": 0, "engine_faults": 0}
    stage.guard.wait_for(lambda message: message.get("ledger") == nothing)


def test_the_ledger_is_sent_ten_times_a_second_at_most(stage: Scene) -> None:
    # In flight for most of the time, so that the reports do not all fall into the gaps.
    stage.start(1, "--fake-token-ms", "5")
    stage.guard.forget()
    begun = time.monotonic()
    for _ in range(60):
        assert stage.chat(max_tokens=4).status == 200
    seconds = time.monotonic() - begun
    ledgers = [message for message in stage.guard.received if "ledger" in message]
    assert 1 <= len(ledgers) <= seconds / 0.1 + 2 < 60


def test_held_requests_go_within_5_ms(stage: Scene) -> None:
    stage.engine(1, "-np", "8")
    jobs = [Background(lambda: stage.chat(max_tokens=1)) for _ in range(8)]
    until(lambda: stage.queued() == 8)
    told = time.time()
    worker = {**stage.state["worker"], "state": "ready", "generation": 1, "url": f"unix:{stage.engines[1].path}"}
    stage.guard.announce({**stage.state, "gate": "open", "worker": {**worker, "slots": 8}})
    assert all(job.result().status == 200 for job in jobs)
    arrived = [entry["time"] for entry in stage.engines[1].events("request") if "completions" in entry["target"]]
    # The first counts of all eight; this machine may be busy with other tests, so the bound is generous.
    assert arrived[0] - told < 0.05
    assert arrived[-1] - told < 0.3


# -- the process --------------------------------------------------------------------------------------------------


def test_stop_lets_what_is_in_flight_end(stage: Scene) -> None:
    stage.start(1, "--fake-token-ms", "30", "-np", "1", slots=1)
    job = Background(lambda: stage.chat(max_tokens=20))
    wait_tokens(stage, 1, 1)
    waiting = Background(stage.chat)
    until(lambda: stage.queued() == 1)
    stage.guard.say({"stop": 5.0})
    assert waiting.result().error["reason"] == "stopping"
    assert job.result().content == tokens(20)
    assert stage.process.wait(5) == 0
    with pytest.raises(ConnectionError):
        stage.get("/healthz")


def test_stop_does_not_wait_longer_than_it_was_told(stage: Scene) -> None:
    stage.start(1, "--fake-token-ms", "50")
    stream = stage.stream(body=chat(stream=True, max_tokens=4000))
    stream.read_until(b"tok1")
    begun = time.monotonic()
    stage.guard.say({"stop": 0.5})
    assert stream.rest().endswith(b"data: [DONE]\n\n")
    assert stage.process.wait(5) == 0
    assert 0.4 < time.monotonic() - begun < 2.5


def test_a_second_signal_ends_it_at_once(stage: Scene) -> None:
    stage.start(1, "--fake-token-ms", "50")
    stream = stage.stream(body=chat(stream=True, max_tokens=4000))
    stream.read_until(b"tok1")
    begun = time.monotonic()
    os.kill(stage.process.pid, signal.SIGTERM)
    until(lambda: not _accepts(stage))
    os.kill(stage.process.pid, signal.SIGTERM)
    assert stage.process.wait(5) == 0
    assert time.monotonic() - begun < 2.5


def _accepts(stage: Scene) -> bool:
    try:
        return stage.get("/healthz").status == 200
    except OSError:
        return False
