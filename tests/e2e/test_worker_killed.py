"""Kill -9 of the worker under load: every request is answered, and not much later than the engine alone could."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.conftest import Door, Up, both_engines, both_engines_slowly
from e2e.large_model import large_model
from e2e.load import worker_pids
from real_engine import RealEngine
from running import eventually
from tidegate.settings.model import Profile

REQUESTS = 8
MOST_S = 4.0
#: The goal is 1.5 x a bare restart. Both are measured on a machine that other work shares, so the assertion leaves room
#: for one bad sample; the printed figure is what counts.
GOAL = 1.5


@dataclass(frozen=True)
class Answer:
    """One streamed answer: when its first token came (monotonic), its text, how often it ended, its headers."""

    first: float
    text: str
    ends: int
    degraded: str


def stream(url: str, number: int) -> Answer:
    """One short request, streamed, at temperature 0."""
    body = {
        "messages": [{"role": "user", "content": f"Say something about the number {number}."}],
        "max_tokens": 12,
        "temperature": 0,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    first, text, ends, done = 0.0, "", 0, 0
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                done += 1
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content") or ""
                first = first or (time.monotonic() if piece else 0.0)
                text += piece
                ends += choice["finish_reason"] is not None
        degraded = answer.headers.get("x-tidegate-degraded") or ""
    assert done == 1
    return Answer(first, text, ends, degraded)


def drop_cache(path: str) -> None:
    """Drop ``path`` from the page cache. Nothing must map it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def bare_restart(engine: RealEngine, model: str, directory: Path, *, cold: bool) -> float:
    """Seconds from starting the engine alone to its first token, polled as closely as the guard does."""
    path = str(directory / "bare.sock")
    profile = Profile(name="bare", model=model, context=2048)
    command = engine.argv(profile, f"unix:{path}")
    if cold:
        drop_cache(model)
    started = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        eventually(lambda: _get(path, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), seconds=60)
        body = json.dumps({"messages": [{"role": "user", "content": "Say something about the number 1."}],
                           "max_tokens": 12, "temperature": 0, "stream": True}).encode()  # fmt: skip
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(path)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            data = b""
            while data.count(b'"content":"') < 1:
                data += connection.recv(65536)
            return time.monotonic() - started
    finally:
        process.kill()
        process.wait()
        os.unlink(path)


def _get(path: str, request: bytes) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(path)
            connection.sendall(request)
            return connection.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def kill_under_load(door: Door, *, after_kill: Callable[[], None]) -> tuple[float, list[Answer]]:
    """Kill the worker while eight requests have not begun to answer. Seconds to the next token, and the answers.

    The worker is stopped first, so that none can have begun. ``after_kill`` runs while the guard is stopped too: for
    it, the kill happens when it goes on.
    """
    url = door.url
    (worker,) = worker_pids(door.process.pid)
    guard = door.process.pid
    os.kill(worker, signal.SIGSTOP)
    with ThreadPoolExecutor(REQUESTS) as pool:
        asking = [pool.submit(stream, url, number) for number in range(REQUESTS)]
        eventually(lambda: sum(door.status()["gateway"].values()) == REQUESTS, what="eight requests at the gateway")
        os.kill(guard, signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        after_kill()
        killed = time.monotonic()
        os.kill(guard, signal.SIGCONT)
        answers = [future.result() for future in asking]
    return min(answer.first for answer in answers) - killed, answers


def check(door: Door, engine: RealEngine, tmp_path: Path, model: str, *, cold: bool, rounds: int = 3) -> None:
    """The scenario, ``rounds`` times in turn with bare restarts, printed."""
    door.wait_ready()
    url = door.url
    expected = [stream(url, number).text for number in range(REQUESTS)]
    assert all(expected)
    took, bare = [], []
    for _ in range(rounds):
        seconds, answers = kill_under_load(door, after_kill=lambda: drop_cache(model) if cold else None)
        assert [answer.text for answer in answers] == expected
        assert all(answer.ends == 1 for answer in answers)
        took.append(seconds)
        door.wait_ready()
        # The guarded worker maps the file: a cold bare restart needs it gone, so it uses a copy.
        bare.append(_cold_bare(engine, model, tmp_path) if cold else bare_restart(engine, model, tmp_path, cold=False))
    took.sort()
    bare.sort()
    ratio = took[rounds // 2] / bare[rounds // 2]
    shown = [f"{value:.2f}" for value in took], [f"{value:.2f}" for value in bare]
    what = f"{engine.name}, {os.path.basename(model)} {'cold' if cold else 'warm'}"
    print(
        f"\n{what}: kill to next token {', '.join(shown[0])} s; "
        f"bare restart {', '.join(shown[1])} s; ratio of medians {ratio:.2f} (goal {GOAL})"
    )
    # A cold load is as fast as the disk at that moment: one of three was seen to take 4.6 s beside 0.92 and 0.93.
    assert took[rounds // 2 if cold else -1] < MOST_S
    assert took[-1] < 2 * MOST_S


def _cold_bare(engine: RealEngine, model: str, directory: Path) -> float:
    copy = directory / "copy.gguf"
    if not copy.exists():
        copy.write_bytes(Path(model).read_bytes())
    return bare_restart(engine, str(copy), directory, cold=True)


CONFIG = """
[[worker.profile]]
name = "full"
model = "{model}"
context = 2048
"""


@both_engines
@pytest.mark.timeout(180)
def test_eight_requests_survive_a_killed_worker(up: Up, engine: RealEngine, model: str, tmp_path: Path) -> None:
    check(up(CONFIG.format(model=model)), engine, tmp_path, model, cold=False)


@both_engines_slowly
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_eight_requests_survive_with_a_large_model(up: Up, engine: RealEngine, tmp_path: Path, cold: bool) -> None:
    model = large_model()
    assert os.path.getsize(model) >= 250_000_000
    check(up(CONFIG.format(model=model)), engine, tmp_path, model, cold=cold)
