"""Anthropic's surface in detail: golden streams, what is refused and why, and the anthropic package on both ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.canned import assembled, call, deltas, serving, tell
from tidegate.gateway.anthropic import AnthropicVoice, parse
from tidegate.gateway.assemble import Object
from tidegate.gateway.errors import Refusal, Surface
from tidegate.gateway.openai import Completion, InvalidRequestError

HI: Any = {"role": "user", "content": "hi"}
PNG: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
TOOL: Any = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
#: What is said in pieces: a thought, a text, two calls.
TALK: tuple[Object, ...] = (
    {"reasoning_content": "h"},
    {"reasoning_content": "m"},
    {"content": "Hé"},
    {"content": "llo"},
    call(0, "{", id="a", name="f"),
    call(0, '"x":1}'),
    call(1, "", id="b", name="g"),
)


def asked(**more: Any) -> Completion:
    return parse(json.dumps({"model": "m", "max_tokens": 9, "messages": [HI], **more}).encode())


def conversation(*messages: Any) -> Any:
    return asked(messages=[*messages]).body["messages"]


# -- requests ---------------------------------------------------------------------------------------------------------


def test_the_limit_and_the_stream_are_the_clients() -> None:
    assert (asked().stream, asked().max_tokens, asked().chat) == (False, 9, True)
    assert asked(stream=True).stream is True
    assert asked(stream=True).wants_usage


def test_sampling_passes_and_what_only_anthropic_has_does_not() -> None:
    body = asked(top_p=0.5, top_k=4, temperature=1, metadata={"user_id": "u"}, service_tier="auto", container="c").body
    assert (body["top_p"], body["top_k"], body["temperature"]) == (0.5, 4, 1)
    assert not {"metadata", "service_tier", "container"} & set(body)


@pytest.mark.parametrize(
    ("thinking", "enabled"),
    [({"type": "enabled", "budget_tokens": 2048}, True), ({"type": "adaptive"}, True), ({"type": "disabled"}, False)],
)
def test_thinking_is_the_templates_key(thinking: Any, enabled: bool) -> None:
    assert asked(thinking=thinking).body["chat_template_kwargs"] == {"enable_thinking": enabled}
    assert "chat_template_kwargs" not in asked().body


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"type": "any", "disable_parallel_tool_use": False}, {"tool_choice": "required"}),
        (None, {}),
    ],
)
def test_the_choice_of_a_tool(choice: Any, expected: Any) -> None:
    body = asked(tools=[TOOL], tool_choice=choice).body
    assert {key: body[key] for key in ("tool_choice", "parallel_tool_calls") if key in body} == expected


def test_results_of_tools_are_messages_of_their_own() -> None:
    past: Any = [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in ("t1", "t2", "t3")]
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": "t1", "content": "one", "cache_control": {"type": "ephemeral"}},
        {"type": "tool_result", "tool_use_id": "t2"},
        {"type": "tool_result", "tool_use_id": "t3", "is_error": True, "content": [{"type": "text", "text": "no"}]},
    ]
    said = conversation(HI, {"role": "assistant", "content": past}, {"role": "user", "content": results})
    assert said[1]["content"] == ""
    assert [one["id"] for one in said[1]["tool_calls"]] == ["t1", "t2", "t3"]
    assert said[2:] == [
        {"role": "tool", "tool_call_id": "t1", "content": "one"},
        {"role": "tool", "tool_call_id": "t2", "content": ""},
        {"role": "tool", "tool_call_id": "t3", "content": "Error: no"},
    ]


def test_a_tools_picture_is_shown_by_the_user_behind_the_result() -> None:
    shot = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "seen"}, PNG]}
    assert conversation({"role": "user", "content": [shot, {"type": "text", "text": "what is it?"}]}) == [
        {"role": "tool", "tool_call_id": "t1", "content": "seen"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                {"type": "text", "text": "what is it?"},
            ],
        },
    ]


def test_thoughts_are_not_said_again_and_a_picture_may_be_an_address() -> None:
    thoughts: Any = [{"type": "thinking", "thinking": "x"}, {"type": "redacted_thinking", "data": "x"}]
    url: Any = {"type": "image", "source": {"type": "url", "url": "http://pictures/1.png"}}
    assert conversation({"role": "user", "content": [url]}, {"role": "assistant", "content": thoughts}) == [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://pictures/1.png"}}]}
    ]


def blocks(role: str, *content: Any) -> Any:
    return {"messages": [{"role": role, "content": [*content]}]}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"max_tokens": True}, "'max_tokens'"),
        ({"max_tokens": 1.5}, "'max_tokens'"),
        ({"messages": [], "system": "x"}, "empty"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "content"),
        (blocks("user", "text"), "no type"),
        (blocks("user", {"type": "text"}), "text"),
        (blocks("user", {"type": "image", "source": {"type": "base64", "data": "AA"}}), "image"),
        (blocks("user", {"type": "document", "source": {}}), "'document'"),
        (blocks("user", {"type": "tool_result"}), "tool_use_id"),
        (blocks("user", {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "song"}]}), "text blocks"),
        (blocks("user", {"type": "tool_result", "tool_use_id": "t", "content": {}}), "text blocks"),
        (blocks("user", {"type": "tool_use", "id": "t", "name": "f", "input": {}}), "role 'user'"),
        (blocks("assistant", {"type": "tool_result", "tool_use_id": "t"}), "role 'assistant'"),
        (blocks("assistant", {"type": "tool_use", "name": "f", "input": {}}), "no id"),
        (blocks("assistant", {"type": "tool_use", "id": "t", "input": {}}), "no name"),
        (blocks("assistant", {"type": "tool_use", "id": "t", "name": "f", "input": "x"}), "object as input"),
        ({"system": [{"type": "image"}]}, "system"),
        ({"tools": "f"}, "'tools'"),
        ({"tools": [TOOL], "tool_choice": "any"}, "'tool_choice'"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "names no tool"),
        ({"tools": [TOOL], "tool_choice": {"type": []}}, "'tool_choice'"),
        ({"stream": 1}, "'stream'"),
    ],
)
def test_what_is_wrong_is_said(more: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        asked(**more)
    assert caught.value.message.startswith("cannot take ")
    assert words in caught.value.message


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"{", b"[" * 100_000, b'{"messages":NaN}'])
def test_what_is_no_object_is_said(body: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"^cannot read the body: "):
        parse(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.text(max_size=3) | st.sampled_from(["user", "assistant"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "tool_use", "tool_result", "thinking", "song"]) | JSON},
    optional=dict.fromkeys(("text", "source", "id", "name", "input", "tool_use_id", "content", "is_error"), JSON),
)
BODY = st.fixed_dictionaries(
    {
        "max_tokens": st.just(9) | JSON,
        "messages": st.lists(st.fixed_dictionaries({"role": JSON, "content": st.lists(BLOCK, max_size=3) | JSON})),
    },
    optional=dict.fromkeys(("system", "tools", "tool_choice", "thinking", "stream", "stop_sequences", "model"), JSON),
)


@given(BODY)
def test_every_near_miss_is_a_request_or_a_sentence(body: Any) -> None:
    try:
        completion = parse(json.dumps(body).encode())
    except InvalidRequestError as error:
        assert error.message.startswith("cannot ")
        return
    json.loads(completion.upstream(5, 7))
    assert completion.messages and completion.roles


# -- answers ----------------------------------------------------------------------------------------------------------


def event(name: str, **value: Any) -> bytes:
    data = json.dumps({"type": name, **value}, separators=(",", ":"), ensure_ascii=False)
    return f"event: {name}\ndata: {data}\n\n".encode()


def block(index: int, **content: Any) -> bytes:
    return event("content_block_start", index=index, content_block=content)


def piece(index: int, **delta: Any) -> bytes:
    return event("content_block_delta", index=index, delta=delta)


def stop(index: int) -> bytes:
    return event("content_block_stop", index=index)


def test_a_golden_stream() -> None:
    message: Any = {
        "id": "msg_chatcmpl-x",
        "type": "message",
        "role": "assistant",
        "model": "mine",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
    assert tell(AnthropicVoice(model="mine"), deltas(*TALK, reason="tool_calls")) == [
        event("message_start", message=message),
        block(0, type="thinking", thinking="", signature="") + piece(0, type="thinking_delta", thinking="h"),
        piece(0, type="thinking_delta", thinking="m"),
        stop(0) + block(1, type="text", text="") + piece(1, type="text_delta", text="Hé"),
        piece(1, type="text_delta", text="llo"),
        stop(1)
        + block(2, type="tool_use", id="a", name="f", input={})
        + piece(2, type="input_json_delta", partial_json="{"),
        piece(2, type="input_json_delta", partial_json='"x":1}'),
        stop(2) + block(3, type="tool_use", id="b", name="g", input={}),
        b"",
        b"",
        stop(3)
        + event(
            "message_delta",
            delta={"stop_reason": "tool_use", "stop_sequence": None},
            usage={"input_tokens": 2, "cache_read_input_tokens": 5, "output_tokens": 3},
        )
        + event("message_stop"),
    ]


@pytest.mark.parametrize(
    ("reason", "expected"), [("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "tool_use")]
)
def test_why_it_ended(reason: str, expected: str) -> None:
    chunks = deltas({"content": "x"}, reason=reason)
    end = tell(AnthropicVoice(model="m"), chunks)[-1]
    assert f'"stop_reason":"{expected}"'.encode() in end
    assert AnthropicVoice(model="m").whole(assembled(chunks))["stop_reason"] == expected


def test_a_sign_of_life_is_a_ping() -> None:
    assert AnthropicVoice(model="m").waiting() == b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, {"input_tokens": 0, "output_tokens": 0}),
        ({"prompt_tokens": 7, "completion_tokens": 3}, {"input_tokens": 7, "output_tokens": 3}),
        (
            {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}},
            {"input_tokens": 7, "output_tokens": 3},
        ),
        (
            {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 6}},
            {"input_tokens": 1, "cache_read_input_tokens": 6, "output_tokens": 3},
        ),
        (
            {"prompt_tokens": "7", "completion_tokens": -1, "prompt_tokens_details": 3},
            {"input_tokens": 0, "output_tokens": 0},
        ),
    ],
)
def test_what_it_used(usage: Any, expected: Object) -> None:
    answer: Object = {"choices": [], "usage": usage}
    assert AnthropicVoice(model="m").whole(answer)["usage"] == expected


@pytest.mark.parametrize(
    ("status", "http", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (413, 413, "request_too_large"),
        (429, 429, "rate_limit_error"),
        (500, 500, "api_error"),
        (503, 529, "overloaded_error"),
        (529, 529, "overloaded_error"),
    ],
)
def test_the_names_of_errors(status: int, http: int, kind: str) -> None:
    refusal = Refusal(status, "cannot: why")
    value = {"type": "error", "error": {"type": kind, "message": "cannot: why"}}
    assert json.loads(refusal.body(Surface.ANTHROPIC)) == value
    assert refusal.event(Surface.ANTHROPIC).startswith(b"event: error\ndata: {")
    assert refusal.http_status(Surface.ANTHROPIC) == http


# -- the package ------------------------------------------------------------------------------------------------------


@contextmanager
def client(status: int, kind: str, body: bytes) -> Iterator[tuple[Any, list[Completion]]]:
    """The package's client at a server with this answer, and what it asked, read by our side."""
    seen: list[Completion] = []

    def answer(path: str, data: bytes) -> tuple[int, str, bytes]:
        assert path == "/v1/messages"
        seen.append(parse(data))
        return status, kind, body

    with serving(answer) as url, package.Anthropic(base_url=url, api_key="x", max_retries=0) as made:
        yield made, seen


