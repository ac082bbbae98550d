"""What a worker does to itself before it becomes the engine: own session, OOM score, cgroup, death signal, exec.

Run as ``python -I -S shim.py OOM_SCORE_ADJ PARENT_PID CGROUP_PROCS COMMAND...`` in the new process, so that the guard
needs no fork hook: it has a second thread, and code between fork and exec in a threaded process may deadlock.
``PARENT_PID`` 0 means no death signal, an empty ``CGROUP_PROCS`` no cgroup of its own.
"""

from __future__ import annotations

import os
import signal
import sys

#: linux/prctl.h
_PR_SET_PDEATHSIG = 1
#: As a shell does: 127 for a command that cannot be run.
CANNOT_RUN = 127


def main(argv: list[str]) -> int:
    """Prepare and exec; returns only when the command cannot be run."""
    oom_score_adj, parent, cgroup_procs, *command = argv
    os.setsid()
    # The guard reads the engine's output through a pipe; when the guard is gone the engine must live on.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _write("/proc/self/oom_score_adj", oom_score_adj)
    if cgroup_procs:
        _write(cgroup_procs, "0")
    if int(parent):
        # Only foreground workers pay the 2 ms for ctypes.
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(parent):
            return 1
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
    return CANNOT_RUN


def _write(path: str, value: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(value)
    except OSError as error:
        print(f"cannot write {value} to {path}: {error.strerror}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
