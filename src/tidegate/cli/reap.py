"""``tidegate reap``: end what a guard has left behind, unless another guard is to take it over. Not for people: the
service's ExecStopPost=.

A guard that is told to stop ends its worker and gateway itself. One that was killed leaves both at work, because
systemd starts the next one, which adopts them; they are ended here only if there will be no next one.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

from tidegate.cli import handover
from tidegate.cli.launch import lock_directory
from tidegate.errors import Exit, TidegateError
from tidegate.guard import state_file
from tidegate.host.cgroup import find_hierarchy, members_of
from tidegate.host.files import read_file
from tidegate.host.process import ProcessId, is_alive
from tidegate.settings.paths import run_directory
from tidegate.worker.process import Child

#: As RestartPreventExitStatus= of the unit.
_NOT_AGAIN = (str(int(Exit.USAGE)), str(int(Exit.CANNOT_START)))
#: Where systemd runs ExecStopPost= of a delegated unit.
_CONTROL = ".control"
#: A gateway that drains takes 5 s; here nobody is left who would answer what it has in flight.
_GATEWAY_S = 2.0
_END_S = 10.0
_LOOK_EVERY_S = 0.01
_SYSTEMCTL_TIMEOUT_S = 5.0


def add(commands: Any) -> None:
    """Add the command; without ``help`` it is not in the list of commands."""
    parser = commands.add_parser("reap", description="End what a guard left behind, unless another takes it over.")
    parser.add_argument("--unit", metavar="NAME", default="", help="the service that this is the ExecStopPost= of")
    parser.add_argument(
        "--release-controllers",
        action="store_true",
        help="turn the unit's cgroup into a leaf again, so that systemd can start the next guard in it",
    )
    parser.add_argument("--json", action="store_true", help="print what was ended as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """End it, or leave it; the exit code is 1 if something could not be ended."""
    group = _unit_group(arguments.unit)
    over = will_not_return(os.environ, job=lambda: _has_job(arguments.unit))
    ended, left = _reap(group) if over else ((), ())
    if not over and arguments.release_controllers and group:
        _release_controllers(group)
    if arguments.json:
        print(json.dumps({"over": over, "ended": list(ended), "left": list(left)}))
    elif ended or left:
        print(f"ended {_shown(ended)}" + (f"; could not end {_shown(left)}" if left else ""))
    return Exit.FINDINGS if left else Exit.FINE


def will_not_return(environ: Mapping[str, str], *, job: Callable[[], bool]) -> bool:
    """Whether systemd will not start the guard again, by what it tells ExecStopPost= in ``environ`` (systemd.exec(5)).

    ``job`` is asked whether systemd has work to do on the unit: then it is being stopped, and not started again after a
    crash. It is asked last, as it takes 20 ms of a time in which nobody guards.
    """
    result = environ.get("SERVICE_RESULT")
    if result is None or result == "success":
        # By hand; or it has ended by itself, and everything with it.
        return True
    if environ.get("EXIT_CODE") == "exited" and environ.get("EXIT_STATUS") in _NOT_AGAIN:
        return True
    return job()


def _reap(group: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The pids that were ended, and those that were not."""
    directory = run_directory(os.environ, uid=os.getuid())
    if os.path.isdir(directory):
        try:
            # Held until the end: no guard may start in between and take over what is being ended.
            lock_directory(directory)
        except TidegateError:
            # Another guard is at work here, and its worker is none of ours.
            return (), ()
    before = set(_others(group))
    gateway = state_file.load_gateway(os.path.join(directory, state_file.GATEWAY))
    worker = state_file.load(os.path.join(directory, state_file.WORKER))
    if gateway is not None and is_alive(gateway):
        before.add(gateway.pid)
        _end_gateway(directory)
    if worker is not None and is_alive(ProcessId(worker.pid, worker.start_time)):
        before.add(worker.pid)
        _end_worker(worker)
    _end_group(group)
    left = {pid for pid in before if os.path.exists(f"/proc/{pid}") and not _is_zombie(pid)}
    return tuple(sorted(before - left)), tuple(sorted(left))


def _end_gateway(directory: str) -> None:
    pidfd = handover.dismiss_gateway(directory)
    if pidfd is None:
        return
    try:
        if not select.select([pidfd], [], [], _GATEWAY_S)[0]:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], _END_S)
    except OSError:
        # It has ended by itself.
        pass
    finally:
        os.close(pidfd)


def _end_worker(record: state_file.WorkerRecord) -> None:
    try:
        child = Child(record.pid, output=-1, group=record.group)
    except OSError:
        return
    child.kill()
    deadline = time.monotonic() + _END_S
    while not child.is_empty() and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    child.close()


def _end_group(group: str) -> None:
    """End everything in the unit's cgroup but what systemd runs beside it, this process."""
    deadline = time.monotonic() + _END_S
    while (pids := _others(group)) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(_LOOK_EVERY_S)


def _others(group: str) -> tuple[int, ...]:
    if not group:
        return ()
    spared = {os.getpid(), *members_of(f"{group}/{_CONTROL}")}
    return tuple(pid for pid in members_of(group) if pid not in spared)


def _unit_group(unit: str) -> str:
    """The directory of the cgroup of ``unit``, if this process was started in it by systemd; "" otherwise."""
    own = find_hierarchy().unified or ""
    group = os.path.dirname(own) if os.path.basename(own) == _CONTROL else own
    return group if unit and os.path.basename(group) == unit else ""


def _has_job(unit: str) -> bool:
    if not unit:
        return False
    try:
        done = subprocess.run(
            ["systemctl", "show", "--property=Job", "--value", unit],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SYSTEMCTL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() not in ("", "0")


def _release_controllers(group: str) -> None:
    """Processes may be in a group only while its children have no controllers (cgroups(7), "no internal processes").
    What lives below keeps running, without limits until the next guard sets them again."""
    path = f"{group}/cgroup.subtree_control"
    for name in (read_file(path, 4096) or b"").decode(errors="replace").split():
        try:
            with open(path, "w") as file:
                file.write(f"-{name}")
        except OSError:
            pass


def _is_zombie(pid: int) -> bool:
    return b") Z" in (read_file(f"/proc/{pid}/stat", 4096) or b"")


def _shown(pids: tuple[int, ...]) -> str:
    return ", ".join(map(str, pids)) or "nothing"
