"""Cutting and assembling streams, without any I/O."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.gateway.answer import read_chunk
from tidegate.gateway.assemble import Assembler, EngineError
from tidegate.gateway.sse import DONE, MOST_EVENT_BYTES, Splitter, comment, data_event


def chunk(delta: dict[str, Any] | None = None, reason: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"finish_reason": reason, "index": index, "delta": delta or {}, **more}
    return json.dumps({"choices": [choice], "id": "x", "model": "m", "object": "chat.completion.chunk"}).encode()


def call(index: int, **more: Any) -> bytes:
    return chunk({"tool_calls": [{"index": index, **more}]})


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


ROLE = event(chunk({"role": "assistant", "content": None}))
WORD = event(chunk({"content": "hello"}))
LAST = event(chunk(reason="stop"))


# -- cutting ------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 40), max_size=30))
def test_events_come_out_the_same_however_they_arrive(cuts: list[int]) -> None:
    whole = b": hi\n\n" + ROLE.replace(b"\n", b"\r\n") + b"event: x\ndata: a\ndata: b\n\n" + DONE + b"\n\n"
    splitter, found, start = Splitter(), [], 0
    for cut in cuts:
        found += splitter.feed(whole[start : start + cut])
        start += cut
    found += splitter.feed(whole[start:])
    assert found == [ROLE[6:-2], b"a\nb", b"[DONE]"]


def test_an_event_without_end_is_an_error() -> None:
    splitter = Splitter()
    splitter.feed(b"data: ")
    with pytest.raises(ValueError, match="4 MiB"):
        splitter.feed(b"x" * (MOST_EVENT_BYTES + 1))


def test_our_own_events() -> None:
    assert data_event({"a": "ü"}) == b'data: {"a":"\\u00fc"}\n\n'
    assert Splitter().feed(comment("tidegate") + DONE) == [b"[DONE]"]


# -- assembling ---------------------------------------------------------------------------------------------------


def assembled(*events: bytes, is_chat: bool = True) -> Any:
    assembler = Assembler(chat=is_chat)
    for data in events:
        if (read := read_chunk(data)) is not None:
            assembler.add(read)
    return assembler.whole()


def test_texts_are_joined_and_the_top_is_kept() -> None:
    whole = assembled(
        chunk({"role": "assistant", "content": None}),
        chunk({"reasoning_content": "let me "}),
        chunk({"reasoning_content": "think"}),
        chunk({"content": "he"}),
        chunk({"content": "llo"}),
        chunk(reason="stop"),
        b"null",
    )
    assert whole == {
        "choices": [
            {
                "finish_reason": "stop",
                "index": 0,
                "message": {"role": "assistant", "reasoning_content": "let me think", "content": "hello"},
            }
        ],
        "id": "x",
        "model": "m",
        "object": "chat.completion",
    }


def test_tool_calls_are_joined_by_index() -> None:
    whole = assembled(
        chunk({"role": "assistant", "content": None}),
        chunk(
            {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]}
        ),
        call(0, function={"arguments": '{"x":'}),
        chunk(
            {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}]}
        ),
        call(0, function={"arguments": "1}"}),
        chunk(reason="tool_calls"),
    )
    message = whole["choices"][0]["message"]
    assert message["content"] is None
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"x":1}'},
        {"name": "g", "arguments": ""},
    ]
    assert [call["id"] for call in message["tool_calls"]] == ["a", "b"]


def test_choices_and_logprobs_are_kept_apart() -> None:
    whole = assembled(
        chunk({"content": "a"}, index=1, logprobs={"content": [{"token": "a"}]}),
        chunk({"content": "b"}, index=0),
        chunk({"content": "c"}, index=1, logprobs={"content": [{"token": "c"}]}),
        chunk(reason="stop", index=0),
        chunk(reason="length", index=1),
    )
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["b", "ac"]
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop", "length"]
    assert whole["choices"][1]["logprobs"] == {"content": [{"token": "a"}, {"token": "c"}]}


def test_a_text_completion() -> None:
    parts = [
        b'{"choices":[{"text":"a","index":0,"logprobs":null,"finish_reason":null}],"object":"text_completion","id":"i"}',
        b'{"choices":[{"text":"b","index":0,"logprobs":null,"finish_reason":"length"}],"usage":{"total_tokens":1}}',
    ]
    assert assembled(*parts, is_chat=False) == {
        "choices": [{"text": "ab", "index": 0, "logprobs": None, "finish_reason": "length"}],
        "id": "i",
        "object": "text_completion",
        "usage": {"total_tokens": 1},
    }


def test_an_error_event_is_raised() -> None:
    with pytest.raises(EngineError) as caught:
        assembled(b'{"error":{"code":500,"message":"full"}}')
    assert caught.value.body == {"code": 500, "message": "full"}


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["choices", "delta", "index", "tool_calls", "function", "logprobs", "content", "text", "usage"]),
    inner), max_leaves=20))  # fmt: skip
def test_no_chunk_breaks_the_assembler(value: Any) -> None:
    assembler = Assembler(chat=True)
    try:
        if (read := read_chunk(json.dumps(value).encode())) is not None:
            assembler.add(read)
    except (ValueError, EngineError):
        return
    json.dumps(assembler.whole())
