"""Request bodies, error bodies, headers, paths and state messages: everything that only looks at data."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.harness import first_state
from tidegate.gateway import errors
from tidegate.gateway.assemble import Json
from tidegate.gateway.errors import MOST_RETRY_AFTER_S, Refusal, Surface
from tidegate.gateway.headers import plain_path, request_headers, response_headers
from tidegate.gateway.openai import PART_TOKENS, Completion, InvalidRequestError, Weight, parse, weigh
from tidegate.gateway.passthrough import wants_stream
from tidegate.gateway.state import GuardState, Station, seconds
from tidegate.gateway.state import parse as parse_state
from tidegate.gateway.tokens import MARGIN, START_RATIO, Ratios
from tidegate.policy.admission import Gate
from tidegate.policy.level import Level

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff{}", "not UTF-8"),
        (b'{"messages":"\xc3\x28"}', "not UTF-8"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":1e999}', "a number is too large"),
        (b'{"a":-1e999}', "a number is too large"),
        (b'{"a":1' + b"0" * 308 + b"}", "a number is too large"),
        (b'{"a":1' + b"0" * 9999 + b"}", "a number is too large"),
        (b'{"a":[' + b"{}," * 200_000 + b"{}]}", "more than 262144 commas and brackets"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"messages":[{"role":"user","content":"x"}],"a":' + b"[" * 900 + b"]" * 900 + b"}", "nested too deeply"),
        (b"{}", "'messages' is required"),
        (b'{"messages":3}', "not an array"),
        (b'{"messages":[]}', "empty"),
        (b'{"messages":[3]}', "not an object"),
        (b'{"messages":[{}]}', "'role'"),
        (b'{"messages":[{"role":"user","content":3}]}', "'content'"),
        (b'{"messages":[{"role":"user","content":[3]}]}', "content part"),
        (b'{"messages":[{"role":"assistant","tool_calls":3}]}', "tool_calls"),
        (json.dumps({"messages": [USER], "stream": "yes"}).encode(), "'stream'"),
        (json.dumps({"messages": [USER], "stream_options": 1}).encode(), "'stream_options'"),
        (json.dumps({"messages": [USER], "max_tokens": "9"}).encode(), "max_tokens"),
        (json.dumps({"messages": [USER], "max_completion_tokens": True}).encode(), "max_completion_tokens"),
    ],
)
def test_a_wrong_chat_body_is_told_what_is_wrong(body: bytes, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(why)):
        parse(body, chat=True)


@pytest.mark.parametrize("around", [(b"[", b"]"), (b'{"b":', b"}")])
def test_what_is_nested_as_deep_as_may_be_can_be_sent_on_from_any_depth(around: tuple[bytes, bytes]) -> None:
    def body(levels: int) -> bytes:
        begin, end = around
        return b'{"messages":[{"role":"user","content":"x"}],"a":' + begin * levels + b"0" + end * levels + b"}"

    def sent(completion: Completion, calls: int) -> bytes:
        return sent(completion, calls - 1) if calls else completion.upstream(None, 7)

    assert json.loads(sent(parse(body(499), chat=True), 300))["seed"] == 7
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        parse(body(500), chat=True)


@given(st.binary(max_size=60) | st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda
    inner: st.lists(inner) | st.dictionaries(st.sampled_from(["messages", "role", "content", "stream", "max_tokens",
    "tool_calls", "tools", "text", "prompt"]), inner), max_leaves=15).map(lambda v: json.dumps(v).encode()),
    st.booleans())  # fmt: skip
def test_no_body_makes_another_error(body: bytes, is_chat: bool) -> None:
    try:
        completion = parse(body, chat=is_chat)
    except InvalidRequestError:
        return
    assert min(weight.size for weight in [*completion.weights, completion.fixed]) >= 0
    json.loads(completion.upstream(5, 7))


@pytest.mark.parametrize(
    ("body", "asked", "limit", "sent"),
    [
        ({}, None, 50, {"max_tokens": 50}),
        ({"max_tokens": 9}, 9, 9, {"max_tokens": 9}),
        ({"max_tokens": 99}, 99, 50, {"max_tokens": 50}),
        ({"max_completion_tokens": 99}, 99, 50, {"max_completion_tokens": 50}),
        ({"max_completion_tokens": 99, "max_tokens": 98}, 99, 50, {"max_completion_tokens": 50, "max_tokens": 50}),
        ({"max_tokens": -1}, None, 50, {"max_tokens": 50}),
        ({"max_tokens": None}, None, None, {"max_tokens": None}),
        ({"max_tokens": 0}, 0, 0, {"max_tokens": 0}),
    ],
)
def test_the_bound_of_the_answer(body: dict[str, Any], asked: int | None, limit: int | None, sent: Any) -> None:
    completion = parse(json.dumps({"messages": [USER], **body}).encode(), chat=True)
    assert completion.max_tokens == asked
    found = json.loads(completion.upstream(limit, 7))
    assert {key: value for key, value in found.items() if "max" in key} == sent


def test_streams_keep_their_options_and_plain_answers_get_the_usage() -> None:
    options = {"include_usage": False}
    body = {"messages": [USER], "stream_options": options}
    assert json.loads(parse(json.dumps({**body, "stream": True}).encode(), chat=True).upstream(None, 7)) == {
        **body,
        "stream": True,
        "seed": 7,
    }
    plain = json.loads(parse(json.dumps(body).encode(), chat=True).upstream(None, 7))
    assert plain == {**body, "stream": True, "stream_options": {"include_usage": True}, "seed": 7}


@pytest.mark.parametrize(("seed", "sent"), [(5, 5), (0, 0), (-1, 7), (None, 7), (True, 7)])
def test_a_seed_is_recorded_where_the_client_set_none(seed: object, sent: int) -> None:
    body = {"messages": [USER], "seed": seed}
    assert json.loads(parse(json.dumps(body).encode(), chat=True).upstream(None, 7))["seed"] == sent


def test_a_lone_surrogate_goes_on_as_it_came() -> None:
    body = b'{"messages":[{"role":"user","content":"\\ud800"}]}'
    assert b"\\ud800" in parse(body, chat=True).upstream(None, 7)


def test_images_are_weighed_apart() -> None:
    image: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    weight = weigh({"role": "user", "content": [{"type": "text", "text": "look"}, image]})
    assert weight.parts == 1
    assert weight.size < 100
    assert Ratios().estimate("m", weight) >= PART_TOKENS


def test_the_ratio_is_learned_for_each_model() -> None:
    ratios = Ratios()
    assert ratios.estimate("m", Weight(1000)) == 1000 * START_RATIO
    ratios.learn("m", Weight(1000), 200)
    assert ratios.estimate("m", Weight(1000)) == 200 * MARGIN
    assert ratios.estimate("other", Weight(1000)) == 200 * MARGIN
    for _ in range(50):
        ratios.learn("m", Weight(1000), 600)
    assert 700 < ratios.estimate("m", Weight(1000)) <= 750
    ratios.learn("m", Weight(10), 10)
    assert ratios.estimate("m", Weight(1000)) <= 750


# -- errors -------------------------------------------------------------------------------------------------------


def test_the_one_400_body_is_word_for_word() -> None:
    refusal = errors.too_long(tokens=2310, context=1024, best=4096, retry_s=40)
    assert json.loads(refusal.body()) == {
        "error": {
            "message": "This model's maximum context length is 1024 tokens (reduced from 4096 because memory is low). "
            "However, your messages resulted in 2310 tokens: the request exceeds the available context size and "
            "exceeds the context window. Shorten it, or retry in 40 s.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
            "n_prompt_tokens": 2310,
            "n_ctx": 1024,
        }
    }
    assert refusal.all_headers() == {"x-should-retry": "false"}


@given(st.floats(0, 1e9), st.floats(0.001, 1e9), st.floats(0, 1))
def test_retry_after_is_a_whole_number_that_clients_honour(seconds: float, default: float, chance: float) -> None:
    found = errors.retry_after(seconds, default, chance)
    assert 1 <= found <= MOST_RETRY_AFTER_S


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_refusal_speaks_of_rates(language: str) -> None:
    refusals: list[Refusal] = [
        errors.pressure(tokens=500, most=256, retry_s=9, language=language),
        errors.closed(reason="parked", message="", retry_s=9, language=language),
        errors.expired(waited_s=60, message="loading", retry_s=9, language=language),
        errors.full(wait_s=0.0, waiting=64, retry_s=9, language=language),
        errors.stopping(2, language=language),
        errors.crashed(times=2, message=""),
        errors.cut(""),
    ]
    for refusal in refusals:
        assert refusal.status == 503
        assert "rate limit" not in refusal.message and "429" not in refusal.message
        assert set(json.loads(refusal.body())["error"]) >= {"message", "type", "param", "code"}
    assert json.loads(refusals[0].body())["error"]["reason"] == "memory_pressure"
    assert json.loads(refusals[0].body())["error"]["code"] == "server_is_overloaded"


def test_an_anthropic_client_gets_its_own_shape() -> None:
    refusal = errors.full(wait_s=0.0, waiting=64, retry_s=9, language="en")
    assert refusal.http_status(Surface.ANTHROPIC) == 529
    assert json.loads(refusal.body(Surface.ANTHROPIC)) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": refusal.message},
    }
    assert refusal.event(Surface.ANTHROPIC).startswith(b"event: error\n")


@pytest.mark.parametrize("error", [None, 3, "text", [], {}, {"message": 3}, {"type": 3, "code": "x"}])
def test_any_engine_error_becomes_an_openai_error(error: Any) -> None:
    body = json.loads(errors.from_engine(500, error, best=4096, retry_s=3).body())["error"]
    assert isinstance(body["message"], str) and isinstance(body["type"], str)
    assert body["code"] is None or isinstance(body["code"], str)


@pytest.mark.parametrize(
    ("body", "chat", "choices"),
    [
        ({"messages": [USER]}, True, 1),
        ({"messages": [USER], "n": 3}, True, 3),
        ({"messages": [USER], "n": None}, True, 1),
        ({"messages": [USER], "n": True}, True, 1),
        ({"messages": [USER], "n": -2}, True, 1),
        ({"prompt": "a"}, False, 1),
        ({"prompt": [1, 2, 3]}, False, 1),
        ({"prompt": []}, False, 1),
        ({"prompt": ["a", "b"]}, False, 2),
        ({"prompt": [[1], "b"], "n": 2}, False, 4),
    ],
)
def test_how_many_answers_a_request_wants(body: Any, chat: bool, choices: int) -> None:
    assert parse(json.dumps(body).encode(), chat=chat).choices == choices


# -- headers and paths --------------------------------------------------------------------------------------------


def test_hop_by_hop_headers_stay_here() -> None:
    sent = [
        ("Host", "a"),
        ("Connection", "keep-alive, X-Secret"),
        ("X-Secret", "1"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "3"),
        ("Upgrade", "websocket"),
        ("TE", "trailers"),
        ("Content-Encoding", "gzip"),
        ("Authorization", "Bearer x"),
        ("X-Tidegate-Level", "normal"),
        ("Accept-Encoding", "gzip"),
        ("X-A", "1"),
        ("x-a", "2"),
        ("X-Bytes", "\udcff"),
    ]
    assert request_headers(sent, readable=True) == {"Authorization": "Bearer x", "X-A": "1, 2"}
    assert request_headers(sent, readable=False)["Accept-Encoding"] == "gzip"
    received = [("Server", "x"), ("Content-Encoding", "gzip"), ("Date", "x"), ("Access-Control-Allow-Origin", "*")]
    assert response_headers(received) == {"Content-Encoding": "gzip"}


@pytest.mark.parametrize(
    "path", ["/", "/v1/models", "/slots/0?action=erase", "/a/", "/lora%20adapters", "/m/%C3%BC", "/x?y=/../z%2e"]
)
def test_plain_paths_pass(path: str) -> None:
    assert plain_path(path) is not None


@pytest.mark.parametrize(
    "path",
    [
        "*",
        "http://elsewhere/x",
        "//elsewhere/x",
        "/v1/../slots",
        "/v1/./slots",
        "/v1//slots",
        "/v1/%2e%2e/slots",
        "/v1/chat/%63ompletions",
        "/v1%2Fchat/completions",
        "/%u0070rops",
        "/%U0070rops",
        "/slots/0?action=%u0073ave",
        "/100%",
        "/a%2",
        "/a?b=%zz",
        "/a\\b",
        "/a%5cb",
        "/a%0d%0aHost:%20x",
        "/a%00",
        "/a#b",
        "/\udcff",
        "",
    ],
)
def test_disguised_paths_do_not(path: str) -> None:
    assert plain_path(path) is None


# -- the guard's state --------------------------------------------------------------------------------------------


def test_a_state_message_is_read() -> None:
    raw: Any = {**first_state(), "level": "warn", "gate": "drain", "context_override": 512, "retry_after_s": 7}
    state = parse_state(raw)
    assert state is not None
    assert (state.board.level, state.board.gate, state.board.override) == (Level.WARN, Gate.DRAIN, 512)
    assert state.retry_after_s == 7.0
    assert not state.board.ready


@pytest.mark.parametrize(
    "change", [{"level": "flood"}, {"gate": None}, {"worker": None}, {"level": ["normal"]}, {"gate": "OPEN"}]
)
def test_a_wrong_state_is_no_state(change: dict[str, Any]) -> None:
    assert parse_state({**first_state(), **change}) is None


@pytest.mark.parametrize("url", ["http://[::1", "http://h:99999", "http://h:x"])
def test_a_worker_at_no_address_is_no_state(url: str) -> None:
    raw: Any = first_state()
    raw["worker"]["url"] = url
    assert parse_state(raw) is None


@pytest.mark.parametrize("value", [10**400, -1, float("nan"), float("inf"), True, "7", None])
def test_a_time_that_is_none(value: Any) -> None:
    assert seconds(value) is None
    state = parse_state({**first_state(), "retry_after_s": value})
    assert state is not None and state.retry_after_s == 0.0


@given(st.dictionaries(st.sampled_from(list(first_state())), st.none() | st.integers() | st.floats() | st.text()))
def test_no_state_breaks_the_reader(change: dict[str, Any]) -> None:
    state = parse_state({**first_state(), **change})
    if state is not None:
        assert state.board.context >= 0 and state.retry_after_s >= 0


def test_epochs_number_the_announcements() -> None:
    station = Station()

    def tell(gate: str, generation: int, **more: Any) -> int:
        worker = {**first_state()["worker"], "state": "ready", "url": "unix:/x", "generation": generation}
        state = parse_state({**first_state(), "gate": gate, "worker": {**worker, **more}})
        assert isinstance(state, GuardState)
        station.update(state)
        return station.epoch

    assert tell("hold", 1) == 0
    assert tell("open", 1) == 1
    assert tell("open", 1, message="news") == 1
    assert tell("open", 2) == 2
    assert tell("drain", 2, state="draining") == 2
    assert station.ordered_generation == 2
    assert tell("open", 2) == 3
    station.reconnected()
    assert tell("open", 2) == 4
    assert tell("hold", 2, state="backoff") == 4
    assert tell("open", 3) == 5
    assert station.ordered_generation == 2


def test_a_body_that_would_fill_memory_is_not_read_to_find_out_about_a_stream() -> None:
    assert wants_stream(b'{"stream":true}')
    assert not wants_stream(b'{"stream":true,"a":[' + b"{}," * 200_000 + b"{}]}")
