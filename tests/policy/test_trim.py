"""What stays of a conversation."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy.trim import Piece, may_trim, trim

ROLES = ["system", "developer", "user", "assistant", "tool"]
conversations = st.lists(st.builds(Piece, role=st.sampled_from(ROLES), cost=st.integers(0, 500)), max_size=30)


def talk(*roles: str) -> list[Piece]:
    return [Piece(role, 10) for role in roles]


def test_nothing_is_dropped_when_it_fits() -> None:
    result = trim(talk("system", "user", "assistant", "user"), 40)
    assert (result.keep, result.dropped, result.cost) == ((0, 1, 2, 3), 0, 40)


def test_the_oldest_turn_goes_with_its_answer() -> None:
    result = trim(talk("system", "user", "assistant", "user", "assistant", "user"), 45)
    assert (result.keep, result.dropped, result.cost) == ((0, 3, 4, 5), 2, 40)


def test_a_tool_call_goes_together_with_its_results() -> None:
    result = trim(talk("user", "assistant", "tool", "tool", "assistant", "user"), 55)
    assert result.keep == (5,)


def test_system_messages_and_everything_from_the_last_question_on_stay() -> None:
    messages = talk("system", "user", "assistant", "developer", "user", "assistant", "tool")
    result = trim(messages, 0)
    assert (result.keep, result.cost) == ((0, 3, 4, 5, 6), 50)


def test_a_greeting_before_the_first_question_goes_first() -> None:
    assert trim(talk("assistant", "user", "assistant", "user"), 30).keep == (1, 2, 3)


def test_user_messages_in_a_row_go_one_by_one() -> None:
    assert trim(talk("user", "user", "user"), 20).keep == (1, 2)


def test_a_conversation_without_a_question_is_left_alone() -> None:
    assert trim(talk("system", "assistant", "tool"), 0).keep == (0, 1, 2)


def test_the_fixed_cost_counts() -> None:
    result = trim(talk("user", "assistant", "user"), 40, fixed=20)
    assert (result.keep, result.cost) == ((2,), 30)


@given(conversations, st.integers(0, 5000), st.integers(0, 300))
def test_order_is_kept_and_what_must_stay_stays(messages: list[Piece], limit: int, fixed: int) -> None:
    result = trim(messages, limit, fixed=fixed)
    assert list(result.keep) == sorted(set(result.keep))
    assert result.dropped == len(messages) - len(result.keep)
    assert result.cost == fixed + sum(messages[index].cost for index in result.keep)
    last_user = max((i for i, piece in enumerate(messages) if piece.role == "user"), default=0)
    must = {i for i, piece in enumerate(messages) if i >= last_user or piece.role in ("system", "developer")}
    assert must <= set(result.keep)


@given(conversations, st.integers(0, 5000))
def test_trimming_twice_is_trimming_once(messages: list[Piece], limit: int) -> None:
    once = [messages[index] for index in trim(messages, limit).keep]
    assert trim(once, limit).dropped == 0


@given(conversations, st.integers(0, 5000), st.integers(0, 5000))
def test_a_lower_limit_keeps_no_more(messages: list[Piece], one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert set(trim(messages, low).keep) <= set(trim(messages, high).keep)


@given(conversations, st.integers(0, 5000))
def test_no_tool_result_is_left_without_what_came_before_it(messages: list[Piece], limit: int) -> None:
    keep = set(trim(messages, limit).keep)
    talked = [i for i, piece in enumerate(messages) if piece.role not in ("system", "developer")]
    for before, after in itertools.pairwise(talked):
        if after in keep and messages[after].role != "user":
            assert before in keep


@given(conversations)
def test_whether_anything_may_go_is_known_without_trimming(messages: list[Piece]) -> None:
    assert may_trim([piece.role for piece in messages]) == bool(trim(messages, -1).dropped)
