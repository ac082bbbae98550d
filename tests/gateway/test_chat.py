"""Chats and completions through the gateway: shapes, levels, trimming, refusals."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from typing import Any

import openai
import pytest

from gateway.harness import Background, Scene, chat, content_of, scene, tokens, until


def talk(turns: int, words: int = 50) -> dict[str, Any]:
    """A system prompt, some turns, and a question; a turn is 2 * (words + 1) tokens to the fake engine."""
    messages = [{"role": "system", "content": "be kind"}]
    for index in range(turns):
        messages.append({"role": "user", "content": f"q{index} " + "word " * (words - 1)})
        messages.append({"role": "assistant", "content": f"a{index} " + "word " * (words - 1)})
    return {"messages": [*messages, {"role": "user", "content": "and now"}]}


def sent(stage: Scene, generation: int = 1) -> dict[str, Any]:
    return stage.engines[generation].bodies()[-1]


def contents(body: dict[str, Any]) -> list[str]:
    return [message["content"].split()[0] for message in body["messages"]]


# -- shapes -------------------------------------------------------------------------------------------------------


def test_a_plain_chat_is_streamed_upstream_and_comes_back_whole(stage: Scene) -> None:
    engine = stage.start()
    reply = stage.chat(max_tokens=3)
    assert reply.status == 200
    assert reply.content == tokens(3)
    assert reply.json["object"] == "chat.completion"
    assert reply.json["usage"] == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    assert reply.headers["x-tidegate-level"] == "normal"
    assert reply.headers["x-tidegate-profile"] == "full"
    assert "x-tidegate-degraded" not in reply.headers
    assert engine.bodies()[-1]["stream"] is True


def test_a_streamed_chat_keeps_its_bytes(stage: Scene) -> None:
    stage.start()
    stream = stage.stream(body=chat(stream=True, max_tokens=3))
    assert stream.headers["content-type"] == "text/event-stream"
    body = stream.rest()
    assert content_of(body) == tokens(3)
    assert body.endswith(b"data: [DONE]\n\n")
    assert b'"usage"' not in body
    assert json.loads(body.split(b"\n")[0][6:])["choices"][0]["delta"] == {"role": "assistant", "content": None}


def test_the_openai_package_is_a_client(stage: Scene) -> None:
    stage.start()
    with openai.OpenAI(base_url=f"http://127.0.0.1:{stage.port}/v1", api_key="x", max_retries=0) as client:
        whole = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello there"}], max_tokens=4
        )
        assert whole.choices[0].message.content == tokens(4)
        assert whole.usage is not None and whole.usage.total_tokens == 7
        with client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        ) as parts:
            pieces = list(parts)
        assert "".join(part.choices[0].delta.content or "" for part in pieces if part.choices) == tokens(16)
        assert pieces[-1].usage is not None
        text = client.completions.create(model="m", prompt="one two", max_tokens=2)
        assert text.choices[0].text == tokens(2)
        assert [model.id for model in client.models.list()] == ["fake-model"]
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 5000}])
        assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/v1/completions"])
def test_the_paths_without_v1_too(stage: Scene, path: str) -> None:
    stage.start()
    body = chat(max_tokens=2) if "chat" in path else {"prompt": "a b", "max_tokens": 2}
    reply = stage.post(path, body)
    assert reply.status == 200
    choice = reply.json["choices"][0]
    assert tokens(2) == (choice["message"]["content"] if "chat" in path else choice["text"])


def test_a_wrong_body_is_a_400(stage: Scene) -> None:
    stage.start()
    for body in (b"{", b"[" * 100_000, b"\xff", b'{"messages": "x"}'):
        reply = stage.post("/v1/chat/completions", body)
        assert reply.status == 400
        assert reply.error["type"] == "invalid_request_error"
    reply = stage.request("POST", "/v1/chat/completions", None)
    assert reply.status == 400


def test_models_are_told_without_a_worker(stage: Scene) -> None:
    assert [entry["id"] for entry in stage.get("/v1/models").json["data"]] == ["big.gguf", "small.gguf"]
    stage.start()
    assert [entry["id"] for entry in stage.get("/models").json["data"]] == ["fake-model"]
    stage.tell(gate="hold")
    assert [entry["id"] for entry in stage.get("/v1/models").json["data"]] == ["fake-model"]


# -- length -------------------------------------------------------------------------------------------------------


def test_an_open_answer_is_bounded_by_the_context(stage: Scene) -> None:
    stage.start(1, "-c", "64", "-np", "1", context=64)
    stage.tell(best_context=64)
    reply = stage.chat(words=53)
    assert sent(stage)["max_tokens"] == 10
    assert reply.json["choices"][0]["finish_reason"] == "length"
    assert "x-tidegate-degraded" not in reply.headers
    stage.tell(best_context=4096)
    reply = stage.chat(words=43)
    assert reply.headers["x-tidegate-degraded"] == "capped"
    assert reply.headers["x-tidegate-context"] == "64"
    assert stage.metric("tidegate_degraded_total", how="capped") == 1


def test_a_prompt_too_long_for_the_best_profile_is_refused_at_once(stage: Scene) -> None:
    stage.start()
    reply = stage.chat(words=4096)
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"
    assert (reply.error["n_prompt_tokens"], reply.error["n_ctx"]) == (4097, 4096)
    assert reply.headers["x-should-retry"] == "false"
    assert "reduced" not in reply.error["message"]
    assert stage.engines[1].bodies() == []


def test_a_reduced_context_trims_or_says_that_it_is_reduced(stage: Scene) -> None:
    stage.start(1, "-c", "1024", "-np", "1", context=1024)
    reply = stage.post("/v1/chat/completions", talk(20))
    assert reply.status == 200
    assert reply.headers["x-tidegate-degraded"] == "trimmed, capped"
    assert int(reply.headers["x-tidegate-dropped-messages"]) == 41 - len(sent(stage)["messages"]) + 1
    assert contents(sent(stage))[0] == "be" and contents(sent(stage))[-1] == "and"
    assert reply.json["usage"]["prompt_tokens"] <= 1024 - 128
    too_long = stage.chat(words=2000)
    assert too_long.status == 400
    assert "(reduced from 4096 because memory is low)" in too_long.error["message"]
    assert "retry in" in too_long.error["message"]


def test_an_engine_without_a_count_still_decides(stage: Scene) -> None:
    # The guard announces more than the engine has: its own 400 is put into the client's words.
    stage.start(1, "-c", "64", "-np", "1", context=4096)
    reply = stage.chat(words=200)
    assert reply.status == 400
    assert (reply.error["code"], reply.error["n_ctx"]) == ("context_length_exceeded", 64)


# -- levels -------------------------------------------------------------------------------------------------------


def test_warn_drops_the_oldest_history(stage: Scene) -> None:
    stage.start()
    assert "x-tidegate-degraded" not in stage.post("/v1/chat/completions", talk(20)).headers
    assert len(sent(stage)["messages"]) == 42
    stage.tell(level="warn", warn_context=500)
    reply = stage.post("/v1/chat/completions", talk(20))
    assert reply.headers["x-tidegate-level"] == "warn"
    assert reply.headers["x-tidegate-degraded"] == "trimmed"
    kept = contents(sent(stage))
    assert reply.headers["x-tidegate-dropped-messages"] == str(42 - len(kept))
    assert kept == ["be", "q16", "a16", "q17", "a17", "q18", "a18", "q19", "a19", "and"]
    assert reply.json["usage"]["prompt_tokens"] <= 500
    # What must stay may be above the limit, as long as the worker can hold it.
    assert stage.chat(words=3000).status == 200


def test_warn_takes_one_at_a_time(stage: Scene) -> None:
    engine = stage.start(1, "--fake-token-ms", "20", "-np", "4")
    stage.tell(level="warn")
    jobs = [Background(lambda: stage.chat(max_tokens=5)) for _ in range(4)]
    assert all(job.result().content == tokens(5) for job in jobs)
    # An answer takes four pauses of 20 ms at the least, so one after the other they begin that far apart.
    starts = sorted(event["time"] for event in engine.events("start"))
    assert len(starts) == 4
    assert all(after - before >= 0.075 for before, after in pairwise(starts))


def test_normal_uses_every_slot_but_no_more(stage: Scene) -> None:
    # The engine would take four at once: the bound that is seen is the gateway's.
    engine = stage.start(1, "--fake-token-ms", "100", "-np", "4", "-c", "16384", slots=2)
    jobs = [Background(lambda: stage.chat(max_tokens=5)) for _ in range(4)]
    assert all(job.result().content == tokens(5) for job in jobs)
    # An answer takes four pauses of 100 ms at the least: two begin together, the others when one of them has ended.
    first, second, third, fourth = sorted(event["time"] for event in engine.events("start"))
    assert second - first < 0.4
    assert third - first >= 0.395
    assert fourth - second >= 0.395


def test_the_override_trims_at_normal(stage: Scene) -> None:
    stage.start()
    stage.tell(context_override=300)
    reply = stage.post("/v1/chat/completions", talk(20))
    assert reply.headers["x-tidegate-degraded"] == "trimmed"
    assert reply.json["usage"]["prompt_tokens"] <= 300


@pytest.mark.parametrize(("language", "hint"), [("en", "memory on this device is low"), ("zh", "内存紧张")])
def test_critical_refuses_long_prompts_with_a_hint(language: str, hint: str) -> None:
    with scene(language=language) as stage:
        stage.start()
        stage.tell(level="critical", retry_after_s=33.0)
        reply = stage.chat(words=300)
        assert reply.status == 503
        assert reply.error["type"] == "service_unavailable_error"
        assert reply.error["code"] == "server_is_overloaded"
        assert reply.error["reason"] == "memory_pressure"
        assert hint in reply.error["message"]
        assert 33 <= int(reply.headers["retry-after"]) <= 42
        assert reply.headers["x-tidegate-level"] == "critical"
        stage.tell(gate="hold")
        assert stage.chat(words=300).status == 503
        short = Background(lambda: stage.chat(words=3))
        until(lambda: stage.queued() == 1)
        stage.engine(2)
        stage.announce(2)
        assert short.result().status == 200


def test_a_closed_gate_says_why(stage: Scene) -> None:
    stage.tell(gate="refuse", reason="parked", worker={"state": "parked", "message": "needs 300 MiB more"})
    reply = stage.chat()
    assert reply.status == 503
    assert reply.error["reason"] == "parked"
    assert "needs 300 MiB more" in reply.error["message"]
    assert 1 <= int(reply.headers["retry-after"]) <= 120


def test_another_model_is_said(stage: Scene) -> None:
    stage.start(1, profile="small")
    assert stage.chat().headers["x-tidegate-degraded"] == "fallback"


def test_the_line_is_bounded(stage: Scene) -> None:
    jobs = [Background(lambda: stage.chat(max_tokens=1)) for _ in range(256)]
    until(lambda: stage.queued() == 256)
    reply = stage.chat()
    assert (reply.status, reply.error["reason"]) == (503, "queue_full")
    assert int(reply.headers["retry-after"]) >= 1
    stage.start()
    assert all(job.result().status == 200 for job in jobs)


def test_images_pass_and_are_not_counted_as_text(stage: Scene) -> None:
    stage.start()
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 200_000}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "what is this"}, part]}]}
    assert stage.post("/v1/chat/completions", body).status == 200
    assert sent(stage)["messages"] == body["messages"]


def test_first_come_first_served(stage: Scene) -> None:
    engine = stage.engine(1, "-np", "1")
    jobs = []
    for index in range(5):
        jobs.append(Background(partial(stage.chat, max_tokens=1, user=f"u{index}")))
        until(partial(lambda count: stage.queued() == count, index + 1))
    stage.announce(1, slots=1)
    assert all(job.result().status == 200 for job in jobs)
    assert [body["user"] for body in engine.bodies()] == [f"u{index}" for index in range(5)]
