"""Started with standard streams closed, as some init scripts do: nothing may take their numbers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from guard.conftest import Start


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "<&-"])
def test_a_command_without_streams(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m tidegate --version {closed}', sys.executable], check=False, timeout=20
    )
    assert done.returncode == 0


def test_a_guard_without_streams(start: Start) -> None:
    # `start` runs sys.executable; the shell in between closes the streams.
    running = start(program=("-c", CLOSING))
    worker = running.wait_ready()
    links = [os.readlink(f"/proc/{running.process.pid}/fd/{fd}") for fd in (0, 1, 2)]
    assert links == ["/dev/null"] * 3
    pid = running.process.pid
    assert (running.run_directory / "lock").read_text() == f"{pid}\n"
    os.kill(worker["pid"], 9)
    running.wait_ready(generation=2)
    # The log line about it went nowhere, and not into the lock.
    assert (running.run_directory / "lock").read_text() == f"{pid}\n"


CLOSING = """
import os, sys
for fd in (0, 1, 2):
    os.close(fd)
os.execv(sys.executable, [sys.executable, "-m", "tidegate", *sys.argv[1:]])
"""
