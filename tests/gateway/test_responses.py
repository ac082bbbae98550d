"""OpenAI's Responses surface in detail: requests, golden streams, and what its package makes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.canned import TALK, assembled, call, deltas, tell
from tidegate.gateway.errors import Refusal, Surface
from tidegate.gateway.openai import Completion, InvalidRequestError
from tidegate.gateway.responses import parse
from tidegate.gateway.responses_voice import ResponsesVoice

HI: Any = {"role": "user", "content": "hi"}
TOOL: Any = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
CALL: Any = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"x":1}'}
RESULT: Any = {"type": "function_call_output", "call_id": "c1", "output": "two"}


def asked(**more: Any) -> Completion:
    return parse(json.dumps({"model": "m", "input": "hi", **more}).encode())[0]


def repeated(**more: Any) -> Any:
    return parse(json.dumps({"model": "m", "input": "hi", **more}).encode())[1]


def conversation(*items: Any, **more: Any) -> list[Any]:
    return [*asked(input=items, **more).messages]


def voice(**more: Any) -> ResponsesVoice:
    return ResponsesVoice(model="mine", repeated=repeated(**more), clock=lambda: 5.5)


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_request() -> None:
    completion = asked(
        instructions="be brief",
        input=[{"role": "developer", "content": "be kind"}, HI],
        max_output_tokens=9,
        temperature=0,
        top_p=0.5,
        stream=True,
        store=True,
        truncation="auto",
        include=[],
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        reasoning={"effort": "high"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
    )
    function = {key: TOOL[key] for key in ("name", "description", "parameters", "strict")}
    assert completion.body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "top_p": 0.5,
        "parallel_tool_calls": False,
        "max_tokens": 9,
        "messages": [{"role": "system", "content": "be brief\n\nbe kind"}, HI],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "high"},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
    }
    assert (completion.stream, completion.max_tokens) == (True, 9)


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("minimal", False), ("low", True)])
def test_effort(effort: str, thinks: bool) -> None:
    assert asked(reasoning={"effort": effort}).body["chat_template_kwargs"] == {
        "enable_thinking": thinks,
        "reasoning_effort": effort,
    }


def test_a_text_is_a_user_who_says_it() -> None:
    assert asked().messages == [HI]
    assert asked(text={"format": {"type": "text"}}, reasoning={}, tools=[], instructions="").body == asked().body
    assert asked(text={"format": {"type": "json_object"}}).body["response_format"] == {"type": "json_object"}


def test_items_become_messages() -> None:
    said: Any = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I ask"}]}
    assert conversation(
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        said,
        CALL,
        {**CALL, "call_id": "c2"},
        RESULT,
        {**RESULT, "call_id": "c2", "output": [{"type": "input_text", "text": "three"}]},
        CALL,
    ) == [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "I ask", "tool_calls": [tool_call("c1"), tool_call("c2")]},
        {"role": "tool", "tool_call_id": "c1", "content": "two"},
        {"role": "tool", "tool_call_id": "c2", "content": "three"},
        {"role": "assistant", "content": None, "tool_calls": [tool_call("c1")]},
    ]


def tool_call(identity: str) -> Any:
    return {"id": identity, "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}


def test_pictures_and_sounds_pass() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"}
    assert conversation({"role": "user", "content": [{"type": "input_text", "text": "look"}, image, audio]}) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                audio,
            ],
        }
    ]


def part(**value: Any) -> Any:
    return {"input": [{"role": "user", "content": [value]}]}


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored"),
        ({"conversation": "conv_1"}, "conversation", "nothing is stored"),
        ({"prompt": {"id": "p"}}, "prompt", "nothing is stored"),
        ({"background": True}, "background", "nothing is stored"),
        ({"input": None}, "input", "no string and no array"),
        ({"input": []}, "input", "empty"),
        ({"input": ["x"]}, "input", "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "send the item itself"),
        ({"input": [{"type": "song"}]}, "input", "'song'"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input", "role"),
        ({"input": [{"role": "user", "content": 1}]}, "input", "content"),
        (part(type="input_image", file_id="f"), "input", "image_url"),
        (part(type="input_file", file_id="f"), "input", "image_url"),
        (part(type="song"), "input", "'song'"),
        (part(type="input_text"), "input", "'input_text'"),
        ({"input": [{**CALL, "call_id": None}]}, "input", "call_id"),
        ({"input": [{**CALL, "arguments": {}}]}, "input", "arguments"),
        ({"input": [{**RESULT, "call_id": 1}]}, "input", "call_id"),
        ({"input": [{**RESULT, "output": 1}]}, "input", "output"),
        ({"input": [{**RESULT, "output": [{"type": "input_image", "image_url": "x"}]}]}, "input", "text here"),
        ({"instructions": ["x"]}, "instructions", "string"),
        ({"max_output_tokens": 0}, "max_output_tokens", "above 0"),
        ({"max_output_tokens": True}, "max_output_tokens", "above 0"),
        ({"tools": [{"type": "web_search"}]}, "tools", "'web_search'"),
        ({"tools": [{"type": "function"}]}, "tools", "no name"),
        ({"tools": {"f": 1}}, "tools", "array"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice", "names no function"),
        ({"text": "json"}, "text", "'format'"),
        ({"text": {"format": {"type": "xml"}}}, "text", "json_schema"),
        ({"text": {"format": {"type": "json_schema"}}}, "text", "json_schema"),
        ({"stream": 1}, "stream", "true or false"),
    ],
)
def test_what_cannot_be_done_is_said(more: Any, param: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        asked(**more)
    assert caught.value.message.startswith("cannot take ")
    assert words in caught.value.message
    assert caught.value.param == param


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.text(max_size=3) | st.sampled_from(["user", "system"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KINDS = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "input_text"]) | JSON
ITEM = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("role", "content", "call_id", "name", "arguments", "output"), JSON) | {"type": KINDS}
)


@given(
    st.fixed_dictionaries(
        {"input": st.lists(ITEM, max_size=3) | JSON},
        optional=dict.fromkeys(
            ("instructions", "tools", "tool_choice", "text", "reasoning", "stream", "metadata", "model"), JSON
        ),
    )
)
def test_every_near_miss_is_a_request_or_a_sentence(body: Any) -> None:
    try:
        completion, again = parse(json.dumps(body).encode())
    except InvalidRequestError as error:
        assert error.message.startswith("cannot ")
        return
    json.loads(completion.upstream(5, 7))
    assert completion.messages and completion.roles
    json.dumps(again)


# -- answers ----------------------------------------------------------------------------------------------------------


def events(stream: bytes) -> list[Any]:
    """The events, their names and numbers checked; comments are skipped, as clients do."""
    found: list[Any] = []
    for block in stream.decode().split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        assert value["sequence_number"] == len(found)
        found.append(value)
    return found


def test_a_stream_in_its_order() -> None:
    told = events(b"".join(tell(voice(), deltas(*TALK, reason="tool_calls"))))
    assert [event["type"].removeprefix("response.") for event in told] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert (told[0]["response"]["status"], told[0]["response"]["output"], told[0]["response"]["usage"]) == (
        "in_progress",
        [],
        None,
    )
    added, text = told[8], told[12]
    assert added["item"] == {"id": "msg_x_1", "type": "message", "status": "in_progress", "role": "assistant"} | {
        "content": []
    }
    assert (text["text"], text["item_id"], text["output_index"], text["content_index"]) == ("Héllo", "msg_x_1", 1, 0)
    assert told[-1]["response"] == voice().whole(assembled(deltas(*TALK, reason="tool_calls")))
    assert [event["item"] for event in told if event["type"] == "response.output_item.done"] == told[-1]["response"][
        "output"
    ]


def test_the_whole_answer() -> None:
    asking: Any = {"instructions": "be", "tools": [TOOL], "temperature": 0.5, "metadata": {"a": "b"}}
    whole = voice(**asking).whole(assembled(deltas(*TALK, reason="tool_calls")))
    assert whole == {
        "id": "resp_x",
        "object": "response",
        "created_at": 1764550000,
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "be",
        "max_output_tokens": None,
        "metadata": {"a": "b"},
        "model": "mine",
        "output": [
            {
                "id": "rs_x_0",
                "type": "reasoning",
                "status": "completed",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            {
                "id": "msg_x_1",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Héllo", "annotations": [], "logprobs": []}],
            },
            {
                "id": "fc_x_2",
                "type": "function_call",
                "status": "completed",
                "call_id": "a",
                "name": "f",
                "arguments": '{"x":1}',
            },
            {"id": "fc_x_3", "type": "function_call", "status": "completed", "call_id": "b", "name": "g"}
            | {"arguments": ""},
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": None,
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [TOOL],
        "top_p": None,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 10,
        },
    }


def test_an_answer_that_was_cut_says_so() -> None:
    chunks = deltas({"content": "x"}, reason="length")
    told = events(b"".join(tell(voice(), chunks)))
    both: list[Any] = [voice().whole(assembled(chunks)), told[-1]["response"]]
    for response in both:
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert response["output"][-1]["status"] == "incomplete"


def test_an_answer_of_nothing() -> None:
    told = events(b"".join(tell(voice(), [])))
    assert [event["type"] for event in told] == ["response.created", "response.in_progress", "response.completed"]
    assert told[-1]["response"]["created_at"] == 5
    assert voice().whole({"choices": []})["output"] == []


DELTA = st.one_of(
    st.builds(lambda text: {"content": text}, st.text(min_size=1, max_size=3)),
    st.builds(lambda text: {"reasoning_content": text}, st.text(min_size=1, max_size=3)),
)


@given(st.lists(DELTA, max_size=8), st.integers(0, 3))
def test_the_pieces_are_the_whole(said: list[Any], calls: int) -> None:
    more = [call(at, f'{{"at":{at}}}', id=f"c{at}", name="f") for at in range(calls)]
    chunks = deltas(*said, *more)
    told = events(b"".join(tell(voice(), chunks)))
    open_at = None
    text = {"output_text": "", "reasoning_text": ""}
    for event in told:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_at is None
            open_at = event["output_index"]
        elif kind == "output_item.done":
            assert event["output_index"] == open_at
            open_at = None
        elif "output_index" in event:
            assert event["output_index"] == open_at
        if kind.endswith("_text.delta"):
            text[kind.removesuffix(".delta")] += event["delta"]
    assert open_at is None
    message: Any = json.loads(json.dumps(assembled(chunks)))["choices"][0]["message"]
    assert text["output_text"] == (message["content"] or "")
    assert text["reasoning_text"] == message.get("reasoning_content", "")


def test_errors_in_the_apis_words() -> None:
    refusal = Refusal(503, "cannot: why", code="c", param="p")
    assert json.loads(refusal.body(Surface.RESPONSES)) == json.loads(refusal.body(Surface.OPENAI))
    assert refusal.http_status(Surface.RESPONSES) == 503
    name, data, *_ = refusal.event(Surface.RESPONSES).decode().split("\n")
    told = json.loads(data.removeprefix("data: "))
    assert (name, told["type"], told["message"], told["code"]) == ("event: error", "error", "cannot: why", "c")
    assert told["error"]["message"] == "cannot: why"
