"""The proofs run where the guard would run: in a throw-away unit with the sandbox of the installed tidegate.service."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tidegate.errors import TidegateError
from tidegate.host.unit_files import Unit, read_units

UNIT = "tidegate.service"
#: -P: with -m alone a json.py in the caller's directory would be run, by root.
COMMAND = (sys.executable, "-P", "-m", "tidegate.doctor.live_proofs")
_PLACE = "/run/systemd/system"
#: What belongs to the service's life and not to its sandbox. RuntimeDirectory= would be removed from under the guard.
_NOT_SANDBOX = (
    *("Type", "Restart", "RestartSec", "RestartPreventExitStatus", "RestartForceExitStatus", "SuccessExitStatus"),
    *("WatchdogSec", "NotifyAccess", "KillMode", "PIDFile", "BusName", "Sockets", "OOMPolicy", "GuessMainPID"),
    *("RuntimeDirectory", "RuntimeDirectoryPreserve", "RuntimeDirectoryMode", "FileDescriptorStoreMax"),
    *("StandardInput", "StandardOutput", "StandardError", "RemainAfterExit", "SyslogIdentifier", "TimeoutStopSec"),
    *("TimeoutStartSec", "TimeoutSec", "TimeoutAbortSec", "StartLimitInterval", "StartLimitBurst", "FinalKillSignal"),
)
_MOST_S = 60


def unit_text(installed: Unit | None, command: Sequence[str], output: str) -> str:
    """A oneshot unit that runs ``command`` in the sandbox of ``installed`` (None: with a delegated group and nothing
    else) and writes what it prints to the file ``output``."""
    kept = [
        f"{key.removeprefix('Service.')}={value}"
        for key, value in (installed.settings if installed is not None else (("Service.Delegate", "yes"),))
        if key.startswith("Service.") and key[8:] not in _NOT_SANDBOX and not key.startswith("Service.Exec")
    ]
    return "\n".join(
        [
            "[Unit]",
            "Description=Proofs of tidegate doctor --live",
            "[Service]",
            *kept,
            "Type=oneshot",
            f"TimeoutStartSec={_MOST_S}",
            # A proof is an OOM kill in it.
            "OOMPolicy=continue",
            f"StandardOutput=truncate:{output}",
            "StandardError=journal",
            # A per cent sign is systemd's own.
            f"ExecStart={shlex.join(command).replace('%', '%%')}",
            "",
        ]
    )


def can_use_units() -> bool:
    """Whether this is root on a machine that systemd runs."""
    return os.geteuid() == 0 and os.path.isdir("/run/systemd/system")


def run_in_unit() -> tuple[str, str, str]:
    """What the proofs printed, in which sandbox they ran, and how the unit ended ("success", "signal" ..).

    Raises:
        TidegateError: the unit cannot be written.
    """
    installed = next((unit for unit in read_units() if unit.name == UNIT and unit.settings), None)
    sandbox = f"the sandbox of {UNIT}" if installed else f"a unit with Delegate=yes ({UNIT} is not installed)"
    name = f"tidegate-proof-{os.getpid()}.service"
    path = f"{_PLACE}/{name}"
    with tempfile.TemporaryDirectory(prefix="tidegate-proof-", dir="/run") as place:
        output = f"{place}/proofs.json"
        _write(path, unit_text(installed, COMMAND, output))
        try:
            _systemctl("daemon-reload")
            _systemctl("start", name)
            result = _systemctl("show", "--property=Result", "--value", name).strip()
        finally:
            os.unlink(path)
            _systemctl("reset-failed", name)
            _systemctl("daemon-reload")
        try:
            with open(output, encoding="utf-8") as file:
                return file.read(), sandbox, result
        except OSError:
            return "", sandbox, result


def _write(path: str, text: str) -> None:
    """Make the file ``path``; nothing is left of one that could not be written whole."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise TidegateError(f"cannot write {path}: {error.strerror}") from None


def _systemctl(*words: str) -> str:
    try:
        done = subprocess.run(
            ["systemctl", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_MOST_S + 30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
