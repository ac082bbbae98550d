"""What scenarios share, on the board: leaving results, cgroups of their own, a running tidegate."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

OUT = Path("/out")
FILES = Path("/payload/files")
MIB = 1 << 20
T = TypeVar("T")


def leave(name: str, value: object) -> None:
    """Bring ``value`` back as ``Result.json(name)``."""
    (OUT / f"{name}.json").write_text(json.dumps(value))


def eventually(probe: Callable[[], T], *, seconds: float = 60.0, what: str = "") -> T:
    """The first true value of ``probe``; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := probe()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or probe}"
        time.sleep(0.02)
    return value


def numbers(path: Path) -> dict[str, int]:
    """A file of lines "key number": memory.events, memory.stat, /proc/meminfo and /proc/PID/status (kB there)."""
    lines = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) >= 2 and words[1].lstrip("-").isdigit()}


class Cgroup:
    """A cgroup of the scenario's own: ``Cgroup("small", memory_max="64M", memory_oom_group=1)``."""

    def __init__(self, name: str, **limits: object) -> None:
        self.path = Path(os.environ["BOARD_CGROUP"]) / name
        self.path.mkdir()
        for key, value in limits.items():
            self.write(key.replace("_", "."), value)

    def write(self, key: str, value: object) -> None:
        (self.path / key).write_text(str(value))

    def read(self, key: str) -> str:
        return (self.path / key).read_text().strip()

    def numbers(self, key: str) -> dict[str, int]:
        """``memory.events`` or ``memory.stat``."""
        return numbers(self.path / key)

    def start(self, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """A process that is in this cgroup before its first instruction."""
        inside = ["sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', str(self.path), *command]
        return subprocess.Popen(inside, **options)


#: Takes argv[1] MiB of anonymous memory at argv[2] MiB/s, then sleeps.
_HOG = """
import sys, time
size, rate = int(sys.argv[1]), float(sys.argv[2])
held, began = [], time.monotonic()
for number in range(size):
    held.append(bytearray(b"x") * (1 << 20))
    time.sleep(max(0.0, began + (number + 1) / rate - time.monotonic()))
time.sleep(1e6)
"""


def hog(size_mib: int, *, rate: float = 1e9) -> tuple[str, ...]:
    """A command that takes ``size_mib`` of anonymous memory at ``rate`` MiB/s and keeps it."""
    return sys.executable, "-I", "-S", "-c", _HOG, str(size_mib), str(rate)


def nohang_config(path: Path) -> None:
    """Debian's settings of nohang with its lines at 91 % of memory in use, and swap (there is none) left out of it."""
    text = Path("/etc/nohang/nohang.conf").read_text()
    for key, value in (("soft", "9 %"), ("hard", "8.9 %"), ("warning", "10 %")):
        text = re.sub(rf"(?m)^{key}_threshold_min_mem\s*=.*$", f"{key}_threshold_min_mem = {value}", text)
        text = re.sub(rf"(?m)^{key}_threshold_min_swap\s*=.*$", f"{key}_threshold_min_swap = 100 %", text)
    path.write_text(text)


class Tidegate:
    """``tidegate up`` as a user on the board would start it; ``delegated``: in a cgroup that is its own to divide."""

    def __init__(
        self, *arguments: str, config: str = "", cgroup: Cgroup | None = None, delegated: bool = False
    ) -> None:
        self.log_path = OUT / "tidegate.log"
        self.url = "http://127.0.0.1:8080"
        command = ["tidegate", "up", *arguments]
        if config:
            (OUT / "tidegate.toml").write_text(config)
            command += ["--config", str(OUT / "tidegate.toml")]
        if delegated:
            command = ["systemd-run", "--scope", "--quiet", "--property=Delegate=yes", *command]
        with self.log_path.open("ab") as log:
            start = cgroup.start if cgroup else lambda *words, **options: subprocess.Popen(words, **options)
            self.process = start(*command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def status(self) -> dict[str, Any]:
        """``tidegate status --json``."""
        done = subprocess.run(["tidegate", "status", "--json"], capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def wait_ready(self, *, seconds: float = 120.0) -> None:
        """Until a request would be answered."""

        def probe() -> bool:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.log_path.read_text()}"
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=5):
                    return True
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                return False

        eventually(probe, seconds=seconds, what="/readyz")

    def chat(self, text: str, *, max_tokens: int = 16) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Status, headers and answer of one chat completion."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 0}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, dict(answer.headers), json.load(answer)

    def stop(self) -> int:
        """TERM, and its exit code."""
        self.process.terminate()
        return self.process.wait(60)
