"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.harness import Scene, scene


@pytest.fixture(name="stage")
def stage_fixture() -> Iterator[Scene]:
    """A gateway without a worker, with a short hold."""
    with scene(hold=10.0) as made:
        yield made
