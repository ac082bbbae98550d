"""The life cycle over state x event: what follows, and the diagram in docs/design.md that is written from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.worker.lifecycle import (
    KILL_AGAIN_S,
    QUICK_S,
    Arm,
    Disarm,
    Effect,
    Gate,
    Gone,
    Kill,
    Lifecycle,
    Spawn,
    Terminate,
    WorkerState,
    backoff,
    stop_grace,
)

S = WorkerState


def machine(state: WorkerState) -> Lifecycle:
    """A machine that came to ``state`` by events, generation 1 of profile ``full`` running or just gone."""
    life = Lifecycle(load_timeout=60.0)
    if state is S.PARKED:
        return life
    life.start("full")
    if state in (S.READY, S.DRAINING, S.STOPPING):
        life.ready(1)
    if state is S.DRAINING:
        life.change("lean", drain=5.0, grace=2.0)
    if state is S.STOPPING:
        life.change("lean", drain=0.0, grace=2.0)
    if state is S.BACKOFF:
        life.exited(1, why="it crashed", ready_for=None, foreign_kill=False)
    assert life.state is state
    return life


EVENTS: dict[str, Callable[[Lifecycle], list[Effect]]] = {
    "start": lambda life: life.start("lean"),
    "adopt": lambda life: life.adopt("lean", 7),
    "ready": lambda life: life.ready(1),
    "ready of an older one": lambda life: life.ready(0),
    "exited": lambda life: life.exited(1, why="exit 1", ready_for=1.0, foreign_kill=False),
    "exited late": lambda life: life.exited(1, why="exit 0", ready_for=QUICK_S, foreign_kill=False),
    "killed by others": lambda life: life.exited(1, why="SIGKILL", ready_for=0.5, foreign_kill=True),
    "exited of an older one": lambda life: life.exited(0, why="exit 1", ready_for=1.0, foreign_kill=False),
    "change, drain": lambda life: life.change("lean", drain=5.0, grace=2.0),
    "change at once": lambda life: life.change("lean", drain=0.0, grace=1.0),
    "change, no grace": lambda life: life.change("lean", drain=0.0, grace=0.0),
    "park": lambda life: life.change(None, drain=0.0, grace=1.0),
    "drained": lambda life: life.drained(1),
    "drain elapsed": lambda life: life.drain_elapsed(),
    "load elapsed": lambda life: life.load_elapsed(),
    "kill elapsed": lambda life: life.kill_elapsed(),
    "emptied": lambda life: life.emptied(1),
    "backoff elapsed": lambda life: life.backoff_elapsed(),
}

LOAD = Arm("load_elapsed", 60.0)
SPAWN_1: list[Effect] = [Spawn("lean", 1), LOAD]
SPAWN_2: list[Effect] = [Spawn("lean", 2), LOAD]
FULL_2: list[Effect] = [Spawn("full", 2), LOAD]
KILL: list[Effect] = [Kill(1), Arm("kill_elapsed", KILL_AGAIN_S)]
AT_ONCE: list[Effect] = [Arm("backoff_elapsed", 0.0)]

#: Everything that does something; all other pairs of state and event change nothing.
TABLE: dict[tuple[WorkerState, str], tuple[WorkerState, list[Effect]]] = {
    (S.PARKED, "start"): (S.STARTING, [Disarm(), *SPAWN_1]),
    (S.PARKED, "adopt"): (S.STARTING, [LOAD]),
    (S.PARKED, "change, drain"): (S.STARTING, [Disarm(), *SPAWN_1]),
    (S.PARKED, "change at once"): (S.STARTING, [Disarm(), *SPAWN_1]),
    (S.PARKED, "change, no grace"): (S.STARTING, [Disarm(), *SPAWN_1]),
    (S.PARKED, "park"): (S.PARKED, [Disarm()]),
    (S.STARTING, "ready"): (S.READY, [Disarm()]),
    (S.STARTING, "exited"): (S.BACKOFF, AT_ONCE),
    (S.STARTING, "exited late"): (S.BACKOFF, AT_ONCE),
    (S.STARTING, "killed by others"): (S.BACKOFF, AT_ONCE),
    (S.STARTING, "change, drain"): (S.STOPPING, [Terminate(1), Arm("kill_elapsed", 2.0)]),
    (S.STARTING, "change at once"): (S.STOPPING, [Terminate(1), Arm("kill_elapsed", 1.0)]),
    (S.STARTING, "change, no grace"): (S.STOPPING, KILL),
    (S.STARTING, "park"): (S.STOPPING, [Terminate(1), Arm("kill_elapsed", 1.0)]),
    (S.STARTING, "load elapsed"): (S.STOPPING, KILL),
    (S.READY, "exited"): (S.BACKOFF, AT_ONCE),
    (S.READY, "exited late"): (S.STARTING, [Gone(1), *FULL_2]),
    (S.READY, "killed by others"): (S.STARTING, [Gone(1), *FULL_2]),
    (S.READY, "change, drain"): (S.DRAINING, [Arm("drain_elapsed", 5.0)]),
    (S.READY, "change at once"): (S.STOPPING, [Terminate(1), Arm("kill_elapsed", 1.0)]),
    (S.READY, "change, no grace"): (S.STOPPING, KILL),
    (S.READY, "park"): (S.STOPPING, [Terminate(1), Arm("kill_elapsed", 1.0)]),
    (S.DRAINING, "exited"): (S.STOPPING, KILL),
    (S.DRAINING, "exited late"): (S.STOPPING, KILL),
    (S.DRAINING, "killed by others"): (S.STOPPING, KILL),
    (S.DRAINING, "change at once"): (S.STOPPING, [Terminate(1), Arm("kill_elapsed", 1.0)]),
    (S.DRAINING, "change, no grace"): (S.STOPPING, KILL),
    (S.DRAINING, "park"): (S.STOPPING, [Terminate(1), Arm("kill_elapsed", 1.0)]),
    (S.DRAINING, "drained"): (S.STOPPING, [Terminate(1), Arm("kill_elapsed", 2.0)]),
    (S.DRAINING, "drain elapsed"): (S.STOPPING, [Terminate(1), Arm("kill_elapsed", 2.0)]),
    (S.STOPPING, "kill elapsed"): (S.STOPPING, KILL),
    (S.STOPPING, "emptied"): (S.STARTING, [Gone(1), *SPAWN_2]),
    (S.BACKOFF, "start"): (S.STARTING, [Disarm(), *SPAWN_2]),
    (S.BACKOFF, "change, drain"): (S.STARTING, [Disarm(), *SPAWN_2]),
    (S.BACKOFF, "change at once"): (S.STARTING, [Disarm(), *SPAWN_2]),
    (S.BACKOFF, "change, no grace"): (S.STARTING, [Disarm(), *SPAWN_2]),
    (S.BACKOFF, "park"): (S.PARKED, [Disarm()]),
    (S.BACKOFF, "backoff elapsed"): (S.STARTING, FULL_2),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", S)
def test_every_event_in_every_state(state: WorkerState, event: str) -> None:
    life = machine(state)
    effects = EVENTS[event](life)
    assert (life.state, effects) == TABLE.get((state, event), (state, []))


@pytest.mark.parametrize(
    ("state", "gate"),
    [
        (S.READY, Gate.OPEN),
        (S.DRAINING, Gate.DRAIN),
        (S.STARTING, Gate.HOLD),
        (S.STOPPING, Gate.HOLD),
        (S.BACKOFF, Gate.HOLD),
        (S.PARKED, Gate.REFUSE),
    ],
)
def test_what_requests_may_do(state: WorkerState, gate: Gate) -> None:
    assert machine(state).gate is gate


def test_parking_ends_parked() -> None:
    life = machine(S.READY)
    life.change(None, drain=0.0, grace=1.0)
    assert life.emptied(1) == [Disarm(), Gone(1)]
    assert (life.state, life.profile) == (S.PARKED, None)


def test_the_last_order_counts() -> None:
    life = machine(S.STOPPING)
    life.change("small", drain=5.0, grace=2.0)
    assert life.emptied(1) == [Gone(1), Spawn("small", 2), LOAD]


def test_a_load_that_takes_too_long_is_a_failure() -> None:
    life = machine(S.STARTING)
    life.load_elapsed()
    assert life.emptied(1) == [Gone(1), Arm("backoff_elapsed", 0.0)]
    assert (life.state, life.failures, life.message) == (S.BACKOFF, 1, "it was not ready in time")


def test_an_order_during_a_failed_load_is_no_failure() -> None:
    life = machine(S.STARTING)
    life.load_elapsed()
    life.change("lean", drain=0.0, grace=0.0)
    assert life.emptied(1) == [Gone(1), *SPAWN_2]
    assert life.failures == 0


def test_failures_wait_longer_each_time_until_one_holds() -> None:
    life = Lifecycle(load_timeout=60.0)
    life.start("full")
    waits = []
    for _ in range(10):
        (timer,) = life.exited(life.generation, why="exit 1", ready_for=None, foreign_kill=False)
        assert isinstance(timer, Arm)
        waits.append(timer.seconds)
        life.backoff_elapsed()
    assert waits == [0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    life.ready(life.generation)
    life.proved()
    assert life.failures == 0


def test_kills_from_outside_never_make_it_wait() -> None:
    life = machine(S.READY)
    for _ in range(20):
        generation = life.generation
        effects = life.exited(generation, why="SIGKILL", ready_for=0.1, foreign_kill=True)
        assert effects == [Gone(generation), Spawn("full", generation + 1), LOAD]
        life.ready(life.generation)


def test_kills_from_outside_while_it_loads_are_no_failure_of_the_profile() -> None:
    life = machine(S.READY)
    life.exited(life.generation, why="SIGKILL", ready_for=0.1, foreign_kill=True)
    waits = []
    for _ in range(7):
        (timer,) = life.exited(life.generation, why="SIGKILL", ready_for=None, foreign_kill=True)
        assert isinstance(timer, Arm)
        waits.append(timer.seconds)
        life.backoff_elapsed()
    assert waits == [0.0, 0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert life.failures == 0
    life.ready(life.generation)
    life.exited(life.generation, why="SIGKILL", ready_for=0.1, foreign_kill=True)
    assert life.exited(life.generation, why="SIGKILL", ready_for=None, foreign_kill=True) == [
        Arm("backoff_elapsed", 0.0)
    ]


def test_backoff_has_a_ceiling() -> None:
    assert backoff(10_000) == 60.0


@pytest.mark.parametrize(
    ("time_to_limit", "grace"), [(float("inf"), 2.0), (10.0, 2.0), (1.0, 0.5), (0.3, 0.15), (0.29, 0.0), (0.0, 0.0)]
)
def test_grace_between_term_and_kill(time_to_limit: float, grace: float) -> None:
    assert stop_grace(time_to_limit) == grace


def diagram() -> str:
    """The transitions of the table as a Mermaid state diagram."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), (after, _) in TABLE.items():
        if after is not state:
            arrows.setdefault((state.value, after.value), []).append(event)
    lines = ["stateDiagram-v2", "    [*] --> parked"]
    lines += [f"    {before} --> {after}: {' / '.join(events)}" for (before, after), events in arrows.items()]
    return "\n".join(lines)


