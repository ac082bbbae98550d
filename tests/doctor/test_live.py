"""``--live``: what is judged from the proofs, the throw-away unit, and what is tried here. The rest is on the board."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from doctor.trees import process, quiet, write
from tidegate.cli.main import run
from tidegate.doctor import live, live_proofs, live_unit
from tidegate.doctor.finding import Severity
from tidegate.doctor.live import judge, parse_proofs
from tidegate.doctor.live_proofs import PROOFS, Proof, prove_all
from tidegate.doctor.live_unit import unit_text
from tidegate.errors import TidegateError
from tidegate.host.cgroup import CgroupKind, Hierarchy
from tidegate.host.unit_files import Unit, parse_unit


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """A file may have ``size`` bytes meanwhile: as on a full disk, its write fails halfway."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores SIGXFSZ, so that the write fails with EFBIG.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


ALL = tuple(Proof(name, True, "tried") for name in PROOFS)


def test_all_that_held_is_one_finding() -> None:
    (finding,) = judge(ALL, "here", "success")
    assert (finding.id, finding.severity) == ("live.proved", Severity.INFO)
    assert finding.summary.startswith(f"{len(PROOFS)} of {len(PROOFS)}")


@pytest.mark.parametrize("name", PROOFS)
def test_what_did_not_hold_is_no_protection(name: str) -> None:
    proofs = tuple(Proof(each.name, each.name != name, "refused") for each in ALL)
    findings = {finding.id: finding for finding in judge(proofs, "the unit", "success")}
    assert set(findings) == {f"live.{name}", "live.proved"}
    finding = findings[f"live.{name}"]
    assert finding.summary == f"not protected: it was not proved that {PROOFS[name]}"
    assert finding.evidence == "tried in the unit: refused"
    vital = name in ("limit", "oom_kill", "cgroup_kill", "signals")
    assert finding.severity is (Severity.CRITICAL if vital else Severity.WARNING)


@pytest.mark.parametrize("text", ["", "[", "{}x", "[1]", '[{"name": 1}]', "null", '{"name": 2}'])
def test_proofs_that_ended_early_prove_nothing(text: str) -> None:
    findings = judge(parse_proofs(text), "the unit", "signal")
    assert [finding.id for finding in findings] == [f"live.{name}" for name in PROOFS]
    assert all("SIGSYS" in finding.evidence for finding in findings)


def test_the_throw_away_unit_has_the_sandbox_and_not_the_life_of_the_installed_one() -> None:
    text = b"""[Unit]
StartLimitIntervalSec=0
[Service]
Type=notify
ExecStart=/usr/bin/tidegate up
ExecStopPost=/usr/bin/tidegate reap
Restart=always
WatchdogSec=30
RuntimeDirectory=tidegate
StateDirectory=tidegate
Delegate=yes
OOMScoreAdjust=-900
SystemCallFilter=@system-service
SystemCallFilter=process_mrelease
OOMPolicy=stop
"""
    installed = Unit("tidegate.service", tuple(parse_unit(text)), (), enabled=True)
    lines = unit_text(installed, ("/usr/bin/python3", "-m", "x", "50%"), "/run/p/out").splitlines()
    for line in ("Delegate=yes", "OOMScoreAdjust=-900", "SystemCallFilter=@system-service", "StateDirectory=tidegate"):
        assert line in lines
    assert lines.index("SystemCallFilter=@system-service") < lines.index("SystemCallFilter=process_mrelease")
    assert "OOMPolicy=continue" in lines
    assert "ExecStart=/usr/bin/python3 -m x '50%%'" in lines or "ExecStart=/usr/bin/python3 -m x 50%%" in lines
    others = ("Type=notify", "ExecStop", "Restart=", "WatchdogSec", "RuntimeDirectory", "OOMPolicy=stop", "StartLimit")
    assert not [line for line in lines if line.startswith(others)]


def test_without_an_installed_unit_it_is_delegated_and_no_more() -> None:
    assert "Delegate=yes" in unit_text(None, ("/bin/true",), "/run/out").splitlines()


def test_signals_work_here_and_every_proof_is_made() -> None:
    fds = len(os.listdir("/proc/self/fd"))
    proofs = {proof.name: proof for proof in prove_all()}
    assert list(proofs) == list(PROOFS)
    assert proofs["signals"].held
    assert all(proof.detail for proof in proofs.values())
    assert len(os.listdir("/proc/self/fd")) == fds


def group_of(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Hierarchy:
    monkeypatch.setattr(live_proofs, "find_parent", lambda _own: str(directory))
    monkeypatch.setattr(live_proofs, "_MOST_S", 0.2)
    monkeypatch.setattr(live_proofs, "enable_controllers", lambda _parent: ("memory",))
    write(directory, {f"/made/{name}": "" for name in ("memory.max", "memory.oom.group", "memory.events")})
    monkeypatch.setattr(live_proofs, "make_group", lambda parent, _name: f"{parent}/made")
    return Hierarchy(CgroupKind.V2, memory=True, mount=str(directory), group="/", unified=str(directory))


def test_no_kill_is_tried_where_it_would_panic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is no cgroup: were it tried, it would fail for another reason."""
    hierarchy = group_of(monkeypatch, tmp_path)
    root = quiet(tmp_path / "root", {"/proc/sys/vm/panic_on_oom": "2\n"})
    proofs = {proof.name: proof for proof in live_proofs._prove_group(hierarchy, str(root))}
    assert proofs["group"].held
    for name in ("limit", "oom_kill", "poll"):
        assert not proofs[name].held
        assert "panic_on_oom=2" in proofs[name].detail


def test_a_directory_that_is_no_cgroup_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hierarchy = group_of(monkeypatch, tmp_path)
    proofs = list(live_proofs._prove_group(hierarchy, str(quiet(tmp_path / "root"))))
    assert [proof.name for proof in proofs if proof.held] == ["group"]


def test_nothing_of_the_callers_directory_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live, "can_use_units", lambda: False)
    monkeypatch.setattr(live, "COMMAND", (*live_unit.COMMAND[:-1], "tidegate", "--version"))
    live.prove()
    assert not (tmp_path / "ran").exists()


def test_a_unit_that_cannot_be_written_whole_is_not_left(tmp_path: Path) -> None:
    path = tmp_path / "place" / "tidegate-proof-1.service"
    with pytest.raises(TidegateError, match="cannot write"), limited_files(16):
        live_unit._write(str(path), "[Service]\n" * 100)
    assert not path.exists()


def test_a_tree_cannot_be_proved_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = quiet(tmp_path, process(5, "x"))
    assert run(["doctor", "--live", "--sysroot", str(root)]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_the_report_has_the_proofs_in_their_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proofs = tuple(Proof(each.name, each.name != "limit", "x") for each in ALL)
    monkeypatch.setattr("tidegate.cli.doctor.prove", lambda: judge(proofs, "here", "success"))
    assert run(["doctor", "--live", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["memory", "findings"]
    ids = [finding["id"] for finding in document["findings"]]
    assert ids[0] == "live.limit"
    assert "live.proved" in ids
