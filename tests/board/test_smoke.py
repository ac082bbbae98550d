"""The virtual board is what the scenarios take it for, and tidegate runs on it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import tidegate
from board.harness import MIB, TIMED_OUT, WENT_DOWN, Board


def check_boots(found: dict[str, Any], *, cpus: int, ram_mib: int) -> None:
    assert found["system"] == "running", found["failed"]
    assert found["active_rivals"] == []
    assert found["cpus"] == cpus
    assert ram_mib * 0.8 < found["memory_kb"] / 1024 <= ram_mib
    assert found["swap_kb"] == 0
    assert "memory" in found["controllers"]
    assert {"memory", "pids"} <= set(found["own_controllers"])
    assert found["oom_score_adj"] == 0
    assert (found["links_up"], found["routes"]) == (["lo:"], "")


def test_boots(board: Board) -> None:
    result = board.run("boots.py", ram="640M", timeout=120).checked()
    check_boots(result.json("boots"), cpus=1, ram_mib=640)
    print(f"\numl {result.json('boots')['release']}: boot, wheel and an empty scenario {result.took_s:.1f} s")


def test_boots_the_stock_kernel(qemu_board: Board) -> None:
    if not shutil.which("qemu-system-x86_64"):
        pytest.skip("no virtual board: qemu-system-x86_64 is not installed")
    result = qemu_board.run("boots.py", ram="1G", timeout=300).checked()
    check_boots(result.json("boots"), cpus=2, ram_mib=1024)
    print(f"\nqemu {result.json('boots')['release']}: boot, wheel and an empty scenario {result.took_s:.1f} s")


def test_what_a_guard_needs_of_the_kernel_works(board: Board) -> None:
    found = board.run("kernel_side.py", timeout=120).checked().json("kernel_side")
    assert found["lowest_adj"] == -900
    assert re.match(r"some avg10=\S+ .*\nfull avg10=", found["psi"])
    assert found["high_events"] > 0
    assert 0 < found["event_after_s"] < 10


def test_a_breach_of_memory_max_is_counted_where_it_happened(board: Board) -> None:
    found = board.run("memory_max.py", timeout=120).checked().json("memory_max")
    assert found["code"] == -9
    assert found["events"]["max"] > 0
    assert found["events"]["oom_kill"] == 1
    assert found["peak"] <= 64 * MIB
    assert found["bystander"]["alive"]
    assert found["bystander"]["events"]["oom_kill"] == 0


def test_tidegate_answers_and_stops_cleanly(board: Board) -> None:
    found = board.run("first_answer.py", ram="640M", timeout=300).checked().json("first_answer")
    assert found["version"].endswith(tidegate.__version__)
    assert found["status"] == 200
    assert found["text"].strip()
    assert found["headers"]["x-tidegate-level"] == "normal"
    assert found["guard_is_what_was_started"]
    assert found["guard_rss"] <= 16 * MIB
    assert found["guard_adj"] == -900
    assert found["worker_adj"] == 800
    assert found["code"] == 0
    assert not found["worker_left"]
    print(f"\nready after {found['ready_s']:.1f} s, guard {found['guard_rss'] / MIB:.1f} MiB")


def script(directory: Path, text: str) -> Path:
    path = directory / "scenario.sh"
    path.write_text(text)
    return path


def test_files_and_arguments_reach_the_board_and_results_come_back(board: Board, tmp_path: Path) -> None:
    local = tmp_path / "local.bin"
    local.write_bytes(bytes(range(256)))
    text = 'cat /payload/files/a.txt; printf "%s." "$@"; cp /payload/files/local.bin /out/; exit 7\n'
    files: dict[str, str | Path] = {"a.txt": "hello\n", "local.bin": local}
    result = board.run(script(tmp_path, text), "one word", "it's", timeout=60, files=files)
    assert (result.code, result.console) == (7, "hello\none word.it's.")
    assert (result.out / "local.bin").read_bytes() == local.read_bytes()


def test_an_earlier_run_is_not_taken_for_this_one(board: Board, tmp_path: Path) -> None:
    path = script(tmp_path, 'echo "$1" >/out/said\n')
    first, second = board.run(path, "one", timeout=60), board.run(path, "two", timeout=60)
    assert [(run.out / "said").read_text() for run in (first, second)] == ["one\n", "two\n"]


def test_a_board_that_hangs_is_ended(board: Board, tmp_path: Path) -> None:
    result = board.run(script(tmp_path, "sleep 1000\n"), timeout=15)
    assert result.code == TIMED_OUT
    assert result.took_s < 30


def test_a_panic_is_told_from_a_result(board: Board, tmp_path: Path) -> None:
    result = board.run(script(tmp_path, "echo c >/proc/sysrq-trigger; sleep 1000\n"), timeout=60)
    assert result.code == WENT_DOWN
    assert "panic" in result.kernel_log.lower()
