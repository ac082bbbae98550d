"""``tidegate reap``: what a dead guard left is ended when no other guard follows, and only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from running import eventually, is_alive
from tidegate.cli.launch import lock_directory
from tidegate.cli.main import run
from tidegate.cli.reap import will_not_return
from tidegate.guard import state_file
from tidegate.host.process import read_process_id
from tidegate.worker.process import start

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
#: Ignores SIGTERM, as a gateway that hangs.
DEAF = [
    sys.executable, "-I", "-S", "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)",
]  # fmt: skip
CRASH = {"SERVICE_RESULT": "signal", "EXIT_CODE": "killed", "EXIT_STATUS": "KILL"}


class Remains:
    """A run directory whose guard has died, with a worker and a gateway at work."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700)
        # A child of its own, as every worker has helpers; and one that nobody reaps but us.
        self.worker = start(
            [sys.executable, "-I", "-S", "-c", "import os, time; os.fork(); time.sleep(600)"],
            oom_score_adj=800, death_signal=False, environment=dict(os.environ),
        )  # fmt: skip
        self.gateway = start(DEAF, oom_score_adj=0, death_signal=False, environment=dict(os.environ))
        eventually(self.gateway.read_output, what="a gateway")
        identity = read_process_id(self.worker.pid)
        assert identity is not None
        record = state_file.WorkerRecord(self.worker.pid, identity.start_time, 1, "full", "", "", ("x",), 0)
        state_file.save(str(directory / state_file.WORKER), record)
        state_file.save(str(directory / state_file.GATEWAY), read_process_id(self.gateway.pid))

    @property
    def alive(self) -> list[bool]:
        return [is_alive(child.pid) for child in (self.worker, self.gateway)]

    def end(self) -> None:
        for child in (self.worker, self.gateway):
            child.kill()
            if not child.reap():
                os.waitpid(child.pid, 0)
            child.close()


@pytest.fixture(name="remains")
def remains_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remains]:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "run"))
    for name in ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tidegate.cli.reap._GATEWAY_S", 0.2)
    remains = Remains(tmp_path / "run")
    yield remains
    remains.end()


def systemctl(directory: Path, monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    """A systemctl that says that the unit has this job."""
    tools = directory / "tools"
    tools.mkdir()
    (tools / "systemctl").write_text(f"#!/bin/sh\necho {job}\n")
    (tools / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")


def test_after_a_stop_nothing_is_left(
    remains: Remains, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SERVICE_RESULT", "success")
    assert run(["reap", "--unit", "tidegate.service", "--json"]) == 0
    assert remains.alive == [False, False]
    said = json.loads(capsys.readouterr().out)
    assert said == {"over": True, "ended": sorted([remains.worker.pid, remains.gateway.pid]), "left": []}


def test_after_a_crash_all_is_left_for_the_next_guard(
    remains: Remains, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl(tmp_path, monkeypatch, "''")
    for name, value in CRASH.items():
        monkeypatch.setenv(name, value)
    assert run(["reap", "--unit", "tidegate.service"]) == 0
    assert remains.alive == [True, True]


def test_a_guard_that_was_killed_while_it_was_stopped(
    remains: Remains, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl(tmp_path, monkeypatch, "1234")
    for name, value in {**CRASH, "SERVICE_RESULT": "timeout"}.items():
        monkeypatch.setenv(name, value)
    assert run(["reap", "--unit", "tidegate.service"]) == 0
    assert remains.alive == [False, False]


def test_another_guard_keeps_its_own(remains: Remains, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second service that may not start, exit code 3, must not end the first one's worker."""
    monkeypatch.setenv("SERVICE_RESULT", "exit-code")
    monkeypatch.setenv("EXIT_CODE", "exited")
    monkeypatch.setenv("EXIT_STATUS", "3")
    lock = lock_directory(str(remains.directory))
    try:
        assert run(["reap", "--unit", "tidegate.service"]) == 0
        assert remains.alive == [True, True]
    finally:
        os.close(lock)
    assert run(["reap", "--unit", "tidegate.service"]) == 0
    assert remains.alive == [False, False]


def test_a_process_that_has_the_old_pid_is_none_of_ours(remains: Remains) -> None:
    bystander = subprocess.Popen(SLEEP)
    identity = read_process_id(bystander.pid)
    assert identity is not None
    record = state_file.WorkerRecord(bystander.pid, identity.start_time + 1, 1, "full", "", "", ("x",), 0)
    state_file.save(str(remains.directory / state_file.WORKER), record)
    assert run(["reap"]) == 0
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_where_nothing_is_left_there_is_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "none"))
    assert run(["reap", "--unit", "tidegate.service", "--release-controllers"]) == 0
    assert capsys.readouterr() == ("", "")


def never() -> bool:
    raise AssertionError("asked")


@pytest.mark.parametrize(
    ("environ", "job", "over"),
    [
        ({}, never, True),
        ({"SERVICE_RESULT": "success", "EXIT_CODE": "exited", "EXIT_STATUS": "0"}, never, True),
        ({"SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "3"}, never, True),
        ({"SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "2"}, never, True),
        ({"SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "1"}, lambda: False, False),
        # A signal of that number is no exit code.
        ({"SERVICE_RESULT": "signal", "EXIT_CODE": "killed", "EXIT_STATUS": "3"}, lambda: False, False),
        (CRASH, lambda: False, False),
        (CRASH, lambda: True, True),
        ({"SERVICE_RESULT": "watchdog", "EXIT_CODE": "dumped", "EXIT_STATUS": "ABRT"}, lambda: False, False),
        ({"SERVICE_RESULT": "timeout"}, lambda: True, True),
    ],
)
def test_whether_systemd_starts_the_guard_again(environ: dict[str, str], job: Callable[[], bool], over: bool) -> None:
    assert will_not_return(environ, job=job) is over


def test_it_is_not_among_the_commands_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["--help"])
    out = capsys.readouterr().out
    assert "setup" in out
    assert "reap" not in out
