"""The OOM killer spares the board's own jobs, again after each restart, and never the worker. A tree stands in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.guard.protection import Outcome, Scan, unprotected_memory
from tidegate.host import process
from tidegate.settings.model import ProtectSettings

CAMERA = (("camera.service", "/system.slice/camera.service"),)


class Board:
    """A /proc and a cgroup tree with the processes that a test starts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text("0::/\n")
        (root / "proc/mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        self.unit = root / "sys/fs/cgroup/system.slice/camera.service"
        self.unit.mkdir(parents=True)
        (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
        self.last_pid = 100
        self.start(100, "init")

    def start(self, pid: int, name: str, score: str = "0", *, unit: bool = False) -> None:
        directory = self.root / "proc" / str(pid)
        directory.mkdir()
        (directory / "comm").write_text(f"{name}\n")
        (directory / "oom_score_adj").write_text(score)
        self.last_pid = max(self.last_pid, pid)
        (self.root / "proc/loadavg").write_text(f"0.00 0.00 0.00 1/100 {self.last_pid}\n")
        if unit:
            with (self.unit / "cgroup.procs").open("a") as file:
                file.write(f"{pid}\n")

    def score(self, pid: int) -> str:
        return (self.root / "proc" / str(pid) / "oom_score_adj").read_text()


@pytest.fixture(name="board")
def board_fixture(tmp_path: Path) -> Board:
    return Board(tmp_path)


def scan(board: Board, *names: str) -> Scan:
    return Scan(ProtectSettings(processes=names), CAMERA, str(board.root))


def test_names_and_units_are_protected_once(board: Board) -> None:
    board.start(101, "robot")
    board.start(102, "cam", unit=True)
    board.start(103, "other", "5")
    scanning = scan(board, "robot")
    assert scanning.run(0.0, frozenset()) == Outcome(done=((101, "robot"), (102, "camera.service")))
    assert [board.score(pid) for pid in (101, 102, 103)] == ["-1000", "-1000", "5"]
    assert scanning.run(5.0, frozenset()) == Outcome()


def test_a_job_that_comes_back_is_protected_again(board: Board) -> None:
    scanning = scan(board, "robot")
    assert scanning.run(0.0, frozenset()) == Outcome()
    board.start(101, "robot")
    assert scanning.run(5.0, frozenset()).done == ((101, "robot"),)


def test_without_a_new_process_nothing_is_walked_for_a_minute(board: Board) -> None:
    scanning = scan(board, "robot")
    board.start(101, "sh")
    scanning.run(0.0, frozenset())
    # By exec, so without a new pid.
    (board.root / "proc/101/comm").write_text("robot\n")
    assert scanning.run(59.0, frozenset()) == Outcome()
    assert scanning.run(60.0, frozenset()).done == ((101, "robot"),)


def test_the_worker_is_refused(board: Board) -> None:
    board.start(101, "llama-server", "800")
    found = scan(board, "llama-server").run(0.0, frozenset((101,)))
    assert found == Outcome(refused=((101, "llama-server"),))
    assert board.score(101) == "800"


def test_who_may_not_be_changed_is_told_and_who_has_gone_is_not(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.start(101, "robot")
    board.start(102, "robot")

    def refuse(_value: int, pid: int, root: str) -> bool:
        if pid == 102:
            (board.root / "proc/102/oom_score_adj").unlink()
        return False

    monkeypatch.setattr(process, "write_oom_score_adj", refuse)
    assert scan(board, "robot").run(0.0, frozenset()) == Outcome(failed=((101, "robot"),))


@pytest.mark.parametrize("garbage", ["", "x", "-", "99999999999999999999999", "\0"])
def test_garbage_in_proc_harms_nobody(board: Board, garbage: str) -> None:
    board.start(101, "robot", garbage)
    (board.root / "proc/loadavg").write_text(garbage)
    (board.unit / "cgroup.procs").write_text(f"{garbage}\n-1\n0\n")
    scan(board, "robot").run(0.0, frozenset())


@pytest.mark.parametrize(
    ("service", "slice_", "trouble"),
    [
        ("1073741824", "max", ""),
        ("max", "1073741824", ""),
        ("1073741824", "0", "memory.min of /system.slice is 0 B, below 1.0 GiB"),
        ("4096", "max", "memory.min of /system.slice/camera.service is 4.0 KiB, below 1.0 GiB"),
        ("garbage", "max", "memory.min of /system.slice/camera.service is 0 B, below 1.0 GiB"),
        (None, "max", "/system.slice/camera.service has no memory.min now"),
    ],
)
@pytest.mark.parametrize("kind", ["min", "low"])
def test_memory_is_worth_what_every_ancestor_gives(
    board: Board, kind: str, service: str | None, slice_: str, trouble: str
) -> None:
    if service is not None:
        (board.unit / f"memory.{kind}").write_text(f"{service}\n")
    (board.unit.parent / f"memory.{kind}").write_text(f"{slice_}\n")
    found = unprotected_memory(CAMERA[0][1], 1 << 30, kind, str(board.root))
    assert found == trouble.replace("memory.min", f"memory.{kind}")
