"""aiohttp's server, with a bound on the first head of a connection: a client that has connected must say what it wants.

Between two requests aiohttp itself gives a client ``keepalive_timeout`` for the whole of the next head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

#: Seconds from the connection to the end of its first head; a phone in a tunnel needs 3.
HEAD_S = 20.0

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HttpServer(web.Server):
    """``handle`` takes every request; ``keepalive_s`` is for idle connections, ``head_s`` for new ones."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        keepalive_s: float,
        head_s: float = HEAD_S,
    ) -> None:
        super().__init__(
            handle,
            request_factory=self._request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=keepalive_s,
            lingering_time=0,
        )
        self._head_s = head_s
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """A client has connected."""
        super().connection_made(handler, transport)
        self._silent[handler] = self._loop.call_later(self._head_s, self._let_go, handler, transport)

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
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop)

    def _heard(self, handler: RequestHandler) -> None:
        timer = self._silent.pop(handler, None)
        if timer is not None:
            timer.cancel()

    def _let_go(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        transport.write(_TOO_LATE)
        handler.force_close()
