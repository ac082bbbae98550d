"""Wake-ups from the worker's cgroup: counters compared, deletion told from change, a group that comes back found."""

from __future__ import annotations

import json
import os
import select
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidegate.guard.group_watch import GroupWatch
from tidegate.guard.log import Log
from tidegate.guard.reactor import Reactor
from tidegate.host import psi


class FakeReactor(Reactor):
    """Plain files have no POLLPRI: the test rings."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, mask: int, callback: Callable[[int], None]) -> None:
        assert mask == select.POLLPRI
        self.watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        self.watched.pop(fd, None)

    def ring(self) -> None:
        for fd in list(self.watched):
            callback = self.watched.get(fd)
            if callback is not None:
                callback(select.POLLPRI | select.POLLERR)


class Stand:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.reactor = FakeReactor()
        self._file = (directory.parent / "log").open("w+")
        self.changes = 0
        log = Log(level="info", format="json", fd=self._file.fileno())
        self.watch = GroupWatch(self.reactor, log, self.change)
        self.make()

    def change(self) -> None:
        self.changes += 1

    def make(self, **events: int) -> None:
        self.directory.mkdir(exist_ok=True)
        self.write("memory.events", {"low": 0, "high": 0, "max": 0, "oom": 0, "oom_kill": 0, **events})
        self.write("cgroup.events", {"populated": 1, "frozen": 0})

    def write(self, name: str, values: dict[str, int]) -> None:
        (self.directory / name).write_text("".join(f"{key} {value}\n" for key, value in values.items()))

    @property
    def said(self) -> list[str]:
        self._file.seek(0)
        return [json.loads(line)["message"] for line in self._file]

    def close(self) -> None:
        self.watch.close()
        self._file.close()


@pytest.fixture(name="stand")
def stand_fixture(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(tmp_path / "worker")
    yield stand
    stand.close()


def test_counters_are_compared_and_not_only_found(stand: Stand) -> None:
    stand.make(high=500, oom_kill=2)
    stand.watch.follow(str(stand.directory))
    stand.reactor.ring()
    assert stand.said == []
    stand.make(high=9000, oom_kill=3)
    stand.reactor.ring()
    assert stand.said == ["the worker's cgroup: the kernel killed in it (oom_kill 2 -> 3)"]
    assert stand.changes == 4
    stand.reactor.ring()
    assert len(stand.said) == 1


def test_unknown_and_broken_counters_are_accepted(stand: Stand) -> None:
    stand.watch.follow(str(stand.directory))
    (stand.directory / "memory.events").write_bytes(b"sock_throttled 7\noom_group_kill x\n\xff\0 3\nhigh\n")
    stand.reactor.ring()
    assert stand.said == []


def test_a_freeze_is_told(stand: Stand) -> None:
    stand.watch.follow(str(stand.directory))
    for frozen in (1, 1, 0):
        stand.write("cgroup.events", {"populated": 1, "frozen": frozen})
        stand.reactor.ring()
    assert stand.said == ["the worker's cgroup is frozen", "the worker's cgroup is running again"]


def test_a_group_that_goes_is_let_go_and_found_when_it_is_back(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    stand.watch.follow(str(stand.directory))
    gone = set(stand.reactor.watched)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", _no_device)
        stand.reactor.ring()
    assert stand.said == [f"the worker's cgroup {stand.directory} is gone"]
    assert stand.reactor.watched == {}
    assert stand.watch.directory == ""
    shutil.rmtree(stand.directory)
    stand.watch.follow(str(stand.directory))
    assert stand.reactor.watched == {}
    stand.make()
    stand.watch.follow(str(stand.directory))
    assert len(stand.reactor.watched) == len(gone) == 2


def _no_device(*_: object) -> bytes:
    raise OSError(19, "No such device")


def test_another_group_behind_the_same_path_is_another(stand: Stand) -> None:
    stand.watch.follow(str(stand.directory))
    stand.watch.follow(str(stand.directory))
    # The old inode is kept alive, or its number would be given out again.
    stand.directory.rename(stand.directory.with_name("old"))
    stand.make(oom_kill=5)
    stand.watch.follow(str(stand.directory))
    assert stand.said == [f"the worker's cgroup {stand.directory} was made anew"]
    stand.reactor.ring()
    assert len(stand.said) == 1


def test_descriptors_are_given_back(stand: Stand) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        stand.watch.follow(str(stand.directory))
        stand.watch.follow("")
    assert len(os.listdir("/proc/self/fd")) == before
    assert stand.reactor.watched == {}


def test_what_the_old_group_rang_is_not_taken_for_the_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both descriptors of a removed group ring in one round; the next group's trigger has the number of the old one."""
    old, new = tmp_path / "old", tmp_path / "new"
    for directory in (old, new):
        directory.mkdir()
    # A plain file never rings: a pipe whose other end is closed does, and cannot be read with pread().
    os.mkfifo(old / "memory.events")
    writer = os.open(old / "memory.events", os.O_RDWR)
    ends: list[int] = []
    number = os.dup(writer)
    os.close(number)
    number += 50

    def open_trigger(*_: object) -> tuple[int, int]:
        read, write = os.pipe()
        os.dup2(read, number)
        os.close(read)
        ends.append(write)
        return number, 1_000_000

    monkeypatch.setattr(psi, "open_trigger", open_trigger)
    reactor = Reactor()
    changes: list[str] = []

    def changed() -> None:
        changes.append(watch.directory)
        watch.follow(str(new))

    with (tmp_path / "log").open("w+") as file:
        watch = GroupWatch(reactor, Log(level="info", format="json", fd=file.fileno()), changed)
        watch.follow(str(old))
        os.close(writer)
        os.close(ends[0])
        reactor.after("end", 0.0, lambda: None)
        reactor.run_once()
        assert (changes, watch.directory) == ([""], str(new))
        # The new one's trigger is still listened to.
        os.close(ends[1])
        reactor.after("end", 0.0, lambda: None)
        reactor.run_once()
        assert changes == ["", str(new)]
        watch.close()
    reactor.close()
