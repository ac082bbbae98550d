"""The level table of the gateway, and that more pressure never means a friendlier answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy.admission import Action, Ask, Board, Decision, Gate, Why, admit, fits_surely, places, prompt_limit
from tidegate.policy.level import Level

BEST = Board(Level.NORMAL, Gate.OPEN, ready=True, context=4096, slots=4, best_context=4096)
LEAN = replace(BEST, context=1024)


def ask(tokens: int, max_tokens: int | None = 10, *, trim: bool = True, exact: bool = True) -> Ask:
    return Ask(prompt_tokens=tokens, exact=exact, can_trim=trim, max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("board", "request_", "action", "why"),
    [
        (BEST, ask(4095), Action.PASS, Why.NONE),
        (BEST, ask(4096), Action.REFUSE, Why.TOO_LONG),
        (BEST, ask(4096, exact=False), Action.PASS, Why.NONE),
        (replace(BEST, level=Level.WARN), ask(9999, exact=False), Action.TRIM, Why.NONE),
        (LEAN, ask(500), Action.PASS, Why.NONE),
        (LEAN, ask(1000), Action.TRIM, Why.NONE),
        (LEAN, ask(1000, trim=False), Action.PASS, Why.NONE),
        (LEAN, ask(1024, trim=False), Action.REFUSE, Why.TOO_LONG_NOW),
        (LEAN, ask(1024, trim=False, exact=False), Action.PASS, Why.NONE),
        (LEAN, ask(4096), Action.REFUSE, Why.TOO_LONG),
        (replace(BEST, level=Level.WARN), ask(1024), Action.PASS, Why.NONE),
        (replace(BEST, level=Level.WARN), ask(1025), Action.TRIM, Why.NONE),
        (replace(BEST, level=Level.WARN), ask(1025, trim=False), Action.PASS, Why.NONE),
        (replace(BEST, level=Level.CRITICAL), ask(257), Action.REFUSE, Why.PRESSURE),
        (replace(BEST, level=Level.CRITICAL), ask(256), Action.PASS, Why.NONE),
        (replace(BEST, level=Level.CRITICAL, gate=Gate.HOLD), ask(257), Action.REFUSE, Why.PRESSURE),
        (replace(BEST, level=Level.CRITICAL, gate=Gate.HOLD), ask(256), Action.QUEUE, Why.NONE),
        (replace(BEST, level=Level.CRITICAL), replace(ask(600), admitted=True), Action.PASS, Why.NONE),
        (replace(BEST, gate=Gate.DRAIN), ask(9), Action.QUEUE, Why.NONE),
        (replace(BEST, gate=Gate.HOLD), ask(9), Action.QUEUE, Why.NONE),
        (replace(BEST, ready=False), ask(9), Action.QUEUE, Why.NONE),
        (replace(BEST, gate=Gate.REFUSE), ask(9), Action.REFUSE, Why.CLOSED),
        (replace(BEST, override=512), ask(513), Action.TRIM, Why.NONE),
        (replace(BEST, override=512), ask(512), Action.PASS, Why.NONE),
        (Board(), ask(99999), Action.QUEUE, Why.NONE),
    ],
)
def test_the_table(board: Board, request_: Ask, action: Action, why: Why) -> None:
    decision = admit(board, request_)
    assert (decision.action, decision.why) == (action, why)


@pytest.mark.parametrize(
    ("board", "limit"),
    [
        (BEST, 1 << 30),
        (replace(BEST, level=Level.WARN, warn_context=8192), 4095),
        (LEAN, 1024 - 128 - 1),
        (replace(LEAN, context=256, best_context=512), 256 - 32 - 1),
        (replace(BEST, level=Level.WARN), 1024),
        (replace(BEST, level=Level.WARN, override=512), 512),
        (replace(LEAN, level=Level.WARN, warn_context=4096), 895),
    ],
)
def test_where_a_prompt_is_trimmed_to(board: Board, limit: int) -> None:
    assert prompt_limit(board) == limit


@pytest.mark.parametrize(
    ("board", "request_", "max_tokens", "capped"),
    [
        (BEST, ask(96, None), 4000, False),
        (BEST, ask(96, 4000), 4000, False),
        (BEST, ask(96, 4001), 4000, True),
        (LEAN, ask(24, None), 1000, True),
        (LEAN, ask(24, 1000), 1000, False),
        (LEAN, ask(24, 1001), 1000, True),
        (LEAN, ask(24, None, exact=False), 1024, True),
        (BEST, ask(24, None, exact=False), 4096, False),
        (LEAN, ask(24, 4000, exact=False), 4000, False),
    ],
)
def test_the_cap(board: Board, request_: Ask, max_tokens: int | None, capped: bool) -> None:
    assert admit(board, request_) == Decision(Action.PASS, max_tokens=max_tokens, capped=capped)


def test_one_at_a_time_above_normal() -> None:
    assert [places(replace(BEST, level=level)) for level in Level] == [4, 1, 1]
    assert places(replace(BEST, slots=0)) == 1


boards = st.builds(
    Board,
    level=st.sampled_from(list(Level)),
    gate=st.sampled_from(list(Gate)),
    ready=st.booleans(),
    context=st.integers(0, 8192),
    slots=st.integers(0, 8),
    best_context=st.integers(0, 8192),
    warn_context=st.integers(1, 8192),
    override=st.none() | st.integers(1, 8192),
    critical_prompt=st.integers(0, 8192),
)
asks = st.builds(
    Ask,
    prompt_tokens=st.integers(0, 10000),
    exact=st.booleans(),
    can_trim=st.booleans(),
    max_tokens=st.none() | st.integers(1, 10000),
    admitted=st.booleans(),
)


@given(boards, asks)
def test_a_higher_level_is_never_friendlier(board: Board, request_: Ask) -> None:
    normal, warn, critical = (admit(replace(board, level=level), request_) for level in Level)
    assert normal.action <= warn.action <= critical.action
    limits = [prompt_limit(replace(board, level=level)) for level in Level]
    assert limits == sorted(limits, reverse=True)


@given(boards, asks)
def test_a_closed_gate_is_never_friendlier(board: Board, request_: Ask) -> None:
    actions = [admit(replace(board, gate=gate), request_).action for gate in (Gate.OPEN, Gate.HOLD, Gate.REFUSE)]
    assert actions == sorted(actions) or Action.REFUSE in actions[:1]


@given(boards, asks)
def test_what_passes_fits_the_context(board: Board, request_: Ask) -> None:
    decision = admit(board, request_)
    if decision.action is Action.PASS and request_.exact and board.context:
        assert request_.prompt_tokens < board.context
        assert decision.max_tokens is not None
        assert request_.prompt_tokens + decision.max_tokens <= board.context
        assert request_.max_tokens is None or decision.max_tokens <= request_.max_tokens


@given(boards, asks)
def test_trimming_ends(board: Board, request_: Ask) -> None:
    decision = admit(board, request_)
    if decision.action is Action.TRIM:
        again = admit(board, replace(request_, prompt_tokens=min(request_.prompt_tokens, decision.limit)))
        assert again.action is not Action.TRIM
        assert admit(board, replace(request_, can_trim=False)).action is not Action.TRIM


@given(boards, asks, st.integers(0, 5000))
def test_what_surely_fits_passes_whatever_the_count(board: Board, request_: Ask, more: int) -> None:
    most = request_.prompt_tokens + more
    if board.usable and fits_surely(board, most, request_.max_tokens):
        decision = admit(board, replace(request_, exact=True))
        assert decision.action is Action.PASS
        assert not decision.capped or request_.max_tokens is None
