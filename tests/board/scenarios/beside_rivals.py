"""earlyoom and systemd-oomd active beside tidegate, and a worker that grows until somebody acts: who ended what.

/payload/files/engines.tar is tests/engines. Growth is once slow, so that the guard with the lower line acts, and once
fast.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from board.scenarios import scene

ENGINE = [sys.executable, "-I", "-S", "/opt/engines/fake_engine.py"]
LOG = Path("/out/tidegate.log")
CONFIG = """
[worker]
engine = "llama-server"
command = {command}
step_up_after = "1s"
[memory]
hold = "1s"
[[worker.profile]]
name = "full"
extra = ["--fake-anon-mib", "200", "--fake-grow-mib-s", "{rate}", "--fake-grow-after-s", "5"]
[[worker.profile]]
name = "lean"
context = 1024
extra = ["--fake-anon-mib", "100"]
"""
#: Whom somebody could end besides: as large as the worker is at first.
BYSTANDER_MIB = 150


def run(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stdout} {done.stderr}"
    return done.stdout.strip()


def said() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LOG.read_text().splitlines() if line.startswith("{")] if LOG.exists() else []


def ends() -> list[str]:
    """What ended workers, as the guard saw it: its own steps, and deaths that it did not order."""
    words = [line["message"] for line in said()]
    return [
        word for word in words if re.match(r"step (down|reset|park)\b.*: |worker \d+ (was killed|exited|ended)", word)
    ]


def episode(rate: int) -> dict[str, Any]:
    config = Path("/out/tidegate.toml")
    config.write_text(CONFIG.format(command=json.dumps(ENGINE), rate=rate))
    LOG.unlink(missing_ok=True)
    kills = scene.numbers(Path("/proc/vmstat"))["oom_kill"]
    since = time.time()
    properties = ["Type=notify", "Delegate=yes", "KillMode=mixed", "RuntimeDirectory=tidegate"]
    environment = ["PATH=/opt/tidegate/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
    run(
        *("systemd-run", "--unit=tidegate", f"--property=StandardError=append:{LOG}"),
        *(f"--property={each}" for each in properties),
        *(f"--setenv={each}" for each in environment),
        *("tidegate", "guard", "--config", str(config), "--log-format", "json", "--log-level", "debug"),
    )
    scene.eventually(ends, seconds=120, what="an end")
    first = said()[-1]["time"]
    scene.eventually(
        lambda: any(" ready, profile " in line["message"] and line["time"] > first for line in said()),
        seconds=60,
        what="the next worker",
    )
    # A second kill for the same shortage would come now, and take the new worker or the bystander.
    time.sleep(4)
    journal = run("journalctl", "-b", "-o", "cat", f"--since=@{since:.0f}", "-u", "earlyoom", "-u", "systemd-oomd")
    result = {
        "rate_mib_s": rate,
        "ends": ends(),
        "by_earlyoom": len(re.findall(r"sending SIG(?:TERM|KILL) to process \d+", journal)),
        "by_oomd": len(re.findall(r"Killed .* due to", journal)),
        "by_kernel": scene.numbers(Path("/proc/vmstat"))["oom_kill"] - kills,
        "bystander_alive": bystander.poll() is None,
        "journal": journal[-2000:],
    }
    run("systemctl", "stop", "tidegate")
    return result


run("tar", "-C", "/opt", "-xf", str(scene.FILES / "engines.tar"))
run("systemctl", "start", "earlyoom", "systemd-oomd")
run(
    "systemctl",
    "set-property",
    "--runtime",
    "--",
    "system.slice",
    "ManagedOOMMemoryPressure=kill",
    "ManagedOOMSwap=kill",
)
bystander = subprocess.Popen(scene.hog(BYSTANDER_MIB))
time.sleep(3)
doctor = subprocess.run(["tidegate", "doctor", "--json"], check=False, capture_output=True, text=True)
scene.leave(
    "beside_rivals",
    {
        "episodes": [episode(rate) for rate in (20, 150)],
        "doctor": [each for each in json.loads(doctor.stdout)["findings"] if each["id"].startswith("rivals")],
    },
)
bystander.kill()
