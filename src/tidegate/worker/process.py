"""One child process of the guard: started through the shim, watched by pidfd, ended with everything it started."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections import deque

from tidegate.engines.base import ALLOCATOR
from tidegate.host import process as host_process
from tidegate.host import syscalls
from tidegate.host.cgroup_memory import is_populated
from tidegate.worker.fence import lift_high, thaw

#: Lines of the engine's last output that go into a failure's message.
LAST_LINES = 12
#: An engine that prints one endless line must not grow the guard.
_MOST_LINE_BYTES = 400


class Child:
    """A process in its own session. ``pidfd`` becomes readable when it has ended; ``output`` is its stderr and stdout.

    ``group`` is the directory of its own cgroup, or empty. An adopted process has no ``output`` (-1).
    """

    def __init__(self, pid: int, *, output: int, group: str = "") -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.output = output
        self.group = group
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self.status: int | None = None
        self._partial = b""

    def read_output(self) -> list[str]:
        """New whole lines of output; also kept as the last lines. Empty when there is nothing, or no more."""
        if self.output < 0:
            return []
        try:
            data = os.read(self.output, 16384)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close_output()
            data = b"\n" if self._partial else b""
        *whole, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-_MOST_LINE_BYTES:]
        found = [line[:_MOST_LINE_BYTES].decode(errors="replace").strip() for line in whole]
        found = [line for line in found if line]
        self.lines.extend(found)
        return found

    def close_output(self) -> None:
        """Close the pipe; the engine's later writes fail with EPIPE, which it ignores."""
        if self.output >= 0:
            os.close(self.output)
            self.output = -1

    def reap(self) -> bool:
        """Whether the leader has ended; its exit status is then in ``status`` (None for an adopted process)."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return not self.leader_alive()
        if pid == 0:
            return False
        self.status = os.waitstatus_to_exitcode(status)
        return True

    def leader_alive(self) -> bool:
        """Whether the leader is there and no zombie, for a process that is not our child."""
        # A signal 0 reaches a zombie too, and one whose parent does not reap it stays one for ever.
        ended = select.poll()
        ended.register(self.pidfd, select.POLLIN)
        return not ended.poll(0)

    def is_empty(self) -> bool:
        """Whether nothing of its cgroup and of its process group is left. Ask after the leader was reaped."""
        # Only "populated 0" is sure to miss nobody; but a process that could not move itself there is not in it, so
        # the process group has to be gone besides.
        if self.group and is_populated(self.group):
            return False
        try:
            # As a container's process 1 we inherit what its leader left: zombies in its group, until we reap them.
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass
        return not host_process.group_lives(self.pid)

    def terminate(self) -> None:
        """SIGTERM to the whole process group: a shell around the engine would keep it for itself."""
        if self.group:
            thaw(self.group)
            lift_high(self.group)
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to everything: the cgroup where there is one (fork-safe), the group and the leader besides."""
        if self.group:
            try:
                with open(f"{self.group}/cgroup.kill", "wb", buffering=0) as file:
                    file.write(b"1")
            except OSError:
                pass
        self._signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptors and remove the empty cgroup."""
        self.close_output()
        os.close(self.pidfd)
        if self.group:
            try:
                os.rmdir(self.group)
            except OSError:
                pass

    def _signal_group(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except OSError:
            pass
        try:
            # Before the shim's setsid there is no such group; the pidfd above has reached the process then.
            os.killpg(self.pid, number)
        except OSError:
            pass


def start(
    argv: list[str],
    *,
    oom_score_adj: int,
    death_signal: bool,
    environment: dict[str, str],
    group: str = "",
    capture: bool = True,
    inherit: tuple[tuple[int, int], ...] = (),
) -> Child:
    """Start ``argv`` through the shim.

    ``death_signal`` ties it to this process; ``group`` is a cgroup directory that it moves itself into; ``capture``
    collects its output, else it shares ours; ``inherit`` are descriptors as (number here, number there).

    Raises:
        OSError: no process, no pipe, or no descriptor to be had.
    """
    shim = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.py")
    parent = str(os.getpid()) if death_signal else "0"
    procs = f"{group}/cgroup.procs" if group else ""
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        *((os.POSIX_SPAWN_DUP2, here, there) for here, there in inherit),
    ]
    read_end = write_end = -1
    if capture:
        read_end, write_end = os.pipe()
        # The engine must never wait for us to read: what does not fit the pipe is lost.
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        actions += [(os.POSIX_SPAWN_DUP2, write_end, 1), (os.POSIX_SPAWN_DUP2, write_end, 2)]
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", shim, str(oom_score_adj), parent, procs, *argv],
            {**environment, **ALLOCATOR},
            file_actions=actions,
        )
        return Child(pid, output=read_end, group=group)
    except BaseException:
        if capture:
            os.close(read_end)
        if group:
            os.rmdir(group)
        raise
    finally:
        if capture:
            os.close(write_end)


def release_memory(pidfd: int) -> None:
    """Let the kernel free the memory of a process that is being killed now, on our CPU time; closes ``pidfd``."""
    try:
        syscalls.process_mrelease(pidfd)
    except OSError:
        # ESRCH: gone already; ENOSYS or EPERM: not to be had here, and the process frees it itself.
        pass
    finally:
        os.close(pidfd)
