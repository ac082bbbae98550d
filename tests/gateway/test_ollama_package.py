"""The ollama package asks and reads: its requests through our parsers, our answers through its types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ollama as package
import pytest

from gateway.canned import TALK, assembled, deltas, serving, tell
from tidegate.gateway import ollama, ollama_models
from tidegate.gateway.errors import Refusal, Surface
from tidegate.gateway.openai import Completion

HI: Any = {"role": "user", "content": "hi"}
NOW = 1_764_550_000.25


def voice(*, generate: bool = False) -> ollama.OllamaVoice:
    return ollama.OllamaVoice(generate=generate, model="mine", clock=lambda: NOW)


@contextmanager
def client(status: int, kind: str, body: bytes) -> Iterator[tuple[package.Client, list[Completion]]]:
    """The package's client at a server with this answer, and what it asked, read by our side."""
    seen: list[Completion] = []

    def answer(path: str, data: bytes) -> tuple[int, str, bytes]:
        if data:
            seen.append({"/api/chat": ollama.parse_chat, "/api/generate": ollama.parse_generate}[path](data))
        return status, kind, body

    with serving(answer) as url, package.Client(host=url) as made:
        yield made, seen


def f(x: int) -> int:
    """A tool.

    Args:
        x: a number
    """
    return x


def test_the_package_reads_a_plain_chat() -> None:
    whole = json.dumps(voice().whole(assembled(deltas(*TALK, reason="tool_calls")))).encode()
    with client(200, "application/json", whole) as (made, seen):
        answer = made.chat(model="m", messages=[HI], tools=[f], think=True, options={"num_predict": 5})
        _check(answer)
        # Its own message as the next request's past.
        made.chat(model="m", messages=[HI, answer.message, {"role": "tool", "content": "1", "tool_name": "g"}])
    assert (seen[0].stream, seen[0].max_tokens) == (False, 5)
    tools: Any = seen[0].body["tools"]
    assert tools[0]["function"]["name"] == "f"
    past: Any = seen[1].messages[1]["tool_calls"]
    assert [one["function"]["name"] for one in past] == ["f", "g"]
    assert seen[1].messages[2]["tool_call_id"] == past[1]["id"]


def _check(answer: Any) -> None:
    assert (answer.message.content, answer.message.thinking) == ("Héllo", "hm")
    assert [(one.function.name, one.function.arguments) for one in answer.message.tool_calls] == [
        ("f", {"x": 1}),
        ("g", {}),
    ]
    assert (answer.done, answer.done_reason, answer.model, answer.created_at) == (
        True,
        "stop",
        "mine",
        "2025-12-01T00:46:40.250000Z",
    )
    assert (answer.prompt_eval_count, answer.eval_count, answer.eval_duration) == (7, 3, 30_000_000)


def test_the_package_reads_a_stream_of_chat() -> None:
    body = b"".join(tell(voice(), deltas(*TALK, reason="tool_calls")))
    with client(200, voice().stream_type, body) as (made, seen):
        parts = list(made.chat(model="m", messages=[HI], stream=True))
    assert "".join(part.message.content or "" for part in parts) == "Héllo"
    assert [len(part.message.tool_calls) for part in parts if part.message.tool_calls] == [2]
    assert (parts[-1].done, parts[-1].eval_count) == (True, 3)
    assert seen[0].stream is True


@pytest.mark.parametrize("stream", [False, True])
def test_the_package_reads_generate(stream: bool) -> None:
    chunks = deltas({"reasoning_content": "hm"}, {"content": "Hé"}, {"content": "llo"})
    made = voice(generate=True)
    body = b"".join(tell(made, chunks)) if stream else json.dumps(made.whole(assembled(chunks))).encode()
    with client(200, made.stream_type if stream else "application/json", body) as (caller, seen):
        if stream:
            parts = list(caller.generate(model="m", prompt="hi", system="brief", stream=True))
        else:
            parts = [caller.generate(model="m", prompt="hi", system="brief", stream=False)]
    assert "".join(part.response or "" for part in parts) == "Héllo"
    assert "".join(part.thinking or "" for part in parts) == "hm"
    assert (parts[-1].done_reason, parts[-1].prompt_eval_count) == ("stop", 7)
    assert seen[0].messages[0] == {"role": "system", "content": "brief"}
    assert seen[0].stream is stream


def test_the_package_reads_the_list() -> None:
    body = json.dumps(
        ollama_models.tags([ollama_models.Model("big.gguf"), ollama_models.Model("small.gguf")], modified=NOW)
    ).encode()
    with client(200, "application/json", body) as (made, _):
        models = made.list().models
    assert [model.model for model in models] == ["big.gguf", "small.gguf"]
    assert models[0].modified_at is not None
    assert models[0].modified_at.timestamp() == NOW


@pytest.mark.parametrize("stream", [False, True])
def test_the_package_knows_our_errors(stream: bool) -> None:
    body = Refusal(503, "cannot answer: memory is low").body(Surface.OLLAMA)
    with client(503, "application/json", body) as (made, _), pytest.raises(package.ResponseError) as caught:
        if stream:
            list(made.chat(model="m", messages=[HI], stream=True))
        else:
            made.chat(model="m", messages=[HI], stream=False)
    assert (caught.value.status_code, caught.value.error) == (503, "cannot answer: memory is low")


def test_the_package_knows_an_error_in_a_stream() -> None:
    made = voice()
    begun = [made.chunk(chunk, b"") for chunk in deltas({"content": "so far"})[:2]]
    body = b"".join([*begun, Refusal(503, "cannot finish: gone").event(Surface.OLLAMA)])
    text = ""
    with client(200, made.stream_type, body) as (caller, _), pytest.raises(package.ResponseError, match="gone"):
        for part in caller.chat(model="m", messages=[HI], stream=True):
            text += part.message.content or ""
    assert text == "so far"
