"""`tidegate setup --guard` over a unit of somebody's, whose RestartSec= is long: from its sandbox the guard reads what
the server is, and has systemd start it anew.

/payload/files/engines.tar is tests/engines, for the fake llama-server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from board.scenarios import scene

URL = "http://127.0.0.1:8081"


def run(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def main_pid() -> int:
    return int(run("systemctl", "show", "llama.service", "--property=MainPID", "--value") or 0)


def journal() -> str:
    return run("journalctl", "-o", "cat", "-u", "tidegate.service")


def ready(*, other_than: int = -1) -> bool:
    done = subprocess.run(["tidegate", "status", "--json"], check=False, capture_output=True, text=True)
    worker: dict[str, Any] = json.loads(done.stdout)["worker"] if done.returncode == 0 else {"state": "none"}
    return bool(worker["state"] == "ready" and worker["pid"] not in (None, other_than))


run("tar", "-C", "/opt", "-xf", str(scene.FILES / "engines.tar"))
run("useradd", "--system", "llama")
engine = f"{sys.executable} -I -S /opt/engines/fake_engine.py --port 8081"
Path("/etc/systemd/system/llama.service").write_text(
    f"[Service]\nUser=llama\nExecStart={engine}\nRestart=always\nRestartSec=5\n"
)
run("systemctl", "daemon-reload")
run("systemctl", "start", "llama.service")
set_up = json.loads(run("tidegate", "setup", "--json", "--now", "--guard", "--unit", "llama.service", "--url", URL))
scene.eventually(ready, seconds=30, what="ready")
# That it was read shows that the sandbox lets it be read: its owner is another user.
scene.eventually(lambda: "worker: its " in journal(), seconds=30, what="what the server is")
before = main_pid()
began = time.monotonic()
reset = json.loads(run("tidegate", "reset", "--json"))
took = time.monotonic() - began
scene.eventually(lambda: ready(other_than=before), seconds=30, what="ready again")
after = main_pid()
run("systemctl", "stop", "tidegate.service")
scene.leave(
    "setup_attached",
    {
        "set_up": set_up,
        "reset": reset,
        "took_s": took,
        "pids": [before, after],
        "left_running": main_pid() == after,
        "undo": json.loads(run("tidegate", "setup", "--undo", "--json")),
        "journal": journal(),
    },
)
