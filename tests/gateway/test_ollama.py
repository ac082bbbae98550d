"""Ollama's surface in detail: golden streams, and what is refused and why."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.canned import TALK, TIMINGS, TOP, assembled, deltas, tell
from tidegate.gateway import ollama, ollama_models
from tidegate.gateway.assemble import Object
from tidegate.gateway.errors import Refusal, Surface
from tidegate.gateway.openai import Completion, InvalidRequestError

HI: Any = {"role": "user", "content": "hi"}
NOW = 1_764_550_000.25
AT = "2025-12-01T00:46:40.250000Z"


def chat(**more: Any) -> Completion:
    return ollama.parse_chat(json.dumps({"model": "m", "messages": [HI], **more}).encode())


def generate(**more: Any) -> Completion:
    return ollama.parse_generate(json.dumps({"model": "m", "prompt": "hi", **more}).encode())


def voice(*, generate: bool = False) -> ollama.OllamaVoice:
    return ollama.OllamaVoice(generate=generate, model="mine", clock=lambda: NOW)


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parse", [chat, generate])
def test_what_both_have(parse: Callable[..., Completion]) -> None:
    assert (parse().stream, parse(stream=None).stream, parse(stream=False).stream) == (True, True, False)
    assert parse().wants_usage
    assert parse().messages == [HI]
    options = {"temperature": 0, "top_k": 1, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9, "seed": 3, "stop": ["x"]}
    options |= {"repeat_penalty": 1.1, "repeat_last_n": 8, "presence_penalty": 1, "frequency_penalty": 2, "mirostat": 1}
    body = parse(options={**options, "num_ctx": 99, "num_gpu": 1, "num_keep": 4, "unknown": 1}, keep_alive="5m").body
    assert body == {**parse().body, **options, "n_keep": 4}


@pytest.mark.parametrize(("most", "expected"), [(5, 5), (0, 0), (-1, None), (-2, None), (None, None)])
def test_a_negative_num_predict_is_none(most: int | None, expected: int | None) -> None:
    completion = chat(options={"num_predict": most})
    assert completion.max_tokens == expected
    assert completion.body.get("max_tokens") == expected


@pytest.mark.parametrize(
    ("think", "expected"),
    [
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
        (None, None),
    ],
)
def test_thinking_is_the_templates_key(think: Any, expected: Any) -> None:
    assert chat(think=think).body.get("chat_template_kwargs") == expected


def test_pictures_are_called_what_they_are() -> None:
    heads = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff\xe0", "webp": b"RIFF\x00\x00\x00\x00WEBPVP8 "}
    images = {kind: base64.b64encode(head + bytes(8)).decode() for kind, head in heads.items()}
    (message,) = generate(images=[*images.values()]).messages
    parts: Any = message["content"]
    assert parts[0] == {"type": "text", "text": "hi"}
    assert [part["image_url"]["url"] for part in parts[1:]] == [
        f"data:image/{kind};base64,{data}" for kind, data in images.items()
    ]


def past_call(name: str, **more: Any) -> Any:
    return {"function": {"name": name, "arguments": {}}, **more}


@pytest.mark.parametrize(
    ("calls", "results", "expected"),
    [
        # By order, as older clients have neither ids nor names.
        ([past_call("f"), past_call("g")], [{}, {}], ["call_0_0", "call_0_1"]),
        ([past_call("f"), past_call("g")], [{"tool_name": "g"}, {"tool_name": "f"}], ["call_0_1", "call_0_0"]),
        ([past_call("f"), past_call("f")], [{"tool_name": "f"}, {"tool_name": "f"}], ["call_0_0", "call_0_1"]),
        ([past_call("f", id="x"), past_call("g")], [{"tool_call_id": "x"}, {}], ["x", "call_0_1"]),
        # Of no call that is there: the engine may say what it thinks of it.
        ([past_call("f")], [{}, {}], ["call_0_0", "call_2"]),
    ],
)
def test_which_call_a_result_answers(calls: Any, results: list[Any], expected: list[str]) -> None:
    said = chat(
        messages=[
            {"role": "assistant", "tool_calls": calls},
            *({"role": "tool", "content": "1", **result} for result in results),
        ]
    ).messages
    assert [message["tool_call_id"] for message in said[1:]] == expected


def test_generate_is_a_chat_of_a_system_and_a_prompt() -> None:
    assert generate(system="brief").messages == [{"role": "system", "content": "brief"}, HI]
    assert generate(system="", template="", suffix="", context=[1, 2], raw=False).messages == [HI]


def test_a_raw_prompt_goes_as_it_is() -> None:
    raw = generate(raw=True, system="not said", template="{{ .Prompt }}", think=True, options={"num_predict": 4})
    assert raw.chat is False
    assert raw.body == {
        "model": "m",
        "prompt": "hi",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 4,
    }
    assert generate(raw=True, format="json").body["json_schema"] == {"type": "object"}
    schema = {"type": "array"}
    held = generate(raw=True, format=schema).body
    assert held["json_schema"] == schema
    assert "response_format" not in held


@pytest.mark.parametrize(
    ("body", "loads"),
    [
        ({}, True),
        ({"messages": []}, True),
        ({"prompt": ""}, True),
        ({"prompt": "", "keep_alive": "1h"}, True),
        ({"messages": None, "prompt": None}, True),
        ({"prompt": "x"}, False),
        ({"messages": [HI]}, False),
        ({"messages": 0}, False),
        ({"prompt": False}, False),
    ],
)
def test_what_only_loads(body: Any, loads: bool) -> None:
    assert ollama.asks_to_load(json.dumps(body).encode()) is loads


@pytest.mark.parametrize(
    ("parse", "more", "words"),
    [
        (chat, {"messages": 0}, "'messages'"),
        (chat, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, "messages[0]"),
        (chat, {"messages": [HI, {"role": "user", "content": "x", "images": "AA"}]}, "messages[1]"),
        (chat, {"messages": [{"role": "assistant", "tool_calls": "f"}]}, "function"),
        (chat, {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "function"),
        (
            chat,
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}]},
            "no object",
        ),
        (chat, {"tools": "f"}, "'tools'"),
        (chat, {"think": "loud"}, "'think'"),
        (chat, {"think": 1}, "'think'"),
        (chat, {"format": 3}, "'format'"),
        (chat, {"options": {"num_predict": 1.5}}, "'num_predict'"),
        (generate, {"prompt": 3}, "'prompt'"),
        (generate, {"system": 3}, "'system'"),
        (generate, {"suffix": "}"}, "'suffix'"),
        (generate, {"template": "{{ .Prompt }}"}, "'template'"),
        (generate, {"images": [3]}, "base64"),
        (generate, {"images": ["AA"], "raw": True}, "'images'"),
        (generate, {"stream": 0}, "'stream'"),
    ],
)
def test_what_is_wrong_is_said(parse: Callable[..., Completion], more: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(**more)
    assert caught.value.message.startswith("cannot take ")
    assert words in caught.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.text(max_size=3) | st.sampled_from(["json", "high", "tool"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]) | JSON},
    optional={
        "content": JSON,
        "images": st.lists(JSON, max_size=2) | JSON,
        "tool_calls": st.lists(
            st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": JSON, "arguments": JSON}) | JSON}),
            max_size=2,
        )
        | JSON,
        "tool_name": JSON,
        "tool_call_id": JSON,
    },
)
OPTIONS = st.dictionaries(st.sampled_from(["num_predict", "seed", "stop", "num_keep", "temperature"]), JSON, max_size=3)
BODY = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=3) | JSON, "prompt": st.text(max_size=3) | JSON},
    optional={
        **dict.fromkeys(("stream", "format", "think", "tools", "system", "template", "suffix", "raw", "images"), JSON),
        "model": JSON,
        "options": OPTIONS | JSON,
    },
)


@given(BODY, st.sampled_from([ollama.parse_chat, ollama.parse_generate]))
def test_every_near_miss_is_a_request_or_a_sentence(body: Any, parse: Callable[[bytes], Completion]) -> None:
    try:
        completion = parse(json.dumps(body).encode())
    except InvalidRequestError as error:
        assert error.message.startswith("cannot ")
        return
    json.loads(completion.upstream(5, 7))


# -- answers ----------------------------------------------------------------------------------------------------------


def line(**value: Any) -> bytes:
    """A line but the last; JSON has no order, the golden bytes have."""
    head = {"model": "mine", "created_at": AT, "done": False}
    return json.dumps({**head, **value}, ensure_ascii=False).encode() + b"\n"


def last(**value: Any) -> bytes:
    return json.dumps({"model": "mine", "created_at": AT, "done": True, **value}).encode() + b"\n"


def said(content: str, **more: Any) -> Any:
    return {"role": "assistant", "content": content, **more}


END: Any = {
    "total_duration": 0,
    "load_duration": 0,
    "prompt_eval_count": 7,
    "prompt_eval_duration": 2_500_000,
    "eval_count": 3,
    "eval_duration": 30_000_000,
}
CALLS = [{"function": {"name": "f", "arguments": {"x": 1}}}, {"function": {"name": "g", "arguments": {}}}]


def test_a_golden_stream() -> None:
    assert tell(voice(), deltas(*TALK, reason="tool_calls")) == [
        b"",
        line(message=said("", thinking="hm")),
        line(message=said("Hé")),
        line(message=said("llo")),
        *(b"", b"", b""),
        line(message=said("", tool_calls=CALLS)),
        b"",
        last(message=said(""), done_reason="stop", **END),
    ]


def test_a_golden_stream_of_generate() -> None:
    chunks: list[Object] = [
        {**TOP, "choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("one", " two")
    ]
    chunks.append({**TOP, "choices": [{"index": 0, "text": "", "finish_reason": "length"}], "timings": TIMINGS})
    # No chunk of usage: the timings have the same.
    assert tell(voice(generate=True), chunks) == [
        line(response="one"),
        line(response=" two"),
        b"",
        last(response="", done_reason="length", **END),
    ]


def test_calls_are_told_though_the_stream_has_no_finish() -> None:
    made = voice()
    for chunk in deltas(*TALK)[:-2]:
        made.chunk(chunk, b"")
    calls, end = [json.loads(each) for each in made.done().splitlines()]
    assert calls["message"]["tool_calls"] == CALLS
    assert (calls["done"], end["done"]) == (False, True)


def test_a_plain_answer() -> None:
    assert voice().whole(assembled(deltas(*TALK, reason="tool_calls"))) == {
        "model": "mine",
        "created_at": AT,
        "message": said("Héllo", thinking="hm", tool_calls=CALLS),
        "done": True,
        "done_reason": "stop",
        **END,
    }
    text: Object = {"choices": [{"index": 0, "text": "raw", "finish_reason": "length"}], "object": "text_completion"}
    whole = voice(generate=True).whole(text)
    assert (whole["response"], whole["done_reason"], whole["eval_count"]) == ("raw", "length", 0)


def test_durations_are_of_the_given_clock() -> None:
    times = iter([NOW, NOW + 1.5, NOW + 2, NOW + 2])
    made = ollama.OllamaVoice(generate=False, model="m", clock=lambda: next(times))
    made.chunk(deltas({"content": "x"})[1], b"")
    assert json.loads(made.done())["total_duration"] == 2_000_000_000


@pytest.mark.parametrize("wild", ["1e999", "-1e999", "NaN", '"x"', "true", "-3", "null", "[]"])
def test_no_measurement_is_nought(wild: str) -> None:
    odd = json.loads(wild)
    answer: Object = {
        "choices": [],
        "usage": {"prompt_tokens": odd, "completion_tokens": odd},
        "timings": {"prompt_ms": odd, "predicted_ms": odd},
    }
    whole = voice().whole(answer)
    assert {whole[key] for key in ("prompt_eval_count", "eval_count", "prompt_eval_duration", "eval_duration")} == {0}


def test_it_has_no_sign_of_life_and_its_own_type() -> None:
    assert (voice().waiting(), voice().stream_type, voice().surface) == (b"", "application/x-ndjson", Surface.OLLAMA)


def test_loaded_is_said_in_the_shape_of_its_path() -> None:
    loaded: Any = {"model": "mine", "created_at": AT, "done": True, "done_reason": "load"}
    assert voice().loaded() == {**loaded, "message": said("")}
    assert voice(generate=True).loaded() == {**loaded, "response": ""}


def test_an_error_is_one_line() -> None:
    refusal = Refusal(503, "cannot: why")
    assert refusal.body(Surface.OLLAMA) == b'{"error": "cannot: why"}'
    assert refusal.event(Surface.OLLAMA) == b'{"error": "cannot: why"}\n'
    assert refusal.http_status(Surface.OLLAMA) == 503


def test_the_version_is_one() -> None:
    assert all(part.isdigit() for part in str(ollama_models.version()["version"]).split("."))
