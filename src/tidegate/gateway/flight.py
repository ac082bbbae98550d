"""The life of one request, without any I/O: what happened to it, and whether it may be sent again. Pure.

| event \\ stage | waiting | sent | answering | done |
|---|---|---|---|---|
| ``sent`` | sent | - | - | - |
| ``content`` | - | answering | answering | - |
| ``finished`` | - | done | done | - |
| ``lost`` (ordered, unreachable, loading) | - | waiting | done: CUT | - |
| ``lost`` (died) | - | waiting, or done: CRASHED | done: CUT | - |
| ``retracted`` | - | waiting | - | - |
| ``ended`` | done | done | done | done |

"-" is a mistake of the caller and raises RuntimeError. The table is checked by tests/gateway/test_flight.py.
"""

from __future__ import annotations

from enum import StrEnum

#: Deaths of a worker *by itself* that a request survives. One that was alone in flight may be the cause, so it is sent
#: again once only; with others around it is innocent more often than not.
MOST_DEATHS = 2
MOST_DEATHS_ALONE = 1

#: A generation that just failed is not tried again for this long, in seconds, unless the guard announces it anew.
FAILED_S = 1.0
#: A worker that answers 503 "Loading model" is asked again this soon, in seconds (loading takes 0.1 s and more).
LOADING_S = 0.1


class Stage(StrEnum):
    """Where the request is. Nothing that matters has reached the client before ``ANSWERING``."""

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


class Next(StrEnum):
    """What follows a loss."""

    AGAIN = "again"  # wait for a worker and send again
    CRASHED = "crashed"  # give up: the request seems to kill workers
    CUT = "cut"  # the client has part of the answer: end it with an error


class Flight:
    """One request. Times are seconds of any one clock; ``epoch`` numbers the announcements of a usable worker."""

    def __init__(self) -> None:
        self.stage = Stage.WAITING
        self.sends = 0
        self.deaths = 0
        self.deaths_alone = 0
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

    def ended(self) -> None:
        """Refused, expired, or the client has gone."""
        self.stage = Stage.DONE

    def lost(self, loss: Loss, *, epoch: int, now: float) -> Next:
        """The attempt broke off: what now?"""
        if loss in (Loss.UNREACHABLE, Loss.LOADING):
            # No worker has worked on it.
            self.sends -= 1
        elif loss is not Loss.ORDERED:
            self.deaths += 1
            self.deaths_alone += loss is Loss.DIED_ALONE
        again = self.deaths <= MOST_DEATHS and self.deaths_alone <= MOST_DEATHS_ALONE
        was = self.stage
        self._move("lost", {Stage.SENT: Stage.WAITING if again else Stage.DONE, Stage.ANSWERING: Stage.DONE})
        if was is Stage.ANSWERING:
            return Next.CUT
        if loss is not Loss.ORDERED:
            self._failed_epoch = epoch
            self._not_before = now + (LOADING_S if loss is Loss.LOADING else FAILED_S)
        return Next.AGAIN if again else Next.CRASHED

    def _move(self, event: str, table: dict[Stage, Stage]) -> None:
        if self.stage not in table:
            raise RuntimeError(f"cannot take {event}: the request is {self.stage}")
        self.stage = table[self.stage]
