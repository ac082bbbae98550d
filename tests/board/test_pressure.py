"""Time that a reset costs and what a hot neighbour does, on the board."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from board.harness import ROOT, Board
from board.stock_server import tar_of_llama_server
from board.test_attach import engines
from real_engine import real_engine

#: The longest that the stop rule gives between TERM and KILL.
STOP_RULE_S = 2.0


def test_a_reset_costs_what_a_bare_restart_costs(board: Board, tmp_path: Path) -> None:
    (binary,) = real_engine("llama-server").command
    files: dict[str, str | Path] = {"llama-server.tar": tar_of_llama_server(Path(binary), tmp_path)}
    found = board.run("reset_time.py", ram="1G", timeout=400, files=files).checked().json("reset_time")
    bare = statistics.median(found["bare"])
    own = [run["token_s"] for run in found["own"]]
    attached = [run["token_s"] for run in found["attached"]]
    assert len(own) == len(attached) == len(found["bare"]) == 10
    assert max(own) <= 4
    assert statistics.median(own) <= 1.5 * bare + STOP_RULE_S
    assert max(attached) <= 4
    print(
        f"\nTERM to next token: ours {statistics.median(own):.2f} s median of 10, {max(own):.2f} most; restarted by "
        f"systemctl {statistics.median(attached):.2f} and {max(attached):.2f}; a bare restart takes {bare:.2f}"
    )


@pytest.mark.parametrize(
    "arguments", [("0.82", "0.91", "310", "310"), ("0.93", "0.985", "360", "270")], ids=["as_they_are", "very_high"]
)
def test_weights_that_no_longer_fit_are_cured_by_a_smaller_profile(
    board: Board, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """With the lines at their places, and with lines so high that pages are dropped and read again before them."""
    files: dict[str, str | Path] = {
        "engines.tar": engines(tmp_path),
        "gguf_builder.py": ROOT / "tests" / "gguf_builder.py",
    }
    found = board.run("thrash.py", *arguments, ram="640M", timeout=300, files=files).checked().json("thrash")
    assert found["step"] is not None, (found["levels"], found["after"])
    assert found["halved_for_s"] < 5
    assert found["last"] >= found["usual"] / 2
    assert found["failures"] == []
    print(
        f"\n{found['usual']:.0f} tokens/s, below half of it for at most {found['halved_for_s']:.1f} s on end; "
        f"{found['step']}; then {found['last']:.0f} tokens/s"
    )
