"""A stock llama-server under systemd that fills a board of 640 MB: with no guard, with each rival, with tidegate.

    scripts/bench rivals [WHO ...]

On the virtual board (docs/board.md), in one run, each on a freshly booted board: 24 conversations of about 800 prompt
tokens, one after the other; a client that fails waits half a second. The rivals have the settings that their own
documentation gives for the line of 91 % in use.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from board.harness import Board, built, wheel_of_checkout
from board.stock_server import run, tar_of_llama_server
from real_engine import real_engine

RIVALS = ("none", "memory.max", "earlyoom", "nohang", "systemd-oomd")
OURS = ("tidegate guard", "tidegate up")


def main(wanted: list[str]) -> int:
    """Measure and print; 1 if the guard lost more requests than the best rival, or the gateway any."""
    image, uml = built("image", sys.stderr), built("uml", sys.stderr)
    (binary,) = real_engine("llama-server").command
    found = {}
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        directory = Path(name)
        board = Board(image, uml, wheel=wheel_of_checkout(directory), directory=directory)
        tar = tar_of_llama_server(Path(binary), directory)
        for who in wanted or (*RIVALS, *OURS):
            found[who] = run(board, tar, who)
            print(found[who].line(), flush=True)
    rivals = [len(found[who].failures) for who in RIVALS if who in found]
    worse = "tidegate guard" in found and rivals and len(found["tidegate guard"].failures) > min(rivals)
    lost = "tidegate up" in found and found["tidegate up"].failures
    return 1 if worse or lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
