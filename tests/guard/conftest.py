"""Fixtures: real guards over the fake engine, ended with the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guard.foreign_server import ForeignServer
from running import Running, fake_config

Start = Callable[..., Running]
Foreign = Callable[..., ForeignServer]


@pytest.fixture(name="start")
def start_fixture() -> Iterator[Start]:
    """``start(*arguments, config=..., kind=..., **fake_config keys)`` makes a running instance."""
    started: list[Running] = []
    directories: list[Path] = []

    def start(
        *arguments: str,
        kind: str = "guard",
        env: dict[str, str] | None = None,
        directory: Path | None = None,
        config: str | None = None,
        program: tuple[str, ...] = ("-m", "tidegate"),
        pass_fds: tuple[int, ...] = (),
        **keys: object,
    ) -> Running:
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="tg"))
            directories.append(directory)
        text = config if config is not None else fake_config(directory, **keys)  # type: ignore[arg-type]
        running = Running(directory, text, *arguments, kind=kind, env=env, program=program, pass_fds=pass_fds)
        started.append(running)
        return running

    yield start
    for running in started:
        running.stop()
    for directory in directories:
        shutil.rmtree(directory)


@pytest.fixture(name="foreign")
def foreign_fixture() -> Iterator[Foreign]:
    """``foreign(*options of the fake engine, **keys of ForeignServer)`` starts a server that is not the guard's."""
    servers: list[ForeignServer] = []
    with tempfile.TemporaryDirectory(prefix="tgf") as directory:

        def start(*options: str, **more: object) -> ForeignServer:
            servers.append(ForeignServer(Path(directory), *options, **more))  # type: ignore[arg-type]
            return servers[-1]

        yield start
        for server in servers:
            server.stop()
