"""systemd's unit files: how they are read, and which of them are traps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from doctor.trees import found, quiet, write
from tidegate.doctor.finding import Severity
from tidegate.host.unit_files import parse_unit, read_units

GOOD = """[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/bin/llama-server -m /m.gguf
Restart=always
RestartSec=2
"""
UNIT = "/etc/systemd/system/llama.service"


def test_a_good_unit_has_no_findings(tmp_path: Path) -> None:
    assert found(quiet(tmp_path, {UNIT: GOOD})) == {}


@pytest.mark.parametrize(
    ("old", "new", "wanted", "words"),
    [
        ("Restart=always\n", "", "units.restart", ["Restart=no", "Restart=always"]),
        ("Restart=always", "Restart=on-success", "units.restart", ["Restart=on-success"]),
        ("StartLimitIntervalSec=0", "", "units.start_limit", []),
        ("StartLimitIntervalSec=0", "StartLimitIntervalSec=1min", "units.start_limit", ["60 s"]),
        ("RestartSec=2", "RestartSec=2\nOOMPolicy=continue", "units.oom_policy", ["OOMPolicy=kill"]),
        ("RestartSec=2", "RestartSec=2\nMemoryHigh=300M\nMemoryMax=1G", "units.high_far_under_max", ["memory.high"]),
        ("RestartSec=2", "RestartSec=2\nMemoryHigh=50%", "units.high_far_under_max", ["3.8 GiB", "no MemoryMax="]),
    ],
)
def test_a_trap_is_found(tmp_path: Path, old: str, new: str, wanted: str, words: list[str]) -> None:
    text = GOOD.replace(old, new)
    if wanted == "units.start_limit":
        # Ten seconds are enough for five starts 2 s apart.
        text = text.replace("RestartSec=2\n", "")
    finding = found(quiet(tmp_path, {UNIT: text}))[wanted]
    assert finding.severity is Severity.WARNING
    assert [word for word in words if word not in f"{finding.summary} {finding.evidence} {finding.fix}"] == []
    assert UNIT in finding.evidence


@pytest.mark.parametrize(
    "line", ["MemoryHigh=900M\nMemoryMax=1G", "MemoryMax=1G", "MemoryHigh=infinity", "MemoryMax=x"]
)
def test_limits_close_together_are_fine(tmp_path: Path, line: str) -> None:
    assert found(quiet(tmp_path, {UNIT: f"{GOOD}{line}\n"})) == {}


def test_five_starts_two_seconds_apart_do_not_meet_the_limit(tmp_path: Path) -> None:
    assert found(quiet(tmp_path, {UNIT: GOOD.replace("StartLimitIntervalSec=0", "")})) == {}


def test_limits_without_a_controller_are_ignored_and_that_is_said(tmp_path: Path) -> None:
    root = quiet(tmp_path, {UNIT: GOOD + "MemoryMax=1G\n", "/sys/fs/cgroup/cgroup.controllers": "cpu\n"})
    for path in (root / "sys/fs/cgroup/system.slice/llama.service").iterdir():
        path.unlink()
    assert "MemoryMax=1G" in found(root)["units.ignored"].evidence


def test_a_packages_unit_counts_only_when_it_is_wanted(tmp_path: Path) -> None:
    bad = GOOD.replace("Restart=always", "Restart=no")
    root = quiet(tmp_path, {"/usr/lib/systemd/system/llama.service": bad})
    assert found(root) == {}
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    os.symlink("/usr/lib/systemd/system/llama.service", wants / "llama.service")
    assert "units.restart" in found(root)


def test_drop_ins_and_masks(tmp_path: Path) -> None:
    bad = GOOD.replace("Restart=always", "Restart=no")
    dropin = "/etc/systemd/system/llama.service.d/9.conf"
    files: dict[str, str | bytes] = {UNIT: bad, dropin: "[Service]\nRestart=on-failure\n"}
    assert found(quiet(tmp_path / "dropin", files)) == {}
    root = quiet(tmp_path / "mask", {"/usr/lib/systemd/system/llama.service": bad})
    (root / "etc/systemd/system").mkdir(parents=True)
    os.symlink("/dev/null", root / UNIT.lstrip("/"))
    assert found(root) == {}


def test_a_protected_unit_in_a_protected_slice_is_fine(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "/etc/systemd/system/camera.service": "[Service]\nMemoryMin=1G\n",
        "/etc/systemd/system/system.slice.d/60-tidegate.conf": "[Slice]\nMemoryMin=1G\n",
    }
    assert found(quiet(tmp_path, files)) == {}


@pytest.mark.parametrize("control", ["/etc/systemd/system.control", "/run/systemd/system.control"])
def test_what_set_property_wrote_is_read(tmp_path: Path, control: str) -> None:
    files: dict[str, str | bytes] = {
        "/usr/lib/systemd/system/camera.service": "[Service]\nExecStart=/bin/camera\n",
        f"{control}/camera.service.d/50-MemoryMin.conf": "[Service]\nMemoryMin=1G\n",
    }
    finding = found(quiet(tmp_path, files))["protection.slice"]
    assert f"{control}/camera.service.d/50-MemoryMin.conf: MemoryMin=1G" in finding.evidence
    files[f"{control}/system.slice.d/50-MemoryMin.conf"] = "[Slice]\nMemoryMin=1G\n"
    assert found(quiet(tmp_path, files)) == {}


def test_of_one_name_what_set_property_wrote_counts(tmp_path: Path) -> None:
    places = [f"/{place}/systemd/system" for place in ("usr/lib", "run", "etc")]
    places += [f"/{place}/systemd/system.control" for place in ("run", "etc")]
    for place in places:
        write(tmp_path, {f"{place}/a.service.d/50-MemoryMin.conf": f"[Service]\nMemoryMin={place}\n"})
        (unit,) = read_units(str(tmp_path))
        assert unit.all("Service.MemoryMin") == (place,)


def test_unit_files_are_read_as_systemd_reads_them(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "/usr/lib/systemd/system/a@.service": "[Service]\nExecStart=/old\nEnvironment=A=1\n",
            "/etc/systemd/system/multi-user.target.wants/a@x.service": "",
            "/etc/systemd/system/a@x.service.d/1.conf": "[Service]\nExecStart=\n"
            "ExecStart=/new \\\n  --flag\n# no\n;no\n",
            "/run/systemd/system/a@x.service.d/1.conf": "[Service]\nExecStart=/never\n",
            "/run/systemd/system/a@x.service.d/2.conf": "[Service]\nEnvironment=B=2\n",
        },
    )
    unit = next(unit for unit in read_units(str(tmp_path)) if unit.name == "a@x.service")
    assert unit.enabled
    assert unit.all("Service.ExecStart") == ("/new --flag",)
    assert unit.all("Service.Environment") == ("A=1", "B=2")
    assert unit.last("Service.Restart") is None
    assert unit.files[0] == "/usr/lib/systemd/system/a@.service"


def test_what_is_no_assignment_is_skipped() -> None:
    assert parse_unit(b"Key=before\n[S]\njunk\n=\nA = 1 = 2\n\xff=\xfe\n") == [
        ("S.", ""),
        ("S.A", "1 = 2"),
        ("S.\ufffd", "\ufffd"),
    ]
