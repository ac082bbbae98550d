"""docs/gateway.md through the gateway itself: every situation on every surface, by status, body and headers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.harness import Reply, Scene, scene

LONG = "word " * 600


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def history(text: str) -> list[Any]:
    """Five turns, of which all but the last may go."""
    turns: list[Any] = []
    for _ in range(4):
        turns += [*said(text), {"role": "assistant", "content": "yes"}]
    return [*turns, *said("now")]


@dataclass(frozen=True)
class Front:
    """One path: how it is asked, how its answer's text is found, and what its errors look like."""

    path: str
    ask: Callable[[Any], Any]
    text: Callable[[Any], Any]
    chats: bool = True
    overloaded: int = 503

    def error(self, reply: Reply) -> str:
        """The message in an error of this surface, its shape checked."""
        value = reply.json
        if self.path.startswith("/api/"):
            assert set(value) == {"error"}
            return str(value["error"])
        if self.path == "/v1/messages":
            assert set(value) == {"type", "error"} and value["type"] == "error"
            assert set(value["error"]) == {"type", "message"}
        else:
            assert set(value) == {"error"}
            assert {"message", "type", "param", "code"} <= set(value["error"])
        return str(value["error"]["message"])


FRONTS = [
    Front(
        "/v1/chat/completions",
        lambda messages: {"messages": messages, "max_tokens": 2},
        lambda answer: answer["choices"][0]["message"]["content"],
    ),
    Front(
        "/v1/completions",
        lambda messages: {"prompt": messages[0]["content"], "max_tokens": 2},
        lambda answer: answer["choices"][0]["text"],
        chats=False,
    ),
    Front(
        "/v1/responses",
        lambda messages: {"input": messages, "max_output_tokens": 2},
        lambda answer: answer["output"][0]["content"][0]["text"],
    ),
    Front(
        "/v1/messages",
        lambda messages: {"messages": messages, "max_tokens": 2},
        lambda answer: answer["content"][0]["text"],
        overloaded=529,
    ),
    Front(
        "/api/chat",
        lambda messages: {"model": "m", "messages": messages, "stream": False, "options": {"num_predict": 2}},
        lambda answer: answer["message"]["content"],
    ),
    Front(
        "/api/generate",
        lambda messages: {
            "model": "m",
            "prompt": messages[0]["content"],
            "stream": False,
            "options": {"num_predict": 2},
        },
        lambda answer: answer["response"],
        chats=False,
    ),
    Front(
        "/api/embed",
        lambda messages: {"model": "m", "input": messages[0]["content"]},
        lambda answer: answer["embeddings"],
        chats=False,
    ),
]
every_front = pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.path)
chat_fronts = pytest.mark.parametrize("front", [front for front in FRONTS if front.chats], ids=lambda front: front.path)
#: Embeddings have neither a length that is known before nor words for an answer in their place.
text_fronts = pytest.mark.parametrize("front", FRONTS[:-1], ids=lambda front: front.path)


@pytest.fixture(name="stage", scope="module")
def stage_fixture() -> Iterator[Scene]:
    """A gateway with a worker, for all of them."""
    with scene() as made:
        made.start(1, "--embedding")
        yield made


@pytest.fixture(autouse=True)
def normal(stage: Scene) -> Iterator[None]:
    """As it was."""
    yield
    stage.tell(level="normal", gate="open", reason="", retry_after_s=0.0)


def ours(reply: Reply) -> set[str]:
    """The headers that the page speaks of."""
    names = {"retry-after", "www-authenticate", "x-should-retry"}
    return {name for name in reply.headers if name.startswith("x-tidegate-") or name in names}


ALWAYS = {"x-tidegate-level", "x-tidegate-profile"}


@every_front
def test_answered(front: Front, stage: Scene) -> None:
    reply = stage.post(front.path, front.ask(said("hi")))
    assert (reply.status, ours(reply)) == (200, ALWAYS)
    assert (reply.headers["x-tidegate-level"], reply.headers["x-tidegate-profile"]) == ("normal", "full")
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert front.text(reply.json)


@chat_fronts
def test_trimmed(front: Front, stage: Scene) -> None:
    stage.tell(level="warn")
    reply = stage.post(front.path, front.ask(history(LONG)))
    assert (reply.status, ours(reply)) == (
        200,
        ALWAYS | {"x-tidegate-degraded", "x-tidegate-context", "x-tidegate-dropped-messages"},
    )
    assert (reply.headers["x-tidegate-degraded"], reply.headers["x-tidegate-context"]) == ("trimmed", "4096")
    assert int(reply.headers["x-tidegate-dropped-messages"]) >= 4
    assert front.text(reply.json)


@text_fronts
def test_too_long_for_ever(front: Front, stage: Scene) -> None:
    reply = stage.post(front.path, front.ask(said(LONG * 8)))
    assert (reply.status, ours(reply)) == (400, ALWAYS | {"x-should-retry"})
    assert "maximum context length is 4096 tokens" in front.error(reply)


@text_fronts
def test_long_at_critical(front: Front, stage: Scene) -> None:
    stage.tell(level="critical")
    reply = stage.post(front.path, front.ask(said(LONG)))
    assert (reply.status, ours(reply)) == (front.overloaded, ALWAYS | {"retry-after"})
    assert 1 <= int(reply.headers["retry-after"]) <= 120
    assert "memory" in front.error(reply)


@every_front
def test_refused_at_the_gate(front: Front, stage: Scene) -> None:
    stage.tell(gate="refuse", reason="the worker is parked", retry_after_s=7.0)
    reply = stage.post(front.path, front.ask(said("hi")))
    assert (reply.status, ours(reply)) == (front.overloaded, ALWAYS | {"retry-after"})
    assert 7 <= int(reply.headers["retry-after"]) <= 9
    assert "parked" in front.error(reply)


@text_fronts
def test_an_answer_in_place_of_it(front: Front, stage: Scene) -> None:
    stage.tell(gate="refuse", reason="the worker is parked", retry_after_s=7.0)
    reply = stage.post(front.path, front.ask(said("hi")), {"x-tidegate-on-pressure": "answer"})
    assert (reply.status, ours(reply)) == (200, ALWAYS | {"retry-after", "x-tidegate-degraded"})
    assert reply.headers["x-tidegate-degraded"] == "refused"
    assert "parked" in front.text(reply.json)


@every_front
@pytest.mark.parametrize("body", [b"{", b"\xff", b"[1]", b"{}x"])
def test_no_request(front: Front, body: bytes, stage: Scene) -> None:
    reply = stage.post(front.path, body)
    assert (reply.status, ours(reply)) == (400, set())
    assert front.error(reply).startswith("cannot read the body: ")


@every_front
def test_too_large(front: Front, stage: Scene) -> None:
    reply = stage.post(front.path, b" " * ((16 << 20) + 1))
    assert (reply.status, ours(reply)) == (413, set())
    assert "larger than 16 MiB" in front.error(reply)


@every_front
def test_without_a_key(front: Front, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write("client-0123456789\n")
    with scene(keys=str(path)) as stage:
        reply = stage.post(front.path, json.dumps(front.ask(said("hi"))).encode())
    assert (reply.status, ours(reply), reply.headers["www-authenticate"]) == (401, {"www-authenticate"}, "Bearer")
    assert "no API key" in front.error(reply)


@every_front
@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}])
def test_from_a_web_page(front: Front, headers: dict[str, str], stage: Scene) -> None:
    reply = stage.post(front.path, front.ask(said("hi")), headers)
    assert (reply.status, ours(reply)) == (403, set())
    assert "evil.example" in front.error(reply)
