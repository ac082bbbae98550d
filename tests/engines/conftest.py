"""Fixtures: fake engines as real processes, ended with the test."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from running import FAKE_ENGINE, eventually
from tidegate.engines.llama_api import WireError, request


@dataclass(frozen=True)
class Launched:
    """A running fake engine."""

    endpoint: str
    process: subprocess.Popen[bytes]


Launch = Callable[..., Launched]


@pytest.fixture(name="directory")
def directory_fixture() -> Iterator[Path]:
    """A directory with a name short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="tg"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(name="launch")
def launch_fixture(directory: Path) -> Iterator[Launch]:
    """``launch(*flags)`` starts a fake engine, on a Unix socket or ``port``; it can be reached then."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(*flags: str, port: int = 0) -> Launched:
        host = ("--host", "127.0.0.1", "--port", str(port)) if port else ("--host", str(directory / "e.sock"))
        endpoint = f"http://127.0.0.1:{port}" if port else f"unix:{directory}/e.sock"
        if not port:
            # A predecessor's, which it leaves as llama-server does.
            (directory / "e.sock").unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-I", "-S", str(FAKE_ENGINE), *host, *flags])
        started.append(process)
        eventually(lambda: can_be_reached(endpoint))
        return Launched(endpoint, process)

    yield launch
    for process in started:
        process.kill()
        process.wait()


def can_be_reached(endpoint: str) -> bool:
    try:
        request(endpoint, "GET", "/fake/stats", timeout=5)
    except WireError:
        return False
    return True
