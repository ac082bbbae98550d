"""Fixtures of the virtual board. Where it cannot be built, its tests are skipped, each with the reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from board.harness import Board, NotBuiltError, built, wheel_of_checkout

HERE = Path(__file__).parent
BOARDS = {"board", "qemu_board", "uml"}
#: A part that is not in the cache yet takes minutes, and a run has a time-out of its own.
MOST_S = 1800


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and BOARDS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.board)
            item.add_marker(pytest.mark.timeout(MOST_S))


def _built(part: str, request: pytest.FixtureRequest) -> Path:
    # What the recipes say must be seen while it happens: silence for minutes looks like a hang.
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        try:
            return built(part, sys.stderr)
        except NotBuiltError as error:
            pytest.skip(f"no virtual board: {error}")


@pytest.fixture(scope="session", name="image")
def image_fixture(request: pytest.FixtureRequest) -> Path:
    """The board's disk."""
    return _built("image", request)


@pytest.fixture(scope="session", name="uml")
def uml_fixture(request: pytest.FixtureRequest) -> Path:
    """The User-Mode Linux kernel."""
    return _built("uml", request)


@pytest.fixture(scope="session", name="base")
def base_fixture(request: pytest.FixtureRequest) -> Path:
    """Debian's stock kernel."""
    return _built("base", request)


@pytest.fixture(scope="session", name="wheel")
def wheel_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tidegate as a wheel, made from this checkout."""
    return wheel_of_checkout(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(name="board")
def board_fixture(uml: Path, image: Path, wheel: Path, tmp_path: Path) -> Board:
    """A board at nearly this machine's speed: User-Mode Linux, one CPU."""
    return Board(image, uml, wheel=wheel, directory=tmp_path)


@pytest.fixture(name="qemu_board")
def qemu_board_fixture(base: Path, image: Path, wheel: Path, tmp_path: Path) -> Board:
    """A board with Debian's stock kernel and two CPUs; without KVM ten times slower and more."""
    return Board(image, base, kernel="qemu", wheel=wheel, directory=tmp_path)
