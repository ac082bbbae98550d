"""Begun answers that go on with the next worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.harness import Background, Scene, chat, content_of, scene, tokens, until
from tidegate.gateway.carry import COMMENT_S


def events(body: bytes) -> list[Any]:
    return [json.loads(part[6:]) for part in body.split(b"\n\n") if part.startswith(b"data: {")]


def one_answer(body: bytes, count: int, *, usage: tuple[int, int] | None = None) -> None:
    """``body`` is one whole stream of ``count`` tokens as one worker would have sent it."""
    assert content_of(body) == tokens(count)
    found = events(body)
    assert len({(each["id"], each["created"], each["model"]) for each in found}) == 1
    reasons = [c["finish_reason"] for each in found for c in each["choices"]]
    assert [reason for reason in reasons if reason is not None] == ["length"]
    assert body.count(b'"role"') == 1
    assert body.count(b"data: [DONE]") == 1
    assert body.endswith(b"data: [DONE]\n\n")
    if usage is not None:
        prompt, answer = usage
        assert found[-1]["usage"] == {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        }


@pytest.mark.parametrize("order", [False, True])
def test_a_begun_stream_goes_on(stage: Scene, order: bool) -> None:
    engine = stage.start(1, "--fake-token-ms", "10")
    stream = stage.stream(body=chat(stream=True, max_tokens=60, stream_options={"include_usage": True}))
    stream.read_until(b"tok5")
    if order:
        stage.tell(gate="hold", worker={"state": "stopping"})
    else:
        engine.kill()
        stage.tell(gate="hold", worker={"state": "backoff"})
    stage.engine(2)
    stage.announce(2)
    body = stream.rest()
    one_answer(body, 60, usage=(4, 60))
    (asked,) = stage.engines[2].bodies("/completion")
    assert asked["n_predict"] == 60 - (len(asked["prompt"]) - 4)
    assert isinstance(asked["seed"], int)
    assert b": tidegate: degraded replayed\n\n" in body


def test_it_goes_on_as_often_as_needed(stage: Scene) -> None:
    stage.start(1, "--fake-token-ms", "10")
    stream = stage.stream(body=chat(stream=True, max_tokens=80))
    for generation in range(1, 7):
        stream.read_until(b'tok%d"' % (generation * 9))
        stage.engines[generation].kill()
        stage.tell(gate="hold", worker={"state": "backoff", "deaths": [{"generation": generation, "cause": "killed"}]})
        stage.engine(generation + 1, "--fake-token-ms", "10")
        stage.announce(generation + 1)
    one_answer(stream.rest(), 80)


def test_at_temperature_0_the_worker_is_brought_there_in_pieces(stage: Scene) -> None:
    engine = stage.start(1, "--fake-token-ms", "2")
    stream = stage.stream(body=chat(stream=True, max_tokens=300, temperature=0))
    stream.read_until(b"tok120")
    engine.kill()
    stage.engine(2)
    stage.announce(2)
    one_answer(stream.rest(), 300)
    *before, last = stage.engines[2].bodies("/completion")
    assert [len(each["prompt"]) for each in before] == [4 + 48 * step for step in range(len(before))]
    assert len(before) >= 3
    assert 0 < len(last["prompt"]) - len(before[-1]["prompt"]) <= 48
    assert [each["n_predict"] for each in before] == [0] * len(before)
    assert [each.get("cache_prompt") for each in (*before, last)] == [None] + [True] * len(before)


def test_a_text_completion_goes_on(stage: Scene) -> None:
    engine = stage.start(1, "--fake-token-ms", "10")
    stream = stage.stream("/v1/completions", {"prompt": "once upon a time ", "stream": True, "max_tokens": 40})
    stream.read_until(b"tok5")
    engine.kill()
    stage.engine(2)
    stage.announce(2)
    found = events(stream.rest())
    assert "".join(c["text"] for each in found for c in each["choices"]) == tokens(40)
    assert {each["object"] for each in found} == {"text_completion"}


def test_a_plain_answer_goes_on_where_it_was(stage: Scene) -> None:
    engine = stage.start(1, "--fake-token-ms", "10")
    job = Background(lambda: stage.chat(max_tokens=60))
    until(lambda: stage.get("/fake/stats").json["tokens"] > 20)
    engine.kill()
    stage.engine(2)
    stage.announce(2)
    reply = job.result()
    assert reply.content == tokens(60)
    assert reply.json["usage"] == {"prompt_tokens": 4, "completion_tokens": 60, "total_tokens": 64}
    assert stage.get("/fake/stats").json["tokens"] <= 40


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
        {"n": 2},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    ],
)
def test_what_is_more_than_text_is_begun_again_and_the_same_left_out(stage: Scene, more: dict[str, Any]) -> None:
    engine = stage.start(1, "--fake-token-ms", "10")
    stream = stage.stream(body={**chat(stream=True, max_tokens=40), **more})
    stream.read_until(b"tok5")
    engine.kill()
    stage.engine(2)
    stage.announce(2)
    one_answer(stream.rest(), 40)
    first, second = stage.engines[1].bodies()[-1], stage.engines[2].bodies()[-1]
    assert first["seed"] == second["seed"]


def test_another_answer_is_not_glued_on(stage: Scene) -> None:
    engine = stage.start(1, "--fake-token-ms", "10")
    stream = stage.stream(body=chat(stream=True, max_tokens=40, response_format={"type": "json_object"}))
    stream.read_until(b"tok5")
    engine.kill()
    stage.engine(2, "--fake-first-token", "7")
    stage.announce(2)
    body = stream.rest()
    assert b"tok15" not in body
    error, done, rest = body.split(b"\n\n")[-3:]
    assert json.loads(error[6:])["error"]["code"] == "worker_lost"
    assert "begins in another way" in json.loads(error[6:])["error"]["message"]
    assert (done, rest) == (b"data: [DONE]", b"")


def test_a_begun_stream_hears_comments_while_it_waits(stage: Scene) -> None:
    engine = stage.start(1, "--fake-token-ms", "10")
    stream = stage.stream(body=chat(stream=True, max_tokens=40))
    stream.read_until(b"tok5")
    engine.kill()
    stage.tell(gate="hold", worker={"state": "backoff"})
    stream.read_until(b": tidegate: waiting for the worker\n\n")
    stage.engine(2)
    stage.announce(2)
    one_answer(stream.rest(), 40)
    assert COMMENT_S == 5.0


def test_a_begun_stream_without_a_worker_ends_with_an_error() -> None:
    with scene(hold=1.0) as stage:
        engine = stage.start(1, "--fake-token-ms", "10")
        stream = stage.stream(body=chat(stream=True, max_tokens=400))
        stream.read_until(b"tok5")
        engine.kill()
        stage.tell(gate="hold", worker={"state": "backoff"})
        body = stream.rest()
        assert b'"reason": "worker_unavailable"' in body.replace(b'":"', b'": "')
        assert body.endswith(b"data: [DONE]\n\n")


def test_history_is_given_up_for_it_in_a_smaller_worker(stage: Scene) -> None:
    engine = stage.start(1, "--fake-token-ms", "10")
    messages = [{"role": "system", "content": "be brief"}]
    messages += [{"role": role, "content": "word " * 200} for role in ("user", "assistant") * 5] + [
        {"role": "user", "content": "go on"}
    ]
    stream = stage.stream(body={"messages": messages, "stream": True, "max_tokens": 60})
    stream.read_until(b"tok5")
    engine.kill()
    stage.engine(2, "-c", "1024")
    stage.announce(2, context=1024, profile="small")
    body = stream.rest()
    assert content_of(body) == tokens(60)
    (asked,) = stage.engines[2].bodies("/completion")
    assert len(asked["prompt"]) < 1024
