"""The waiting line: who goes to the worker next. For one client first come, first served; fair between several.

Each request has a place in virtual time (start-time fair queueing: Goyal, Vin and Cheng 1996): after the client's last
one by that one's cost, but not before now. So a client that sends a hundred requests delays another one's first by one
of them. A request keeps its place when it loses its worker, so it is again before everyone who came later. The line
knows nothing of levels: its owner says how many places there are and whether anyone may go now.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Callable

#: Requests that may wait: more clients than a board has, and at 14 KB each 4 MB. Bodies have a bound of their own.
MOST_WAITING = 256
#: In virtual time, where nothing was measured yet: clients take turns.
_LEAST_COST_S = 0.01
#: Clients whose place in virtual time is remembered before those that wait for nothing are forgotten.
_MOST_CLIENTS = 1024


class LineFullError(Exception):
    """:data:`MOST_WAITING` requests wait already."""


class Waiter:
    """One request in the line. ``order`` is its place; ``ready_at`` gives the loop time from which it may go;
    ``cost`` is seconds of the worker's time.

    ``counted`` is False for one that generates nothing: it waits for a worker, but takes nobody's place there.
    ``alone``: it may be with the worker only while nobody else is.
    """

    def __init__(self, order: tuple[float, int], ready_at: Callable[[], float], *, counted: bool, cost: float) -> None:
        self.order = order
        self.cost = cost
        self.placed_at = 0.0
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
        self._numbers = itertools.count()
        #: Virtual time in seconds of work: the place of the last one that went. And each client's end in it.
        self._virtual = 0.0
        self._ends: dict[str, float] = {}
        self._waiting: list[Waiter] = []
        self.placed = 0
        self._working: set[Waiter] = set()
        self._alone: Waiter | None = None

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(waiter.counted for waiter in self._waiting)

    def expected_wait(self, client: str) -> float:
        """Seconds until a request that ``client`` sent now would have its turn, as far as costs are known."""
        places = max(1, self._places())
        if not self._waiting and self.placed < places:
            # With a place free nobody waits for those at work.
            return 0.0
        now = asyncio.get_running_loop().time()
        place = (self._start(client), next(self._numbers))
        before = sum(waiter.cost for waiter in self._waiting if waiter.order < place)
        before += sum(max(0.0, waiter.cost - (now - waiter.placed_at)) for waiter in self._working)
        return before / places

    def enter(
        self, ready_at: Callable[[], float], *, counted: bool = True, client: str = "", cost: float = 0.0
    ) -> Waiter:
        """Take a place and wait.

        Raises:
            LineFullError: the line is full.
        """
        if sum(waiter.counted is counted for waiter in self._waiting) >= MOST_WAITING:
            raise LineFullError
        start = self._start(client)
        if counted:
            self._ends[client] = start + max(cost, _LEAST_COST_S)
            if len(self._ends) > _MOST_CLIENTS:
                self._ends = {name: end for name, end in self._ends.items() if end > self._virtual}
        waiter = Waiter((start, next(self._numbers)), ready_at, counted=counted, cost=cost if counted else 0.0)
        self._insert(waiter)
        self.dispatch()
        return waiter

    def _start(self, client: str) -> float:
        return max(self._virtual, self._ends.get(client, 0.0))

    def _insert(self, waiter: Waiter) -> None:
        bisect.insort(self._waiting, waiter, key=lambda each: each.order)

    def back(self, waiter: Waiter) -> None:
        """From its turn back into the line, where it was; the bound does not count for it."""
        if waiter.placed:
            self._unplace(waiter)
            self._insert(waiter)
        self.dispatch()

    def leave(self, waiter: Waiter) -> None:
        """Out, from wherever it is."""
        if waiter.placed:
            self._unplace(waiter)
        elif waiter in self._waiting:
            self._waiting.remove(waiter)
        if not (self._waiting or self._working):
            # All are even: otherwise each client that came once would be kept, for the time of one that is new is now.
            self._ends.clear()
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
                waiter.placed, waiter.placed_at = True, now
                self.placed += waiter.counted
                self._working.add(waiter)
                self._virtual = max(self._virtual, waiter.order[0])
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
        self._working.discard(waiter)
        self.placed -= waiter.counted
        if self._alone is waiter:
            self._alone = None
