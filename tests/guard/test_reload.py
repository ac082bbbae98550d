"""SIGHUP: how often the settings are read, and what a service manager hears of it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guard.conftest import Foreign, Start
from running import fake_config, is_alive
from tidegate.guard.log import Log
from tidegate.guard.reactor import Reactor
from tidegate.guard.reload import Reloader
from tidegate.settings.model import WorkerSettings

#: Says that it reads, and waits for the other end of a pipe before it ends.
READER = "import os, sys; open(sys.argv[1], 'a').write('read\\n'); os.read(int(sys.argv[2]), 1); print('no settings')"


class Manager:
    """What a service manager hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def reloading(self, _: float) -> None:
        self.heard.append("reloading")

    def ready(self) -> None:
        self.heard.append("ready")


def reloader(reactor: Reactor, manager: Any, *command: str) -> Reloader:
    plan = SimpleNamespace(reload=(sys.executable, "-c", *command), source="")
    guard: Any = SimpleNamespace(plan=plan, settings=SimpleNamespace(worker=WorkerSettings()))
    return Reloader(guard, reactor=reactor, log=Log(level="error", format="text", fd=2), notifier=manager)


def test_a_hup_during_a_reading_is_not_lost(tmp_path: Path) -> None:
    reads, reactor, manager = tmp_path / "reads", Reactor(), Manager()
    gate, key = os.pipe()
    os.set_inheritable(gate, True)
    reading = reloader(reactor, manager, READER, str(reads), str(gate))
    reading.begin()
    reading.begin()
    reading.begin()
    os.write(key, b"12")
    # The file may have changed after the first reading of it; the second and third ask for the same.
    while manager.heard.count("ready") < 2:
        reactor.run_once()
    assert reads.read_text() == "read\n" * 2
    assert manager.heard == ["reloading", "ready"] * 2
    reactor.close()
    for fd in (gate, key):
        os.close(fd)


def test_a_reading_that_cannot_be_started_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("tidegate.guard.errand.start", no_process)
    reactor, manager = Reactor(), Manager()
    reloader(reactor, manager, "").begin()
    assert manager.heard == ["reloading", "ready"]
    reactor.close()


@pytest.mark.parametrize("attached", [True, False])
def test_whose_worker_it_is_does_not_change_while_it_runs(start: Start, foreign: Foreign, attached: bool) -> None:
    """Not even one that nobody would start again was spared: its profile was gone."""
    server = foreign(supervised=False).wait_up()
    theirs = f'[worker]\nprocess = "fake-llama"\nurl = "{server.url}"\n'
    running = start(config=theirs) if attached else start()
    worker = running.wait_ready()
    running.config.write_text(fake_config(running.directory) if attached else theirs)
    running.process.send_signal(signal.SIGHUP)
    running.wait_log("error: cannot reload: whether somebody else starts the worker changes only after a restart")
    assert (running.worker()["pid"], running.worker()["state"]) == (worker["pid"], "ready")
    assert is_alive(worker["pid"])
