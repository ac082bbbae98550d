"""Which step to take: down a profile, reset, park, or back up. Pure: what is known goes in, at most one step comes out.

The rules that hold whatever the inputs (checked by property tests):

- one action in flight, never two;
- an action that is no escalation waits ``hold`` after the one before it;
- within an episode (from leaving normal until normal has lasted ``step_up_after``) no profile is started twice by a
  fall, so an ineffective step is not repeated and the ladder ends in ``parked``, whose delay doubles;
- a better profile is tried only in quiet, and later each time it was quickly lost again.
"""

from __future__ import annotations

from enum import StrEnum

from tidegate.frozen import frozen, replace
from tidegate.policy.diagnosis import Diagnosis
from tidegate.policy.level import Level

#: How long use must stay over the warn line before ground is given: one long prefill's buffers come and go faster.
WARN_LASTING_S = 2.0
#: A planned step lets requests in flight end for this long.
DRAIN_S = 5.0
#: A step that gives back less than this share of its promise was ineffective (30 %: page tables, shared pages and a
#: neighbour's growth eat some of every promise).
EFFECTIVE_SHARE = 0.30
#: A restart of the same profile costs every client a prefill; it must free at least this share of the limit.
RESET_WORTH = 0.10
#: Going down must win at least this share of the limit, else the interruption buys nothing.
_DOWN_WORTH = 0.02
_PARK_DELAY_S = 10.0
_PARK_DELAY_MOST_S = 600.0
_UP_DELAY_MOST_S = 3600.0
#: A fall within this many ``step_up_after`` of a step up means that the step up was wrong.
_QUICK_FALL = 10.0


class StepKind(StrEnum):
    """What a step does. ``RESET`` starts the same profile again; ``UNPARK`` starts one after ``PARK``."""

    DOWN = "down"
    RESET = "reset"
    PARK = "park"
    UP = "up"
    UNPARK = "unpark"


@frozen
class Step:
    """One action. ``profile`` is what runs afterwards (None: nothing); ``expected_bytes`` is what the nearest axis
    falls by once the old worker is gone; ``drain`` is seconds that requests in flight may still take."""

    kind: StepKind
    profile: str | None
    reason: str
    expected_bytes: int = 0
    drain: float = 0.0

    @property
    def label(self) -> str:
        """``"down to lean"``, ``"park"``: the name in status and logs."""
        return self.kind.value if self.profile is None else f"{self.kind.value} to {self.profile}"


class WorkerPhase(StrEnum):
    """The worker as far as the ladder cares. ``BUSY``: draining, stopping or waiting to start again."""

    READY = "ready"
    STARTING = "starting"
    PARKED = "parked"
    BUSY = "busy"


@frozen
class Rung:
    """A profile and the bytes it is known to need, prompt cache apart (planned, then learned).

    ``known_bytes`` are anonymous and shared; ``hot_file`` are mapped weights that must stay resident."""

    name: str
    known_bytes: int
    hot_file: int = 0


@frozen
class AxisUse:
    """One memory axis in bytes; ``worker`` is the worker's part of ``used``, ``counts_file`` whether hot mapped weights
    are part of it."""

    name: str
    limit: int
    used: int
    worker: int
    counts_file: bool = False


@frozen
class Tuning:
    """The settings that the ladder needs; ratios and seconds."""

    warn: float
    release: float
    hold: float
    step_up_after: float


@frozen
class Situation:
    """What is known now. ``axes`` is nearest first; ``ratio`` and ``rate`` (bytes/s) are of the nearest axis;
    ``pressing`` is whether critical holds at this moment, not only by its hold time; ``quiet`` is nothing in flight."""

    time: float
    level: Level
    level_since: float
    ratio: float
    pressing: bool
    diagnosis: Diagnosis
    axes: tuple[AxisUse, ...]
    rate: float
    phase: WorkerPhase
    running: int | None
    worker_bytes: int
    quiet: bool
    rungs: tuple[Rung, ...]


@frozen
class LadderState:
    """What the ladder remembers. Times are monotonic seconds."""

    pending: Step | None = None
    last_action: float | None = None
    over_since: float | None = None
    tried: frozenset[str] = frozenset()
    last_up: float | None = None
    up_factor: float = 1.0
    parked_at: float | None = None
    park_delay: float = _PARK_DELAY_S
    grown: bool = False


