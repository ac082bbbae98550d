"""A fake llama-server under a supervisor of its own, as a board has it before tidegate comes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from running import FAKE_ENGINE, eventually, is_alive

#: What a supervisor does: start it, wait for its end, wait a little, start it again.
_ENTER = '[ -z "$GROUP" ] || echo $$ > "$GROUP/cgroup.procs"; '
_LOOP = _ENTER + 'delay=$1; shift; while :; do "$@"; sleep "$delay"; done'
_ONCE = _ENTER + 'shift; exec "$@"'


class ForeignServer:
    """``name`` is its command's name. ``delay`` is the supervisor's RestartSec; ``supervised`` False: nobody starts it
    again."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        name: str = "fake-llama",
        delay: float = 0.2,
        supervised: bool = True,
        group: str = "",
        port: int = 0,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        program = directory / name
        if not program.exists():
            # The kernel names a process by the file that is executed.
            program.symlink_to(os.path.realpath(sys.executable))
        self.command = [str(program), "-I", "-S", str(FAKE_ENGINE), "--port", str(self.port), *options]
        self.log = directory / f"{name}.log"
        with self.log.open("ab") as log:
            self.supervisor = subprocess.Popen(
                ["sh", "-c", _LOOP if supervised else _ONCE, "supervisor", str(delay), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "GROUP": group},
                start_new_session=True,
            )

    def wait_up(self) -> ForeignServer:
        eventually(self.answers, what="the foreign server's port")
        return self

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def pids(self) -> list[int]:
        """The servers that run now."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                argv = (entry / "cmdline").read_bytes().split(b"\0")
            except (OSError, NotADirectoryError):
                continue
            if argv and argv[0] == self.command[0].encode() and is_alive(int(entry.name)):
                found.append(int(entry.name))
        return found

    def pid(self) -> int:
        return eventually(self.pids)[0]

    def stop(self) -> None:
        """End supervisor and server."""
        try:
            os.killpg(self.supervisor.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.supervisor.wait()
        deadline = time.monotonic() + 10
        while self.pids() and time.monotonic() < deadline:
            for pid in self.pids():
                os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
