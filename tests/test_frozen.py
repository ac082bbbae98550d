"""Frozen records behave as dataclass(frozen=True) does, side by side."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.frozen import as_json, frozen, replace


@frozen
class Ours:
    """Documented."""

    name: str
    size: float = 1.5
    tags: tuple[str, ...] = ()

    def doubled(self) -> float:
        return self.size * 2

    @property
    def first(self) -> str:
        return self.tags[0]


@dataclasses.dataclass(frozen=True)
class Theirs:
    name: str
    size: float = 1.5
    tags: tuple[str, ...] = ()


@frozen
class Other:
    name: str
    size: float = 1.5
    tags: tuple[str, ...] = ()


@frozen
class Outer:
    inner: Ours
    many: tuple[Ours, ...] = ()


# NaN: dataclasses changed from comparing tuples to comparing fields in 3.13, which differs for the same NaN object.
FIELDS = st.tuples(st.text(), st.floats(allow_nan=False), st.lists(st.text()).map(tuple))


@given(FIELDS, FIELDS)
def test_equality_and_hash(one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    assert (Ours(*one) == Ours(*two)) == (Theirs(*one) == Theirs(*two))
    assert (Ours(*one) != Ours(*two)) == (Theirs(*one) != Theirs(*two))
    same = Ours(*one)
    assert same == Ours(*one)
    assert hash(same) == hash(Ours(*one))
    assert len({same, Ours(*one), Ours(*two)}) == len({Theirs(*one), Theirs(*one), Theirs(*two)})


@given(FIELDS)
def test_fields_by_place_and_by_name(values: tuple[Any, ...]) -> None:
    name, size, tags = values
    record = Ours(name, tags=tags, size=size)
    assert (record.name, record.size, record.tags) == (name, size, tags) or size != size
    assert record == Ours(*values)
    # The order in which names were given must not show.
    assert hash(record) == hash(Ours(size=size, tags=tags, name=name))
    assert repr(record) == repr(Theirs(*values)).replace("Theirs", "Ours")


def test_equal_only_to_its_own_class() -> None:
    others: list[object] = [Other("a"), ("a", 1.5, ()), Theirs("a")]
    assert Ours("a") not in others
    assert hash(Ours("a")) != hash(Other("a"))


def test_defaults_and_what_stays_of_the_class() -> None:
    record = Ours("a")
    assert (record.size, record.tags) == (1.5, ())
    assert Ours.__doc__ == "Documented."
    assert record.doubled() == 3.0
    assert Ours("a", tags=("x",)).first == "x"


BAD_CALLS: list[Callable[[Any], object]] = [
    lambda kind: kind(),
    lambda kind: kind(size=1.0),
    lambda kind: kind("a", 1.0, (), "more"),
    lambda kind: kind("a", unknown=1),
    lambda kind: kind("a", name="b"),
]


@pytest.mark.parametrize("call", BAD_CALLS)
def test_wrong_arguments(call: Callable[[Any], object]) -> None:
    for kind in (Ours, Theirs):
        with pytest.raises(TypeError):
            call(kind)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(TypeError, match="Ours needs name"):
        Ours()  # type: ignore[call-arg]


@pytest.mark.parametrize("record", [Ours("a"), Theirs("a")], ids=["ours", "dataclass"])
def test_immutable(record: Any) -> None:
    with pytest.raises(AttributeError, match="name"):
        record.name = "b"
    with pytest.raises(AttributeError):
        record.new = 1
    with pytest.raises(AttributeError, match="name"):
        del record.name
    assert record.name == "a"


@pytest.mark.parametrize("default", [[], {}, set()])
def test_a_default_that_can_change_is_refused(default: object) -> None:
    def define(decorate: Callable[[type], type]) -> None:
        decorate(type("Bad", (), {"__annotations__": {"items": object}, "items": default}))

    for decorate in (frozen, dataclasses.dataclass(frozen=True)):
        with pytest.raises(ValueError, match="default"):
            define(decorate)


def test_unhashable_values_make_it_unhashable() -> None:
    for record in (Ours("a", tags=[]), Theirs("a", tags=[])):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="unhashable"):
            hash(record)


def matched(value: object) -> str:
    match value:
        case Ours("a", size) if size > 2:
            return f"large a {size}"
        case Ours("a"):
            return "a"
        case Ours(name=name, tags=(first, *_)):
            return f"{name} with {first}"
        case Ours(name, _, ()):
            return f"bare {name}"
        case _:
            return "none"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (Ours("a", 3.0), "large a 3.0"),
        (Ours("a"), "a"),
        (Ours("b", tags=("x", "y")), "b with x"),
        (Ours("b"), "bare b"),
        (Other("a"), "none"),
    ],
)
def test_match(value: object, found: str) -> None:
    assert matched(value) == found


def test_match_by_place_is_as_long_as_the_fields() -> None:
    assert Ours.__match_args__ == Theirs.__match_args__


@given(FIELDS)
def test_copies_are_equal(values: tuple[Any, ...]) -> None:
    record = Ours(*values)
    assert copy.copy(record) == record
    assert repr(copy.deepcopy(record)) == repr(pickle.loads(pickle.dumps(record))) == repr(record)


def test_replace() -> None:
    record = Ours("a", 2.0, ("x",))
    assert replace(record, size=3.0) == Ours("a", 3.0, ("x",))
    assert record.size == 2.0
    with pytest.raises(TypeError):
        replace(record, unknown=1)


def test_as_json_opens_records_in_everything() -> None:
    value = {"outer": Outer(Ours("a"), (Ours("b", 2.0, ("x",)),)), "list": [Ours("c"), 1, None, "text"]}
    plain = {
        "outer": {
            "inner": {"name": "a", "size": 1.5, "tags": []},
            "many": [{"name": "b", "size": 2.0, "tags": ["x"]}],
        },
        "list": [{"name": "c", "size": 1.5, "tags": []}, 1, None, "text"],
    }
    assert as_json(value) == plain
    assert json.loads(json.dumps(as_json(value))) == plain
