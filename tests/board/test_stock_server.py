"""A stock llama-server that fills the board: with tidegate nobody is killed by the kernel, and no request is lost.

Beside its rivals, in one run: ``scripts/bench rivals``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from board.harness import Board
from board.stock_server import run, tar_of_llama_server
from real_engine import NotBuiltError, real_engine


@pytest.fixture(scope="session", name="llama_server")
def llama_server_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built llama-server as a tar file."""
    try:
        (binary,) = real_engine("llama-server").command
    except NotBuiltError as error:
        pytest.skip(f"no llama-server: {error}")
    return tar_of_llama_server(Path(binary), tmp_path_factory.mktemp("llama"))


@pytest.mark.slow
@pytest.mark.parametrize(("who", "most_failed"), [("tidegate guard", 3), ("tidegate up", 0)])
def test_a_stock_server_is_kept_from_taking_the_board_down(
    board: Board, llama_server: Path, who: str, most_failed: int
) -> None:
    found = run(board, llama_server, who)
    print(f"\n{found.line()}")
    assert found.oom_kills == 0
    assert found.heartbeat_late_s <= 0.5
    assert len(found.failures) <= most_failed, found.failures
