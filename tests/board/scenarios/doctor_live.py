"""``tidegate doctor --live`` on a booted board: without a unit, in a good one's sandbox, in bad ones', and last in that
of the unit that ``tidegate setup`` installs."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from board.scenarios import scene

UNIT = Path("/etc/systemd/system/tidegate.service")
GOOD = """[Service]
ExecStart=/bin/true
Delegate=yes
OOMScoreAdjust=-900
LimitMEMLOCK=infinity
ProtectSystem=strict
CapabilityBoundingSet=CAP_SYS_RESOURCE CAP_KILL CAP_IPC_LOCK CAP_DAC_OVERRIDE
SystemCallFilter=@system-service process_mrelease pidfd_open pidfd_send_signal
SystemCallErrorNumber=EPERM
RuntimeDirectory=tidegate
"""
SANDBOXES = {
    "none": None,
    "good": GOOD,
    "no_capabilities": GOOD.replace("CAP_SYS_RESOURCE CAP_KILL CAP_IPC_LOCK CAP_DAC_OVERRIDE", ""),
    "read_only_cgroups": GOOD + "ProtectControlGroups=yes\n",
    "not_delegated": GOOD.replace("Delegate=yes\n", ""),
    "refused_call": GOOD.replace(" process_mrelease", "") + "SystemCallFilter=~process_mrelease\n",
    "deadly_call": GOOD.replace("SystemCallErrorNumber=EPERM\n", "") + "SystemCallFilter=~process_mrelease\n",
}


def doctor() -> dict[str, Any]:
    began = time.monotonic()
    command = ["tidegate", "doctor", "--live", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return {
        "code": done.returncode,
        "error": done.stderr[-2000:],
        "took_s": time.monotonic() - began,
        "report": json.loads(done.stdout) if done.stdout else {},
    }


def left_behind() -> list[str]:
    """What the proofs should have taken away again."""
    units = [str(path) for path in Path("/run/systemd/system").glob("tidegate-proof*")]
    groups = [str(path) for path in Path("/sys/fs/cgroup").rglob("tidegate-proof*")]
    return [*units, *groups, *(str(path) for path in Path("/run").glob("tidegate-proof*"))]


def panicking() -> dict[str, Any]:
    """With vm.panic_on_oom=2 a proof would take the board down: it must not be tried."""
    switch = Path("/proc/sys/vm/panic_on_oom")
    switch.write_text("2")
    try:
        return doctor()
    finally:
        switch.write_text("0")


found: dict[str, Any] = {}
for name, text in SANDBOXES.items():
    if text is None:
        UNIT.unlink(missing_ok=True)
    else:
        UNIT.write_text(text)
    found[name] = doctor()
UNIT.write_text(GOOD)
found["panic_on_oom"] = panicking()
UNIT.unlink()
subprocess.run(["tidegate", "setup", "--json"], check=True, stdout=subprocess.DEVNULL)
found["shipped"] = doctor()
failed = subprocess.run(
    ["systemctl", "list-units", "--failed", "--plain", "--no-legend", "tidegate*"],
    capture_output=True,
    text=True,
    check=True,
)
scene.leave("doctor_live", {"found": found, "left": left_behind(), "failed": failed.stdout.split()})
