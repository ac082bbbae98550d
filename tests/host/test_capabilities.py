"""Probes: true only if it works, nothing left behind. And the system calls behind them."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from boards import board
from tidegate.host import syscalls
from tidegate.host.capabilities import (
    can_cgroup_kill,
    can_lock_memory,
    can_lower_oom_score_adj,
    can_make_group,
    has_mrelease,
    has_pidfd,
    probe,
    psi_trigger_window,
)
from tidegate.host.process import read_oom_score_adj

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(syscalls.__file__)))


def test_a_probe_of_this_machine_leaves_nothing_behind() -> None:
    adj, fds = read_oom_score_adj(), len(os.listdir("/proc/self/fd"))
    found = probe()
    assert found.pidfd
    assert found.psi_trigger in (0, 1_000_000, 2_000_000)
    assert (read_oom_score_adj(), len(os.listdir("/proc/self/fd"))) == (adj, fds)
    with open("/proc/self/status", encoding="ascii") as file:
        assert "VmLck:\t       0 kB" in file.read()
    assert probe() == found


def test_a_probe_of_a_recorded_board_never_raises() -> None:
    found = probe(board("pi5_8g_stock").root)
    assert (found.psi_trigger, found.cgroup_kill, found.lower_oom_score_adj) == (0, False, False)


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "exists"), [(errno.EINVAL, True), (errno.ENOSYS, False), (errno.EPERM, False), (errno.EACCES, False)]
)
def test_mrelease_is_there_if_it_says_einval(number: int, exists: bool) -> None:
    def release(pidfd: int) -> None:
        raise refused(number)

    assert has_mrelease(release) is exists


def test_no_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise refused(errno.ENOSYS)

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert not has_pidfd()
    assert not has_mrelease()


def test_memory_that_cannot_be_locked() -> None:
    def refuse() -> None:
        raise refused(errno.ENOMEM)

    assert not can_lock_memory(lock=refuse)


def test_lockable_but_not_for_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finite RLIMIT_MEMLOCK: mlockall works, the next mmap fails, and Python would die of it."""
    calls: list[str] = []

    def refuse(*_: object, **__: object) -> None:
        raise refused(errno.EAGAIN)

    monkeypatch.setattr("mmap.mmap", refuse)
    assert not can_lock_memory(lock=lambda: calls.append("lock"), unlock=lambda: calls.append("unlock"))
    assert calls == ["lock", "unlock"]


@pytest.mark.parametrize(("now", "written"), [("0", [-900, 0]), ("-1000", [-1000, -1000])])
def test_the_score_is_put_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, now: str, written: list[int]) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/oom_score_adj").write_text(now)
    seen: list[int] = []

    def write(value: int, pid: int | None, root: str) -> bool:
        seen.append(value)
        return True

    monkeypatch.setattr("tidegate.host.capabilities.write_oom_score_adj", write)
    assert can_lower_oom_score_adj(str(tmp_path))
    assert seen == written


def test_groups(tmp_path: Path) -> None:
    assert can_make_group(str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert not can_make_group(str(tmp_path / "missing"))
    assert not can_make_group("")
    assert not can_cgroup_kill(str(tmp_path))
    assert not can_cgroup_kill(None)
    (tmp_path / "cgroup.kill").write_text("")
    assert can_cgroup_kill(str(tmp_path))
    assert psi_trigger_window(str(tmp_path / "memory.pressure")) == 0


def run(code: str) -> str:
    """What ``code`` prints in a fresh interpreter, as the guard is started: without site-packages."""
    prelude = f"import sys; sys.path.insert(0, {SOURCE!r})\n"
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", prelude + code]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def test_the_readers_import_little() -> None:
    code = """
import tidegate.host.capabilities, tidegate.host.swap, tidegate.host.cgroup_memory, tidegate.host.meminfo
import tidegate.policy.headroom, tidegate.host.process
big = {"typing", "pathlib", "logging", "asyncio", "subprocess", "argparse", "json", "tomllib", "threading", "socket",
       "dataclasses", "inspect"}
print(sorted(big & set(sys.modules)))
"""
    assert run(code) == "[]"


def test_memory_is_locked_and_unlocked() -> None:
    code = """
from tidegate.host import syscalls
def locked():
    return "VmLck:\\t       0 kB" not in open("/proc/self/status").read()
try:
    syscalls.lock_memory()
except OSError as error:
    print(error)
else:
    held = locked()
    syscalls.unlock_memory()
    print(held, locked())
"""
    assert run(code) in (
        "True False",
        "[Errno 1] mlockall: Operation not permitted",
        "[Errno 12] mlockall: Cannot allocate memory",
    )


def test_mrelease_names_itself() -> None:
    with pytest.raises(OSError, match="process_mrelease: ") as caught:
        syscalls.process_mrelease(-1)
    assert caught.value.errno in (errno.EBADF, errno.ENOSYS, errno.EPERM)


def test_an_orphan_dies_with_its_parent_and_comes_to_the_subreaper() -> None:
    """Two generations: the middle one ends, its child gets the death signal, and we can wait for it."""
    code = """
import os, signal, time
from tidegate.host import syscalls
syscalls.set_child_subreaper(on=True)
inside, outside = os.pipe()
middle = os.fork()
if middle == 0:
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        syscalls.set_parent_death_signal(signal.SIGKILL)
        os.write(go, b"x")
        signal.pause()
    os.read(ready, 1)
    os.write(outside, str(child).encode())
    os._exit(0)
os.waitpid(middle, 0)
child = int(os.read(inside, 20))
print(os.WTERMSIG(os.waitpid(child, 0)[1]))
syscalls.set_child_subreaper(on=False)
try:
    syscalls.set_parent_death_signal(9999)
except OSError as error:
    print(error)
"""
    assert run(code).split("\n") == [str(int(signal.SIGKILL)), "[Errno 22] prctl(PR_SET_PDEATHSIG): Invalid argument"]


def test_a_killed_process_can_be_released() -> None:
    if not has_mrelease():
        pytest.skip("no process_mrelease on this machine")
    with subprocess.Popen(["sleep", "60"]) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            with pytest.raises(OSError, match="Invalid argument"):
                syscalls.process_mrelease(pidfd)
            process.kill()
            try:
                syscalls.process_mrelease(pidfd)
            except ProcessLookupError:
                pass  # it was faster
            assert select.select([pidfd], [], [], 10)[0]
        finally:
            os.close(pidfd)
