"""One answer out of the streams of several workers, without any I/O."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.gateway.answer import Answer, DiffersError
from tidegate.gateway.assemble import EngineError
from tidegate.gateway.sse import DONE
from tidegate.gateway.voice import OpenAIVoice

TOP = {"id": "one", "created": 1, "model": "m", "system_fingerprint": "f", "object": "chat.completion.chunk"}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, reason: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"finish_reason": reason, "index": index, "delta": delta or {}}
    return event({"choices": [choice], **TOP, **more})


def raw(text: str, **more: Any) -> bytes:
    return event({"index": 0, "content": text, "stop": False, **more})


def last(kind: str = "eos", tokens: int = 2) -> bytes:
    return event(
        {"content": "", "stop": True, "stop_type": kind, "tokens_predicted": tokens, "timings": {"prompt_n": 1}}
    )


ROLE = chunk({"role": "assistant", "content": None})
HELLO, WORLD = chunk({"content": "hello"}), chunk({"content": " world"})
STOP = chunk(reason="stop")
CALL = chunk({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]})
CALL_END = chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]})


def stream(*, chat: bool = True) -> Answer:
    return Answer(chat=chat, voice=OpenAIVoice())


def chunks(data: bytes) -> list[Any]:
    return [json.loads(part[6:]) for part in data.split(b"\n\n") if part.startswith(b"data: {")]


def text(data: bytes) -> str:
    return "".join(c["delta"].get("content") or "" for each in chunks(data) for c in each["choices"])


# -- the first worker -------------------------------------------------------------------------------------------------


def test_nothing_goes_out_before_there_is_content() -> None:
    answer = stream()
    assert answer.feed(ROLE) == b""
    assert answer.content is False
    assert answer.feed(HELLO) == ROLE + HELLO
    assert answer.feed(STOP) == STOP
    assert answer.finished


def test_one_of_two_choices_is_not_the_whole() -> None:
    answer = Answer(chat=True, voice=OpenAIVoice(), choices=2)
    answer.feed(HELLO + STOP)
    assert not answer.finished
    answer.feed(event({"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": None}]}))
    assert not answer.finished
    answer.feed(event({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}))
    assert answer.finished


@pytest.mark.parametrize(
    "data",
    [
        chunk({"reasoning_content": "hm"}),
        chunk(reason="length"),
        event({"choices": [{"index": 0, "text": "x", "finish_reason": None}]}),
        event({"type": "something else"}),
    ],
)
def test_what_counts_as_content(data: bytes) -> None:
    answer = stream()
    assert answer.feed(data) == data
    assert answer.content


def test_progress_of_the_prefill_goes_out_but_is_no_content() -> None:
    answer = stream()
    progress = event({"choices": [], "prompt_progress": {"total": 9, "processed": 3}})
    assert answer.feed(ROLE + progress) == ROLE + progress
    assert not answer.content
    assert answer.feed(HELLO) == HELLO


@given(st.lists(st.integers(1, 60), max_size=40))
def test_the_bytes_stay_as_they_were(cuts: list[int]) -> None:
    whole = ROLE + HELLO * 3 + STOP + DONE
    answer, out, start = stream(), b"", 0
    for cut in cuts:
        out += answer.feed(whole[start : start + cut])
        start += cut
    out += answer.feed(whole[start:])
    assert out + answer.closing() == whole
    assert answer.done


def test_an_error_in_the_stream_is_raised() -> None:
    answer = stream()
    assert answer.feed(ROLE + HELLO) == ROLE + HELLO
    with pytest.raises(EngineError) as caught:
        answer.feed(event({"error": {"code": 500, "message": "full"}}))
    assert caught.value.body == {"code": 500, "message": "full"}


@pytest.mark.parametrize("data", [b"data: no json\n\n", b"data: [1]\n\n", b"data: " + b"[" * 100_000 + b"\n\n"])
def test_what_is_no_chunk_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="cannot read the engine's stream"):
        stream().feed(data)


def test_calls_of_tools_pass_when_the_answer_is_finished() -> None:
    answer = stream()
    assert answer.feed(ROLE + HELLO) == ROLE + HELLO
    assert answer.feed(CALL + CALL_END) == b""
    end = chunk(reason="tool_calls")
    usage = event({"choices": [], **TOP, "usage": {"prompt_tokens": 3}})
    assert answer.feed(end + usage) == CALL + CALL_END + end + usage
    assert answer.usage == {"prompt_tokens": 3}


def test_calls_of_one_choice_wait_for_its_own_end() -> None:
    answer = Answer(chat=True, voice=OpenAIVoice(), choices=2)
    other = chunk({"content": "hello"}, index=1) + chunk(reason="stop", index=1)
    assert answer.feed(ROLE + CALL + other) == b""
    # The worker is lost: nothing of the call has passed, so all of it may come again.
    assert not answer.content
    answer.restart()
    end = chunk(reason="tool_calls")
    assert answer.feed(ROLE + CALL + other + CALL_END + end) == ROLE + CALL + other + CALL_END + end
    assert answer.finished


# -- the next worker goes on ------------------------------------------------------------------------------------------


def begun(*data: bytes, chat: bool = True) -> Answer:
    answer = stream(chat=chat)
    for each in data:
        answer.feed(each)
    return answer


def test_the_rest_of_a_chat_comes_in_the_first_ones_name() -> None:
    answer = begun(ROLE, HELLO)
    assert answer.plain_text == "hello"
    answer.go_on(prompt_tokens=5, told_tokens=1, usage=True)
    out = answer.feed(raw(" wor") + raw("ld") + last("limit"))
    found = chunks(out)
    assert text(out) == " world"
    assert all({key: each[key] for key in TOP} == TOP for each in found)
    assert [each["choices"][0]["finish_reason"] for each in found[:-1]] == [None, None, "length"]
    assert found[-1]["choices"] == []
    assert found[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert answer.done
    assert answer.finished


def test_without_usage_the_figures_go_with_the_finish() -> None:
    answer = begun(ROLE, HELLO)
    answer.go_on(prompt_tokens=5, told_tokens=1, usage=False)
    (end,) = chunks(answer.feed(last()))
    assert end["choices"] == [{"finish_reason": "stop", "index": 0, "delta": {}}]
    assert end["timings"] == {"prompt_n": 1}


def test_of_an_answer_that_only_lacks_its_end_only_the_end_comes() -> None:
    # llama.cpp b11434 samples a token even with n_predict 0.
    answer = begun(ROLE, HELLO)
    answer.go_on(prompt_tokens=5, told_tokens=1, usage=True, full=True)
    end, usage = chunks(answer.feed(raw(" world") + last("eos", tokens=1)))
    assert end["choices"] == [{"finish_reason": "length", "index": 0, "delta": {}}]
    assert usage["usage"] == {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}


def test_the_rest_of_a_text_completion() -> None:
    first = {"choices": [{"text": "a", "index": 0, "logprobs": None, "finish_reason": None}], "id": "t", "object": "x"}
    answer = begun(event(first), chat=False)
    assert answer.plain_text == "a"
    answer.go_on(prompt_tokens=5, told_tokens=1, usage=False)
    more, end = chunks(answer.feed(raw("b") + last()))
    assert more == {
        "choices": [{"finish_reason": None, "index": 0, "text": "b", "logprobs": None}],
        "id": "t",
        "object": "x",
    }
    assert end["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "data",
    [
        [ROLE, chunk({"reasoning_content": "hm"})],
        [ROLE, HELLO, chunk({"content": "x"}, index=1)],
        [ROLE, HELLO, STOP],
        [event({"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": []}}]}), ROLE, CALL, STOP],
    ],
)
def test_what_is_not_plain_text(data: list[bytes]) -> None:
    assert begun(*data).plain_text is None


def test_half_a_call_does_not_count_as_told() -> None:
    assert begun(ROLE, HELLO, CALL).plain_text == "hello"


def test_a_raw_chunk_without_text_is_an_error() -> None:
    answer = begun(ROLE, HELLO)
    answer.go_on(prompt_tokens=5, told_tokens=1, usage=False)
    with pytest.raises(ValueError, match="has no content"):
        answer.feed(HELLO)


# -- the next worker begins again -------------------------------------------------------------------------------------


SECOND = {**TOP, "id": "two", "created": 9, "object": "chat.completion.chunk"}


def again(content: str, *, reason: str | None = None) -> bytes:
    return event({"choices": [{"finish_reason": reason, "index": 0, "delta": {"content": content}}], **SECOND})


@given(st.text("ab", min_size=1, max_size=12), st.integers(1, 12), st.lists(st.integers(1, 4), max_size=12))
def test_what_is_there_already_is_left_out(whole: str, told: int, cuts: list[int]) -> None:
    told = min(told, len(whole))
    answer = begun(ROLE, chunk({"content": whole[:told]}))
    answer.restart()
    out, start = answer.feed(ROLE), 0
    for cut in [*cuts, len(whole)]:
        if whole[start : start + cut]:
            out += answer.feed(again(whole[start : start + cut]))
        start += cut
    out += answer.feed(event({"choices": [{"finish_reason": "stop", "index": 0, "delta": {}}], **SECOND}))
    assert text(out) == whole[told:]
    assert all(each["id"] == "one" and each["created"] == 1 for each in chunks(out))
    assert b'"role"' not in out
    assert chunks(out)[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("data", [[again("help")], [again("he"), STOP], [again("hel"), again("p")]])
def test_another_beginning_is_an_error(data: list[bytes]) -> None:
    answer = begun(ROLE, HELLO)
    answer.restart()
    with pytest.raises(DiffersError):
        for each in data:
            answer.feed(each)


def test_choices_are_compared_one_by_one() -> None:
    answer = begun(ROLE, chunk({"content": "a"}, index=0), chunk({"content": "b"}, index=1), chunk(reason="stop"))
    answer.restart()
    out = answer.feed(
        chunk({"content": "a"}, index=0)
        + chunk({"content": "bc"}, index=1)
        + chunk(reason="stop", index=0)
        + chunk(reason="stop", index=1)
    )
    assert [(c["index"], c["delta"], c["finish_reason"]) for each in chunks(out) for c in each["choices"]] == [
        (1, {"content": "c"}, None),
        (1, {}, "stop"),
    ]


def test_before_any_content_the_next_worker_is_the_first() -> None:
    answer = begun(ROLE)
    answer.restart()
    assert answer.feed(ROLE + HELLO) == ROLE + HELLO


# -- plain answers ----------------------------------------------------------------------------------------------------


def test_a_plain_answer_goes_on_too() -> None:
    answer = Answer(chat=True, voice=None)
    assert answer.feed(ROLE + HELLO) == b""
    answer.go_on(prompt_tokens=5, told_tokens=1, usage=True)
    assert answer.feed(raw(" world") + last()) == b""
    whole = answer.whole()
    assert whole["choices"] == [
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "hello world"}}
    ]
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert whole["id"] == "one"


def test_a_plain_answer_that_begins_again_forgets_the_first() -> None:
    answer = Answer(chat=True, voice=None)
    answer.feed(ROLE + chunk({"reasoning_content": "first"}))
    answer.restart()
    answer.feed(ROLE + WORLD + STOP + DONE)
    assert answer.whole()["choices"] == [
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": " world"}}
    ]


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["choices", "delta", "index", "tool_calls", "function", "logprobs", "content", "text", "usage",
    "stop", "finish_reason"]), inner), max_leaves=20), st.sampled_from(["first", "again", "onward"]))  # fmt: skip
def test_no_chunk_breaks_it(value: Any, way: str) -> None:
    answer = begun(ROLE, HELLO)
    if way == "again":
        answer.restart()
    if way == "onward":
        answer.go_on(prompt_tokens=1, told_tokens=1, usage=True)
    try:
        answer.feed(event(value))
    except (ValueError, EngineError, DiffersError):
        return
