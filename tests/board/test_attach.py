"""Attached to systemd units on a real systemd."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

from board.harness import ROOT, Board


def engines(directory: Path) -> Path:
    """tests/engines as a tar file."""
    path = directory / "engines.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(
            ROOT / "tests" / "engines",
            "engines",
            filter=lambda member: None if "__pycache__" in member.name else member,
        )
    return path


def count(text: str, words: str) -> int:
    return sum(words in line for line in text.splitlines())


def test_units_are_found_ended_and_found_again(board: Board, tmp_path: Path) -> None:
    files: dict[str, str | Path] = {"engines.tar": engines(tmp_path)}
    found = board.run("attach_unit.py", ram="640M", timeout=300, files=files).checked().json("attach_unit")
    said = found["said"]
    assert "it is inactive (disabled) now" in said
    # A unit whose limits were set by its manager keeps its empty cgroup for a while.
    assert len(re.findall(r"waiting for unit \S+: (it is not running|there is no process in its cgroup)", said)) == 2
    for when in ("disabled", "started_again"):
        assert found[when]["pid"] == found[when]["main_pid"]
    assert found["reset"]["code"] == 0, found["reset"]
    assert found["reset"]["took_s"] < 4
    assert len(set(found["always"]["pids"])) == 3
    assert found["always"]["main_pid"] == found["always"]["pids"][-1]
    assert count(said, "found worker") == 4
    assert (found["code"], found["left_running"]) == (0, True)
    # After two restarts and a reload of its manager; what was not asked for is as it was.
    assert found["fence"].pop("memory.max") == str(500 << 20)
    assert found["fence"].pop("memory.oom.group") == "1"
    assert set(found["fence"].values()) <= {"max", "100"}

    policies = found["policies"]
    # systemd takes an exit on SIGTERM for a wish, so SIGKILL it is.
    killed = policies["on-failure 100ms"]
    assert (killed["code"], killed["replaced"]) == (0, True), killed
    assert "systemd starts it again after SIGKILL" in killed["said"]
    # TERM is ignored: 0.3 s, then SIGKILL; and RestartSec=5 is not waited for.
    hurried = policies["always 5s"]
    assert (hurried["code"], hurried["replaced"]) == (0, True), hurried
    assert "running systemctl restart --no-block llama.service" in hurried["said"]
    assert 0.3 <= hurried["took_s"] < 4
    unarmed = policies["no 100ms"]
    assert (unarmed["code"], unarmed["replaced"]) == (1, False), unarmed
    assert "the kill is not armed" in unarmed["said"]
    print(f"\na reset took {found['reset']['took_s']:.2f} s, with TERM ignored {hurried['took_s']:.2f} s")
