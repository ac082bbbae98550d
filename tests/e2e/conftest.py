"""Fixtures: the whole of tidegate with a real engine and the real demo model."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from real_engine import ENGINES, NotBuiltError, RealEngine, real_engine
from running import Running
from tidegate.cli.demo_model import demo_model_path, is_present

Up = Callable[..., "Door"]
#: Marks a test that must hold with llama-server's own binary too.
both_engines = pytest.mark.parametrize("engine", ENGINES, indirect=True)
#: The same for one that takes minutes: what differs between the two is short of it.
both_engines_slowly = pytest.mark.parametrize(
    "engine", ["xllamacpp", pytest.param("llama-server", marks=pytest.mark.slow)], indirect=True
)


class Door(Running):
    """``tidegate up`` on a port of its own."""

    @property
    def url(self) -> str:
        self.wait_log(r"listening on http://127\.0\.0\.1:\d+")
        return self.log.partition("listening on ")[2].split()[0]


@pytest.fixture(scope="session", name="model")
def model_fixture() -> str:
    """Path of the demo model; `tidegate model` gets it, and the test scripts run that first."""
    path = demo_model_path(os.environ)
    assert is_present(path), "the demo model is not there: run tidegate model"
    return path


@pytest.fixture(name="engine")
def engine_fixture(request: pytest.FixtureRequest) -> RealEngine:
    """The engine behind :func:`up_fixture`: xllamacpp, or what :data:`both_engines` asks for."""
    try:
        return real_engine(getattr(request, "param", "xllamacpp"))
    except NotBuiltError as error:
        pytest.skip(str(error))


@pytest.fixture(name="up")
def up_fixture(model: str, engine: RealEngine) -> Iterator[Up]:
    """``up(config, *arguments)`` runs `tidegate up` with a real engine."""
    yield from _ups(engine)


@pytest.fixture(name="module_up", scope="module")
def module_up_fixture(model: str) -> Iterator[Up]:
    """The same with xllamacpp, for all tests of a module."""
    yield from _ups(real_engine("xllamacpp"))


def _ups(engine: RealEngine) -> Iterator[Up]:
    started: list[Door] = []
    directories: list[Path] = []

    def up(config: str, *arguments: str) -> Door:
        directory = Path(tempfile.mkdtemp(prefix="tg"))
        directories.append(directory)
        door = Door(directory, config, "--listen", "127.0.0.1:0", *arguments, kind="up", env=engine.environment)
        started.append(door)
        return door

    yield up
    for door in started:
        door.stop()
    for directory in directories:
        shutil.rmtree(directory)
