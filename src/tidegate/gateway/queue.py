"""The waiting line: who goes to the worker next. First come, first served, by ticket.

A request keeps its ticket when it loses its worker, so it is again before everyone who came later. The line knows
nothing of levels: its owner says how many places there are and whether anyone may go now.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

#: Requests that may wait: more clients than a board has, and at 14 KB each 4 MB. Bodies have a bound of their own.
MOST_WAITING = 256


class LineFullError(Exception):
    """:data:`MOST_WAITING` requests wait already."""


class Waiter:
    """One request in the line. ``ready_at`` gives the loop time from which it may go.

    ``counted`` is False for one that generates nothing: it waits for a worker, but takes nobody's place there.
    ``alone``: it may be with the worker only while nobody else is.
    """

    def __init__(self, ticket: int, ready_at: Callable[[], float], *, counted: bool) -> None:
        self.ticket = ticket
        self.ready_at = ready_at
        self.counted = counted
        self.alone = False
        self.placed = False
        self._wake: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Something changed: look again."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def pause(self, seconds: float | None) -> None:
        """Until woken, but ``seconds`` at most (None: without end)."""
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        timer = None if seconds is None else loop.call_later(max(0.0, seconds), self.wake)
        try:
            await self._wake
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()


class Line:
    """``places()`` is how many may be with the worker now, 0 if none may go; ``changed()`` is called after a move."""

    def __init__(self, places: Callable[[], int], changed: Callable[[], None]) -> None:
        self._places = places
        self._changed = changed
        self._tickets = itertools.count()
        self._waiting: list[Waiter] = []
        self.placed = 0
        self._alone: Waiter | None = None

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(waiter.counted for waiter in self._waiting)

    def enter(self, ready_at: Callable[[], float], *, counted: bool = True) -> Waiter:
        """Take a ticket and wait.

        Raises:
            LineFullError: the line is full.
        """
        if sum(waiter.counted is counted for waiter in self._waiting) >= MOST_WAITING:
            raise LineFullError
        waiter = Waiter(next(self._tickets), ready_at, counted=counted)
        self._waiting.append(waiter)
        self.dispatch()
        return waiter

    def back(self, waiter: Waiter) -> None:
        """From a place back into the line, by ticket; the bound does not count for it."""
        if waiter.placed:
            self._unplace(waiter)
            position = len(self._waiting)
            while position and self._waiting[position - 1].ticket > waiter.ticket:
                position -= 1
            self._waiting.insert(position, waiter)
        self.dispatch()

    def leave(self, waiter: Waiter) -> None:
        """Out, from wherever it is."""
        if waiter.placed:
            self._unplace(waiter)
        elif waiter in self._waiting:
            self._waiting.remove(waiter)
        self.dispatch()

    def dispatch(self) -> None:
        """Give free places to the first who may go."""
        places = self._places()
        if places > 0 and self._waiting:
            now = asyncio.get_running_loop().time()
            closed = self._alone is not None
            for waiter in list(self._waiting):
                if waiter.ready_at() > now or (waiter.counted and closed):
                    continue
                if waiter.counted and self.placed >= (1 if waiter.alone else places):
                    # Its turn comes when the others are out: nobody may slip in before it.
                    closed = waiter.alone
                    continue
                self._waiting.remove(waiter)
                waiter.placed = True
                self.placed += waiter.counted
                if waiter.alone:
                    self._alone, closed = waiter, True
                waiter.wake()
        self._changed()

    def isolate(self, waiter: Waiter) -> None:
        """From now on ``waiter`` goes alone."""
        waiter.alone = True
        if waiter.placed:
            self.back(waiter)

    def wake_all(self) -> None:
        """The state changed: everyone looks again."""
        for waiter in self._waiting:
            waiter.wake()

    def _unplace(self, waiter: Waiter) -> None:
        waiter.placed = False
        self.placed -= waiter.counted
        if self._alone is waiter:
            self._alone = None
