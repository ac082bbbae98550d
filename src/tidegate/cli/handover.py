"""A guard that died under a service manager leaves its gateway behind, at work: it makes room for the next one's."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import TypeVar

from tidegate.errors import TidegateError
from tidegate.guard import state_file
from tidegate.host.process import is_alive

#: A gateway closes its port some milliseconds after SIGTERM; one that has not done so by now hangs.
_LEAVE_S = 2.0
_AGAIN_S = 0.01

T = TypeVar("T")


def dismiss_gateway(directory: str) -> int | None:
    """Ask the gateway that this run directory's last guard left behind to leave: its pidfd, or None if there is none.

    It takes nothing new from then on, and ends when what it has in flight is answered, after 5 s at the latest.
    """
    gateway = state_file.load_gateway(os.path.join(directory, state_file.GATEWAY))
    if gateway is None:
        return None
    try:
        pidfd = os.pidfd_open(gateway.pid)
    except (OSError, OverflowError):
        return None
    # Asked after the open: from there on the pid cannot become another process's unnoticed.
    if not is_alive(gateway):
        os.close(pidfd)
        return None
    _signal(pidfd, signal.SIGTERM)
    return pidfd


def after(leaving: int | None, take: Callable[[], T]) -> T:
    """What ``take`` gives once the gateway behind the pidfd ``leaving`` has let go of it; a gateway that hangs is
    killed.

    Raises:
        TidegateError: as ``take`` does, when it was not the gateway's fault.
    """
    if leaving is None:
        return take()
    deadline = time.monotonic() + _LEAVE_S
    try:
        while time.monotonic() < deadline:
            try:
                return take()
            except TidegateError:
                time.sleep(_AGAIN_S)
        _signal(leaving, signal.SIGKILL)
        select.select([leaving], [], [], _LEAVE_S)
        return take()
    finally:
        os.close(leaving)


def _signal(pidfd: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        # It has ended by itself.
        pass
