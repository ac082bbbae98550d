"""The scenario stock_server.py and its result, for the test and for the benchmark beside the rivals."""

from __future__ import annotations

import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from board.harness import Board

#: A board has memory to fill within 24 conversations, and no swap.
RAM = "640M"


@dataclass(frozen=True)
class StockServer:
    """What a run left; ``failures`` are the conversations that got no answer."""

    who: str
    failures: list[dict[str, Any]]
    oom_kills: int
    restarts: int
    heartbeat_late_s: float
    took_s: float
    least_available_mib: float

    def line(self) -> str:
        """One line for a reader."""
        return (
            f"{self.who:15} {len(self.failures)} of 24 failed, {self.oom_kills} killed by the kernel, "
            f"heartbeat at most {self.heartbeat_late_s:.2f} s late, "
            f"least available {self.least_available_mib:.0f} MiB, {self.took_s:.0f} s"
        )


def run(board: Board, llama_server: Path, who: str) -> StockServer:
    """The scenario with the guard ``who``; ``llama_server`` is a tar file of its directory."""
    files: dict[str, str | Path] = {"llama-server.tar": llama_server}
    result = board.run("stock_server.py", who, ram=RAM, timeout=900, files=files).checked()
    return StockServer(**result.json("stock_server"))


def tar_of_llama_server(binary: Path, directory: Path) -> Path:
    """A tar file below ``directory`` of ``binary`` and the libraries beside it."""
    path = directory / "llama-server.tar"
    with tarfile.open(path, "w") as tar:
        for name in sorted(os.listdir(binary.parent)):
            if name == binary.name or ".so" in name:
                tar.add(binary.parent / name, name)
    return path
