"""The life of one request, without any I/O: what happened to it, and whether it may be sent again. Pure.

| event \\ stage | waiting | sent | answering | done |
|---|---|---|---|---|
| ``sent`` | sent | - | - | - |
| ``content`` | - | answering | answering | - |
| ``finished`` | - | done | done | - |
| ``lost`` | - | waiting | waiting, or done: CUT | - |
| ``retracted`` | - | waiting | - | - |
| ``ended`` | done | done | done | done |

"-" is a mistake of the caller and raises RuntimeError. The table is checked by tests/gateway/test_flight.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

#: Deaths of a worker that make a request a suspect: it is sent again alone, so that the next death tells.
SUSPECT_DEATHS = 2

#: A generation that just failed is not tried again for this long, in seconds, unless the guard announces it anew.
FAILED_S = 1.0
#: A worker that answers 503 "Loading model" is asked again this soon, in seconds (loading takes 0.1 s and more).
LOADING_S = 0.1


class Stage(StrEnum):
    """Where the request is. In ``ANSWERING`` something that matters comes to the client; it may be ``WAITING`` again
    with a part of its answer."""

    WAITING = "waiting"
    SENT = "sent"
    ANSWERING = "answering"
    DONE = "done"


class Loss(StrEnum):
    """How an attempt ended without an answer."""

    ORDERED = "ordered"  # the guard changed the worker
    UNREACHABLE = "unreachable"  # no connection: the request was not delivered
    LOADING = "loading"  # the worker says that it is still loading
    DIED = "died"  # the connection broke, other requests were in flight too
    DIED_ALONE = "died_alone"  # the connection broke, this was the only one


class Cause(StrEnum):
    """How a worker ended by itself, as the guard saw it."""

    CRASHED = "crashed"  # by a signal of its own or an exit
    OOM = "oom"  # the kernel's OOM killer
    KILLED = "killed"  # somebody's SIGKILL: no request is to blame
    UNKNOWN = "unknown"


class Verdict(StrEnum):
    """Whether a request is what its workers died of."""

    INNOCENT = "innocent"
    SUSPECT = "suspect"  # to be sent alone
    GUILTY = "guilty"  # not to be sent again


@dataclass(frozen=True)
class Death:
    """A worker's end while the request was in flight; ``alone``: nothing else was."""

    generation: int
    alone: bool


def judge(deaths: Sequence[Death], causes: Mapping[int, Cause], generation: int) -> Verdict:
    """What ``deaths`` say, with what the guard told of the generations. ``generation`` is the newest one: a death that
    the guard has not explained while it is still of that generation does not count yet."""
    counted = [
        death
        for index, death in enumerate(deaths)
        if causes.get(death.generation, Cause.UNKNOWN) is not Cause.KILLED
        and (death.generation in causes or death.generation != generation or index < len(deaths) - 1)
    ]
    if len(counted) < SUSPECT_DEATHS:
        return Verdict.INNOCENT
    return Verdict.GUILTY if counted[-1].alone else Verdict.SUSPECT


class Next(StrEnum):
    """What follows a loss."""

    AGAIN = "again"  # wait for a worker and go on
    CUT = "cut"  # the client has part of an answer that cannot be continued


class Flight:
    """One request. Times are seconds of any one clock; ``epoch`` numbers the announcements of a usable worker."""

    def __init__(self) -> None:
        self.stage = Stage.WAITING
        self.sends = 0
        self.deaths: list[Death] = []
        self._failed_epoch = -1
        self._not_before = 0.0

    @property
    def replayed(self) -> bool:
        """More than one worker began to work on it."""
        return self.sends > 1

    def ready_at(self, epoch: int) -> float:
        """The time from which it may be sent to the worker announced as ``epoch``."""
        return self._not_before if epoch == self._failed_epoch else 0.0

    def sent(self) -> None:
        """It goes to the worker."""
        self._move("sent", {Stage.WAITING: Stage.SENT})
        self.sends += 1

    def content(self) -> None:
        """Bytes that carry content go to the client."""
        self._move("content", {Stage.SENT: Stage.ANSWERING, Stage.ANSWERING: Stage.ANSWERING})

    def finished(self) -> None:
        """The answer is complete, or the engine's own error is."""
        self._move("finished", {Stage.SENT: Stage.DONE, Stage.ANSWERING: Stage.DONE})

    def retracted(self) -> None:
        """The engine refused it for its length before answering: it goes back to be shaped anew."""
        self._move("retracted", {Stage.SENT: Stage.WAITING})
        self.sends -= 1

    def ended(self) -> None:
        """Refused, expired, or the client has gone."""
        self.stage = Stage.DONE

    def lost(self, loss: Loss, *, generation: int, epoch: int, now: float, resumable: bool) -> Next:
        """The attempt at ``generation`` broke off. ``resumable``: an answer that has begun can go on elsewhere."""
        if loss in (Loss.UNREACHABLE, Loss.LOADING):
            # No worker has worked on it.
            self.sends -= 1
        elif loss is not Loss.ORDERED:
            self.deaths.append(Death(generation, loss is Loss.DIED_ALONE))
        cut = self.stage is Stage.ANSWERING and not resumable
        after = Stage.DONE if cut else Stage.WAITING
        self._move("lost", {Stage.SENT: after, Stage.ANSWERING: after})
        if loss is not Loss.ORDERED:
            self._failed_epoch = epoch
            self._not_before = now + (LOADING_S if loss is Loss.LOADING else FAILED_S)
        return Next.CUT if cut else Next.AGAIN

    def _move(self, event: str, table: dict[Stage, Stage]) -> None:
        if self.stage not in table:
            raise RuntimeError(f"cannot take {event}: the request is {self.stage}")
        self.stage = table[self.stage]
