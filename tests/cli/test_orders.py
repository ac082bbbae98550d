"""``status``, ``step``, ``reset``, ``pause`` and ``resume`` against a scripted guard, honest and otherwise."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from complaints import check_lines
from tidegate.cli import guard_client
from tidegate.cli.main import run
from tidegate.cli.status import render
from tidegate.errors import TidegateError

Guard = Callable[..., list[dict[str, Any]]]

MIB = 1 << 20
STEP = {"profile": "lean", "generation": 2, "freed_bytes": 450 * MIB, "took_ms": 340}
STATUS: dict[str, Any] = {
    "level": "warn",
    "since": 1000.0,
    "paused": False,
    "observe": True,
    "diagnosis": "growth",
    "axes": [
        {"name": "system", "limit_bytes": 8192 * MIB, "used_bytes": 4096 * MIB, "used_ratio": 0.5},
        {"name": "budget", "limit_bytes": 400 * MIB, "used_bytes": 480 * MIB, "used_ratio": 1.2},
    ],
    "nearest_axis": "budget",
    "worker": {
        "state": "backoff", "pid": None, "profile": "lean", "engine": "llama-server", "anon_bytes": 300 * MIB,
        "shmem_bytes": 100 * MIB, "swap_bytes": 80 * MIB, "file_bytes": 94 * MIB, "message": "exit status 1",
    },
    "gateway": {"in_flight": 1, "queued": 3},
    "guard": {"pid": 77, "rss_bytes": 14 * MIB, "cpu_s": 1.5},
    "sensors": ["MemAvailable", "no PSI"],
    "last_actions": [
        {"time": 1000.0 + number, "step": f"down to p{number}", "reason": "level warn", "freed_bytes": MIB,
         "took_ms": 1200, "result": "effective"}
        for number in range(7)
    ],
}  # fmt: skip


@pytest.fixture(name="guard")
def guard_fixture(place: Path) -> Iterator[Guard]:
    """``guard(*pieces, keep=False)`` answers one command with ``pieces``; what was asked."""
    (place / "run").mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(place / "run" / "guard.sock"))
    listener.listen(1)
    threads: list[threading.Thread] = []
    kept: list[socket.socket] = []

    def start(*pieces: bytes, keep: bool = False) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def serve() -> None:
            connection, _ = listener.accept()
            kept.append(connection)
            asked.append(json.loads(connection.makefile("rb").readline()))
            try:
                for piece in pieces:
                    connection.sendall(piece)
            except OSError:
                pass
            if not keep:
                connection.shutdown(socket.SHUT_RDWR)

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        return asked

    yield start
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    for each in (listener, *kept):
        each.close()


def answer(result: object) -> bytes:
    return json.dumps({"id": 1, "ok": True, "result": result}).encode() + b"\n"


@pytest.mark.parametrize(
    ("argv", "asked", "result", "shown"),
    [
        ("step lean", {"command": "step", "profile": "lean"}, STEP, "profile lean after 340 ms, 450.0 MiB freed\n"),
        ("reset", {"command": "reset"}, STEP, "profile lean after 340 ms, 450.0 MiB freed\n"),
        ("pause 10m", {"command": "pause", "seconds": 600.0}, {"until": 43200.0}, "paused until 12:00:00\n"),
        ("resume", {"command": "resume"}, {}, "resumed\n"),
    ],
)
def test_orders(
    guard: Guard,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    argv: str,
    asked: dict[str, Any],
    result: dict[str, Any],
    shown: str,
) -> None:
    monkeypatch.setattr("time.localtime", time.gmtime)
    for flags, expected in (([], shown), (["--json"], json.dumps(result) + "\n")):
        heard = guard(answer(result))
        assert run([*argv.split(), *flags]) == 0
        assert capsys.readouterr().out == expected
        assert heard == [{"id": 1, **asked}]


def test_a_refusal_is_passed_on(guard: Guard, capsys: pytest.CaptureFixture[str]) -> None:
    guard(b'{"id": 1, "ok": false, "error": "cannot step to x: no such profile", "hint": "profiles: full, lean"}\n')
    assert run(["step", "x"]) == 1
    check_lines(capsys.readouterr().err, "cannot step to x: no such profile", "profiles: full, lean")


@pytest.mark.parametrize(
    "said",
    [
        b"hello\n", b"[]\n", b"3\n", b"null\n", b"{}\n", b'{"ok": false}\n', b'{"ok": true}\n', b"\xff\n", b"\n",
        b'{"ok": true, "result": 3}\n', b'{"ok": true, "result": null}\n', b"[" * 100_000 + b"\n",
    ],
    ids=lambda said: said[:12],
)  # fmt: skip
def test_what_is_no_answer(guard: Guard, capsys: pytest.CaptureFixture[str], said: bytes) -> None:
    guard(said)
    assert run(["status"]) == 3
    check_lines(capsys.readouterr().err, "cannot show the status: the guard's answer is not one of ours", "")


def test_a_guard_that_ends_instead(guard: Guard, capsys: pytest.CaptureFixture[str]) -> None:
    guard(b'{"ok": tr')
    assert run(["reset"]) == 3
    check_lines(capsys.readouterr().err, "cannot restart the worker: the guard ended", "")


def test_a_guard_that_hangs(guard: Guard) -> None:
    guard(b'{"ok"', keep=True)
    with pytest.raises(TidegateError, match=r"^cannot resume: the guard does not answer within 0\.1 s$"):
        guard_client.ask("resume", timeout=0.1)


def test_an_answer_without_end(guard: Guard, capsys: pytest.CaptureFixture[str]) -> None:
    guard(*[b"x" * 65536] * 20)
    assert run(["status"]) == 3
    check_lines(capsys.readouterr().err, "cannot show the status: the guard's answer is not one of ours", "")


def test_a_run_directory_with_a_name_too_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/tmp/" + "x" * 120)
    assert run(["status"]) == 3
    check_lines(capsys.readouterr().err, "cannot show the status: AF_UNIX path too long (/tmp/xxx", "")


def test_a_dead_guards_socket(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "run").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(place / "run" / "guard.sock"))
    assert run(["status"]) == 3
    check_lines(capsys.readouterr().err, "cannot show the status: no guard runs here (", "start one with tidegate up")


def test_status_for_people(guard: Guard, capsys: pytest.CaptureFixture[str]) -> None:
    guard(answer(STATUS))
    assert run(["status"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 13
    lines = render(STATUS, now=1065.0)
    assert lines[0] == "level    warn for 1 min 5 s, growth  [observe]"
    assert lines[1] == f"memory   [{'#' * 15}{'.' * 15}]  50%  4.0 GiB of 8.0 GiB  system"
    # More than all of it: the bar is full, and the number says how much.
    assert lines[2] == f"memory   [{'#' * 30}] 120%  480.0 MiB of 400.0 MiB  budget <"
    assert lines[3] == "worker   backoff, profile lean, llama-server, no process, 480.0 MiB + 94.0 MiB mapped"
    assert lines[4].strip() == "exit status 1"
    assert [line.split()[3] for line in lines[-5:]] == ["p2:", "p3:", "p4:", "p5:", "p6:"]
    assert lines[-1].endswith("freed 1.0 MiB in 1.2 s, effective")


def test_a_clock_that_was_set_back_shows_no_negative_time() -> None:
    assert render(STATUS, now=0.0)[0].startswith("level    warn for 0 ms")


def test_nothing_is_left_open(guard: Guard) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        guard(answer({}))
        guard_client.ask("resume")
    # The guard's ends stay until the test's end.
    assert len(os.listdir("/proc/self/fd")) <= before + 5
