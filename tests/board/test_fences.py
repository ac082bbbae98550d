"""The kernel's side of a worker: fences that hold behind ours, growth met in time, a livelock seen and ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from board.harness import Board
from board.test_attach import engines

#: Runs at each rate of growth in MiB/s; the first row is what every check runs.
FEW = (("300", 4), ("60", 2))
MANY = (("300", 20), ("60", 5))


@pytest.mark.parametrize(
    ("rate", "runs"), [*FEW, *(pytest.param(*each, marks=pytest.mark.slow, id=f"{each[0]}-{each[1]}") for each in MANY)]
)
def test_growth_is_met_before_the_fence(board: Board, tmp_path: Path, rate: str, runs: int) -> None:
    files: dict[str, str | Path] = {"engines.tar": engines(tmp_path)}
    result = board.run("fenced_growth.py", rate, str(runs), ram="1G", timeout=120 + 30 * runs, files=files).checked()
    found = result.json("fenced_growth")
    assert found["oom_kills"] == 0
    assert len(found["runs"]) == runs
    for run in found["runs"]:
        # What each group counts is told to those above it, and outlives it there.
        assert (run["events"]["max"], run["events"]["oom_kill"]) == (0, 0), run
        assert run["lead_s"] is not None, run
        assert run["lead_s"] >= (1.2 if rate == "60" else 0.0), run
        assert run["fence"] == {
            "memory.max": str(700 << 20),
            "memory.high": "max",
            "memory.swap.max": "0",
            "memory.oom.group": "1",
            "cpu.weight": "50",
        }
        assert run["guard_group"] == "0::/system.slice/tidegate.service/guard"
        # The budget is 16, and three for the worker's group.
        assert run["guard_fds"] <= 19
        assert run["guard_rss"] <= 16 << 20
    leads = sorted(run["lead_s"] for run in found["runs"])
    print(
        f"\n{rate} MiB/s: first action before memory.max {len(leads)} of {runs}; ahead of the kernel's kill "
        f"{leads[0]:.2f} to {leads[-1]:.2f} s (alone it comes {found['kernel_s']:.2f} s after growth begins)"
    )


def test_a_livelock_is_seen_and_ended(board: Board, tmp_path: Path) -> None:
    files: dict[str, str | Path] = {"engines.tar": engines(tmp_path)}
    found = board.run("livelock.py", ram="1G", timeout=300, files=files).checked().json("livelock")
    guarded, alone = found["guarded"], found["alone"]
    assert guarded["diagnosis"] == ["livelock"]
    assert guarded["recognised_after_s"] <= 5
    assert guarded["status"] == 200
    assert alone["alive"]
    assert alone["stalled_share"] > 0.9
    assert alone["events"]["oom_kill"] == 0
    print(
        f"\nseen {guarded['recognised_after_s']:.1f} s after it began, a new worker ready after "
        f"{guarded['cured_after_s']:.1f} s; alone stalled {alone['stalled_share']:.0%} of 60 s"
    )
