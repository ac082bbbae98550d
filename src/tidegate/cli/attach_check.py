"""Find out, before anything is resident, what an attached server is and who starts it again when it has ended."""

from __future__ import annotations

import os
import shutil
import subprocess

from tidegate.errors import TidegateError
from tidegate.guard.plan import Attachment
from tidegate.host.cgroup import parse_proc_cgroup
from tidegate.host.files import read_file
from tidegate.settings.attachment import SUPERVISOR
from tidegate.settings.load import parse_listen
from tidegate.settings.model import FenceSettings, WorkerSettings
from tidegate.worker.foreign import find

#: Hosts of an address that takes its port from every other.
_EVERYWHERE = ("0.0.0.0", "::")
_SYSTEMCTL_TIMEOUT_S = 20.0
_PROPERTIES = (
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "Slice",
    "ControlGroup",
    "MainPID",
    "Restart",
    "RestartUSec",
)
#: A unit whose RestartSec= is at least this long is restarted by hand after a reset: its wait is meant for crashes. A
#: shorter one would be over before systemctl is (20-50 ms), which then would end the new server.
_LONG_RESTART_S = 0.5
#: Restart= of systemd.service(5): these start a unit again after SIGKILL, but not after an exit on SIGTERM, which
#: llama-server makes a clean one.
_ONLY_AFTER_KILL = frozenset(("on-failure", "on-abnormal", "on-abort"))


def find_attachment(worker: WorkerSettings, *, gateway: bool) -> Attachment:
    """What the guard has to know of the server that ``worker`` names.

    Raises:
        TidegateError: there is no such unit, no systemd, or no url for the gateway.
    """
    if gateway and not worker.url:
        raise TidegateError(
            "cannot put the gateway in front of the server: worker.url does not say where it listens",
            hint="such as --url http://127.0.0.1:8081; tidegate guard can do without",
        )
    if worker.unit:
        return _unit(worker)
    kind, name = ("process", worker.process) if worker.process else ("cgroup", worker.cgroup)
    armed, by_kill, supervision = _supervision(worker, _unit_around(worker))
    return Attachment(kind, name, worker.cgroup, _command(worker), armed, by_kill, supervision)


def check_door(url: str, listen: str) -> None:
    """That the gateway does not take the server's own address ``url``: both like port 8080, and the server, which may
    start later, would never get it again.

    Raises:
        TidegateError: ``listen`` is that address.
    """
    where = parse_listen(listen)
    if isinstance(where, str):
        same = url == listen
    else:
        host, _, port = url.removeprefix("http://").rpartition(":")
        same = port == str(where[1]) and where[0] in (*_EVERYWHERE, host.strip("[]"))
        same = same or (where[0] == "localhost" and url == f"http://127.0.0.1:{where[1]}")
    if same:
        raise TidegateError(
            f"cannot listen on {listen}: the server listens at {url}", hint="such as --listen 127.0.0.1:8090"
        )


def _unit(worker: WorkerSettings) -> Attachment:
    shown = _show(worker.unit)
    if shown is None:
        raise TidegateError(
            f"cannot attach to unit {worker.unit}: no systemd answers here", hint="use worker.process or worker.cgroup"
        )
    state = shown.get("LoadState", "")
    if state in ("not-found", "bad-setting", "error"):
        raise TidegateError(
            f"cannot attach to unit {worker.unit}: systemd says {state}", hint="systemctl list-units names them"
        )
    group = _group(worker.unit, shown)
    armed, by_kill, supervision = _supervision(worker, shown)
    command = _command(worker)
    if armed and not worker.restart and os.geteuid() == 0 and _seconds(shown.get("RestartUSec", "")) >= _LONG_RESTART_S:
        command = ("systemctl", "restart", "--no-block", worker.unit)
    if shown.get("ActiveState") != "active":
        supervision += f"; it is {shown.get('ActiveState', 'unknown')} ({shown.get('UnitFileState') or state}) now"
    return Attachment("unit", worker.unit, group, command, armed, by_kill, supervision)


