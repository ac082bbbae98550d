"""What a profile needs: the plan at first, then what was seen, and never less than the plan's cold part allows."""

from __future__ import annotations

import pytest

from tidegate.frozen import replace
from tidegate.guard.known_bytes import KnownBytes
from tidegate.guard.plan import ProfileBytes
from tidegate.policy.ladder import Rung
from tidegate.settings.model import Profile

M = 1 << 20
FULL = ProfileBytes(known=200 * M, compute=40 * M, file=1000 * M, cold_file=0, entry=100 * M)
LEAN = ProfileBytes(known=100 * M, compute=30 * M, file=1000 * M, cold_file=600 * M, entry=25 * M)


@pytest.fixture(name="known")
def known_fixture() -> KnownBytes:
    return KnownBytes({"full": FULL, "lean": LEAN})


def test_the_plan_until_something_is_known(known: KnownBytes) -> None:
    assert known.of("full") == 200 * M
    assert known.of("other") == known.of(None) == 0


def test_ready_plus_the_first_prefill(known: KnownBytes) -> None:
    """At ready the compute buffers are reserved and not touched: they come on top."""
    known.ready("full", 150 * M)
    assert known.of("full") == 190 * M
    assert known.of("lean") == 100 * M


def test_what_was_learned_is_the_most_that_was_seen(known: KnownBytes) -> None:
    known.ready("full", 150 * M)
    known.observe("full", 260 * M, cached=False)
    known.observe("full", 180 * M, cached=False)
    assert known.of("full") == 260 * M
    # A second start that looks small does not make it forget.
    known.ready("full", 150 * M)
    assert known.of("full") == 260 * M


def test_a_prompt_cache_is_not_the_profiles_own(known: KnownBytes) -> None:
    known.ready("full", 150 * M)
    known.observe("full", 900 * M, cached=True)
    assert known.of("full") == 190 * M


def test_a_worker_that_was_never_ready_teaches_nothing(known: KnownBytes) -> None:
    known.observe("full", 900 * M, cached=False)
    assert known.of("full") == 200 * M


@pytest.mark.parametrize("name", [None, "other"])
def test_unknown_profiles_are_ignored(known: KnownBytes, name: str | None) -> None:
    known.ready(name, 900 * M)
    known.observe(name, 900 * M, cached=False)
    assert known.of(name) == 0


def test_a_reload_forgets_profiles_that_changed(known: KnownBytes) -> None:
    known.ready("full", 300 * M)
    known.ready("lean", 200 * M)
    known.replan({"full": FULL, "lean": replace(LEAN, known=120 * M)})
    assert known.of("full") == 340 * M
    assert known.of("lean") == 120 * M
    known.replan({"lean": LEAN})
    assert known.of("full") == 0


def test_rungs_have_the_hot_part_of_the_mapped_weights(known: KnownBytes) -> None:
    known.ready("lean", 100 * M)
    profiles = (Profile("full", "m"), Profile("lean", "m"), Profile("gone", "m"))
    assert known.rungs(profiles) == (
        Rung("full", 200 * M, 1000 * M),
        Rung("lean", 130 * M, 400 * M),
        Rung("gone", 0, 0),
    )


@pytest.mark.parametrize(
    ("ready_bytes", "cold"),
    [
        # full's KV and what is always there: 160 M.
        (0, 0),
        (160 * M, 0),
        (175 * M, 0),  # the plan's own error
        (176 * M, 16 * M),
        (760 * M, 600 * M),
        (5000 * M, 1000 * M),  # never more than is mapped
    ],
)
def test_repacked_weights_are_seen_at_ready(known: KnownBytes, ready_bytes: int, cold: int) -> None:
    assert known.cold_file("full", ready_bytes) == cold


@pytest.mark.parametrize("name", [None, "other"])
def test_nothing_is_cold_of_an_unknown_profile(known: KnownBytes, name: str | None) -> None:
    assert known.cold_file(name, 5000 * M) == 0


def test_a_worker_that_was_there_needs_no_more_than_it_holds(known: KnownBytes) -> None:
    """An unset context is planned as the model's own, which the server may have cut down."""
    known.seen("full", 90 * M)
    assert known.of("full") == 130 * M
    known.seen("full", 900 * M)
    assert known.of("full") == 200 * M
    known.seen("unplanned", 90 * M)
    assert known.of("unplanned") == 0
    known.ready("full", 100 * M)
    assert known.of("full") == 140 * M


def test_an_inspection_after_ready_adds_the_compute_buffers(known: KnownBytes) -> None:
    nothing = ProfileBytes(known=0, compute=0, file=0, cold_file=0, entry=0)
    known.replan({"attached": nothing})
    known.ready("attached", 100 * M)
    known.inspected("attached", FULL)
    assert known.of("attached") == 140 * M
    assert known.planned("attached") == FULL
