"""Processes: hostile names, vanished ones, children, oom_score_adj."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from running import eventually
from tidegate.host.process import (
    ProcessFiles,
    ProcessId,
    ProcessMemory,
    find_ancestors,
    find_by_name,
    find_children,
    is_alive,
    parse_stat,
    parse_status,
    read_memory,
    read_name,
    read_oom_score_adj,
    read_process_id,
    write_oom_score_adj,
)

LEADER_ENDS = """
import ctypes, threading, time
held = bytearray(b"x") * (30 << 20)
threading.Thread(target=lambda: (print("up", flush=True), time.sleep(60))).start()
ctypes.CDLL(None).pthread_exit(None)
"""
STAT_TAIL = " S 7 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {start} 2703360 300"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real process whose name looks like the rest of a stat line."""
    path = tmp_path / "a) R 1 \n(b"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", path)
    with subprocess.Popen([path, "60"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("name", ["x", "a b", ") S 1 (", "a\nb) ", ")", "((("])
def test_any_name(name: str) -> None:
    assert parse_stat(f"12 ({name}){STAT_TAIL.format(start=99)}\n".encode()) == ("S", 7, 99)


@pytest.mark.parametrize("data", [b"", b")", b"1 (x) S", b"1 (x) S 7", f"1 x{STAT_TAIL.format(start=1)}".encode()])
def test_what_is_no_stat(data: bytes) -> None:
    assert parse_stat(data) is None


def test_status() -> None:
    data = (
        b"Name:\tx\nState:\tD (disk sleep)\nRssAnon:\t 3 kB\nRssFile: 4 kB\nRssShmem: 5 kB\nThreads:\t8\nVmSwap: 6 kB\n"
    )
    memory = parse_status(data)
    assert memory == ProcessMemory(3072, 4096, 5120, 6144, 8, "D")
    assert memory.unreclaimable == 3072 + 5120 + 6144


def test_a_zombie_has_no_memory() -> None:
    assert parse_status(b"Name:\tx\nState:\tZ (zombie)\nThreads:\t1\n") == ProcessMemory(0, 0, 0, 0, 1, "Z")


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: b"RssAnon:" + tail))
def test_garbage_never_raises(data: bytes) -> None:
    memory = parse_status(data + b"\nVmSwap: " + b"9" * 5000 + b" kB")  # int() refuses so many digits
    assert min(memory.rss_anon, memory.rss_file, memory.swap, memory.threads) >= 0
    parse_stat(data)


def test_a_real_process_with_a_hostile_name(sleeper: subprocess.Popen[bytes]) -> None:
    identity = read_process_id(sleeper.pid)
    assert identity is not None
    assert is_alive(identity)
    assert not is_alive(ProcessId(sleeper.pid, identity.start_time + 1))
    assert find_children(os.getpid()).count(sleeper.pid) == 1
    files = ProcessFiles.open(sleeper.pid)
    assert files is not None
    memory = files.read()
    assert memory is not None
    assert memory.rss_anon > 0
    sleeper.kill()
    sleeper.wait()
    assert files.read() is None
    files.close()
    assert not is_alive(identity)
    assert ProcessFiles.open(sleeper.pid) is None


def test_a_dead_process_that_nobody_waited_for_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    identity = read_process_id(sleeper.pid)
    assert identity is not None
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(identity)
    files = ProcessFiles.open(sleeper.pid)
    assert files is not None
    memory = files.read()
    files.close()
    assert memory is not None
    assert (memory.state, memory.unreclaimable) == ("Z", 0)


def test_no_descriptor_is_lost_over_a_thousand_looks() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        files = ProcessFiles.open(os.getpid())
        assert files is not None
        assert files.read() is not None
        files.close()
        assert ProcessFiles.open(0) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pid_used_again_between_two_opens_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = iter([5, 6])
    monkeypatch.setattr("tidegate.host.process.read_process_id", lambda pid, root: ProcessId(pid, next(starts)))
    before = len(os.listdir("/proc/self/fd"))
    assert ProcessFiles.open(os.getpid()) is None
    assert len(os.listdir("/proc/self/fd")) == before


