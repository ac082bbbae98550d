"""What ``tidegate doctor`` says while other guards run: earlyoom and systemd-oomd as Debian ships them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from board.scenarios import scene


def rivals() -> dict[str, Any]:
    done = subprocess.run(["tidegate", "doctor", "--json"], capture_output=True, text=True, timeout=60, check=False)
    report = json.loads(done.stdout)
    return {each["id"]: each for each in report["findings"] if each["id"].startswith("rivals.")}


before = rivals()
subprocess.run(["systemctl", "start", "earlyoom.service", "systemd-oomd.service"], check=True, timeout=60)
after = rivals()
scene.leave("doctor_rivals", {"before": before, "after": after})
