"""Every action path once, before memory is short: what is imported, mapped and allocated by it is there afterwards."""

from __future__ import annotations

import json
import os
import sys
import time

from tidegate.guard.status import gateway_state, status_document
from tidegate.worker.process import release_memory, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.guard.log import Log
    from tidegate.guard.loop import Guard

#: An interpreter that does nothing starts and ends in 20 ms on a slow board.
_LONGEST_S = 10.0


def rehearse(guard: Guard, log: Log) -> None:
    """Start a small process as a worker is started, end it as a worker is ended, and build every message once."""
    try:
        child = start(
            [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"],
            oom_score_adj=guard.settings.worker.oom_score_adj,
            death_signal=True,
            environment=dict(os.environ),
        )
    except OSError as error:
        log.warning(f"cannot rehearse a start: {error.strerror}")
        return
    child.terminate()
    child.kill()
    release_memory(os.dup(child.pidfd))
    deadline = time.monotonic() + _LONGEST_S
    while not child.reap() and time.monotonic() < deadline:
        time.sleep(0.002)
    child.read_output()
    child.is_empty()
    child.close()
    json.dumps(status_document(guard))
    json.dumps(gateway_state(guard, None))
