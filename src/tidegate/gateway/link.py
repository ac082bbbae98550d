"""The line to the guard: state and stop come in, ledger and drained go out, commands are asked with a deadline.

Lines are handled as they arrive, in the same turn of the loop, because a new worker's announcement sets every held
request going. Nothing that comes in ends the link: a line that is too long or no JSON is skipped.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
from collections.abc import Callable

from tidegate.gateway.assemble import Json, Object
from tidegate.gateway.state import Station, parse, seconds

log = logging.getLogger(__name__)

RECONNECT_S = 0.2
#: The ledger is sent at most this often.
LEDGER_S = 0.1
#: A line of the contract is at most 64 KiB.
MOST_LINE_BYTES = 64 << 10


class NoGuardError(Exception):
    """The guard did not answer a command: not connected, gone, or too slow."""


class CommandError(Exception):
    """The guard refused a command; the text is its own."""


class Link:
    """Keeps one connection to the guard's socket at ``path``, and opens it again when it ends.

    ``ledger()`` gives the figures to report; ``on_open()`` is called for every new connection and ``on_stop(seconds)``
    when the guard says stop.
    """

    def __init__(
        self,
        path: str,
        station: Station,
        *,
        ledger: Callable[[], Object],
        on_open: Callable[[], None],
        on_stop: Callable[[float], None],
    ) -> None:
        self._path = path
        self._station = station
        self._ledger = ledger
        self._on_open = on_open
        self._on_stop = on_stop
        self._wire: _Wire | None = None
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Json]] = {}
        self._sent_ledger: Object = {}
        self._sent_at = -LEDGER_S
        self._timer: asyncio.TimerHandle | None = None
        self._leaving = False

    @property
    def connected(self) -> bool:
        """There is a guard at the other end."""
        return self._wire is not None

    async def run(self) -> None:
        """Connect, and connect again, until cancelled or :meth:`leave`."""
        loop = asyncio.get_running_loop()
        was_there = True
        try:
            while not self._leaving:
                try:
                    transport, wire = await loop.create_unix_connection(lambda: _Wire(self), self._path)
                except OSError as error:
                    if was_there:
                        log.warning("cannot reach the guard at %s: %s; trying on", self._path, error.strerror or error)
                    was_there = False
                else:
                    was_there = True
                    try:
                        await wire.ended
                    finally:
                        transport.abort()
                    log.warning("the guard is gone; going on with the last worker")
                await asyncio.sleep(RECONNECT_S)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def leave(self) -> None:
        """Do not connect again: a guard that comes now has a gateway of its own."""
        self._leaving = True

    async def command(self, name: str, *, deadline: float, **more: Json) -> Json:
        """Ask the guard; ``deadline`` is seconds.

        Raises:
            NoGuardError: no answer in time.
            CommandError: the guard answered that it cannot.
        """
        wire = self._wire
        if wire is None:
            raise NoGuardError("the guard is not connected")
        number = next(self._ids)
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            wire.send({"id": number, "command": name, **more})
            async with asyncio.timeout(deadline):
                return await answer
        except TimeoutError:
            raise NoGuardError(f"the guard did not answer within {deadline:g} s") from None
        finally:
            del self._pending[number]

    def drained(self, generation: int) -> None:
        """Nothing is in flight at this generation any more."""
        if self._wire is not None:
            self._wire.send({"drained": generation})

    def ledger_changed(self) -> None:
        """Report the ledger soon, or when 100 ms have passed since the last report.

        Not now: a request that was just placed goes to the worker first."""
        if self._wire is None or self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, self._sent_at + LEDGER_S - loop.time()), self._report)

    def _report(self) -> None:
        self._timer = None
        ledger = self._ledger()
        if self._wire is not None and ledger != self._sent_ledger:
            self._wire.send({"ledger": ledger})
            self._sent_ledger = ledger
            self._sent_at = asyncio.get_running_loop().time()

    # -- called by the wire -------------------------------------------------------------------------------------

    def opened(self, wire: _Wire) -> None:
        """A connection stands."""
        self._wire = wire
        self._station.reconnected()
        self._on_open()
        wire.send({"hello": "gateway", "pid": os.getpid()})
        self._sent_ledger = {}
        self._report()

    def closed(self, wire: _Wire) -> None:
        """It ended."""
        if self._wire is wire:
            self._wire = None
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(NoGuardError("the guard is gone"))

    def line(self, data: bytes) -> None:
        """One line came in."""
        try:
            message: Json = json.loads(data)
        except (ValueError, RecursionError):
            log.warning("cannot read a line of the guard (%d bytes)", len(data))
            return
        if not isinstance(message, dict):
            return
        if "state" in message:
            state = parse(message["state"])
            if state is None:
                log.warning("cannot read a state of the guard")
            else:
                self._station.update(state)
        if (within_s := seconds(message.get("stop"))) is not None:
            self._on_stop(within_s)
        number = message.get("id")
        answer = self._pending.get(number) if isinstance(number, int) else None
        if answer is not None and not answer.done():
            if message.get("ok") is True:
                answer.set_result(message.get("result"))
            else:
                answer.set_exception(CommandError(str(message.get("error", "the guard gave no reason"))))


class _Wire(asyncio.Protocol):
    """The bytes of one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = b""
        self._skipping = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, message: Object) -> None:
        """Write one line; it is dropped if the guard does not read (it will get the next)."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() < MOST_LINE_BYTES:
            self._transport.write(json.dumps(message).encode() + b"\n")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._link.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.closed(self)
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._buffer + data).split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
            elif line.strip():
                self._link.line(line)
        if len(rest) > MOST_LINE_BYTES:
            self._skipping, rest = True, b""
        self._buffer = rest
