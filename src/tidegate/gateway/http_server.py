"""aiohttp's server, with bounds on what a client may make us hold before anybody has looked at its key.

A client that has connected must say what it wants in time, in a head of a bounded length; what it sends behind the
request in progress is bounded too, and so is the number of clients. Between two requests aiohttp itself gives a client
``keepalive_timeout`` for the whole of the next head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler

#: Seconds from the connection to the end of its first head; a phone in a tunnel needs 3.
HEAD_S = 20.0
#: Bytes of one head. A real client's has 2 KB, with a token of 4 KB and cookies of 8 KB 14; aiohttp bounds only each
#: field (8190 bytes) and their number, which together are 1 MB.
HEAD_BYTES = 32 << 10
#: Fields of one head; a browser sends 20, a chain of proxies adds 10. aiohttp answers 400 to more.
HEAD_FIELDS = 96
#: Bytes of a head that has not come to its end, and of all such heads together (each costs up to three times that as
#: objects): beyond the second the first is the bound, so that 2048 heads of 32 KiB are not 215 MiB. A real client's
#: comes in one read, and is not held at all.
PART_BYTES, PARTS_BYTES = 4 << 10, 4 << 20
#: Bytes taken from a socket at once. Where in a piece a body ends is not known, so what follows it there is not
#: counted; asyncio's own 256 KiB would be too much of that. A body of 16 MiB is read as fast either way.
READ_BYTES = 32 << 10
#: Requests that were read and have not begun. No client pipelines, but the next may come before we are done with the
#: last. At 32 aiohttp stops reading, and would not see any more that the client has gone.
MOST_WAITING = 2
#: Bytes of such requests, their bodies with them. A client that has seen the end of an answer may send a large body
#: before we are done with that answer: one read was measured, this is four. At 512 KiB aiohttp stops reading, as above.
MOST_WAITING_BYTES = 128 << 10
#: Clients at once. A silent one costs 5.3 KiB, so 11 MiB in all.
MOST_CONNECTIONS = 2048

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Connection(RequestHandler):
    """One client, and how many bytes it has sent that neither began a request nor were body of the one in progress.

    aiohttp tells in nothing public what it has read: ``_waiter`` is set while it waits for a request, ``_messages`` are
    those that it has read and not begun.
    """

    __slots__ = ("_body", "_held", "_server")

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop, **settings: Any) -> None:
        super().__init__(server, loop=loop, **settings)
        self._server = server
        self._body: StreamReader = EMPTY_PAYLOAD
        self._held = 0

    def begun(self, body: StreamReader) -> None:
        """A request's turn has come; ``body`` is what is read of it from now on."""
        self._body = body
        self._hold(-self._held)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client has left, or was let go."""
        self._hold(-self._held)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Let aiohttp have it, as long as it is not too much."""
        room = HEAD_BYTES - self._held
        if len(data) > room and self._waiter is not None and not self._messages:
            # Up to the bound only: behind a head's end this may be body.
            super().data_received(data[:room])
            if not self._messages:
                self.turn_away(_TOO_LARGE)
                return
            self._hold(room)
            data = data[room:]
        before = self._body.total_bytes
        super().data_received(data)
        self._hold(len(data) if self._body.total_bytes == before else -self._held)
        waiting = len(self._messages)
        if waiting > MOST_WAITING or self._held > self._bound(waiting):
            if waiting or self._waiter is None:
                # No answer: it would come in the middle of the one in progress.
                self.break_off()
            else:
                self.turn_away(_TOO_LARGE)

    def _bound(self, waiting: int) -> int:
        if waiting:
            return MOST_WAITING_BYTES
        return HEAD_BYTES if self._server.held <= PARTS_BYTES else PART_BYTES

    def _hold(self, size: int) -> None:
        self._held += size
        self._server.held += size

    def turn_away(self, answer: bytes) -> None:
        """End the connection with ``answer``; nothing may be in progress on it."""
        if self.transport is not None:
            self.transport.write(answer)
        self.force_close()

    def break_off(self) -> None:
        """End the connection at once, and with it the request in progress, as if the client had gone."""
        if self.transport is not None:
            self.transport.abort()
        self.force_close()


class HttpServer(web.Server):
    """``handle`` takes every request. Seconds: ``keepalive_s`` for idle connections, ``head_s`` for new ones."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        keepalive_s: float,
        head_s: float = HEAD_S,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        super().__init__(handle, request_factory=self._request, handler_cancellation=True)
        self._keepalive_s = keepalive_s
        self._head_s = head_s
        self._most_connections = most_connections
        #: Bytes that were read from all clients and have begun no request.
        self.held = 0
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> Connection:
        """What aiohttp asks for each client."""
        return Connection(
            self,
            self._loop,
            access_log=None,
            keepalive_timeout=self._keepalive_s,
            lingering_time=0,
            max_headers=HEAD_FIELDS,
        )

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """A client has connected."""
        super().connection_made(handler, transport)
        if len(self.connections) > self._most_connections:
            cast(Connection, handler).break_off()
            return
        # An attribute of asyncio's own transports, in no interface.
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        self._silent[handler] = self._loop.call_later(self._head_s, cast(Connection, handler).turn_away, _TOO_LATE)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """It has left."""
        self._heard(handler)
        super().connection_lost(handler, exc)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        self._heard(protocol)
        cast(Connection, protocol).begun(payload)
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop)

    def _heard(self, handler: RequestHandler) -> None:
        timer = self._silent.pop(handler, None)
        if timer is not None:
            timer.cancel()
