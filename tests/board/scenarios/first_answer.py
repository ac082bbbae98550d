"""`tidegate up` as a user would start it: one answer through the gateway, what the guard costs, a clean end."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from board.scenarios import scene


def adj(pid: int) -> int:
    """The oom_score_adj of ``pid``."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


began = time.monotonic()
tidegate = scene.Tidegate()
tidegate.wait_ready()
ready = time.monotonic() - began
status, headers, answer = tidegate.chat("What is the tide?")
seen = tidegate.status()
guard, worker = seen["guard"]["pid"], seen["worker"]["pid"]
found = {
    "version": subprocess.run(["tidegate", "--version"], capture_output=True, text=True, check=True).stdout.strip(),
    "ready_s": ready,
    "status": status,
    "headers": headers,
    "text": answer["choices"][0]["message"]["content"],
    "guard_is_what_was_started": guard == tidegate.process.pid,
    "guard_rss": scene.numbers(Path(f"/proc/{guard}/status"))["VmRSS"] * 1024,
    "guard_adj": adj(guard),
    "worker_adj": adj(worker),
    "seen": seen,
}
found["code"] = tidegate.stop()
found["worker_left"] = Path(f"/proc/{worker}").exists()
scene.leave("first_answer", found)
