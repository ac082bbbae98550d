"""The guard's log: one line a write, in both formats, and never in the guard's way."""

from __future__ import annotations

import json
import os
import re
import select
from collections.abc import Callable, Iterator

import pytest

from tidegate.guard.log import LEVELS, Log


@pytest.fixture(name="ends")
def ends_fixture() -> Iterator[tuple[int, int]]:
    """A pipe that nobody waits for."""
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    yield ends
    for fd in ends:
        os.close(fd)


def written(fd: int) -> list[str]:
    try:
        return os.read(fd, 1 << 16).decode().splitlines()
    except BlockingIOError:
        return []


def make(ends: tuple[int, int], *, level: str = "debug", format: str = "text", journal: bool = False) -> Log:  # noqa: A002
    return Log(level=level, format=format, fd=ends[1], journal=journal)


def all_levels(log: Log) -> None:
    methods: list[Callable[[str], None]] = [log.debug, log.info, log.warning, log.error]
    for method in methods:
        method(method.__name__)


@pytest.mark.parametrize("level", LEVELS)
def test_the_least_level(ends: tuple[int, int], level: str) -> None:
    all_levels(make(ends, level=level, format="json"))
    assert [json.loads(line)["level"] for line in written(ends[0])] == list(LEVELS[LEVELS.index(level) :])


def test_text(ends: tuple[int, int]) -> None:
    log = make(ends)
    log.info("ready", profile="lean", took=3)
    log.warning("low")
    first, second = written(ends[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d tidegate: ready profile=lean took=3", first)
    assert re.fullmatch(r"\d\d:\d\d:\d\d tidegate: warning: low", second)


def test_the_journal_has_its_own_clock_and_priorities(ends: tuple[int, int]) -> None:
    all_levels(make(ends, journal=True))
    assert written(ends[0]) == [
        "<7>tidegate: debug: debug",
        "<6>tidegate: info",
        "<4>tidegate: warning: warning",
        "<3>tidegate: error: error",
    ]


def test_json(ends: tuple[int, int]) -> None:
    make(ends, format="json").error("cannot write\nthis", freed=5, name="ü")
    (line,) = written(ends[0])
    document = json.loads(line)
    assert document.pop("time") > 1_700_000_000
    assert document == {"level": "error", "message": "cannot write\nthis", "freed": 5, "name": "ü"}


def test_what_an_engine_says_stays_one_line(ends: tuple[int, int]) -> None:
    make(ends, journal=True).info("engine: one\n<0>two\nthree")
    assert written(ends[0]) == ["<6>tidegate: engine: one | <0>two | three"]


def test_bytes_that_are_no_text(ends: tuple[int, int]) -> None:
    make(ends, journal=True).info(os.fsdecode(b"/models/\xff.gguf"))
    assert written(ends[0]) == ["<6>tidegate: /models/\\udcff.gguf"]


def test_a_full_pipe_loses_lines_and_counts_them(ends: tuple[int, int]) -> None:
    log = make(ends, journal=True)
    while not log.lost:
        log.info("x" * 4000)
    assert log.lost == 1
    os.read(ends[0], 1 << 20)
    log.info("again")
    assert written(ends[0])[-1:] == ["<6>tidegate: again"]
    assert log.lost == 1


def test_a_reader_that_hangs_does_not_hold_the_guard() -> None:
    read, write = os.pipe()
    log = Log(level="info", format="text", fd=write)
    os.set_blocking(write, False)
    while not log.lost:
        log.info("x" * 3000)
    os.set_blocking(write, True)
    log.error("this one would block")
    assert log.lost == 2
    os.close(read)
    os.close(write)


def test_a_line_fits_what_a_pipe_takes_at_once(ends: tuple[int, int]) -> None:
    make(ends).info("é" * 5000)
    assert len(os.read(ends[0], 1 << 16)) == select.PIPE_BUF


def test_a_reader_that_left() -> None:
    read, write = os.pipe()
    os.close(read)
    log = Log(level="info", format="text", fd=write)
    log.info("to nobody")
    os.close(write)
    log.info("to nothing")
    assert log.lost == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    log = Log(level="info", format="json", fd=fd)
    log.info("x")
    os.close(fd)
    assert log.lost == 1


def test_facts_that_json_does_not_know(ends: tuple[int, int]) -> None:
    make(ends, format="json").info("x", path=b"/dev/null", error=OSError("no"))
    assert len(written(ends[0])) == 1
