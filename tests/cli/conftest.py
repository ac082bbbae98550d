"""A place of its own for every test of the command line."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import gguf_builder


@pytest.fixture(name="place")
def place_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a model, a short one and a pipe, and an environment of its own. Its name is short."""
    place = Path(tempfile.mkdtemp(prefix="tg"))
    whole = gguf_builder.gguf(gguf_builder.llama())
    (place / "model.gguf").write_bytes(whole)
    (place / "short.gguf").write_bytes(whole[:100])
    os.mkfifo(place / "pipe")
    for name in list(os.environ):
        if name.startswith("TIDEGATE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(place / "run"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    yield place
    shutil.rmtree(place)
