"""The recorded board trees below cases/boards, and what is right for each (its expected.json, see the README there)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

_BOARDS = os.path.join(os.path.dirname(__file__), "cases", "boards")


@dataclass(frozen=True)
class Board:
    """One tree: ``root`` stands in for "/"; sizes of the expectation are kB."""

    name: str
    root: str
    mem_total_kb: int
    mem_available_kb: int | None
    mem_available_source: str
    swap_total_kb: int
    swap_free_kb: int
    cgroup: str
    memory_controller: bool
    psi: bool
    headroom_kb_min: int
    headroom_kb_max: int


def board(name: str) -> Board:
    root = os.path.join(_BOARDS, name)
    with open(os.path.join(root, "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)
    texts = ("must_mention", "must_not_mention")
    return Board(name, root, **{key: value for key, value in expected.items() if key not in texts})


NAMES = sorted(entry for entry in os.listdir(_BOARDS) if os.path.isdir(os.path.join(_BOARDS, entry)))
