"""An answer in place of a refusal, for whoever asked for it."""

from __future__ import annotations

import json
from typing import Any

import openai as openai_client
import pytest

from gateway.harness import Background, Scene, chat, content_of, scene, tokens, until
from tidegate.gateway.instead import HEADER

ANSWER = {HEADER: "answer"}


def at_critical(stage: Scene) -> None:
    stage.start()
    stage.tell(level="critical", retry_after_s=30.0)


def test_a_plain_answer_says_what_happened(stage: Scene) -> None:
    at_critical(stage)
    reply = stage.post("/v1/chat/completions", chat(800, model="mine"), ANSWER)
    assert reply.status == 200
    assert reply.headers["x-tidegate-degraded"] == "refused"
    assert 30 <= int(reply.headers["retry-after"]) <= 38
    value = reply.json
    assert value["object"] == "chat.completion"
    assert value["model"] == "mine"
    (choice,) = value["choices"]
    assert choice["finish_reason"] == "stop"
    assert "memory on this device is low" in choice["message"]["content"]
    assert f"retry in {reply.headers['retry-after']} s" in choice["message"]["content"]
    assert stage.metric("tidegate_requests_total", outcome="refused_pressure") == 1


def test_the_package_reads_it(stage: Scene) -> None:
    at_critical(stage)
    url = f"http://127.0.0.1:{stage.port}/v1"
    with openai_client.OpenAI(base_url=url, api_key="x", max_retries=0, default_headers=ANSWER) as client:
        messages: Any = chat(800)["messages"]
        plain = client.chat.completions.create(model="m", messages=messages)
        assert "memory on this device is low" in (plain.choices[0].message.content or "")
        options: Any = {"include_usage": True}
        stream = client.chat.completions.create(model="m", messages=messages, stream=True, stream_options=options)
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "memory on this device is low" in text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, "stop"]
    assert chunks[-1].usage is not None


def test_a_text_completion(stage: Scene) -> None:
    at_critical(stage)
    reply = stage.post("/v1/completions", {"prompt": "word " * 800}, ANSWER)
    assert reply.json["object"] == "text_completion"
    assert "memory on this device is low" in reply.json["choices"][0]["text"]


def test_by_setting_and_in_chinese() -> None:
    with scene(on_pressure="answer", language="zh") as stage:
        at_critical(stage)
        assert "设备内存紧张" in stage.chat(800).content
        # A client may still want the error.
        error = stage.post("/v1/chat/completions", chat(800), {HEADER: "error"})
        assert error.status == 503
        assert "设备内存紧张" in error.error["message"]


def test_a_stream_that_only_heard_comments(stage: Scene) -> None:
    connection = stage.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True)), ANSWER)
    response = connection.getresponse()
    assert response.readline().startswith(b": tidegate: waiting")
    stage.tell(gate="refuse", reason="parked")
    body = response.read()
    connection.close()
    assert "the model is stopped (parked)" in content_of(body)
    assert body.endswith(b"data: [DONE]\n\n")


def test_a_begun_answer_ends_with_the_error(stage: Scene) -> None:
    stage.start(1, "--fake-token-ms", "20")
    connection = stage.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True, max_tokens=400)), ANSWER)
    with connection.getresponse() as response:
        while b"tok2" not in response.readline():
            pass
        stage.tell(gate="refuse", reason="parked", worker={"state": "stopping"})
        body = response.read()
    connection.close()
    assert b'"reason":"parked"' in body.replace(b'": ', b'":')


@pytest.mark.parametrize("wish", ["perhaps", ""])
def test_another_wish_is_an_error(stage: Scene, wish: str) -> None:
    stage.start()
    reply = stage.post("/v1/chat/completions", chat(), {HEADER: wish})
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")


def test_what_the_client_has_to_change_stays_an_error(stage: Scene) -> None:
    stage.start()
    reply = stage.post("/v1/chat/completions", chat(5000), ANSWER)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")


def test_with_memory_enough_it_changes_nothing(stage: Scene) -> None:
    stage.start()
    job = Background(lambda: stage.post("/v1/chat/completions", chat(max_tokens=5), ANSWER))
    until(lambda: job.done)
    assert job.result().content == tokens(5)
    assert "x-tidegate-degraded" not in job.result().headers