def test_the_package_reads_a_plain_answer() -> None:
    chunks = deltas(*TALK, reason="tool_calls")
    whole = json.dumps(AnthropicVoice(model="mine").whole(assembled(chunks))).encode()
    with client(200, "application/json", whole) as (made, seen):
        message = made.messages.create(model="mine", max_tokens=9, messages=[HI], tools=[TOOL])
    _check_message(message)
    assert seen[0].messages == [HI]
    assert seen[0].stream is False


def test_the_package_reads_a_stream() -> None:
    voice = AnthropicVoice(model="mine")
    body = b"".join([voice.waiting(), *tell(voice, deltas(*TALK, reason="tool_calls"))])
    with (
        client(200, voice.stream_type, body) as (made, seen),
        made.messages.stream(model="mine", max_tokens=9, messages=[HI]) as stream,
    ):
        assert "".join(stream.text_stream) == "Héllo"
        _check_message(stream.get_final_message())
    assert seen[0].stream is True


def _check_message(message: Any) -> None:
    thought, text, first, second = message.content
    assert (thought.type, thought.thinking, thought.signature) == ("thinking", "hm", "")
    assert (text.type, text.text) == ("text", "Héllo")
    assert (first.type, first.id, first.name, first.input) == ("tool_use", "a", "f", {"x": 1})
    assert (second.id, second.name, second.input) == ("b", "g", {})
    assert (message.stop_reason, message.model, message.role) == ("tool_use", "mine", "assistant")
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (2, 5, 3)


