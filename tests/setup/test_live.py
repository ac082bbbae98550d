"""What is done to a running machine: kernel settings, systemctl; with a tree and a pretended systemctl in its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from setup.trees import make_tree
from tidegate.errors import TidegateError
from tidegate.setup import execution, planning
from tidegate.setup.machine import look_around, parse_version, read_machine
from tidegate.setup.operations import ApplyMemory, Operation, SetSysctl, Systemctl
from tidegate.setup.planning import Plan, Scene, Wanted, plan_setup, plan_undo
from tidegate.setup.sysctls import KEYS

WANTED = (Wanted(planning.UNIT, "[Service]\nExecStart=/bin/true\n"), Wanted(planning.ENABLED, target=planning.UNIT))
VALUES = (("vm.panic_on_oom", 0), ("vm.swappiness", 10))


class Live:
    """A tree with a /proc of its own, which is taken for a running machine."""

    def __init__(self, root: Path) -> None:
        self.root = make_tree(root)
        for key in KEYS:
            self.file(key).parent.mkdir(parents=True, exist_ok=True)
            self.file(key).write_text("60\n")

    def file(self, key: str) -> Path:
        return self.root / "proc/sys" / key.replace(".", "/")

    def value(self, key: str) -> int:
        return int(self.file(key).read_text())

    def scene(self, *more: Wanted) -> Scene:
        scene = look_around(read_machine(str(self.root)), (*WANTED, *more))
        return Scene(**{**vars(scene), "live": True, "sysctls": {key: self.value(key) for key in KEYS}})

    def run(self, plan: Plan) -> list[str]:
        """What went wrong."""
        troubles: list[str] = []
        execution.run(plan.operations, str(self.root), warn=troubles.append)
        return troubles


@pytest.fixture(name="live")
def live_fixture(tmp_path: Path) -> Live:
    return Live(tmp_path / "live")


@pytest.fixture(name="systemctl")
def systemctl_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """A systemctl that notes its words, and fails for the one given; what was noted."""
    tools, notes = tmp_path / "tools", tmp_path / "notes"
    tools.mkdir()
    notes.touch()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")

    def make(failing: str = "") -> list[str]:
        program = tools / "systemctl"
        program.write_text(
            f'#!/bin/sh\necho "$*" >>{notes}\n[ "$1" != "{failing}" ] || {{ echo "no $1 today" >&2; exit 1; }}\n'
        )
        program.chmod(0o755)
        return notes.read_text().splitlines()

    make()
    return make


def test_kernel_settings_come_and_go(live: Live, systemctl: Callable[[str], list[str]]) -> None:
    plan = plan_setup(WANTED, VALUES, live.scene())
    assert [(entry.key, entry.before, entry.after) for entry in plan.sysctls] == [
        ("vm.panic_on_oom", 60, 0),
        ("vm.swappiness", 60, 10),
    ]
    assert live.run(plan) == []
    assert (live.value("vm.panic_on_oom"), live.value("vm.swappiness")) == (0, 10)
    assert plan_setup(WANTED, VALUES, live.scene()).operations == ()
    assert live.run(plan_undo(live.scene())) == []
    assert {live.value(key) for key in KEYS} == {60}


def test_a_value_that_somebody_gave_since_stays_at_undo(live: Live, systemctl: Callable[[str], list[str]]) -> None:
    live.run(plan_setup(WANTED, VALUES, live.scene()))
    live.file("vm.swappiness").write_text("33\n")
    live.run(plan_undo(live.scene()))
    assert (live.value("vm.panic_on_oom"), live.value("vm.swappiness")) == (60, 33)


def test_after_a_reboot_the_first_values_are_still_known(live: Live, systemctl: Callable[[str], list[str]]) -> None:
    live.run(plan_setup(WANTED, VALUES, live.scene()))
    live.run(plan_setup(WANTED, VALUES, live.scene()))
    assert (manifest := live.scene().manifest) is not None
    assert manifest.original("vm.swappiness") == 60
    # A boot that did not read our file.
    live.file("vm.swappiness").write_text("60\n")
    assert [each for each in plan_setup(WANTED, VALUES, live.scene()).operations if isinstance(each, SetSysctl)] == [
        SetSysctl("vm.swappiness", 10)
    ]


def test_a_value_that_is_wanted_no_more_goes_back(live: Live, systemctl: Callable[[str], list[str]]) -> None:
    more = (*VALUES, ("vm.overcommit_ratio", 80), ("vm.overcommit_memory", 2))
    live.run(plan_setup(WANTED, more, live.scene()))
    plan = plan_setup(WANTED, VALUES, live.scene())
    assert [each for each in plan.operations if isinstance(each, SetSysctl)] == [
        SetSysctl("vm.overcommit_memory", 60),
        SetSysctl("vm.overcommit_ratio", 60),
    ]
    live.run(plan)
    assert plan_setup(WANTED, VALUES, live.scene()).operations == ()


def test_a_value_that_cannot_be_set_is_said(live: Live, systemctl: Callable[[str], list[str]]) -> None:
    plan = plan_setup(WANTED, VALUES, live.scene())
    live.file("vm.swappiness").unlink()
    live.file("vm.swappiness").mkdir()
    assert live.run(plan) == ["cannot set vm.swappiness = 10: Is a directory"]


def words(operations: tuple[Operation, ...]) -> list[str]:
    return [" ".join(each.words) for each in operations if isinstance(each, Systemctl)]


def test_systemd_is_told(live: Live, systemctl: Callable[[str], list[str]]) -> None:
    (live.root / "etc/systemd/system/tidegate.service").unlink()
    live.run(plan_setup(WANTED, VALUES, live.scene(), start=True))
    live.run(plan_setup(WANTED, VALUES, live.scene()))
    live.run(plan_setup(WANTED, VALUES, live.scene(), start=True))
    live.run(plan_undo(live.scene()))
    assert systemctl("") == [
        "daemon-reload",
        "restart tidegate.service",
        "start tidegate.service",
        "stop tidegate.service",
        "daemon-reload",
    ]


def test_memory_min_of_what_runs_follows_its_files(live: Live, systemctl: Callable[[str], list[str]]) -> None:
    drop_in = Wanted("/etc/systemd/system/camera.service.d/60-tidegate.conf", "[Service]\nMemoryMin=5\n")
    group = live.root / "sys/fs/cgroup/a.slice/camera.service"
    group.mkdir(parents=True)
    (group / "memory.min").write_text("0")
    (group / "memory.low").write_text("0")
    shown = live.root.parent / "shown"
    (live.root.parent / "tools/systemctl").write_text(f"#!/bin/sh\n[ $1 != show ] || cat {shown}\n")
    for value, written in (("5", "5"), ("infinity", "max")):
        shown.write_text(f"ControlGroup=/a.slice/camera.service\nMemoryMin={value}\nMemoryLow=7\n")
        execution.run((ApplyMemory("camera.service"),), str(live.root), warn=pytest.fail)
        assert (group / "memory.min").read_text() == written
        assert (group / "memory.low").read_text() == "7"
    # One that does not run.
    shown.write_text("ControlGroup=\nMemoryMin=5\n")
    plan = plan_setup((*WANTED, drop_in), VALUES, live.scene(drop_in))
    assert plan.operations[-2] == ApplyMemory("camera.service")
    assert live.run(plan) == []
    assert ApplyMemory("camera.service") in plan_undo(live.scene()).operations


def test_a_unit_of_somebodys_runs_again_after_undo(live: Live, systemctl: Callable[[str], list[str]]) -> None:
    live.run(plan_setup(WANTED, VALUES, live.scene()))
    assert words(plan_undo(live.scene()).operations) == ["daemon-reload", "try-restart tidegate.service"]


def test_a_run_that_systemd_was_not_told_of_is_told_by_the_next(
    live: Live, systemctl: Callable[[str], list[str]]
) -> None:
    systemctl("daemon-reload")
    with pytest.raises(TidegateError, match=r"cannot run systemctl daemon-reload: no daemon-reload today"):
        live.run(plan_setup(WANTED, VALUES, live.scene()))
    systemctl("")
    assert words(plan_setup(WANTED, VALUES, live.scene()).operations) == ["daemon-reload"]


def test_a_service_that_does_not_start_is_no_fault_of_setup(live: Live, systemctl: Callable[[str], list[str]]) -> None:
    systemctl("restart")
    troubles = live.run(plan_setup(WANTED, VALUES, live.scene(), start=True))
    assert troubles == ["systemctl restart tidegate.service: no restart today"]
    assert plan_setup(WANTED, VALUES, live.scene()).operations == ()


@pytest.mark.parametrize(
    ("text", "version"),
    [("systemd 257 (257.9-1~deb13u1)\n+PAM", 257), ("systemd 252 (252.38)", 252), ("", 0), ("busybox", 0)],
)
def test_version(text: str, version: int) -> None:
    assert parse_version(text) == version


def test_version_of_an_image(tmp_path: Path) -> None:
    root = tmp_path / "image"
    make_tree(root, systemd=252)
    assert read_machine(str(root)).systemd == 252
    (root / "usr/lib/systemd/libsystemd-shared-252.so").unlink()
    (root / "usr/lib/systemd/libsystemd-shared-257.9-1.so").touch()
    assert read_machine(str(root)).systemd == 257