def decide(state: LadderState, now: Situation, tuning: Tuning) -> tuple[LadderState, Step | None]:
    """The ladder's new memory and the step to take now, if any. The caller must :func:`finish` every step it gets."""
    state = note(state, now, tuning)
    if state.pending is not None or not now.rungs:
        return state, None
    step = None
    if now.phase is WorkerPhase.PARKED:
        step = _unpark(state, now, tuning)
    elif now.running is not None and now.phase in (WorkerPhase.READY, WorkerPhase.STARTING):
        if now.pressing:
            step = _escalate(state, now, tuning)
        elif now.phase is WorkerPhase.READY and cooled(state, now, tuning):
            step = _give_ground(state, now, tuning) or _climb(state, now, tuning)
    return (begin(state, now.time, step, now.diagnosis, tuning), step) if step is not None else (state, None)


def begin(state: LadderState, time: float, step: Step, diagnosis: Diagnosis, tuning: Tuning) -> LadderState:
    """The memory once ``step`` is under way. Also for steps that a person ordered."""
    if step.kind is StepKind.UP:
        return replace(state, pending=step, last_action=time, last_up=time)
    if step.kind is StepKind.UNPARK:
        return replace(state, pending=step, last_action=time)
    quick = state.last_up is not None and time - state.last_up <= _QUICK_FALL * tuning.step_up_after
    most = max(1.0, _UP_DELAY_MOST_S / tuning.step_up_after)
    return replace(
        state,
        pending=step,
        last_action=time,
        last_up=None,
        tried=state.tried if step.profile is None else state.tried | {step.profile},
        up_factor=min(state.up_factor * 2, most) if quick else 1.0 if state.last_up is not None else state.up_factor,
        grown=state.grown or diagnosis is Diagnosis.GROWTH,
    )


def finish(state: LadderState, time: float, freed: int) -> tuple[LadderState, bool]:
    """The memory after the pending step freed ``freed`` bytes, and whether it was effective.

    Called when the old worker is gone and its bytes came back, or did not. With nothing pending it changes nothing.
    """
    step = state.pending
    if step is None:
        return state, False
    effective = freed >= EFFECTIVE_SHARE * step.expected_bytes
    parked_at = time if step.kind is StepKind.PARK else None
    delay = state.park_delay
    if step.kind is StepKind.PARK and step.expected_bytes:
        delay = min(state.park_delay * 2, _PARK_DELAY_MOST_S)
    return replace(state, pending=None, last_action=time, parked_at=parked_at, park_delay=delay), effective


def first_profile(axes: tuple[AxisUse, ...], rungs: tuple[Rung, ...], tuning: Tuning) -> int | None:
    """Index of the profile to start with: the highest that leaves use released below warn, else the highest that
    leaves it below warn at all, else None."""
    for line in (tuning.warn - tuning.release, tuning.warn):
        for index, rung in enumerate(rungs):
            if fits(axes, rung, line):
                return index
    return None


def fits(axes: tuple[AxisUse, ...], rung: Rung, line: float, *, ahead: float = 0.0) -> bool:
    """Whether a worker in the shape of ``rung`` in place of the running one leaves every axis at or below ``line``.

    ``ahead`` is bytes that somebody else is about to take."""
    return all(_after(axis, rung) + ahead <= axis.limit * line for axis in axes)


def _after(axis: AxisUse, rung: Rung) -> int:
    return axis.used - axis.worker + rung.known_bytes + (rung.hot_file if axis.counts_file else 0)


def clamp_prompt_cache(
    axes: tuple[AxisUse, ...], rung: Rung, *, entry_bytes: int, configured: int, tuning: Tuning
) -> int:
    """Bytes of prompt cache that fit beside ``rung`` below the released warn line, at most ``configured``.

    One whole-context entry (``entry_bytes``) is left free: llama.cpp holds the old state and its copy while it saves.
    """
    line = tuning.warn - tuning.release
    room = min((int(axis.limit * line) - _after(axis, rung) - entry_bytes for axis in axes), default=0)
    return max(0, min(room, configured))


def note(state: LadderState, now: Situation, tuning: Tuning) -> LadderState:
    """The memory with what this moment adds to it: since when use is over the warn line, and the end of an episode."""
    over = now.ratio >= tuning.warn
    over_since = (state.over_since if state.over_since is not None else now.time) if over else None
    calm_since = now.level_since if state.last_action is None else max(now.level_since, state.last_action)
    settled = now.level is Level.NORMAL and now.time - calm_since >= tuning.step_up_after
    if over_since == state.over_since and not (settled and (state.tried or state.park_delay != _PARK_DELAY_S)):
        return state
    if not settled:
        return replace(state, over_since=over_since)
    running = now.phase is WorkerPhase.READY
    return replace(
        state, over_since=over_since, tried=frozenset(), park_delay=_PARK_DELAY_S if running else state.park_delay
    )


