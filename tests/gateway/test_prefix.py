"""Which beginning of a prompt is the same, and when it is worth a file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidegate.frozen import replace
from tidegate.gateway import openai
from tidegate.gateway.openai import Completion
from tidegate.gateway.prefix import SAVE_EVERY_S, Prefix, Shelf, prefix_of, shape_key
from tidegate.settings.model import Profile

SYSTEM: Any = {"role": "system", "content": "You are a robot. " * 20}
HI: Any = {"role": "user", "content": "hi"}
YES: Any = {"role": "assistant", "content": "yes?"}
TOOLS: Any = [{"type": "function", "function": {"name": "now", "description": "the time " * 40, "parameters": {}}}]


def asked(*messages: Any, **more: Any) -> Completion:
    return openai.parse(json.dumps({"messages": messages, **more}).encode(), chat=True)


def prefix(*messages: Any, **more: Any) -> Prefix:
    found = prefix_of(asked(*messages, **more))
    assert found is not None
    return found


def test_what_follows_does_not_change_its_name() -> None:
    first = prefix(SYSTEM, HI, temperature=0)
    assert first.name == prefix(SYSTEM, HI, YES, HI, max_tokens=3, stream=True).name
    assert first.opens
    assert not prefix(SYSTEM, HI, YES, HI).opens


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [{**SYSTEM, "content": SYSTEM["content"] + "!"}, HI]},
        {"messages": [SYSTEM, {"role": "developer", "content": "x"}, HI]},
        {"tools": TOOLS},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_what_the_template_shows_first_does(other: dict[str, Any]) -> None:
    assert prefix(*other.pop("messages", [SYSTEM, HI]), **other).name != prefix(SYSTEM, HI).name


def test_tools_alone_are_a_beginning() -> None:
    assert prefix(HI, tools=TOOLS).with_user("a").body == {"tools": TOOLS, "messages": [{**HI, "content": "a"}]}


@pytest.mark.parametrize(
    "completion",
    [
        asked(HI),
        asked({"role": "system", "content": "short"}, HI),
        asked(SYSTEM),
        asked(HI, SYSTEM),
        asked({"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x" * 999}}]}, HI),
        openai.parse(json.dumps({"prompt": "x" * 999}).encode(), chat=False),
    ],
)
def test_no_beginning(completion: Completion) -> None:
    assert prefix_of(completion) is None


def test_the_beginning_before_another_user() -> None:
    made = prefix(SYSTEM, HI, YES, HI, tools=TOOLS, temperature=0).with_user("b")
    assert made.body == {"tools": TOOLS, "messages": [SYSTEM, {"role": "user", "content": "b"}]}


def test_a_slot_fits_its_model_kv_types_flags_and_build_at_any_context() -> None:
    profile = Profile("full", "/m.gguf", context=4096)

    def key(profile: Profile = profile, size: int = 1, mtime_ns: int = 2, build: str = "b1") -> str:
        return shape_key(profile, size=size, mtime_ns=mtime_ns, build=build)

    assert key() == key(replace(profile, name="lean", context=1024, slots=2, prompt_cache=9, threads=4))
    others = [replace(profile, model="/n"), replace(profile, kv_type="q8_0"), replace(profile, extra=("--swa-full",))]
    keys = {key(), *map(key, others), key(size=2), key(mtime_ns=3), key(build="b2")}
    assert len(keys) == 7


def test_only_what_comes_again_is_saved_and_only_where_the_slot_goes_back_to_it() -> None:
    shelf, opens, goes_on = Shelf(), prefix(SYSTEM, HI), prefix(SYSTEM, HI, YES, HI)
    assert not shelf.asked(opens, 1, 0)
    assert not shelf.asked(goes_on, 1, 1)
    assert shelf.asked(opens, 1, 2)
    # A new worker has nothing yet that could be lost.
    assert shelf.asked(goes_on, 2, 3)
    assert not shelf.asked(goes_on, 2, 4)
    assert shelf.last == opens.name


def test_saves_keep_their_distance() -> None:
    shelf, opens = Shelf(), prefix(SYSTEM, HI)
    shelf.asked(opens, 1, 0)
    shelf.saved(10)
    assert not shelf.asked(opens, 1, 10 + SAVE_EVERY_S - 1)
    assert shelf.asked(opens, 1, 10 + SAVE_EVERY_S)


def test_a_prompt_with_the_time_in_it_is_never_saved_and_does_not_grow_the_shelf() -> None:
    shelf = Shelf()
    clocks = [prefix({**SYSTEM, "content": SYSTEM["content"] + str(minute)}, HI) for minute in range(65)]
    assert not any(shelf.asked(each, 1, 0) for each in clocks)
    # The first is forgotten, the last is not.
    assert not shelf.asked(clocks[0], 1, 0)
    assert shelf.asked(clocks[-1], 1, 0)


def test_a_shape_that_fails_twice_is_left_alone() -> None:
    shelf = Shelf()
    shelf.failed("a")
    assert shelf.useful("a")
    shelf.failed("a")
    assert not shelf.useful("a")
    shelf.failed("b", for_good=True)
    assert not shelf.useful("b")
    assert shelf.useful("c")
