"""A tree, and the command with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from setup.trees import make_tree
from tidegate.cli.main import run

Setup = Callable[..., int]


@pytest.fixture(name="tree")
def tree_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A board's tree; the environment has no settings."""
    for name in list(os.environ):
        if name.startswith("TIDEGATE_"):
            monkeypatch.delenv(name)
    return make_tree(tmp_path / "board")


@pytest.fixture(name="setup")
def setup_fixture(tree: Path) -> Setup:
    """``tidegate setup`` in the tree, with further flags."""

    def setup(*flags: str) -> int:
        return run(["setup", "--root", str(tree), "--program", "/opt/tidegate/bin/tidegate", *flags])

    return setup
