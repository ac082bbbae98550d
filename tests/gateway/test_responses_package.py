"""OpenAI's package at the Responses surface, and the gateway's own way with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai as package
import pytest

from gateway.canned import TALK, assembled, deltas, serving, tell
from gateway.harness import Scene, tokens
from gateway.test_responses import TOOL, events, voice
from tidegate.gateway.errors import Refusal, Surface
from tidegate.gateway.responses import parse

# -- the package ------------------------------------------------------------------------------------------------------


@contextmanager
def client(kind: str, body: Callable[[], bytes], status: int = 200) -> Iterator[tuple[package.OpenAI, list[Any]]]:
    seen: list[Any] = []

    def answer(path: str, data: bytes) -> tuple[int, str, bytes]:
        assert path == "/v1/responses"
        seen.append(parse(data))
        return status, kind, body()

    with serving(answer) as url, package.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as made:
        yield made, seen


def test_the_package_reads_a_plain_answer() -> None:
    whole = json.dumps(voice().whole(assembled(deltas(*TALK, reason="tool_calls")))).encode()
    with client("application/json", lambda: whole) as (made, seen):
        answer = made.responses.create(model="m", input="hi", tools=[TOOL], max_output_tokens=5)
    assert answer.output_text == "Héllo"
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    assert answer.usage is not None and answer.usage.total_tokens == 10
    assert seen[0][0].max_tokens == 5


def test_the_package_puts_a_stream_together() -> None:
    stream = b"".join([voice().waiting(), *tell(voice(), deltas(*TALK, reason="tool_calls"))])
    with (
        client("text/event-stream", lambda: stream) as (made, seen),
        made.responses.stream(model="m", input="hi", instructions="be") as read,
    ):
        texts = [event.delta for event in read if event.type == "response.output_text.delta"]
        final = read.get_final_response()
    assert texts == ["Hé", "llo"]
    assert final.output_text == "Héllo"
    assert final.output[2].type == "function_call" and final.output[2].arguments == '{"x":1}'
    assert seen[0][0].stream


def test_the_package_raises_an_error_in_a_stream() -> None:
    begun = voice()
    stream = begun.chunk(deltas({"content": "x"})[1], b"") + Refusal(503, "cannot: why").event(Surface.RESPONSES)
    with client("text/event-stream", lambda: stream) as (made, _), pytest.raises(package.APIError, match="cannot: why"):
        for _event in made.responses.create(model="m", input="hi", stream=True):
            pass


# -- the gateway ------------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_with_the_next_worker(stage: Scene) -> None:
    stage.start(1, "--fake-token-ms", "20", "--fake-crash-at", "1", "--fake-crash-tokens", "4")
    body = {"input": "say something", "stream": True, "max_output_tokens": 12}
    stream = stage.stream("/v1/responses", body)
    stream.read_until(b"tok3")
    stage.engine(2, "--fake-token-ms", "1")
    stage.announce(2)
    told = events(stream.rest())
    assert "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta") == tokens(12)
    assert told[-1]["type"] == "response.incomplete"
    assert told[-1]["response"]["usage"]["output_tokens"] == 12


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
def test_plain_and_refused(path: str, stage: Scene) -> None:
    stage.start()
    answer = stage.post(path, {"model": "m", "input": "hi", "max_output_tokens": 3})
    assert (answer.status, answer.json["output"][0]["content"][0]["text"]) == (200, tokens(3))
    refused = stage.post(path, {"input": "hi", "previous_response_id": "resp_1"})
    assert (refused.status, refused.error["param"]) == (400, "previous_response_id")
    too_long = stage.post(path, {"input": "word " * 5000})
    assert (too_long.status, too_long.error["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_place_of_a_refusal(stream: bool, stage: Scene) -> None:
    stage.start()
    stage.tell(gate="refuse", reason="full")
    reply = stage.post("/v1/responses", {"input": "hi", "stream": stream}, {"x-tidegate-on-pressure": "answer"})
    assert (reply.status, reply.headers["x-tidegate-degraded"]) == (200, "refused")
    response = events(reply.body)[-1]["response"] if stream else reply.json
    assert response["status"] == "completed"
    assert "Retry in" in response["output"][0]["content"][0]["text"]
