"""Anthropic's and Ollama's requests and answers; what the packages themselves do is in tests/e2e/test_clients.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.harness import Scene, tokens
from tidegate.gateway import anthropic, dialects, ollama, ollama_models
from tidegate.gateway.assemble import Object
from tidegate.gateway.openai import Completion, InvalidRequestError
from tidegate.gateway.sse import data_event
from tidegate.gateway.voice import Voice

HI = {"role": "user", "content": "hi"}
TOP = {"id": "c1", "model": "m", "object": "chat.completion.chunk"}
USAGE: Object = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
TIMINGS: Object = {"prompt_ms": 2.0, "predicted_ms": 30.0}


def read(parse: Callable[[bytes], Completion], body: Any) -> Any:
    return parse(json.dumps(body).encode()).body


def said(voice: Voice, *deltas: Object, reason: str = "stop") -> bytes:
    """A stream of these deltas, told by ``voice``."""
    chunks: list[Any] = [{**TOP, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**TOP, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({**TOP, "choices": [], "usage": USAGE, "timings": TIMINGS})
    return b"".join(voice.chunk(chunk, data_event(chunk)) for chunk in chunks) + voice.done()


def call(index: int, arguments: str, **more: Any) -> Object:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments, **more.pop("function", {})}, **more}]}


CALLS: list[Object] = [
    {"role": "assistant", "content": None},
    {"content": "wait"},
    call(0, "", id="a", function={"name": "f"}),
    call(0, '{"x":'),
    call(0, "1}"),
    call(1, "{}", id="b", function={"name": "g"}),
]

# -- Anthropic --------------------------------------------------------------------------------------------------------


def messages(**more: Any) -> Any:
    return read(anthropic.parse, {"model": "m", "max_tokens": 9, "messages": [HI], **more})


def test_a_request_of_anthropics() -> None:
    body = messages(
        system=[{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}],
        stop_sequences=["x"],
        temperature=0.5,
        metadata={"user_id": "u"},
        tools=[{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    assert body == {
        "model": "m",
        "max_tokens": 9,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": "be\nbrief"}, HI],
        "stop": ["x"],
        "temperature": 0.5,
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": True},
    }


def test_blocks_become_messages() -> None:
    body = messages(
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "I ask"},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "no"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "and now?"},
                ],
            },
        ]
    )
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            ],
        },
        {
            "role": "assistant",
            "content": "I ask",
            "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "Error: no"},
        {"role": "user", "content": "and now?"},
    ]


def test_a_stream_in_anthropics_events() -> None:
    out = said(anthropic.AnthropicVoice(model="mine"), *CALLS, reason="tool_calls").decode()
    events = [json.loads(block.partition("\ndata: ")[2]) for block in out.split("\n\n") if block]
    assert [block.partition("\n")[0] for block in out.split("\n\n") if block] == [
        f"event: {event['type']}" for event in events
    ]
    assert [event["type"] for event in events] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert events[0]["message"]["model"] == "mine"
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert starts[1] == {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    assert [event["index"] for event in events if "index" in event] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"] == {"input_tokens": 7, "output_tokens": 3}


def test_a_plain_answer_of_anthropics() -> None:
    tool = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    message = {"role": "assistant", "reasoning_content": "hm", "content": "wait", "tool_calls": [tool]}
    answer: Any = {**TOP, "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}], "usage": USAGE}
    whole = anthropic.AnthropicVoice(model="mine").whole(answer)
    assert whole["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "wait"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
    ]
    assert (whole["type"], whole["stop_reason"], whole["model"]) == ("message", "tool_use", "mine")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "song"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages"),
        ({"system": 3}, "system"),
        ({"tools": [{}]}, "tools"),
        ({"tools": [{"name": "f"}], "tool_choice": {"type": "dice"}}, "tool_choice"),
    ],
)
def test_what_anthropics_api_refuses(more: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        messages(**more)
    assert caught.value.message.startswith("cannot ")
    assert caught.value.param == param


# -- Ollama -----------------------------------------------------------------------------------------------------------


def test_a_chat_of_ollamas() -> None:
    body = read(
        ollama.parse_chat,
        {
            "model": "m",
            "messages": [
                {"role": "user", "content": "look", "images": ["iVBORx", "/9j/x"]},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}],
                },
                {"role": "tool", "content": "2", "tool_name": "f"},
            ],
            "options": {"num_predict": 5, "num_ctx": 9, "temperature": 0, "seed": 3, "stop": ["x"]},
            "format": {"type": "object"},
            "think": False,
            "keep_alive": "5m",
        },
    )
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORx"}},
                {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/x"}},
            ],
        },
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1_0", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "call_1_0"},
    ]
    assert {key: value for key, value in body.items() if key != "messages"} == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "seed": 3,
        "stop": ["x"],
        "max_tokens": 5,
        "response_format": {"type": "json_schema", "json_schema": {"name": "format", "schema": {"type": "object"}}},
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_generate_is_a_chat_of_one_message_or_raw() -> None:
    asked = {"model": "m", "prompt": "hi", "system": "be brief", "stream": False, "format": "json"}
    body = read(ollama.parse_generate, asked)
    assert body["messages"] == [{"role": "system", "content": "be brief"}, HI]
    assert body["stream"] is False
    assert body["response_format"] == {"type": "json_object"}
    raw = ollama.parse_generate(json.dumps({**asked, "raw": True}).encode())
    assert (raw.chat, raw.body["prompt"]) == (False, "hi")


class Clock:
    def __init__(self) -> None:
        self.now = 1_764_550_000.5

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def test_a_stream_in_ollamas_lines() -> None:
    voice = ollama.OllamaVoice(generate=False, model="mine", clock=Clock())
    lines = [json.loads(line) for line in said(voice, *CALLS, reason="tool_calls").splitlines()]
    assert [line["message"] for line in lines] == [
        {"role": "assistant", "content": "wait"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"function": {"name": "f", "arguments": {"x": 1}}},
                {"function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "assistant", "content": ""},
    ]
    assert [line["done"] for line in lines] == [False, False, True]
    assert lines[0]["created_at"] == "2025-12-01T00:46:41.500000Z"
    last = lines[-1]
    assert (last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == ("stop", 7, 3)
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (2_000_000, 30_000_000)
    assert last["total_duration"] > 0


def test_a_stream_of_generate() -> None:
    voice = ollama.OllamaVoice(generate=True, model="m", clock=Clock())
    out = said(voice, {"reasoning_content": "hm"}, {"content": "hi"}, reason="length")
    first, second, last = [json.loads(line) for line in out.splitlines()]
    assert (first["response"], first["thinking"]) == ("", "hm")
    assert second["response"] == "hi"
    assert (last["done"], last["done_reason"]) == (True, "length")


@pytest.mark.parametrize(
    "more",
    [
        {"messages": "hi"},
        {"messages": [3]},
        {"messages": [{"role": 3}]},
        {"stream": "yes"},
        {"options": 3},
        {"options": {"num_predict": "x"}},
        {"format": "xml"},
        {"messages": [{"role": "user", "content": "x", "images": [3]}]},
        {"messages": [{"role": "assistant", "tool_calls": [3]}]},
    ],
)
def test_what_ollamas_api_refuses(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"^cannot "):
        read(ollama.parse_chat, {"model": "m", "messages": [HI], **more})


# -- any body, any chunk ----------------------------------------------------------------------------------------------

KEYS = st.sampled_from(
    ["messages", "role", "content", "stream", "max_tokens", "tool_calls", "tools", "text", "prompt", "type", "system",
     "source", "input", "options", "format", "images", "function", "name", "num_predict", "tool_choice"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["user", "text", "tool_use"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)


@given(VALUES, st.sampled_from(["/v1/messages", "/api/chat", "/api/generate"]))
def test_no_body_makes_another_error(value: Any, path: str) -> None:
    dialect = dialects.find(path)
    assert dialect is not None
    try:
        asked = dialect(json.dumps(value).encode(), lambda: 0.0)
    except InvalidRequestError:
        return
    json.loads(asked.completion.upstream(5, 7))


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "index", "tool_calls", "function", "arguments", "content", "usage",
                             "timings", "prompt_ms", "message", "finish_reason", "id"]),
            inner,
            max_size=5,
        ),
        max_leaves=20,
    )
)  # fmt: skip
def test_no_chunk_breaks_a_voice(value: Any) -> None:
    chunk = value if isinstance(value, dict) else {"choices": value}
    for voice in (
        anthropic.AnthropicVoice(model="m"),
        ollama.OllamaVoice(generate=False, model="m", clock=lambda: 0.0),
    ):
        json.dumps(voice.whole(chunk))
        voice.chunk(chunk, b"")
        voice.done()


# -- at the gateway ---------------------------------------------------------------------------------------------------


def test_an_empty_request_of_ollamas_only_loads(stage: Scene) -> None:
    engine = stage.start()
    for path in ("/api/chat", "/api/generate"):
        reply = stage.post(path, {"model": "m"})
        assert (reply.status, reply.json["done"], reply.json["done_reason"]) == (200, True, "load")
    assert engine.bodies() == []


def test_ollamas_list_of_models(stage: Scene) -> None:
    assert [entry["name"] for entry in stage.get("/api/tags").json["models"]] == ["big.gguf", "small.gguf"]
    stage.start()
    assert [entry["model"] for entry in stage.get("/api/tags").json["models"]] == ["fake-model"]


def test_ollamas_version(stage: Scene) -> None:
    assert stage.get("/api/version").json == ollama_models.version()


@pytest.mark.parametrize(("path", "shape"), [("/v1/messages", "anthropic"), ("/api/chat", "ollama")])
def test_a_begun_stream_goes_on_and_a_refused_one_ends_in_its_own_shape(stage: Scene, path: str, shape: str) -> None:
    engine = stage.start(1, "--fake-token-ms", "10")
    stream = stage.stream(path, {"model": "m", "messages": [HI], "max_tokens": 40, "stream": True,
                                 "options": {"num_predict": 40}})  # fmt: skip
    stream.read_until(b"tok5")
    engine.kill()
    stage.tell(gate="hold", worker={"state": "backoff"})
    stage.engine(2)
    stage.announce(2)
    body = stream.rest()
    if shape == "ollama":
        lines = [json.loads(line) for line in body.splitlines()]
        assert "".join(line["message"]["content"] for line in lines) == tokens(40)
        assert lines[-1]["eval_count"] == 40
    else:
        events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]
        assert "".join(event["delta"].get("text", "") for event in events if "delta" in event) == tokens(40)
        assert events[-2]["usage"] == {"input_tokens": 2, "output_tokens": 40}
    stage.tell(level="critical")
    long = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "word " * 2000}], "stream": True}
    reply = stage.post(path, long)
    assert reply.status == (529 if shape == "anthropic" else 503)
    assert isinstance(reply.json["error"], dict if shape == "anthropic" else str)


def test_a_wrong_request_is_told_in_its_own_shape(stage: Scene) -> None:
    stage.start()
    reply = stage.post("/v1/messages", {"messages": [HI]})
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    reply = stage.post("/api/chat", {"messages": [3]})
    assert (reply.status, reply.json) == (400, {"error": "cannot take messages[0]: it is not an object"})
