"""Other guards on the same board: for one shortage there is one kill."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from board.harness import Board
from board.test_attach import engines


def check(board: Board, directory: Path, *, timeout: float) -> None:
    files: dict[str, str | Path] = {"engines.tar": engines(directory)}
    found = board.run("beside_rivals.py", ram="1G", timeout=timeout, files=files).checked().json("beside_rivals")
    assert {each["id"] for each in found["doctor"]} == {"rivals.earlyoom", "rivals.systemd-oomd"}
    assert any("first" in each["summary"] for each in found["doctor"]), found["doctor"]
    for episode in found["episodes"]:
        assert len(episode["ends"]) == 1, episode
        foreign = episode["by_earlyoom"] + episode["by_oomd"] + episode["by_kernel"]
        ours = episode["ends"][0].startswith("step ")
        assert foreign == (0 if ours else 1), episode
        assert episode["bystander_alive"], episode
        who = "tidegate" if ours else "earlyoom" if episode["by_earlyoom"] else "systemd-oomd"
        print(f"\n{episode['rate_mib_s']} MiB/s: one kill, by {who}")
    print("".join(f"\ndoctor: {each['summary']}" for each in found["doctor"]))


def test_one_kill_for_one_shortage(board: Board, tmp_path: Path) -> None:
    check(board, tmp_path, timeout=300)


@pytest.mark.slow
def test_one_kill_for_one_shortage_on_the_stock_kernel(qemu_board: Board, tmp_path: Path) -> None:
    if not shutil.which("qemu-system-x86_64"):
        pytest.skip("no virtual board: qemu-system-x86_64 is not installed")
    check(qemu_board, tmp_path, timeout=900)