def fence_unit(unit: str, fence: FenceSettings) -> str:
    """Set the limits of ``fence`` on ``unit`` until the next boot, by its manager, which would else put its own back at
    the next reload; "" or why that was not possible. memory.oom.group is no property: the guard writes it."""
    given = {
        "MemoryHigh": fence.high,
        "MemoryMax": fence.max,
        "MemorySwapMax": fence.swap_max,
        "CPUWeight": fence.cpu_weight,
    }
    properties = [f"{name}={value}" for name, value in given.items() if value is not None]
    if not properties:
        return ""
    try:
        done = subprocess.run(
            ["systemctl", "set-property", "--runtime", "--", unit, *properties],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SYSTEMCTL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"systemctl: status {done.returncode}"


def unit_groups(units: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """(unit, path of its cgroup) for each of ``units``, running or not; of one that systemd does not know, where it
    would be."""
    return tuple((unit, _group(unit, _show(unit) or {})) for unit in units)


def _group(unit: str, shown: dict[str, str]) -> str:
    if unit.endswith(".slice"):
        return shown.get("ControlGroup") or _slice_path(unit)
    return shown.get("ControlGroup") or f"{_slice_path(shown.get('Slice') or 'system.slice')}/{unit}"


def _seconds(span: str) -> float:
    """A time span as systemctl shows it, ``1min 30s``; 0.0 for what is none (``infinity``)."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    total = 0.0
    for word in span.split():
        digits = word.rstrip("abcdefghijklmnopqrstuvwxyz")
        try:
            total += float(digits) * units[word[len(digits) :]]
        except (ValueError, KeyError):
            return 0.0
    return total


def _command(worker: WorkerSettings) -> tuple[str, ...]:
    return () if worker.restart == (SUPERVISOR,) else worker.restart


def _supervision(worker: WorkerSettings, shown: dict[str, str] | None) -> tuple[bool, bool, str]:
    """Whether the server may be ended, whether only by SIGKILL, and who starts it again in words."""
    if worker.restart == (SUPERVISOR,):
        return True, False, "its supervisor starts it again, the settings say"
    if worker.restart:
        if shutil.which(worker.restart[0]) is None:
            raise TidegateError(f"cannot use worker.restart: {worker.restart[0]} is not a program here")
        return True, False, f"started again by: {' '.join(worker.restart)}"
    policy = (shown or {}).get("Restart", "")
    if policy == "always":
        return True, False, "systemd starts it again (Restart=always)"
    if policy in _ONLY_AFTER_KILL:
        return True, True, f"systemd starts it again after SIGKILL, not after SIGTERM (Restart={policy})"
    why = f"Restart={policy} and no worker.restart" if policy else "no supervisor was found and worker.restart is unset"
    return False, False, f"nobody would start it again ({why}), so it will never be ended: the kill is not armed"


def _unit_around(worker: WorkerSettings) -> dict[str, str] | None:
    """What systemd says of the service that the server is now, if it is one.

    A process must be the service's main one: of those that cron, ssh or a container engine started, in services with
    Restart=on-failure or always, systemd starts none again.
    """
    path, main = worker.cgroup, None
    if worker.process:
        matches = find(Attachment("process", worker.process, "", (), False, False, ""))
        if not matches:
            return None
        main = str(matches[0].pid)
        found = parse_proc_cgroup(read_file(f"/proc/{main}/cgroup", 65536) or b"")
        path = next((group for group in found if group.endswith(".service")), "")
    unit = path.rpartition("/")[2]
    shown = _show(unit) if unit.endswith(".service") else None
    return shown if shown is not None and main in (None, shown.get("MainPID")) else None


def _show(unit: str) -> dict[str, str] | None:
    """The properties of ``unit``, or None where no systemd answers."""
    if not os.path.isdir("/run/systemd/system"):
        return None
    try:
        done = subprocess.run(
            ["systemctl", "show", unit, *(f"--property={name}" for name in _PROPERTIES)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SYSTEMCTL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def _slice_path(name: str) -> str:
    """The cgroup of the slice ``name``: a-b.slice is /a.slice/a-b.slice (systemd.slice(5))."""
    parts = name.removesuffix(".slice").split("-")
    if parts in ([""], ["", ""]):
        return ""
    return "".join(f"/{'-'.join(parts[: count + 1])}.slice" for count in range(len(parts)))
