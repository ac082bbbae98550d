"""Real tidegate processes for tests: started through the command line, asked over the socket, always ended."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import gguf_builder

ROOT = Path(__file__).resolve().parents[1]
FAKE_ENGINE = ROOT / "tests" / "engines" / "fake_engine.py"
#: A guard is up in 0.4 s; ten times that is a hang.
PATIENCE_S = 30.0

T = TypeVar("T")


def eventually(probe: Callable[[], T], *, seconds: float = PATIENCE_S, what: str = "") -> T:
    """The first true value of ``probe``; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or probe}"
        time.sleep(0.01)


def fake_profile(name: str, *, model: Path, context: int = 4096, extra: tuple[str, ...] = (), **keys: object) -> str:
    """A ``[[worker.profile]]`` table."""
    lines = ["[[worker.profile]]", f'name = "{name}"', f'model = "{model}"', f"context = {context}"]
    lines.append(f"extra = {json.dumps(list(extra))}")
    lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


class Running:
    """One ``tidegate`` of kind ``guard`` or ``up`` with its own run directory below ``directory``."""

    def __init__(
        self,
        directory: Path,
        config: str,
        *arguments: str,
        kind: str = "guard",
        env: dict[str, str] | None = None,
        program: tuple[str, ...] = ("-m", "tidegate"),
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        # Not the test's own directory: its name is long, and a socket's path has 107 bytes.
        self.directory = directory
        self.run_directory = directory / "run"
        self.config = directory / "tidegate.toml"
        self.config.write_text(config)
        self.log_path = directory / "log.txt"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("TIDEGATE_", "NOTIFY_"))},
            "RUNTIME_DIRECTORY": str(self.run_directory),
            "STATE_DIRECTORY": str(directory / "state"),
            **(env or {}),
        }
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, kind, "--config", str(self.config), *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=pass_fds,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``tidegate`` with ``arguments`` in this instance's environment."""
        return subprocess.run(
            [sys.executable, "-m", "tidegate", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 2,
            check=False,
        )

    def ask(self, command: str, **more: object) -> dict[str, Any]:
        """The guard's whole answer to ``command``, over its socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PATIENCE_S * 2)
            connection.connect(str(self.run_directory / "guard.sock"))
            connection.sendall(json.dumps({"id": 1, "command": command, **more}).encode() + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                chunk = connection.recv(65536)
                assert chunk, f"the guard closed its socket; its log:\n{self.log}"
                data += chunk
        answer: dict[str, Any] = json.loads(data)
        return answer

    def status(self) -> dict[str, Any]:
        result: dict[str, Any] = self.ask("status")["result"]
        return result

    def worker(self) -> dict[str, Any]:
        worker: dict[str, Any] = self.status()["worker"]
        return worker

    def is_up(self) -> bool:
        assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log}"
        try:
            self.ask("status")
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def wait_up(self) -> Running:
        eventually(self.is_up, what="guard.sock")
        return self

    def wait_state(self, state: str, *, generation: int = 0, seconds: float = PATIENCE_S) -> dict[str, Any]:
        """The worker's part of the status once it is in ``state`` with at least ``generation``."""
        self.wait_up()

        def probe() -> dict[str, Any] | None:
            worker = self.worker()
            return worker if worker["state"] == state and worker["generation"] >= generation else None

        try:
            found = eventually(probe, seconds=seconds, what=f"worker {state}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.worker()}; log:\n{self.log}") from None
        assert found is not None
        return found

    def wait_ready(self, *, generation: int = 0) -> dict[str, Any]:
        return self.wait_state("ready", generation=generation)

    def wait_log(self, pattern: str) -> None:
        eventually(lambda: re.search(pattern, self.log), what=f"{pattern} in {self.log}")

    def stop(self) -> int:
        """TERM, and KILL when that does not end it; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait(PATIENCE_S)


def memory_of(pid: int) -> dict[str, int]:
    """RssAnon, RssFile, RssShmem, VmSwap and VmRSS of ``pid`` in bytes; zeros when it is gone."""
    wanted = ("RssAnon", "RssFile", "RssShmem", "VmSwap", "VmRSS")
    found = dict.fromkeys(wanted, 0)
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return found
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key in found:
            found[key] = int(value.split()[0]) * 1024
    return found


def is_alive(pid: int) -> bool:
    """Whether ``pid`` runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def fake_config(
    directory: Path,
    *,
    profiles: str = "",
    extra: tuple[str, ...] = (),
    memory: str = "",
    worker: str = "",
    more: str = "",
) -> str:
    """A settings file for the fake engine, with profiles ``full`` and ``lean`` unless ``profiles`` are given."""
    model = directory / "model.gguf"
    if not model.exists():
        model.write_bytes(gguf_builder.gguf(gguf_builder.llama()))
    command = json.dumps([sys.executable, "-I", "-S", str(FAKE_ENGINE)])
    shown = profiles or (
        fake_profile("full", model=model, context=4096, extra=extra)
        + fake_profile("lean", model=model, context=1024, extra=extra)
    )
    return (
        f'[memory]\ninterval = "0.2s"\n{memory}\n[worker]\nengine = "llama-server"\ncommand = {command}\n'
        f'load_timeout = "10s"\n{worker}\n{shown}\n{more}'
    )
