"""The one step there is for a server that somebody else starts: end it, so that it is started again. Pure.

Its memory and its state are the ladder's (:mod:`tidegate.policy.ladder`); it has one rung and is never parked, because
its supervisor would start it again at once.
"""

from __future__ import annotations

from tidegate.policy import ladder
from tidegate.policy.diagnosis import Diagnosis
from tidegate.policy.ladder import LadderState, Situation, Step, StepKind, Tuning, WorkerPhase

#: How long requests in flight may take to end before a reset at warn. Longer than on the ladder: there is no smaller
#: profile whose coming they hold up, and what they still add is bounded by one prompt.
DRAIN_S = 20.0


def decide(state: LadderState, now: Situation, tuning: Tuning) -> tuple[LadderState, Step | None]:
    """The memory and the step to take now, if any. The caller must finish every step it gets.

    At critical: a reset, if it gives back a tenth of the limit, or if nobody knows what the server needs when it is
    fresh. At warn that lasts: the same where nothing is lost by it (``quiet``), if that much has grown for certain.
    """
    state = ladder.note(state, now, tuning)
    if state.pending is not None or not now.rungs or now.running is None or now.phase is not WorkerPhase.READY:
        return state, None
    rung = now.rungs[now.running]
    known = rung.known_bytes > 0
    worth = ladder.wins(now, rung, ladder.RESET_WORTH)
    drain = None
    stuck = now.diagnosis is Diagnosis.LIVELOCK and ladder.cooled(state, now, tuning)
    if now.pressing and now.worker_bytes and (stuck or (worth if known else state.last_action is None)):
        drain = 0.0
    elif (
        not now.pressing
        and known
        and worth
        and now.quiet
        and ladder.lasts(state, now)
        and ladder.cooled(state, now, tuning)
    ):
        drain = DRAIN_S
    if drain is None:
        return state, None
    step = Step(StepKind.RESET, rung.name, ladder.why(now), now.worker_bytes, drain)
    return ladder.begin(state, now.time, step, now.diagnosis, tuning), step