def test_the_diagram_in_the_design_is_the_table() -> None:
    """Run with TIDEGATE_WRITE_DIAGRAMS=1 to write it anew."""
    page = Path(__file__).parents[2] / "docs" / "design.md"
    begin, end = "<!-- worker life cycle -->\n```mermaid\n", "\n```\n<!-- end -->"
    head, _, rest = page.read_text().partition(begin)
    shown, _, tail = rest.partition(end)
    if os.environ.get("TIDEGATE_WRITE_DIAGRAMS"):
        page.write_text(f"{head}{begin}{diagram()}{end}{tail}")
    else:
        assert shown == diagram()


def test_a_worker_that_somebody_else_starts_is_waited_for_without_a_timer() -> None:
    life = Lifecycle(load_timeout=None)
    assert life.start("attached") == [Disarm(), Spawn("attached", 1), Disarm()]
    for generation in range(1, 9):
        # Its failures are its supervisor's to pace: no back-off, however often.
        why = life.exited(generation, why="exit 1", ready_for=None, foreign_kill=False)
        assert why == [Spawn("attached", generation + 1), Disarm()]
        assert life.state is S.STARTING


def test_its_end_is_followed_by_the_next_one_at_once() -> None:
    life = Lifecycle(load_timeout=None)
    life.start("attached")
    life.ready(1)
    ended = life.exited(1, why="ended", ready_for=0.1, foreign_kill=False)
    assert ended == [Gone(1), Spawn("attached", 2), Disarm()]
