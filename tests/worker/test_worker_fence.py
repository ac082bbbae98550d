"""The kernel's limits: written, read back, told where they differ; the brake off and on again. Plain files stand in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.policy.fences import Fences
from tidegate.worker.fence import lift_high, thaw, write_fences, write_value

FILES = ("memory.high", "memory.max", "memory.swap.max", "memory.oom.group", "cpu.weight", "cgroup.freeze")


@pytest.fixture(name="group")
def group_fixture(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).write_text("max\n" if "max" in name or "high" in name else "0\n")
    return tmp_path


def held(group: Path, name: str) -> str:
    return (group / name).read_text().split()[0]


def test_what_is_wanted_is_written(group: Path) -> None:
    for name in FILES:
        # A cgroup's file takes a whole value a write; a plain one would keep the rest of the longer old one.
        (group / name).write_text("")
    fences = Fences(max=500 << 20, swap_max=0, oom_group=True, cpu_weight=50)
    assert write_fences(str(group), fences) == ()
    assert [held(group, name) for name, _ in fences.files()] == ["0", "1", str(500 << 20), "50"]
    assert (group / "memory.high").read_text() == ""


@pytest.mark.parametrize(
    ("kept", "wrong"),
    [("16777216", False), ("16765952", False), ("16711680", True), ("16777217", True), ("max", True)],
)
def test_a_page_less_is_the_kernels_rounding_and_more_is_not(
    group: Path, monkeypatch: pytest.MonkeyPatch, kept: str, wrong: bool
) -> None:
    monkeypatch.setattr("tidegate.worker.fence.read_word", lambda _path: kept.encode())
    found = write_fences(str(group), Fences(max=16 << 20))
    assert found == ((f"memory.max is {kept} where 16777216 was written",) if wrong else ())


def test_a_controller_that_is_off_and_a_file_that_is_not_ours_are_told(group: Path) -> None:
    (group / "cpu.weight").unlink()
    (group / "memory.max").unlink()
    (group / "memory.max").mkdir()
    found = write_fences(str(group), Fences(max=1 << 30, cpu_weight=50))
    assert found == (
        "cannot write memory.max: Is a directory",
        "cannot write cpu.weight: no such file here, as its controller is not on",
    )


def test_the_brake_comes_off_and_tells_what_it_was(group: Path) -> None:
    (group / "memory.high").write_text("209715200")
    assert lift_high(str(group)) == "209715200"
    assert held(group, "memory.high").startswith("max")
    (group / "memory.high").write_text("max\n")
    assert lift_high(str(group)) == ""
    (group / "memory.high").unlink()
    assert lift_high(str(group)) == ""


def test_only_a_frozen_group_is_thawed(group: Path) -> None:
    (group / "cgroup.freeze").write_text("1")
    thaw(str(group))
    assert held(group, "cgroup.freeze") == "0"
    (group / "cgroup.freeze").unlink()
    thaw(str(group))
    assert not (group / "cgroup.freeze").exists()


def test_a_value_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    assert write_value(str(tmp_path / "missing"), "1") == "no such file here, as its controller is not on"


def test_a_limit_is_not_put_below_what_is_used(group: Path) -> None:
    """The kernel would reclaim in the writer's thread, or kill."""
    (group / "memory.current").write_text(f"{500 << 20}\n")
    (group / "memory.max").write_text("max\n")
    (found,) = write_fences(str(group), Fences(max=400 << 20))
    assert found == f"memory.max is left as it is: {500 << 20} bytes are in use, more than {400 << 20}"
    assert held(group, "memory.max") == "max"


def test_what_is_no_longer_wanted_is_taken_off_a_group_of_ours(group: Path) -> None:
    for name in ("memory.high", "memory.max"):
        (group / name).write_text("99999744")
    assert write_fences(str(group), Fences(), ours=True) == ()
    assert [held(group, name)[:3] for name in ("memory.high", "memory.max")] == ["max", "max"]
    (group / "memory.high").write_text("99999744")
    assert write_fences(str(group), Fences()) == ()
    assert held(group, "memory.high") == "99999744"
