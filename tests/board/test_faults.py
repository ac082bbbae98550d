"""Faults on a booted board, which is started once; each test looks at one of them. docs/reliability.md has them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from board.harness import ROOT, Board
from board.test_attach import engines

Found = dict[str, dict[str, Any]]
#: The stop rule's 2 s, and a fake engine's start on a slow board.
RESET_S = 4.0


@pytest.fixture(scope="module", name="found")
def found_fixture(uml: Path, image: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    directory = tmp_path_factory.mktemp("faults")
    board = Board(image, uml, wheel=wheel, directory=directory)
    files: dict[str, str | Path] = {"engines.tar": engines(directory)}
    faults: Found = board.run("faults.py", ram="1G", timeout=400, files=files).checked().json("faults")
    return faults


def seen(found: Found, name: str, *, same_worker: bool) -> dict[str, Any]:
    """What was seen of the fault ``name``: both requests answered, by the same guard."""
    fault = found[name]
    assert (fault["status"], fault["again"]) == (200, 200), fault
    assert fault["same_guard"], fault
    assert fault["same_worker"] is same_worker, fault
    assert fault["level"] == "normal"
    return fault


def test_worker_killed(found: Found) -> None:
    assert seen(found, "worker killed", same_worker=False)["took_s"] < RESET_S


def test_gateway_killed(found: Found) -> None:
    assert seen(found, "gateway killed", same_worker=True)["took_s"] < RESET_S


def test_worker_frozen(found: Found) -> None:
    fault = seen(found, "worker frozen", same_worker=False)
    assert "the worker's cgroup is frozen" in fault["said"]
    assert "it does not answer" in fault["said"]
    assert fault["took_s"] < 25


@pytest.mark.parametrize("way", ["ahead", "back"])
def test_clock_stepped_by_a_day(found: Found, way: str) -> None:
    assert seen(found, f"clock a day {way}", same_worker=True)["took_s"] < RESET_S


def test_job_of_the_board_started_again(found: Found) -> None:
    told = seen(found, "board's job started again", same_worker=True)["told"]
    assert told["after_s"] <= 10
    assert (told["worker"], told["guard"], told["gateway"]) == (800, -900, -500)


def test_term_ignored(found: Found) -> None:
    assert seen(found, "TERM ignored", same_worker=False)["took_s"] < RESET_S


def test_zombie_leader(found: Found) -> None:
    fault = seen(found, "zombie leader", same_worker=False)
    assert fault["anon_mib"] >= 60
    assert fault["took_s"] < RESET_S + 2


def test_run_directory_full(found: Found) -> None:
    assert seen(found, "run directory full", same_worker=False)["took_s"] < RESET_S


def test_journald_stopped(found: Found) -> None:
    assert seen(found, "journald stopped", same_worker=False)["took_s"] < RESET_S


def test_cgroup_removed_and_made_again(found: Found) -> None:
    fault = seen(found, "cgroup removed and made again", same_worker=False)
    assert "found worker" in fault["said"]


def test_worker_of_another_user(found: Found) -> None:
    fault = found["another user's worker"]
    assert (fault["state"], fault["alive"]) == ("ready", True)
    assert fault["said"].count("the kill is not armed") == 1


def test_the_page_names_tests_that_exist() -> None:
    """docs/reliability.md says what happens in each fault; each row ends with the test that shows it."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", page)
    assert len(named) >= 20
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"
    here = re.findall(r"(?m)^def (test_\w+)\(found", Path(__file__).read_text())
    assert {name for path, name in named if path == "tests/board/test_faults.py"} == set(here)
