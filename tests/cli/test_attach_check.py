"""Who starts an attached server again: what systemd says, and what follows for how it may be ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.cli import attach_check
from tidegate.cli.attach_check import check_door, find_attachment
from tidegate.errors import TidegateError
from tidegate.host.process import ProcessId
from tidegate.settings.model import WorkerSettings
from tidegate.worker.foreign import Match

RUNNING = {
    "LoadState": "loaded",
    "UnitFileState": "enabled",
    "ActiveState": "active",
    "Slice": "system.slice",
    "ControlGroup": "/system.slice/llama.service",
    "Restart": "always",
    "RestartUSec": "100ms",
}
Systemd = Callable[..., None]


@pytest.fixture(name="systemd")
def systemd_fixture(monkeypatch: pytest.MonkeyPatch) -> Systemd:
    """``systemd(**properties)``: a systemd that shows RUNNING with these changes."""

    def answer(**changes: str) -> None:
        shown = {**RUNNING, **changes}

        def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            assert argv[:2] == ["systemctl", "show"]
            text = "".join(f"{name}={value}\n" for name, value in shown.items())
            return subprocess.CompletedProcess(argv, 0, text, "")

        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(os.path, "isdir", lambda path: path == "/run/systemd/system")
        monkeypatch.setattr(os, "geteuid", lambda: 0)

    return answer


UNIT = WorkerSettings(unit="llama.service", url="http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("policy", "armed", "by_kill"),
    [
        ("always", True, False),
        ("on-failure", True, True),
        ("on-abnormal", True, True),
        ("on-abort", True, True),
        ("on-success", False, False),
        ("no", False, False),
    ],
)
def test_the_units_restart_policy_decides(systemd: Systemd, policy: str, armed: bool, by_kill: bool) -> None:
    systemd(Restart=policy)
    found = find_attachment(UNIT, gateway=True)
    assert (found.kind, found.group) == ("unit", "/system.slice/llama.service")
    assert (found.armed, found.by_kill) == (armed, by_kill)
    assert ("not armed" in found.supervision) is not armed


@pytest.mark.parametrize(
    ("span", "hurried"), [("100ms", False), ("1s", True), ("1min 30s", True), ("infinity", False), ("", False)]
)
def test_a_long_restart_sec_is_not_waited_for(systemd: Systemd, span: str, hurried: bool) -> None:
    systemd(RestartUSec=span)
    command = find_attachment(UNIT, gateway=True).restart
    assert command == (("systemctl", "restart", "--no-block", "llama.service") if hurried else ())


def test_a_command_of_ones_own_counts_before_systemds(systemd: Systemd) -> None:
    systemd(Restart="no", RestartUSec="5s")
    worker = WorkerSettings(unit="llama.service", restart=("true", "x"))
    found = find_attachment(worker, gateway=False)
    assert (found.armed, found.by_kill, found.restart) == (True, False, ("true", "x"))


def test_the_word_supervisor_is_no_command(systemd: Systemd) -> None:
    systemd(Restart="no")
    found = find_attachment(WorkerSettings(unit="llama.service", restart=("supervisor",)), gateway=False)
    assert (found.armed, found.restart) == (True, ())


def test_a_unit_that_does_not_run_is_waited_for_where_it_will_be(systemd: Systemd) -> None:
    systemd(ActiveState="inactive", UnitFileState="disabled", ControlGroup="", Slice="ai-edge.slice")
    found = find_attachment(UNIT, gateway=True)
    assert found.group == "/ai.slice/ai-edge.slice/llama.service"
    assert "it is inactive (disabled) now" in found.supervision


def test_faults_are_named(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd(LoadState="not-found")
    with pytest.raises(TidegateError, match=r"cannot attach to unit llama.service: systemd says not-found"):
        find_attachment(UNIT, gateway=True)
    with pytest.raises(TidegateError, match=r"worker.url does not say where it listens"):
        find_attachment(WorkerSettings(unit="llama.service"), gateway=True)
    with pytest.raises(TidegateError, match=r"cannot use worker.restart: no-such-program is not a program here"):
        find_attachment(WorkerSettings(process="x", restart=("no-such-program",)), gateway=False)
    monkeypatch.setattr(os.path, "isdir", lambda _path: False)
    with pytest.raises(TidegateError, match=r"no systemd answers here"):
        find_attachment(UNIT, gateway=True)


def test_a_process_without_a_supervisor_is_not_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda _path: False)
    found = find_attachment(WorkerSettings(process="no-such-name"), gateway=False)
    assert (found.kind, found.name, found.group, found.armed) == ("process", "no-such-name", "", False)
    assert "no supervisor was found and worker.restart is unset" in found.supervision


@pytest.mark.parametrize(("main", "armed"), [("42", True), ("7", False)])
def test_a_process_counts_as_its_service_only_if_it_is_the_main_one(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch, main: str, armed: bool
) -> None:
    """A server that cron started at boot is in cron.service with its Restart=on-failure: nobody starts it again."""
    systemd(Restart="on-failure", MainPID=main)
    # The largest is the one that will be guarded.
    matches = tuple(Match(ProcessId(pid, 1), "llama-server", 0) for pid in (42, 7))
    monkeypatch.setattr(attach_check, "find", lambda _attachment: matches)
    monkeypatch.setattr(attach_check, "read_file", lambda path, _most: {"/proc/42/cgroup": b"0::/a/cron.service"}[path])
    found = find_attachment(WorkerSettings(process="llama-server"), gateway=False)
    assert (found.armed, found.by_kill) == (armed, armed)
    assert ("no supervisor was found" in found.supervision) is not armed


@pytest.mark.parametrize(
    ("url", "listen", "same"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", True),
        ("http://127.0.0.1:8080", "localhost:8080", True),
        ("http://127.0.0.1:8080", "0.0.0.0:8080", True),
        ("http://127.0.0.1:8080", "192.168.0.2:8080", False),
        ("http://127.0.0.1:8081", "127.0.0.1:8080", False),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("unix:/run/llama.sock", "unix:/run/llama.sock", True),
        ("unix:/run/llama.sock", "127.0.0.1:8080", False),
        ("http://127.0.0.1:8080", "unix:/run/tidegate.sock", False),
    ],
)
def test_the_gateway_does_not_take_the_servers_own_address(url: str, listen: str, same: bool) -> None:
    if same:
        with pytest.raises(TidegateError, match="cannot listen on"):
            check_door(url, listen)
    else:
        check_door(url, listen)
