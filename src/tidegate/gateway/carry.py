"""Carries one request to the worker and the answer back: waits for a place, sends, and sends again when it must.

The decisions are made elsewhere: :mod:`tidegate.policy.admission` says what may go, :class:`~.flight.Flight` what
follows a loss, a :class:`~.job.Job` how the request looks. This is the part that waits and does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

import aiohttp
from aiohttp import web

from tidegate.gateway import errors
from tidegate.gateway.client import Client, ClientGoneError
from tidegate.gateway.errors import Refusal, retry_after
from tidegate.gateway.flight import Flight, Loss, Next, Stage, Verdict, judge
from tidegate.gateway.front import DEATHS, DEGRADED, REQUESTS, RETRY_LEVEL_S, Front
from tidegate.gateway.job import EngineSaid, Finished, Job, Result
from tidegate.gateway.queue import LineFullError
from tidegate.gateway.upstream import Upstream
from tidegate.gateway.wire import UnreachableError

log = logging.getLogger(__name__)

#: A waiting stream client hears from us this often, in seconds; the first 5 s stay silent so that a refusal can still
#: be an HTTP status.
COMMENT_S = 5.0
#: llama-server's answer to what this worker was not started for, embeddings of a chat worker: no fault.
_NOT_SUPPORTED = 501


class Carrier:
    """One request on its way."""

    def __init__(self, front: Front, client: Client, job: Job) -> None:
        self.front = front
        self.client = client
        self.job = job
        self.flight = Flight()
        #: This attempt has passed something on.
        self._passed_on = False
        #: Something of the answer has come to the client, from whichever worker.
        self._content = False
        self._generation = -1
        self._comment_at = front.loop.time() + COMMENT_S
        self._held_since: float | None = None
        self._turn_by = front.loop.time() + front.settings.gateway.deadline

    @property
    def _language(self) -> str:
        return self.front.settings.gateway.language

    async def run(self) -> web.StreamResponse:
        """The whole life of the request; returns what aiohttp is to send or has sent."""
        kept = self._kept_away()
        if kept is not None:
            self.front.counters.add(REQUESTS, outcome=kept.outcome)
            return await self._refuse(kept)
        client, wait = self.client.key, 0.0
        try:
            if self.job.counted:
                wait = self.front.line.expected_wait(client)
                if wait > self.front.settings.gateway.deadline:
                    raise LineFullError
            waiter = self.front.line.enter(
                self._ready_at, counted=self.job.counted, client=client, cost=self.job.cost_s
            )
        except LineFullError:
            over = wait - self.front.settings.gateway.deadline
            retry = retry_after(over, RETRY_LEVEL_S, random.random())
            refusal = errors.full(waiting=self.front.line.waiting, wait_s=wait, retry_s=retry, language=self._language)
            self.front.counters.add(REQUESTS, outcome=refusal.outcome)
            return await self._refuse(refusal)
        self._waiter = waiter
        counting = None
        try:
            if not waiter.placed and self.front.station.state.board.usable:
                # There will be a wait: let it not end in a "too long" that could have been said at once.
                counting = self.front.loop.create_task(self._count())
            while True:
                response = await self._wait()
                if counting is not None:
                    # It was for the wait; what is sent is counted as it is sent.
                    counting.cancel()
                if response is None:
                    response = await self._attempt()
                if response is not None:
                    return response
                self.front.line.back(waiter)
        except ClientGoneError:
            if self.client.outcome != "cut":
                self.client.outcome = "client_gone"
            return web.Response(status=499)
        except asyncio.CancelledError:
            self.client.outcome = "client_gone"
            raise
        finally:
            if counting is not None:
                counting.cancel()
            self.flight.ended()
            self.front.line.leave(waiter)
            self._record()

    def _kept_away(self) -> Refusal | None:
        front = self.front
        if not len(front.quarantine):
            return None
        profile = front.station.state.worker.profile
        seconds = front.quarantine.holds(self.job.fingerprint, profile, front.loop.time())
        return errors.quarantined(profile=profile, seconds=seconds) if seconds else None

    # -- waiting ------------------------------------------------------------------------------------------------

    async def _count(self) -> None:
        await self.job.measure(self.front.pool.current())
        self._waiter.wake()

    def _ready_at(self) -> float:
        return max(self.flight.ready_at(self.front.station.epoch), self.front.reachable_at())

    async def _wait(self) -> web.StreamResponse | None:
        """Until there is a place (None), or a refusal."""
        waiter, loop = self._waiter, self.front.loop
        while True:
            now = loop.time()
            refusal = self._judged() or self._refusal(now)
            if refusal is not None:
                return await self._refuse(refusal)
            if 0.0 < self._ready_at() <= now:
                # Its time-out after a failed generation is over, which the line does not notice by itself.
                self.front.line.dispatch()
            if waiter.placed:
                return None
            await waiter.pause(self._next_look(now) - now)
            await self._comment()

    def _judged(self) -> Refusal | None:
        """The end of a request that workers die of; a suspect is sent alone."""
        front = self.front
        verdict = judge(self.flight.deaths, front.station.causes, front.station.state.worker.generation)
        if verdict is Verdict.GUILTY:
            message = front.station.state.worker.message
            front.quarantine.add(self.job.fingerprint, front.station.state.worker.profile, front.loop.time())
            return errors.crashed(times=len(self.flight.deaths), message=message)
        if verdict is Verdict.SUSPECT and not self._waiter.alone:
            front.line.isolate(self._waiter)
        return None

    def _refusal(self, now: float) -> Refusal | None:
        """Why the request cannot go on waiting, if so."""
        front = self.front
        state = front.station.state
        if self._waiter.placed:
            return None
        if front.stopping:
            return errors.stopping(front.retry_after(), language=self._language)
        refusal = self.job.refusal(admitted=self.flight.sends > 0)
        if refusal is not None:
            return refusal
        if now >= self._turn_by:
            return errors.late(
                waited_s=front.settings.gateway.deadline,
                waiting=front.line.waiting,
                level=state.board.level.label,
                retry_s=front.retry_after(RETRY_LEVEL_S),
                language=self._language,
            )
        if state.board.usable and self._ready_at() <= now:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = now
        elif now - self._held_since >= front.settings.gateway.hold:
            retry = front.retry_after()
            return errors.expired(
                waited_s=now - self._held_since,
                message=state.worker.message,
                retry_s=retry,
                language=self._language,
            )
        return None

    def _next_look(self, now: float) -> float:
        """When the wait has to be looked at again even if nothing happens."""
        looks = [(now if self._held_since is None else self._held_since) + self.front.settings.gateway.hold]
        looks.append(self._turn_by)
        if self.client.stream:
            looks.append(self._comment_at)
        if (ready_at := self._ready_at()) > now:
            looks.append(ready_at)
        return min(looks)

    async def _comment(self) -> None:
        """A sign of life for a stream client, if it is time for one."""
        now = self.front.loop.time()
        if self.client.stream and now >= self._comment_at and not self._passed_on:
            self._comment_at = now + COMMENT_S
            await self.client.comment(self.front.headers())

    # -- sending ------------------------------------------------------------------------------------------------

    async def _attempt(self) -> web.StreamResponse | None:
        """Send it once. None: it goes back into the line."""
        station, pool, job = self.front.station, self.front.pool, self.job
        if not station.state.board.usable:
            # The gate closed between its turn and now; what the guard names then may be no worker.
            return None
        upstream, epoch = pool.current(), station.epoch
        self._passed_on, self._generation = False, upstream.generation
        refusal = await job.shape(upstream, admitted=self.flight.sends > 0)
        if refusal is not None:
            return await self._refuse(refusal)
        if station.epoch != epoch or not station.state.board.usable:
            return None
        self.flight.sent()
        exchange = pool.started(upstream, job.tokens)
        try:
            result = await self._accompanied(upstream)
        except asyncio.CancelledError:
            if not exchange.is_aborted():
                raise
            result = exchange.aborted or Loss.ORDERED
        finally:
            pool.ended(exchange)
        if isinstance(result, Finished):
            return await self._finish(result)
        if isinstance(result, EngineSaid):
            if self.flight.stage is Stage.SENT and job.reshape(result):
                self.flight.retracted()
                return None
            if result.fault and result.status >= 500 and result.status != _NOT_SUPPORTED:
                self.front.engine_fault()
            self.flight.finished()
            return await self._refuse(job.refused(result))
        return await self._lost(result, epoch)

    async def _accompanied(self, upstream: Upstream) -> Result:
        """The attempt; a stream that already has its head hears comments during a long prefill too."""
        if not (self.client.begun and self.client.stream):
            return await self._exchange(upstream)
        comments = self.front.loop.create_task(self._comment_on())
        try:
            return await self._exchange(upstream)
        finally:
            comments.cancel()

    async def _comment_on(self) -> None:
        """Comment until something is passed on. A client that has gone ends the request itself."""
        with contextlib.suppress(ClientGoneError):
            while not self._passed_on:
                await asyncio.sleep(max(0.0, self._comment_at - self.front.loop.time()))
                await self._comment()

    async def _exchange(self, upstream: Upstream) -> Result:
        """The attempt itself. It is broken off by cancelling the request's task, see :class:`Exchange`."""
        job, begun = self.job, self.front.loop.time()
        carry_over, restored = self.front.carry_over, None
        try:
            if job.counted and carry_over.enabled:
                restored = await carry_over.before(upstream, self.front.station.state, job.prefix)
            for body in job.before:
                async with await upstream.request(job.method, job.target, job.headers(), body) as first:
                    await first.read()
            async with await upstream.request(job.method, job.target, job.headers(), job.body) as reply:
                result = await job.take(reply, self)
                if isinstance(result, Finished):
                    reply.done()
                    if restored is not None:
                        carry_over.verify(restored, job.cached)
                return result
        except UnreachableError:
            return Loss.UNREACHABLE
        except (aiohttp.ClientError, OSError, TimeoutError):
            loss = upstream.broke(self.front.loop.time(), begun)
            # The guard's word may have come in the same turn of the loop; let it be heard first.
            await asyncio.sleep(0)
            return Loss.ORDERED if self.front.station.ordered_generation == upstream.generation else loss

    async def _lost(self, loss: Loss, epoch: int) -> web.StreamResponse | None:
        self.front.counters.add(DEATHS, how=loss.value)
        if loss is Loss.UNREACHABLE and epoch == self.front.station.epoch:
            self.front.unreachable()
        loop = self.front.loop
        then = self.flight.lost(
            loss, generation=self._generation, epoch=epoch, now=loop.time(), resumable=self.job.resumable
        )
        log.info("a request lost its worker (%s): %s", loss, then)
        if then is Next.CUT:
            if not self.client.stream:
                self.client.outcome = "cut"
                self.client.break_off()
                raise ClientGoneError
            return await self._refuse(errors.cut(self.front.station.state.worker.message))
        self._passed_on = False
        self._comment_at = loop.time() + COMMENT_S
        if loss not in (Loss.UNREACHABLE, Loss.LOADING):
            # It had its turn already: what it waits for now is a worker. One that took it up; a door that stays shut
            # may not keep it here for ever.
            self._turn_by = max(self._turn_by, loop.time() + self.front.settings.gateway.hold)
        return None

    # -- answering ----------------------------------------------------------------------------------------------

    def head(self) -> dict[str, str]:
        """The headers that tell what was done to the answer."""
        headers = self.front.headers()
        degraded = self._degraded()
        if degraded:
            headers["x-tidegate-degraded"] = ", ".join(degraded)
            headers["x-tidegate-context"] = str(self.front.station.state.worker.context)
        if self.job.dropped:
            headers["x-tidegate-dropped-messages"] = str(self.job.dropped)
        return headers

    async def pass_on(self, data: bytes, *, status: int, headers: dict[str, str], content: bool = True) -> None:
        """Send bytes of the engine's answer; the head goes before the first of them.

        ``content`` False marks bytes that do no harm if they come again after a restart.
        """
        if content:
            self._content = True
            self.flight.content()
        if not self._passed_on:
            self._passed_on = True
            if not self.client.begun:
                await self.client.begin(status, {**headers, **self.head()})
            elif degraded := self._degraded():
                # The head went out while it waited, so this is the only place left to say it.
                # In one piece with the data: what follows the loss of a worker between two would be missing.
                data = self.client.note(f"tidegate: degraded {', '.join(degraded)}") + data
        if data:
            await self.client.write(data)

    async def _finish(self, finished: Finished) -> web.StreamResponse:
        self.flight.finished()
        self.client.outcome = "answered"
        for how in self._degraded():
            self.front.counters.add(DEGRADED, how=how)
        if finished.response is None:
            return await self.client.finish(finished.last)
        return await self.client.whole(finished.response)

    async def _refuse(self, refusal: Refusal) -> web.StreamResponse:
        return await self.client.refuse(refusal, self.front.headers(), blank=not self._content)

    def _degraded(self) -> list[str]:
        found = {
            "trimmed": bool(self.job.dropped),
            "capped": self.job.capped,
            "fallback": self.job.counted and self.front.fallback(),
            "replayed": self.flight.replayed,
        }
        return [how for how, is_so in found.items() if is_so]

    def _record(self) -> None:
        self.front.counters.add(REQUESTS, outcome=self.client.outcome or "failed")
