"""Installed by ``tidegate setup``, under the shipped unit, on a real systemd."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gguf_builder
from board.harness import Board
from board.test_attach import engines

#: Bits of CapabilityBoundingSet= (linux/capability.h): DAC_OVERRIDE, KILL, IPC_LOCK, SYS_RESOURCE.
CAPABILITIES = 1 << 1 | 1 << 5 | 1 << 14 | 1 << 24
MIB = 1 << 20


@pytest.fixture(name="payload")
def payload_fixture(tmp_path: Path) -> dict[str, str | Path]:
    model = tmp_path / "model.gguf"
    model.write_bytes(gguf_builder.gguf(gguf_builder.llama()))
    return {"engines.tar": engines(tmp_path), "model.gguf": model}


def check_crash(found: dict[str, Any]) -> None:
    """The guard was killed by -9, its worker lives, and nobody noticed."""
    assert found["guards"][0] != found["guards"][1]
    assert found["workers"][0] == found["workers"][1]
    assert found["generations"][0] == found["generations"][1]
    assert {"cpu", "memory"} <= set(found["subtree_control"])
    assert found["codes"] == ["200"]


def test_the_shipped_unit(board: Board, payload: dict[str, str | Path]) -> None:
    found = board.run("setup_service.py", ram="640M", timeout=300, files=payload).checked().json("setup_service")
    assert found["dry_run"].startswith("#!/bin/sh\n")
    assert found["dry_run_touched"] is False
    assert (found["active_without_now"], found["enabled"]) == ("inactive", "enabled")
    assert found["sysctls"]["set"]["vm/swappiness"] == "10"
    assert found["memory_min"]["set"] == {
        "system.slice": str((64 + 32) * MIB),
        "system.slice/camera.service": str(32 * MIB),
        "system.slice/tidegate.service": str(64 * MIB),
        "system.slice/tidegate.service/guard": str(64 * MIB),
    }

    # From inside the sandbox: no EPERM, no SIGSYS.
    (probe,) = set(re.findall(r"probe (\{.*\})", found["journal"]))
    assert "False" not in probe
    assert "'psi_trigger': 1000000" in probe
    assert "PSI trigger 1 s" in found["status"]["sensors"]
    guard, worker = found["processes"]["guard"], found["processes"]["worker"]
    assert found["main_pid"] == found["status"]["guard"]["pid"]
    assert (guard["oom_score_adj"], worker["oom_score_adj"]) == (-900, 800)
    assert guard["seccomp"] == worker["seccomp"] == "2"
    assert guard["cap_bnd"] == worker["cap_bnd"] == CAPABILITIES
    assert guard["locked_kb"] > 0
    assert guard["group"] == "/system.slice/tidegate.service/guard"
    assert worker["group"].startswith("/system.slice/tidegate.service/tidegate-worker-")
    assert found["worker_group"]["memory.oom.group"] == "1"
    assert int(found["worker_group"]["memory.max"]) >= 200 * MIB
    assert "no fence" not in found["journal"]

    # The kill path: SIGTERM, 2 s later SIGKILL.
    assert 2 <= found["reset_took_s"] < 5
    assert found["first_worker_left"] is False
    assert found["after_foreign_kill"] is True
    check_crash(found["crash"])
    check_crash(found["older_systemd"])
    assert (found["again"]["changes"], found["again"]["sysctls"]) == ([], [])

    assert found["stopped"] == {"result": "success", "left": [], "worker": False}
    assert found["hung"] == {"result": "timeout", "left": [], "worker": False}
    assert found["cannot_start"] == {"status": "3", "left": [], "worker": False}

    assert found["undone_worker"] is False
    assert found["trace"] == {}
    assert found["undone"] == {
        "sysctls": True,
        "memory_min": {"system.slice": "0", "system.slice/camera.service": "0"},
        "load_state": "not-found",
        "run_directory": False,
    }
    for name in ("crash", "older_systemd"):
        crash = found[name]
        print(f"\n{name}: guarded again after {crash['took_s']:.1f} s, {crash['requests']} requests")
    print(found["security"])


def test_a_patrol_in_its_sandbox_has_systemd_start_the_server_anew(
    board: Board, payload: dict[str, str | Path]
) -> None:
    found = board.run("setup_attached.py", ram="640M", timeout=300, files=payload).checked().json("setup_attached")
    assert "running systemctl restart --no-block llama.service" in found["journal"]
    assert "cannot" not in found["journal"]
    assert found["pids"][0] != found["pids"][1]
    assert found["reset"]["generation"] == 2
    # RestartSec=5 was not waited for.
    assert found["took_s"] < 4
    assert found["left_running"] is True
    assert {each["change"] for each in found["undo"]["changes"]} == {"removed"}