def test_what_the_package_sends_back_is_a_request_again() -> None:
    """Its own objects of an answer, thoughts and calls, as the next request's past."""
    chunks = deltas(*TALK, reason="tool_calls")
    whole = json.dumps(AnthropicVoice(model="m").whole(assembled(chunks))).encode()
    with client(200, "application/json", whole) as (made, seen):
        message = made.messages.create(model="m", max_tokens=9, messages=[HI])
        results = [{"type": "tool_result", "tool_use_id": name, "content": "1"} for name in ("a", "b")]
        past = [HI, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
        made.messages.create(model="m", max_tokens=9, messages=past)
    _, said, *answered = seen[1].messages
    assert said["content"] == "Héllo"
    assert [result["tool_call_id"] for result in answered] == ["a", "b"]


def test_the_package_knows_our_errors() -> None:
    refusal = Refusal(503, "cannot answer: memory is low")
    status = refusal.http_status(Surface.ANTHROPIC)
    with (
        client(status, "application/json", refusal.body(Surface.ANTHROPIC)) as (made, _),
        pytest.raises(package.APIStatusError, match="memory is low") as caught,
    ):
        made.messages.create(model="m", max_tokens=9, messages=[HI])
    assert caught.value.status_code == 529


def test_the_package_knows_an_error_in_a_stream() -> None:
    voice = AnthropicVoice(model="m")
    begun = [voice.chunk(chunk, b"") for chunk in deltas({"content": "so far"})[:2]]
    body = b"".join([*begun, Refusal(503, "cannot finish: gone").event(Surface.ANTHROPIC)])
    text = ""
    with (
        client(200, voice.stream_type, body) as (made, _),
        pytest.raises(package.APIStatusError, match="cannot finish"),
        made.messages.stream(model="m", max_tokens=9, messages=[HI]) as stream,
    ):
        for each in stream.text_stream:
            text += each
    assert text == "so far"