def lasts(state: LadderState, now: Situation) -> bool:
    """Whether use has been over the warn line for as long as makes it no passing peak."""
    return state.over_since is not None and now.time - state.over_since >= WARN_LASTING_S


def cooled(state: LadderState, now: Situation, tuning: Tuning) -> bool:
    """Whether the last step is long enough ago for one that is no escalation."""
    return state.last_action is None or now.time - state.last_action >= tuning.hold


def why(now: Situation) -> str:
    """The reason of a step in words."""
    name = now.axes[0].name if now.axes else "memory"
    return f"{now.diagnosis.value if now.diagnosis is not Diagnosis.NONE else 'use'} at {now.ratio:.0%} of {name}"


def _escalate(state: LadderState, now: Situation, tuning: Tuning) -> Step | None:
    """At critical: the highest profile whose bytes fit, without a drain; parked where there is none."""
    assert now.running is not None
    # A restart of the same shape cures growth, not a working set that does not fit; and from `starting` it would
    # only start the same load again.
    again = now.diagnosis is not Diagnosis.THRASH and now.phase is WorkerPhase.READY
    ahead = max(0.0, now.rate) * tuning.hold if now.diagnosis is Diagnosis.ELSEWHERE else 0.0
    for index in range(now.running if again else now.running + 1, len(now.rungs)):
        rung = now.rungs[index]
        if rung.name in state.tried or not fits(now.axes, rung, tuning.warn, ahead=ahead):
            continue
        # Out of a livelock a restart leads whatever it gives back: no byte has to be won, but a standstill to be ended.
        stuck = now.diagnosis is Diagnosis.LIVELOCK
        if index == now.running and not stuck and not wins(now, rung, RESET_WORTH):
            continue
        kind = StepKind.RESET if index == now.running else StepKind.DOWN
        return Step(kind, rung.name, why(now), now.worker_bytes)
    return Step(StepKind.PARK, None, why(now), now.worker_bytes)


def _give_ground(state: LadderState, now: Situation, tuning: Tuning) -> Step | None:
    """At warn that lasts: one profile down, or at the last one a restart that is worth it."""
    assert now.running is not None
    if not lasts(state, now):
        return None
    for rung in now.rungs[now.running + 1 :]:
        if rung.name not in state.tried and wins(now, rung, _DOWN_WORTH):
            return Step(StepKind.DOWN, rung.name, why(now), now.worker_bytes, DRAIN_S)
    rung = now.rungs[now.running]
    if rung.name not in state.tried and wins(now, rung, RESET_WORTH):
        return Step(StepKind.RESET, rung.name, why(now), now.worker_bytes, DRAIN_S)
    return None


def wins(now: Situation, rung: Rung, share: float) -> bool:
    """Whether a worker in the shape of ``rung`` would use less by at least ``share`` of the nearest limit."""
    limit = now.axes[0].limit if now.axes else 0
    return now.worker_bytes - rung.known_bytes >= share * limit


def _climb(state: LadderState, now: Situation, tuning: Tuning) -> Step | None:
    """In lasting quiet: one profile up, if its known bytes leave use released below the warn line."""
    if now.level is not Level.NORMAL or not now.running or not now.quiet:
        return None
    calm_since = now.level_since if state.last_action is None else max(now.level_since, state.last_action)
    if now.time - calm_since < tuning.step_up_after * state.up_factor:
        return None
    rung = now.rungs[now.running - 1]
    if not fits(now.axes, rung, tuning.warn - tuning.release):
        return None
    return Step(StepKind.UP, rung.name, "memory has been free", now.worker_bytes, DRAIN_S)


def _unpark(state: LadderState, now: Situation, tuning: Tuning) -> Step | None:
    """After the park delay: the last profile, if it fits again."""
    if state.parked_at is not None and now.time - state.parked_at < state.park_delay:
        return None
    rung = now.rungs[-1]
    if not fits(now.axes, rung, tuning.warn - tuning.release):
        return None
    return Step(StepKind.UNPARK, rung.name, "its bytes fit again", 0)
