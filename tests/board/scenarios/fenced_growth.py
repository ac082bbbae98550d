"""A worker that grows from a steady 300 MiB inside its fence: ``fenced_growth.py MIB_PER_S RUNS``; and, for comparison,
the same growth in a cgroup with the same memory.max and nobody who looks.

/payload/files/engines.tar is tests/engines. tidegate runs in a unit with Delegate=yes, and makes the worker's group.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from board.scenarios import scene

STEADY_MIB, BUDGET_MIB, MAX_MIB = 280, 640, 700
STEADY_S = 4.0
#: From here on growth is told from the engine's own bytes, some 15 MiB.
GROWS_MIB = 310
ENGINE = [sys.executable, "-I", "-S", "/opt/engines/fake_engine.py"]
CONFIG = """
[memory]
budget = "{budget}M"
hold = "1s"
[worker]
engine = "llama-server"
command = {command}
step_up_after = "1s"
[[worker.profile]]
name = "full"
extra = {extra}
[[worker.profile]]
name = "lean"
context = 1024
[fence]
max = "{most}M"
"""

rate, runs = float(sys.argv[1]), int(sys.argv[2])
growth = ["--fake-anon-mib", str(STEADY_MIB), "--fake-grow-mib-s", str(rate), "--fake-grow-after-s", str(STEADY_S)]


def anon_mib(pid: int) -> float:
    try:
        return scene.numbers(Path(f"/proc/{pid}/status")).get("RssAnon", 0) / 1024
    except OSError:
        return 0.0


def begins_to_grow(pid: int, *, alive: Any) -> float | None:
    """When ``pid`` passed the steady bytes (monotonic seconds), or None if it ended before."""
    while alive():
        if anon_mib(pid) >= GROWS_MIB:
            return time.monotonic()
        time.sleep(0.005)
    return None


def unguarded() -> float:
    """Seconds from the begin of growth to the kernel's kill."""
    fenced = scene.Cgroup("unguarded", memory_max=f"{MAX_MIB}M", memory_swap_max="0", memory_oom_group=1)
    worker = fenced.start(*ENGINE, "--port", "8099", *growth)
    begun = begins_to_grow(worker.pid, alive=lambda: worker.poll() is None)
    assert begun is not None
    assert worker.wait(120) == -9
    took = time.monotonic() - begun
    assert fenced.numbers("memory.events")["oom_kill"] >= 1
    return took


class Watch(threading.Thread):
    """When the first worker began to grow, on the log's clock."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.begun: float | None = None

    def run(self) -> None:
        (procs,) = scene.eventually(lambda: list(UNIT.glob("tidegate-worker-*/cgroup.procs")), what="a worker's group")
        pid = int(scene.eventually(lambda: procs.read_text().split(), what="a worker")[0])
        if begins_to_grow(pid, alive=procs.exists) is not None:
            self.begun = time.time()


def said(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")] if log.exists() else []


def actions(log: Path) -> list[dict[str, Any]]:
    return [line for line in said(log) if re.match(r"step (reset|down|park)\b.*: ", line["message"])]


def main_pid() -> str:
    command = ["systemctl", "show", "tidegate", "--property=MainPID", "--value"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def guarded(number: int) -> dict[str, Any]:
    """One start of tidegate until its first action."""
    log = Path(f"/out/tidegate-{number}.log")
    watch = Watch()
    subprocess.run(
        [
            *("systemd-run", "--quiet", "--unit=tidegate", f"--property=StandardError=append:{log}"),
            *(f"--property={each}" for each in PROPERTIES),
            *(f"--setenv={each}" for each in ENVIRONMENT),
            *("tidegate", "guard", "--config", str(CONFIG_PATH), "--log-format", "json", "--log-level", "debug"),
        ],
        check=True,
    )
    watch.start()
    fence, *_ = scene.eventually(lambda: list(UNIT.glob("tidegate-worker-*")), what="a worker's group")
    names = ("memory.max", "memory.high", "memory.swap.max", "memory.oom.group", "cpu.weight")
    held = {name: (fence / name).read_text().strip() for name in names}
    action, *_ = scene.eventually(lambda: actions(log), seconds=60, what="an action")
    watch.join(10)
    scene.eventually(lambda: any(" freed " in line["message"] for line in said(log)), what="the end of it")
    pid = main_pid()
    found = {
        "action": action["message"],
        "lead_s": None if watch.begun is None else kernel_s - (action["time"] - watch.begun),
        "events": scene.numbers(UNIT / "memory.events"),
        "fence": held,
        "guard_fds": len(os.listdir(f"/proc/{pid}/fd")),
        "guard_rss": scene.numbers(Path(f"/proc/{pid}/status"))["VmRSS"] << 10,
        "guard_group": Path(f"/proc/{pid}/cgroup").read_text().strip(),
    }
    subprocess.run(["systemctl", "stop", "tidegate"], check=True)
    return found


UNIT = Path("/sys/fs/cgroup/system.slice/tidegate.service")
CONFIG_PATH = Path("/out/tidegate.toml")
PROPERTIES = ["Type=notify", "Delegate=yes", "KillMode=mixed", "RuntimeDirectory=tidegate"]
ENVIRONMENT = ["PATH=/opt/tidegate/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
subprocess.run(["tar", "-C", "/opt", "-xf", str(scene.FILES / "engines.tar")], check=True)
kernel_s = unguarded()
CONFIG_PATH.write_text(
    CONFIG.format(command=json.dumps(ENGINE), extra=json.dumps(growth), budget=BUDGET_MIB, most=MAX_MIB)
)
kills = scene.numbers(Path("/proc/vmstat"))["oom_kill"]
scene.leave(
    "fenced_growth",
    {
        "kernel_s": kernel_s,
        "runs": [guarded(number) for number in range(runs)],
        "oom_kills": scene.numbers(Path("/proc/vmstat"))["oom_kill"] - kills,
    },
)
