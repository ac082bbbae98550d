"""Set up, again, undone; changed by somebody in between; killed at every point."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from complaints import check_lines
from setup.conftest import Setup
from setup.trees import CONFIG, contents, make_tree, without_times
from tidegate.cli.main import run
from tidegate.errors import TidegateError
from tidegate.setup import execution, planning
from tidegate.setup.machine import look_around, read_machine
from tidegate.setup.planning import Plan, Wanted, plan_setup, plan_undo

UNIT = "etc/systemd/system/tidegate.service"
OURS = {
    UNIT,
    "etc/systemd/system/camera.service.d/60-tidegate.conf",
    "etc/systemd/system/robot.slice.d/60-tidegate.conf",
    "etc/systemd/system/robot-eyes.slice.d/60-tidegate.conf",
    "etc/systemd/system/system.slice.d/60-tidegate.conf",
    "etc/systemd/system/multi-user.target.wants/tidegate.service",
    "etc/sysctl.d/60-tidegate.conf",
}


def only_files(tree: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    return {name: each for name, each in tree.items() if each[0] != "directory"}


def files(tree: Path) -> dict[str, tuple[object, ...]]:
    return only_files(contents(tree))


def test_undo_leaves_no_trace(tree: Path, setup: Setup) -> None:
    before = contents(tree)
    assert setup() == 0
    changed = {name for name, each in files(tree).items() if before.get(name) != each and "var/lib" not in name}
    assert changed == OURS
    assert setup("--undo") == 0
    assert contents(tree) == before


@pytest.mark.parametrize("by_script", [False, True])
def test_undo_takes_the_saved_slots_away(
    by_script: bool, tree: Path, setup: Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(tree)
    assert setup() == 0
    slots = tree / "var/lib/tidegate/slots"
    slots.mkdir()
    for name in ("a-b-1-c.slot", "new-1.tmp"):
        (slots / name).touch()
    capsys.readouterr()
    assert setup("--undo", *(["--dry-run"] if by_script else [])) == 0
    if by_script:
        subprocess.run(["sh", "-c", capsys.readouterr().out], check=True, timeout=30)
    assert contents(tree) == before


def test_a_second_run_touches_nothing(tree: Path, setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    assert setup() == 0
    before = contents(tree)
    inodes = {path: path.lstat().st_ino for path in tree.rglob("*")}
    capsys.readouterr()
    assert setup() == 0
    assert capsys.readouterr().out.startswith("nothing to do")
    assert contents(tree) == before
    assert {path: path.lstat().st_ino for path in tree.rglob("*")} == inodes


def test_the_script_does_the_same(tree: Path, setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    untouched = contents(tree)
    assert setup("--dry-run") == 0
    script = capsys.readouterr().out
    assert contents(tree) == untouched
    other = tmp_path / "other"
    shutil.copytree(tree, other, symlinks=True)
    assert setup() == 0
    subprocess.run(["sh", "-c", script.replace(str(tree), str(other))], check=True, timeout=30)
    assert without_times(contents(other)) == without_times(contents(tree))
    # And what was there before is kept with its time, so that undo brings that back too.
    capsys.readouterr()
    assert run(["setup", "--root", str(other), "--undo", "--dry-run"]) == 0
    undo = capsys.readouterr().out
    subprocess.run(["sh", "-c", undo], check=True, timeout=30)
    assert contents(other) == untouched


def test_the_script_does_nothing_when_something_has_changed(
    tree: Path, setup: Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup("--dry-run") == 0
    script = capsys.readouterr().out
    (tree / UNIT).write_text("other")
    before = contents(tree)
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "tidegate.service was changed since this script was written" in done.stderr
    assert contents(tree) == before


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck")
@pytest.mark.parametrize("flags", [(), ("--undo",)])
def test_the_script_is_a_clean_one(
    tree: Path, setup: Setup, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    if flags:
        setup()
    capsys.readouterr()
    assert setup("--dry-run", *flags) == 0
    script = capsys.readouterr().out
    done = subprocess.run(
        ["shellcheck", "-s", "sh", "-e", "SC2317,SC2329", "-"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_what_somebody_changed_since_stays(tree: Path, setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(tree)
    assert setup() == 0
    mine = tree / "etc/sysctl.d/60-tidegate.conf"
    written = mine.read_text()
    mine.write_text("vm.swappiness = 5\n")
    capsys.readouterr()
    assert setup() == 1
    assert "kept      /etc/sysctl.d/60-tidegate.conf as it is: somebody changed it since" in capsys.readouterr().out
    assert setup("--undo") == 1
    assert "kept      /etc/sysctl.d/60-tidegate.conf" in capsys.readouterr().out
    assert mine.read_text() == "vm.swappiness = 5\n"
    assert {name for name in OURS if name in files(tree)} == {UNIT, "etc/sysctl.d/60-tidegate.conf"}
    assert files(tree)[UNIT] == before[UNIT]
    # Once it is as setup left it, the rest of the undo can be done.
    mine.write_text(written)
    assert setup("--undo") == 0
    assert contents(tree) == before


def test_what_somebody_removed_since_is_no_obstacle(tree: Path, setup: Setup) -> None:
    before = contents(tree)
    assert setup() == 0
    (tree / "etc/sysctl.d/60-tidegate.conf").unlink()
    (tree / UNIT).unlink()
    assert setup("--undo") == 0
    assert contents(tree) == before


def test_other_settings_leave_nothing_of_the_old(tree: Path, setup: Setup) -> None:
    before = contents(tree)
    assert setup() == 0
    config = tree / "etc/tidegate/tidegate.toml"
    config.write_text(CONFIG.replace("camera", "lidar"))
    assert setup() == 0
    gone = [name for name in files(tree) if "camera.service.d" in name or "robot" in name]
    assert gone == []
    assert not (tree / "etc/systemd/system/camera.service.d").exists()
    assert (tree / "etc/systemd/system/lidar.service.d/60-tidegate.conf").exists()
    config.write_text(CONFIG)
    os.utime(config, ns=(before["etc/tidegate/tidegate.toml"][-1],) * 2)  # type: ignore[arg-type]
    assert setup("--undo") == 0
    assert contents(tree) == before


def test_undo_without_setup_is_a_fault(tree: Path, setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(tree)
    assert setup("--undo") == 3
    check_lines(capsys.readouterr().err, "cannot undo: tidegate setup has not been run here", "")
    assert contents(tree) == before


def plan(tree: Path) -> Plan:
    """A set-up of several kinds of files."""
    machine = read_machine(str(tree))
    wanted = (
        Wanted(planning.UNIT, "[Service]\n"),
        Wanted("/etc/systemd/system/a.service.d/60-tidegate.conf", "[Service]\nMemoryMin=1\n"),
        Wanted(planning.ENABLED, target=planning.UNIT),
    )
    return plan_setup(wanted, (), look_around(machine, wanted))


def undo(tree: Path) -> None:
    execution.run(plan_undo(look_around(read_machine(str(tree)), ())).operations, str(tree), warn=pytest.fail)


def test_a_killed_run_can_be_undone_or_done_again_from_every_point(tmp_path: Path) -> None:
    count = len(plan(make_tree(tmp_path / "count")).operations)
    assert count > 10
    for steps in range(count + 1):
        tree = make_tree(tmp_path / f"undo{steps}")
        before = contents(tree)
        execution.run(plan(tree).operations[:steps], str(tree), warn=pytest.fail)
        try:
            undo(tree)
        except TidegateError:
            # Nothing but the state directory is there yet.
            assert files(tree) == only_files(before), steps
        else:
            assert contents(tree) == before, steps

        again = make_tree(tmp_path / f"again{steps}")
        execution.run(plan(again).operations[:steps], str(again), warn=pytest.fail)
        execution.run(plan(again).operations, str(again), warn=pytest.fail)
        assert plan(again).operations == (), steps
        undo(again)
        assert files(again) == only_files(before), steps


def test_a_killed_undo_can_be_done_again_from_every_point(tmp_path: Path) -> None:
    steps, count = 0, 1
    while steps < count:
        tree = make_tree(tmp_path / f"undo{steps}")
        before = contents(tree)
        execution.run(plan(tree).operations, str(tree), warn=pytest.fail)
        operations = plan_undo(look_around(read_machine(str(tree)), ())).operations
        count = len(operations)
        execution.run(operations[:steps], str(tree), warn=pytest.fail)
        try:
            undo(tree)
        except TidegateError:
            assert files(tree) == only_files(before), steps
        else:
            assert contents(tree) == before, steps
        steps += 1


def test_a_file_that_was_half_written_is_no_trace(tree: Path, setup: Setup) -> None:
    before = contents(tree)
    assert setup() == 0
    (tree / f"{UNIT}.tidegate-new").write_text("[Serv")
    assert setup("--undo") == 0
    assert contents(tree) == before


def test_a_damaged_copy_is_not_put_back(tree: Path, setup: Setup) -> None:
    assert setup() == 0
    ours = (tree / UNIT).read_bytes()
    (copy,) = (tree / "var/lib/tidegate/setup").glob("before-*")
    copy.write_text("damaged")
    assert setup("--undo") == 1
    assert (tree / UNIT).read_bytes() == ours


# -- hostile trees ---------------------------------------------------------------------------------------------------


def fails(setup: Setup, tree: Path, capsys: pytest.CaptureFixture[str], why: str, *flags: str) -> None:
    before = contents(tree)
    assert setup(*flags) == 3
    assert why in capsys.readouterr().err
    assert contents(tree) == before


def test_a_masked_unit_is_somebodys_wish(tree: Path, setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / UNIT).unlink()
    (tree / UNIT).symlink_to("/dev/null")
    fails(setup, tree, capsys, "cannot set up: tidegate.service is masked")


def test_a_link_in_the_place_of_a_file_comes_back(tree: Path, setup: Setup) -> None:
    (tree / UNIT).unlink()
    (tree / UNIT).symlink_to("/opt/mine.service")
    before = contents(tree)
    assert setup() == 0
    assert not (tree / UNIT).is_symlink()
    assert setup("--undo") == 0
    assert contents(tree) == before


def test_links_do_not_lead_out_of_an_image(
    tree: Path, setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tree / "etc/sysctl.d").symlink_to(outside)
    fails(setup, tree, capsys, "leads out of it")
    assert list(outside.iterdir()) == []


def test_a_directory_in_the_place_of_a_file(tree: Path, setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "etc/sysctl.d/60-tidegate.conf").mkdir(parents=True)
    fails(setup, tree, capsys, "is neither a file nor a link")


def manifest_text(**changes: object) -> str:
    sound = {"version": 1, "done": True, "files": [], "directories": [], "sysctls": []}
    return json.dumps({**sound, **changes})


def entry(path: str, **changes: object) -> list[dict[str, object]]:
    return [{"path": path, "ours": [], "before": None, **changes}]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        manifest_text(version=2),
        manifest_text(files=entry("/etc/passwd")),
        manifest_text(files=entry("/etc/sysctl.d/../passwd")),
        manifest_text(files=entry("/etc/sysctl.d/x", ours=[1])),
        manifest_text(files=entry("/etc/sysctl.d/x", before={"sha256": "../../x", "mode": 0})),
        manifest_text(directories=["/home"]),
        manifest_text(sysctls=[{"key": "kernel.core_pattern", "before": 0, "after": 0}]),
        manifest_text(sysctls=[{"key": "vm.swappiness", "before": "0", "after": 0}]),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--undo",)])
def test_a_manifest_that_is_not_ours(
    tree: Path, setup: Setup, capsys: pytest.CaptureFixture[str], text: str, flags: tuple[str, ...]
) -> None:
    state = tree / "var/lib/tidegate/setup"
    state.mkdir(parents=True)
    (state / "manifest.json").write_text(text)
    fails(setup, tree, capsys, "it is not what tidegate setup wrote", *flags)


# -- what is printed -------------------------------------------------------------------------------------------------


def test_json_for_programs(tree: Path, setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    assert setup("--json") == 0
    document = json.loads(capsys.readouterr().out)
    changes = {each["path"]: each["change"] for each in document["changes"]}
    assert changes.pop(f"/{UNIT}") == "replaced"
    assert set(changes.values()) == {"created"}
    assert {f"/{name}" for name in OURS} == {*changes, f"/{UNIT}"}
    assert (document["sysctls"], document["dry_run"], document["script"]) == ([], False, "")
    assert setup("--undo", "--json", "--dry-run") == 0
    document = json.loads(capsys.readouterr().out)
    assert {each["change"] for each in document["changes"]} == {"removed", "restored"}
    assert document["script"].startswith("#!/bin/sh\n")


def test_this_machine_needs_root_and_systemd(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run(["setup"]) == 3
    check_lines(capsys.readouterr().err, "cannot set up this machine: not root", "sudo tidegate setup")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    isdir = os.path.isdir
    monkeypatch.setattr("os.path.isdir", lambda path: path != "/run/systemd/system" and isdir(path))
    assert run(["setup", "--dry-run"]) == 3
    check_lines(capsys.readouterr().err, "cannot set up: systemd does not run this machine", "start tidegate up by")