def _proc(root: Path, pid: int, parent: int, name: str = "x") -> None:
    directory = root / "proc" / str(pid)
    directory.mkdir(parents=True)
    (directory / "stat").write_text(f"{pid} ({name}) S {parent}" + STAT_TAIL[4:].format(start=pid * 10))
    (directory / "comm").write_text(name + "\n")


def test_ancestors(tmp_path: Path) -> None:
    for pid, parent in ((1, 0), (5, 1), (9, 5), (20, 21), (21, 20)):
        _proc(tmp_path, pid, parent)
    assert find_ancestors(9, str(tmp_path)) == (9, 5, 1)
    # Read over pids that were used again: it ends all the same.
    assert find_ancestors(20, str(tmp_path)) == (20, 21)
    assert find_ancestors(77, str(tmp_path)) == (77,)
    assert find_ancestors(os.getpid())[1] == os.getppid()


def test_children_without_the_kernels_list(tmp_path: Path) -> None:
    for pid, parent in ((5, 1), (9, 5), (7, 5), (8, 7)):
        _proc(tmp_path, pid, parent)
    (tmp_path / "proc/5/task/5").mkdir(parents=True)
    assert find_children(5, str(tmp_path)) == (7, 9)
    (tmp_path / "proc/5/task/5/children").write_text("9 ")
    (tmp_path / "proc/5/task/6").mkdir()
    (tmp_path / "proc/5/task/6/children").write_text("7 ")
    assert find_children(5, str(tmp_path)) == (7, 9)
    (tmp_path / "proc/5/task/6/children").write_text("")
    assert find_children(5, str(tmp_path)) == (9,)


def test_find_by_the_first_fifteen_bytes(tmp_path: Path) -> None:
    _proc(tmp_path, 5, 1, "a-very-long-nam")
    _proc(tmp_path, 6, 1, "other")
    assert find_by_name("a-very-long-name-indeed", str(tmp_path)) == (5,)
    assert read_name(6, str(tmp_path)) == "other"
    assert read_name(7, str(tmp_path)) is None


def test_oom_score_adj(tmp_path: Path) -> None:
    root = str(tmp_path)
    (tmp_path / "proc/self").mkdir(parents=True)
    path = tmp_path / "proc/self/oom_score_adj"
    assert read_oom_score_adj(None, root) is None
    assert not write_oom_score_adj(5, None, root)
    for text, value in (
        ("0\n", 0),
        ("-1000\n", -1000),
        ("1000\n", 1000),
        ("1001\n", None),
        ("--5\n", None),
        ("", None),
    ):
        path.write_text(text)
        assert read_oom_score_adj(None, root) == value
    path.write_text("")
    assert write_oom_score_adj(-900, None, root)
    assert read_oom_score_adj(None, root) == -900
    with pytest.raises(ValueError, match="out of range"):
        write_oom_score_adj(-1001, None, root)


def test_raising_oom_score_adj_of_a_child(sleeper: subprocess.Popen[bytes]) -> None:
    assert write_oom_score_adj(800, sleeper.pid)
    assert read_oom_score_adj(sleeper.pid) == 800


def test_a_process_whose_first_thread_has_ended_is_alive_and_has_its_memory() -> None:
    command = [sys.executable, "-c", LEADER_ENDS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        identity = read_process_id(process.pid)
        files = ProcessFiles.open(process.pid)
        assert identity is not None
        assert files is not None
        eventually(lambda: b"Z (zombie)" in Path(f"/proc/{process.pid}/status").read_bytes(), what="a zombie leader")
        assert is_alive(identity)
        for memory in (read_memory(process.pid), files.read()):
            assert memory is not None
            assert memory.rss_anon >= 30 << 20
            assert memory.state != "Z"
        process.kill()
        process.wait()
        assert not is_alive(identity)
        files.close()
