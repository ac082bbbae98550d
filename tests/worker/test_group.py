"""A worker's own cgroup: where one may be made, and that dead guards' groups are swept. Plain directories stand in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.worker.group import make_group, may_make_groups, sweep


def test_delegated_or_top(tmp_path: Path) -> None:
    service = tmp_path / "system.slice" / "x.service"
    service.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    (service.parent / "cgroup.controllers").write_text("memory\n")
    assert not may_make_groups(str(service))
    try:
        os.setxattr(service, "user.delegate", b"1")
    except OSError:
        pytest.skip("no extended attributes here")
    assert may_make_groups(str(service))
    os.setxattr(service, "user.delegate", b"0")
    assert not may_make_groups(str(service))


def test_the_top_belongs_to_systemd_where_it_runs(tmp_path: Path) -> None:
    assert may_make_groups(str(tmp_path)) is not os.path.isdir("/run/systemd/system")


def test_a_group_is_new_or_none(tmp_path: Path) -> None:
    made = make_group(str(tmp_path), "tidegate-worker-1-1")
    assert os.path.isdir(made)
    assert make_group(str(tmp_path), "tidegate-worker-1-1") == made
    (Path(made) / "member").mkdir()
    assert make_group(str(tmp_path), "tidegate-worker-1-1") == ""
    assert make_group(str(tmp_path / "missing"), "a") == ""


def test_only_what_dead_guards_left_is_swept(tmp_path: Path) -> None:
    dead = 1 << 22  # the highest pid of Linux, plus one
    names = [f"tidegate-worker-{dead}-1", f"tidegate-probe-{dead}", f"tidegate-worker-{os.getpid()}-1", "user.slice"]
    names += ["tidegate", "tidegate-worker", "tidegate-worker-x-1"]
    for name in names:
        (tmp_path / name).mkdir()
    full = tmp_path / f"tidegate-worker-{dead}-2"
    (full / "member").mkdir(parents=True)
    sweep(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[2:], full.name])
    sweep(str(tmp_path / "missing"))
