"""Sizes and durations: what people write, what they get back, and that garbage is only ever a ValueError."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.units import format_duration, format_size, parse_duration, parse_size

MOST_BYTES = 1 << 60
MONTH_S = 30 * 86400
HUGE = (
    pytest.param(10**400, id="400 digits"),
    pytest.param(1 << 20000, id="more digits than str() writes"),
    pytest.param("9" * 5000, id="5000 digits of text"),
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("450M", 450 << 20),
        ("4.5G", 4_831_838_208),
        ("4.5GiB", 4_831_838_208),
        ("8GB", 8 << 30),
        ("1k", 1024),
        ("1 KiB", 1024),
        (" 2m ", 2 << 20),
        ("0.5T", 1 << 39),
        ("1.9", 1),
        # A float would make 9007199254740992 of it.
        ("9007199254740993", 9007199254740993),
        ("1048576T", MOST_BYTES),
        (1 << 60, MOST_BYTES),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3.0), (3, 3.0), (0.5, 0.5), ("500ms", 0.5), ("10s", 10.0), ("1.5 m", 90.0), ("720h", MONTH_S), ("0", 0.0)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "bad",
    [
        "", " ", "G", "-1", "1,5G", "1.G", ".5G", "4 giga", "1e9", "0x10", "nan", "inf", "4.5GG", "٣G", "1\0",
        -1, MOST_BYTES + 1, "1048577T", True, None, 4.5, [1], {}, b"1K", *HUGE,
    ],
)  # fmt: skip
def test_no_sizes(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^(not a size such as 450M or 4\.5G|out of range \(0 to 1024 PiB\))$"):
        parse_size(bad)


@pytest.mark.parametrize(
    "bad",
    [
        "", "s", "10 sec", "-1s", "1d", "10S", "1e3", "nan", "٣s", "721h", -0.1, MONTH_S + 1, float("nan"),
        float("inf"), True, None, [1], b"1s", *HUGE,
    ],
)  # fmt: skip
def test_no_durations(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^(not a duration such as 10s or 500ms|out of range \(0 to 30 days\))$"):
        parse_duration(bad)


@given(st.integers(0, MOST_BYTES))
def test_whole_bytes_come_back(size: int) -> None:
    assert parse_size(str(size)) == parse_size(size) == parse_size(f"{size}B") == size


@given(st.integers(0, 1 << 20), st.sampled_from("KMGT"), st.sampled_from(["", "iB", "B", "ib"]))
def test_suffixes_are_powers_of_1024(number: int, suffix: str, tail: str) -> None:
    assert parse_size(f"{number}{suffix}{tail}") == number * 1024 ** ("KMGT".index(suffix) + 1)


@given(st.integers(0, 1 << 50))
def test_what_is_shown_as_a_size_can_be_written(size: int) -> None:
    shown = format_size(size)
    # One decimal of the shown unit, at most.
    assert abs(parse_size(shown) - size) <= max(0, size * 0.051)
    number, suffix = shown.split()
    assert suffix == "GiB" or float(number) < 1024


@given(st.floats(0, MONTH_S), st.sampled_from(["ms", "s", "m", "h"]))
def test_durations_in_every_unit(seconds: float, unit: str) -> None:
    factor = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]
    # Two millionths: what six decimals of an hour can be off.
    assert parse_duration(f"{seconds / factor:.6f}{unit}") == pytest.approx(min(seconds, MONTH_S), abs=0.002)


@given(st.integers(0, 1_000_000))
def test_whole_milliseconds_are_exact(milliseconds: int) -> None:
    assert parse_duration(f"{milliseconds}ms") == milliseconds / 1000


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 ms"),
        (0.35, "350 ms"),
        (0.9996, "1.0 s"),
        (4.21, "4.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 0 min"),
        (18420, "5 h 7 min"),
        (172800, "48 h 0 min"),
    ],
)
def test_shown_durations(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1048575, "1.0 MiB"),
        (450 << 20, "450.0 MiB"),
        (4_831_838_208, "4.5 GiB"),
        (1 << 50, "1048576.0 GiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_shown_sizes(size: int, shown: str) -> None:
    assert format_size(size) == shown


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers()),
    st.from_regex(r"[0-9]{1,30}\.?[0-9]{0,30} ?[a-zA-Z]{0,3}", fullmatch=True),
)  # fmt: skip


@given(ANYTHING)
def test_garbage_is_a_value_error_or_a_value_in_range(value: Any) -> None:
    try:
        size = parse_size(value)
    except ValueError:
        pass
    else:
        assert type(size) is int
        assert 0 <= size <= MOST_BYTES
    try:
        seconds = parse_duration(value)
    except ValueError:
        pass
    else:
        assert type(seconds) is float
        assert 0 <= seconds <= MONTH_S
