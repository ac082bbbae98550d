"""HTTP/1.1 to the worker: one request a connection, and the last connection kept for a moment.

aiohttp reads the answers (:class:`aiohttp.client_proto.ResponseHandler`); its client session is left out, which costs
0.4 ms a request before the first byte. One idle connection is kept, for a second: llama-server's HTTP server
(cpp-httplib) has a thread waiting at each, of as many as it has slots and a few, and closes one after 5 s itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from types import TracebackType
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage

#: Seconds to connect: the socket is local, so a longer wait means a full backlog.
CONNECT_S = 5.0
#: Seconds without a byte: a prefill of 4096 tokens at 10 tokens/s is 400 s.
READ_S = 900.0
#: Seconds that an idle connection is kept.
KEEP_S = 1.0

#: Larger bodies are not copied behind their head.
_ONE_WRITE_BYTES = 64 << 10
#: What would end a line of the head, or the target in it.
_NO_TARGET = re.compile(r"[^\x21-\x7e]")


class UnreachableError(ConnectionError):
    """Nobody listens at the worker's address, or its backlog is full."""


class Reply:
    """The worker's answer, head read. Use it as a context, or :meth:`close` it."""

    def __init__(
        self, wire: Wire, handler: ResponseHandler, head: RawResponseMessage, content: aiohttp.StreamReader
    ) -> None:
        self.status = head.code
        self.headers = head.headers
        self.content = content
        self._wire = wire
        self._handler: ResponseHandler | None = handler

    @property
    def content_type(self) -> str:
        """The media type without parameters, in small letters; empty if the worker names none."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """The whole body, or its rest.

        Raises:
            aiohttp.ClientError, OSError: as reading :attr:`content` does.
        """
        return await self.content.read()

    def done(self) -> None:
        """What matters was read: another request may have the connection once the worker has ended this answer."""
        handler, self._handler = self._handler, None
        if handler is not None:
            self._wire.keep(handler)

    def close(self) -> None:
        """Break it off, unless it is done: the connection is closed before this returns."""
        handler, self._handler = self._handler, None
        if handler is not None:
            self._wire.drop(handler)

    async def __aenter__(self) -> Reply:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.content.is_eof():
            self.done()
        self.close()


class Wire:
    """The way to the worker at ``url``, ``unix:PATH`` or ``http://HOST:PORT``; ``keep_s`` is for an idle connection."""

    def __init__(self, url: str, *, keep_s: float = KEEP_S) -> None:
        self._keep_s = keep_s
        self._loop = asyncio.get_running_loop()
        self._open: set[ResponseHandler] = set()
        self._idle: ResponseHandler | None = None
        self._idle_until: asyncio.TimerHandle | None = None
        self._closed = False
        self._keeps = True
        self._path = url.removeprefix("unix:") if url.startswith("unix:") else None
        split = urlsplit("http://worker" if self._path is not None else url)
        self._host, self._port = split.hostname or "", split.port or 80
        self._base, self._host_field = split.path.rstrip("/"), split.netloc

    async def request(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send a request; ``target`` is a raw path with query.

        Raises:
            UnreachableError: there is no connection, or this wire is closed.
            aiohttp.ClientError, OSError: it was lost, silent for :data:`READ_S`, or spoke no HTTP.
            ValueError: the target or a header cannot be sent.
        """
        head = self._head(method, target, headers, body)
        handler = self._take()
        if handler is None:
            handler = await self._connect()
        try:
            handler.set_response_params(
                skip_payload=method == "HEAD", read_until_eof=True, auto_decompress=False, read_timeout=READ_S
            )
            transport = handler.transport
            if transport is None:
                raise aiohttp.ServerDisconnectedError
            if len(body) <= _ONE_WRITE_BYTES:
                transport.write(head + body)
            else:
                transport.write(head)
                transport.write(body)
            handler.start_timeout()
            message, content = await handler.read()
            while 100 <= message.code < 200:
                if message.code == 101:
                    raise aiohttp.ClientPayloadError("cannot read the worker's answer: it changes the protocol")
                message, content = await handler.read()
        except HttpProcessingError as error:
            self.drop(handler)
            text = " ".join(error.message.split())
            raise aiohttp.ClientPayloadError(f"cannot read the worker's answer: {text}") from None
        except BaseException:
            self.drop(handler)
            raise
        return Reply(self, handler, message, content)

    def keep(self, handler: ResponseHandler) -> None:
        """The connection may serve the next request; its answer may still lack its end."""
        if self._closed or not self._keeps or not handler.is_connected() or self._idle is not None:
            self.drop(handler)
            return
        self._idle = handler
        self._idle_until = self._loop.call_later(self._keep_s, self._drop_idle)

    def keep_idle(self, *, wanted: bool) -> None:
        """Whether an idle connection is kept: a server that is to end may wait for its client."""
        self._keeps = wanted
        if not wanted:
            self._drop_idle()

    def drop(self, handler: ResponseHandler) -> None:
        """Close the connection at once."""
        self._open.discard(handler)
        # Not its transport's close(): that would first write what the worker has not taken yet.
        handler.abort()

    def close(self) -> None:
        """Close every connection; who reads from one meets a :class:`aiohttp.ClientError`."""
        self._closed = True
        self._drop_idle()
        for handler in list(self._open):
            if handler.transport is not None:
                handler.transport.abort()
        self._open.clear()

    def _drop_idle(self) -> None:
        handler = self._release()
        if handler is not None:
            self.drop(handler)

    def _release(self) -> ResponseHandler | None:
        handler, self._idle = self._idle, None
        if self._idle_until is not None:
            self._idle_until.cancel()
        return handler

    def _take(self) -> ResponseHandler | None:
        """The idle connection, if it is good for another request."""
        handler = self._release()
        if handler is None or (handler.is_connected() and not handler.should_close):
            return handler
        self.drop(handler)
        return None

    async def _connect(self) -> ResponseHandler:
        self._check_open()
        made = ResponseHandler(self._loop)
        try:
            async with asyncio.timeout(CONNECT_S):
                if self._path is not None:
                    await self._loop.create_unix_connection(lambda: made, self._path)
                else:
                    await self._loop.create_connection(lambda: made, self._host, self._port)
        except (OSError, TimeoutError) as error:
            raise UnreachableError(f"cannot connect to the worker: {error}") from error
        self._open.add(made)
        try:
            self._check_open()
        except UnreachableError:
            self.drop(made)
            raise
        return made

    def _check_open(self) -> None:
        if self._closed:
            raise UnreachableError("cannot connect to the worker: it was replaced")

    def _head(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
        if _NO_TARGET.search(method + target):
            raise ValueError("cannot send the request: its target has characters that no target has")
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        # Each field has one line end, its own.
        ends = fields.count("\r\n"), fields.count("\r"), fields.count("\n")
        if ends != (len(headers),) * 3 or "\x00" in fields:
            raise ValueError("cannot send the request: a header has a line end")
        length = f"Content-Length: {len(body)}\r\n" if body or method not in ("GET", "HEAD") else ""
        return f"{method} {self._base}{target} HTTP/1.1\r\nHost: {self._host_field}\r\n{fields}{length}\r\n".encode()
