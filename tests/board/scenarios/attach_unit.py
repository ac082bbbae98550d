"""Attached to systemd units: disabled, started, replaced, stopped, ended by each restart policy; what is said of each.

/payload/files/engines.tar is tests/engines, for the fake llama-server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from board.scenarios import scene

UNIT = Path("/etc/systemd/system/llama.service")
LOG = Path("/out/guard.log")
URL = "http://127.0.0.1:8081"
#: Limits for a server of somebody else's: by its manager, and what is no property of a unit by the guard.
FENCE = {"TIDEGATE_FENCE_MAX": "500M", "TIDEGATE_FENCE_OOM_GROUP": "true"}
GROUP = Path("/sys/fs/cgroup/system.slice/llama.service")


def systemctl(*words: str) -> str:
    done = subprocess.run(["systemctl", *words], check=False, capture_output=True, text=True)
    return done.stdout.strip()


def write_unit(restart: str, *, delay: str = "100ms", options: str = "") -> None:
    engine = f"{sys.executable} -I -S /opt/engines/fake_engine.py --port 8081 {options}"
    UNIT.write_text(
        f"[Service]\nExecStart={engine}\nRestart={restart}\nRestartSec={delay}\n[Install]\nWantedBy=multi-user.target\n"
    )
    systemctl("daemon-reload")


def main_pid() -> int:
    return int(systemctl("show", "llama.service", "--property=MainPID", "--value") or 0)


class Guard:
    """``tidegate guard`` over the unit, in a run directory of its own."""

    def __init__(self, *flags: str) -> None:
        self.begin = LOG.stat().st_size if LOG.exists() else 0
        with LOG.open("ab") as log:
            self.process = subprocess.Popen(
                ["tidegate", "guard", "--unit", "llama.service", "--url", URL, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **FENCE},
            )

    def said(self) -> str:
        with LOG.open() as log:
            log.seek(self.begin)
            return log.read()

    def worker(self) -> dict[str, Any]:
        done = subprocess.run(["tidegate", "status", "--json"], check=False, capture_output=True, text=True)
        worker: dict[str, Any] = json.loads(done.stdout)["worker"] if done.returncode == 0 else {"state": "none"}
        return worker

    def wait(self, state: str, *, other_than: int = -1) -> int:
        """The worker's pid once it is in ``state``."""

        def probe() -> bool:
            worker = self.worker()
            return bool(worker["state"] == state and worker["pid"] != other_than)

        scene.eventually(probe, seconds=30, what=f"{state}: {self.said()}")
        return int(self.worker()["pid"] or 0)

    def reset(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["tidegate", "reset", "--json"], check=False, capture_output=True, text=True)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


subprocess.run(["tar", "-C", "/opt", "-xf", str(scene.FILES / "engines.tar")], check=True)
found: dict[str, Any] = {}

# A unit that is disabled and stopped; then started by hand, stopped by hand, started again.
write_unit("always")
guard = Guard()
scene.eventually(lambda: "waiting for unit llama.service" in guard.said(), seconds=20)
systemctl("start", "llama.service")
first = guard.wait("ready")
found["disabled"] = {"pid": first, "main_pid": main_pid()}
systemctl("stop", "llama.service")
guard.wait("starting")
scene.eventually(lambda: guard.said().count("waiting for unit llama.service") == 2, seconds=30)
systemctl("start", "llama.service")
second = guard.wait("ready")
found["started_again"] = {"pid": second, "main_pid": main_pid()}

# Restart=always: our reset is followed by systemd's restart; so is a crash that nobody ordered.
began = time.monotonic()
done = guard.reset()
found["reset"] = {"code": done.returncode, "took_s": time.monotonic() - began, "answer": done.stdout or done.stderr}
third = guard.wait("ready", other_than=second)
os.kill(third, signal.SIGKILL)
fourth = guard.wait("ready", other_than=third)
systemctl("daemon-reload")
names = ("memory.max", "memory.oom.group", "memory.swap.max", "cpu.weight")
found["fence"] = {name: (GROUP / name).read_text().strip() for name in names if (GROUP / name).exists()}
found["always"] = {"pids": [second, third, fourth], "main_pid": main_pid(), "oom_kills_of_guard": 0}
found["code"] = guard.stop()
found["left_running"] = main_pid() == fourth
found["said"] = guard.said()

# The other policies: how the server may be ended.
found["policies"] = {}
for policy, delay, options in (
    ("on-failure", "100ms", ""),
    ("always", "5s", "--fake-ignore-term"),
    ("no", "100ms", ""),
):
    systemctl("stop", "llama.service")
    write_unit(policy, delay=delay, options=options)
    systemctl("start", "llama.service")
    guard = Guard()
    before = guard.wait("ready")
    began = time.monotonic()
    done = guard.reset()
    took = time.monotonic() - began
    found["policies"][f"{policy} {delay}"] = {
        "code": done.returncode,
        "took_s": took,
        "replaced": main_pid() not in (before, 0),
        "said": guard.said(),
        "answer": done.stdout or done.stderr,
    }
    guard.stop()
scene.leave("attach_unit", found)
