"""What a worker leaves behind: last words, children in its group, zombies that nobody reaps, or nothing at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from guard.conftest import Start
from running import FAKE_ENGINE, eventually, fake_config
from tidegate.engines.base import EngineCapabilities
from tidegate.guard import own_worker
from tidegate.guard.helper import Helper
from tidegate.guard.log import Log
from tidegate.guard.own_worker import OwnWorker
from tidegate.guard.reactor import Reactor
from tidegate.guard.worker_control import Owner
from tidegate.settings.model import Profile, WorkerSettings
from tidegate.worker.process import Child

#: An engine with a child in its process group that outlives it.
WITH_CHILD = """
import os, sys, time
if not os.fork():
    os.close(1)
    os.close(2)
    time.sleep(600)
os.execv(sys.executable, [sys.executable, "-I", "-S", *sys.argv[1:]])
"""


def test_the_reason_is_the_end_of_a_long_output(start: Start) -> None:
    running = start(extra=("--fake-fail", "noise of many words\n" * 3000 + "the reason"))
    running.wait_log("worker failed")
    assert running.worker()["message"].endswith("| the reason")


class FakeEngine:
    name = "fake"
    capabilities = EngineCapabilities(unix_socket=True, frees_bytes=False)

    def argv(self, profile: Profile, *, prompt_cache: int, endpoint: str) -> list[str]:
        return ["engine"]


@pytest.mark.parametrize("following", [None, "lean"])
def test_an_order_right_after_a_start_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, following: str | None
) -> None:
    starts: list[str] = []

    def no_process(*_: object, **__: object) -> Child:
        starts.append("")
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(own_worker, "start", no_process)
    owner = Owner(
        profile=lambda name: Profile(name=name, model=""),
        prompt_cache=lambda _: 0,
        changed=lambda: None,
        gone=lambda: None,
        bytes_are_back=lambda: True,
        failed=lambda _generation, _why: None,
        oom_kills=lambda: None,
        fence=lambda _directory, _profile: None,
    )
    reactor = Reactor()
    control = OwnWorker(
        WorkerSettings(),
        FakeEngine(),
        owner,
        reactor=reactor,
        helper=Helper(lambda: None),
        log=Log(level="error", format="text", fd=os.open(os.devnull, os.O_WRONLY)),
        run_directory=str(tmp_path),
        groups="",
        tied=True,
    )
    control.start("full")
    # Before the loop has gone round, an order: nobody will ever report the end of a process that never was.
    control.change(following, drain=0.0, grace=1.0)
    assert control.life.state.value == "stopping"
    reactor.run_once()
    if following is None:
        assert control.life.state.value == "parked"
    else:
        assert (control.life.profile, len(starts)) == ("lean", 2)
    reactor.close()


def test_a_zombie_has_ended_though_its_parent_does_not_reap_it(tmp_path: Path) -> None:
    """As an adopted worker in a container whose process 1 is `sleep infinity`."""
    code = "import os, time; pid = os.fork()\nif not pid: os.setsid(); time.sleep(600)\n"
    code += "print(pid, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        eventually(lambda: os.getpgid(pid) == pid, what="its own session")
        child = Child(pid, output=-1)
        assert not child.reap()
        assert not child.is_empty()
        child.kill()
        eventually(child.reap, what="the end seen")
        assert child.is_empty()
        child.close()
        parent.kill()


def can_unshare() -> bool:
    """Whether a pid namespace with its own /proc can be made: not without root, and not in a chroot."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
    )


@pytest.mark.skipif(not can_unshare(), reason="no pid namespace can be made here")
def test_as_process_1_of_a_container(start: Start, tmp_path: Path) -> None:
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(WITH_CHILD)
    code = "import os, sys; os.execvp('unshare', ['unshare', '--pid', '--fork', '--mount-proc', '--kill-child', "
    code += "sys.executable, '-m', 'tidegate', *sys.argv[1:]])"
    model = tmp_path / "c"
    model.mkdir()
    plain, wrapped = (
        json.dumps([sys.executable, "-I", "-S", *more])
        for more in ([str(FAKE_ENGINE)], [str(wrapper), str(FAKE_ENGINE)])
    )
    config = fake_config(model).replace(plain, wrapped)
    assert wrapped in config
    running = start(config=config, program=("-c", code))
    assert running.wait_ready()["generation"] == 1
    for generation in (2, 3):
        answer = running.ask("reset")
        assert answer["ok"], answer
        assert answer["result"]["generation"] == generation
    assert running.ask("status")["result"]["guard"]["pid"] == 1
    # unshare(1) does not pass signals on.
    running.process.send_signal(signal.SIGKILL)
