"""The worker's generations: the connections to each, and what is in flight on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tidegate.gateway.flight import Loss
from tidegate.gateway.state import GuardState, Station, Worker
from tidegate.gateway.wire import Reply, Wire
from tidegate.policy.admission import Gate

_ONE_DEATH_S = 1.0


class Exchange:
    """One request at the worker, carried by the task that makes it. ``aborted`` says why it was broken off by us;
    ``tokens`` is its prompt; ``begun`` is loop time."""

    def __init__(self, upstream: Upstream, task: asyncio.Task[Any], tokens: int) -> None:
        self.begun = task.get_loop().time()
        self.upstream = upstream
        self.tokens = tokens
        self.aborted: Loss | None = None
        self._task = task

    def abort(self, loss: Loss) -> None:
        """Break it off at once; its connection is closed before this loop turn ends."""
        if self.aborted is None:
            self.aborted = loss
            self._task.cancel()

    def is_aborted(self) -> bool:
        """Whether the task's cancellation was :meth:`abort` and nothing else: then it is taken back."""
        return self.aborted is not None and self._task.uncancel() == 0


class Upstream:
    """One generation of the worker."""

    def __init__(self, worker: Worker) -> None:
        self.generation = worker.generation
        self.url = worker.url
        self.exchanges: set[Exchange] = set()
        self._broke_at = -_ONE_DEATH_S
        self._in_flight_when_it_broke = 0
        self._wire = Wire(worker.url)

    async def request(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send a request, see :meth:`tidegate.gateway.wire.Wire.request`."""
        return await self._wire.request(method, target, headers, body)

    def broke(self, now: float, begun: float) -> Loss:
        """What a connection's break at ``now`` means for its exchange, which began at ``begun`` (loop times).

        All that break within a second are one death. Who came after it has met the dead worker's last open door.
        """
        if now - self._broke_at > _ONE_DEATH_S:
            self._in_flight_when_it_broke = len(self.exchanges)
            self._broke_at = now
        elif begun > self._broke_at:
            return Loss.UNREACHABLE
        return Loss.DIED_ALONE if self._in_flight_when_it_broke == 1 else Loss.DIED

    def keep_idle(self, *, wanted: bool) -> None:
        """Whether an idle connection is kept."""
        self._wire.keep_idle(wanted=wanted)

    def close(self) -> None:
        """Close every connection."""
        self._wire.close()


class Pool:
    """All generations that still have something in flight, and the current one."""

    def __init__(self, station: Station, changed: Callable[[], None]) -> None:
        self._station = station
        self._changed = changed
        self._upstreams: list[Upstream] = []
        station.listen(self._moved)

    def current(self) -> Upstream:
        """The worker that the guard announced last."""
        worker = self._station.state.worker
        for upstream in self._upstreams:
            if (upstream.generation, upstream.url) == (worker.generation, worker.url):
                return upstream
        upstream = Upstream(worker)
        self._upstreams.append(upstream)
        self._sweep()
        return upstream

    def started(self, upstream: Upstream, tokens: int) -> Exchange:
        """The running task has a request at the worker from now on, until :meth:`ended`."""
        task = asyncio.current_task()
        assert task is not None
        exchange = Exchange(upstream, task, tokens)
        upstream.exchanges.add(exchange)
        self._changed()
        return exchange

    def ended(self, exchange: Exchange) -> None:
        """The exchange is over and its connection closed."""
        exchange.upstream.exchanges.discard(exchange)
        self._sweep()
        self._changed()

    def in_flight(self, generation: int | None = None) -> int:
        """How many requests are at the worker (of one generation, or of all)."""
        return sum(len(up.exchanges) for up in self._upstreams if generation is None or up.generation == generation)

    def prompt_tokens(self) -> int:
        """The prompts in flight, in tokens."""
        return sum(exchange.tokens for upstream in self._upstreams for exchange in upstream.exchanges)

    def abort_all(self, loss: Loss) -> None:
        """Break off everything in flight."""
        for upstream in self._upstreams:
            for exchange in list(upstream.exchanges):
                exchange.abort(loss)

    def close(self) -> None:
        """Close every connection."""
        for upstream in self._upstreams:
            upstream.close()
        self._upstreams.clear()

    def _moved(self, before: GuardState, after: GuardState) -> None:
        if before.board.gate is not after.board.gate:
            for upstream in self._upstreams:
                upstream.keep_idle(wanted=after.board.gate is Gate.OPEN)
        if after.board.gate in (Gate.HOLD, Gate.REFUSE):
            now = asyncio.get_running_loop().time()
            for upstream in self._upstreams:
                for exchange in list(upstream.exchanges):
                    exchange.abort(self._loss(exchange, after, now))
        self._sweep()

    def _loss(self, exchange: Exchange, after: GuardState, now: float) -> Loss:
        """What a closed gate means for what is in flight: an order, or the news of a death that nobody ordered."""
        upstream = exchange.upstream
        same = after.worker.generation == upstream.generation
        if self._station.ordered_generation == upstream.generation or (same and after.worker.state != "backoff"):
            return Loss.ORDERED
        return upstream.broke(now, exchange.begun)

    def _sweep(self) -> None:
        """Close the connections to earlier generations that carry nothing any more."""
        worker = self._station.state.worker
        for upstream in list(self._upstreams):
            if not upstream.exchanges and (upstream.generation, upstream.url) != (worker.generation, worker.url):
                self._upstreams.remove(upstream)
                upstream.close()
