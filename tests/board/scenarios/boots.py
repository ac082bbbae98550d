"""What kind of machine this is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from board.scenarios import scene


def said(*command: str) -> str:
    """What ``command`` prints, whatever its exit code."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


scene.leave(
    "boots",
    {
        "system": said("systemctl", "is-system-running", "--wait"),
        "failed": said("systemctl", "list-units", "--failed", "--plain", "--no-legend"),
        "active_rivals": [
            name for name in ("earlyoom", "nohang", "systemd-oomd") if said("systemctl", "is-active", name) == "active"
        ],
        "release": os.uname().release,
        "cpus": os.cpu_count(),
        "memory_kb": scene.numbers(Path("/proc/meminfo"))["MemTotal"],
        "swap_kb": scene.numbers(Path("/proc/meminfo"))["SwapTotal"],
        "controllers": Path("/sys/fs/cgroup/cgroup.controllers").read_text().split(),
        "own_controllers": Path(os.environ["BOARD_CGROUP"], "cgroup.subtree_control").read_text().split(),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        "links_up": [line.split()[1] for line in said("ip", "-o", "link", "show", "up").splitlines()],
        "routes": said("ip", "route"),
    },
)
