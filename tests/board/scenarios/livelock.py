"""A worker that grows against a memory.high of 200 MiB on its cgroup, without swap: left alone for 60 s, and under
tidegate.

/payload/files/engines.tar is tests/engines.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from board.scenarios import scene

HIGH_MIB, BEFORE_MIB, RATE_MIB_S = 200, 150, 20
ALONE_S = 60.0
ENGINE = [sys.executable, "-I", "-S", "/opt/engines/fake_engine.py"]
GROWTH = ["--fake-anon-mib", str(BEFORE_MIB), "--fake-grow-mib-s", str(RATE_MIB_S), "--fake-grow-after-s", "3"]
CONFIG = f"""
[worker]
engine = "llama-server"
command = {json.dumps(ENGINE)}
[[worker.profile]]
name = "full"
extra = {json.dumps(GROWTH)}
"""
UNIT = Path("/sys/fs/cgroup/system.slice/tidegate.service")
LOG = Path("/out/tidegate.log")


def full_us(group: Path) -> int:
    """Microseconds in which every task of ``group`` stalled on memory."""
    line = next(line for line in (group / "memory.pressure").read_text().splitlines() if line.startswith("full"))
    return int(line.rpartition("total=")[2])


def throttled_at(group: Path, *, most_s: float = 30.0) -> float:
    """When ``high`` began to climb, on the log's clock."""
    scene.eventually(lambda: scene.numbers(group / "memory.events")["high"] > 0, seconds=most_s, what="throttling")
    return time.time()


def alone() -> dict[str, Any]:
    group = scene.Cgroup("alone", memory_swap_max="0", memory_high=f"{HIGH_MIB}M")
    worker = group.start(*ENGINE, "--port", "8099", *GROWTH)
    throttled_at(group.path)
    stalled, began = full_us(group.path), time.monotonic()
    time.sleep(ALONE_S)
    share = (full_us(group.path) - stalled) / 1e6 / (time.monotonic() - began)
    found = {
        "alive": worker.poll() is None,
        "stalled_share": share,
        "events": group.numbers("memory.events"),
        "current_mib": int(group.read("memory.current")) / scene.MIB,
    }
    worker.kill()
    worker.wait()
    return found


def said() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LOG.read_text().splitlines() if line.startswith("{")] if LOG.exists() else []


def first(words: str) -> float | None:
    """When a line with ``words`` was logged."""
    return next((line["time"] for line in said() if words in line["message"]), None)


def guarded() -> dict[str, Any]:
    config = Path("/out/tidegate.toml")
    config.write_text(CONFIG)
    properties = ["Type=notify", "Delegate=yes", "KillMode=process", "RuntimeDirectory=tidegate"]
    environment = ["PATH=/opt/tidegate/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
    subprocess.run(
        [
            "systemd-run",
            "--unit=tidegate",
            *(f"--property={each}" for each in (*properties, f"StandardError=append:{LOG}")),
            *(f"--setenv={each}" for each in environment),
            *("tidegate", "up", "--config", str(config), "--log-format", "json", "--log-level", "debug"),
        ],
        check=True,
    )
    ready = scene.eventually(lambda: first("worker") and first(" ready, profile full"), what="the worker")
    group = next(UNIT.glob("tidegate-worker-*"))
    (group / "memory.high").write_text(f"{HIGH_MIB}M")
    began = throttled_at(group)
    scene.eventually(lambda: first("memory.high of"), seconds=30, what="the verdict")
    scene.eventually(
        lambda: len([line for line in said() if " ready, profile full" in line["message"]]) >= 2, seconds=30
    )
    cured = said()[-1]["time"]
    with urllib.request.urlopen("http://127.0.0.1:8080/readyz", timeout=10) as answer:
        status = answer.status
    found = {
        "ready": ready,
        "recognised_after_s": (first("memory.high of") or 0.0) - began,
        "cured_after_s": cured - began,
        "status": status,
        "said": [line["message"] for line in said()],
        "diagnosis": [line.get("diagnosis") for line in said() if line["message"].startswith("level critical")],
    }
    subprocess.run(["systemctl", "stop", "tidegate"], check=True)
    return found


subprocess.run(["tar", "-C", "/opt", "-xf", str(scene.FILES / "engines.tar")], check=True)
scene.leave("livelock", {"guarded": guarded(), "alone": alone()})
