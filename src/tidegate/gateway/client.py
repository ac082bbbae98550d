"""The client's side of one request: what was sent to it already, and how it is told anything.

Before a byte was sent an error is an HTTP status; afterwards it is an event in the stream. Every failed write means
that the client has gone: aiohttp raises the same errors for the worker's connection, so they are told apart here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any

from aiohttp import web

from tidegate.gateway import sse
from tidegate.gateway.errors import Refusal, Surface
from tidegate.gateway.instead import Instead, stands_for
from tidegate.gateway.voice import OpenAIVoice, Voice

JSON_TYPE = "application/json; charset=utf-8"

#: Seconds. A client that has read nothing for this long is not there any more; what it was sent waits in the kernel.
SLOW_READER_S = 30.0
#: asyncio's own mark: below it a write goes into the buffer at once and waits for nobody.
_HIGH_WATER_BYTES = 64 << 10
#: Nobody waits longer than this for a client that does not read the end of its stream.
FAREWELL_S = 5.0


class _Stream(web.StreamResponse):
    """Its head goes out with its first bytes: one system call less before them."""

    _send_headers_immediately = False


class ClientGoneError(Exception):
    """The client closed its connection."""


class Client:
    """``key`` is who it is, for a fair share; ``stream`` says that comments may be sent to it while it waits;
    ``instead`` that it wants an answer where a refusal would pass by itself."""

    def __init__(
        self,
        request: web.BaseRequest,
        *,
        key: str,
        stream: bool,
        voice: Voice | None = None,
        surface: Surface = Surface.OPENAI,
        instead: Instead | None = None,
    ) -> None:
        self.request = request
        self.key = key
        self.stream = stream
        self.surface = surface if voice is None else voice.surface
        self._voice = OpenAIVoice() if voice is None else voice
        self._instead = instead
        #: What the answer came to, for the metrics.
        self.outcome = ""
        self._response: web.StreamResponse | None = None

    @property
    def begun(self) -> bool:
        """The head of the answer was sent."""
        return self._response is not None

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of a streamed answer."""
        response = _Stream(status=status, headers=headers)
        try:
            await response.prepare(self.request)
        except (ConnectionError, RuntimeError) as error:
            raise ClientGoneError from error
        self._response = response

    async def write(self, data: bytes) -> None:
        """Send bytes of a streamed answer; waits while the client is slow to read, but not for ever: it holds one of
        the worker's places meanwhile."""
        assert self._response is not None
        await self._sent(self._response.write(data), len(data))

    async def _sent(self, sending: Coroutine[Any, Any, None], size: int) -> None:
        transport = self.request.transport
        try:
            # Once it is full the writer waits until it is nearly empty, not only while it is full.
            full = transport is None or transport.get_write_buffer_size() + size >= _HIGH_WATER_BYTES
            if not (full or self.request.protocol.writing_paused):
                await sending
                return
            async with asyncio.timeout(SLOW_READER_S):
                await sending
        except TimeoutError as error:
            self.break_off()
            raise ClientGoneError from error
        except (ConnectionError, RuntimeError) as error:
            raise ClientGoneError from error

    async def comment(self, headers: Mapping[str, str]) -> None:
        """Show a waiting stream client that we live: the head at first, then comments."""
        if not self.begun:
            await self.begin(200, {**stream_headers(self._voice.stream_type), **headers})
        await self.write(self._voice.waiting())

    def note(self, text: str) -> bytes:
        """A line for whoever reads the stream itself; empty where the API has no place for one."""
        return sse.comment(text) if self._voice.stream_type == sse.STREAM_TYPE else b""

    async def finish(self, data: bytes = b"") -> web.StreamResponse:
        """The streamed answer is complete with ``data``."""
        assert self._response is not None
        await self._sent(self._response.write_eof(data), len(data))
        return self._response

    async def whole(self, response: web.Response) -> web.StreamResponse:
        """Give the whole answer: a large one in pieces, so that a client that does not read it is noticed."""
        body = response.body
        if not isinstance(body, bytes) or len(body) < _HIGH_WATER_BYTES:
            return response
        await self.begin(response.status, {**response.headers, "Content-Length": str(len(body))})
        for start in range(0, len(body), _HIGH_WATER_BYTES):
            await self.write(body[start : start + _HIGH_WATER_BYTES])
        return await self.finish()

    async def refuse(self, refusal: Refusal, headers: Mapping[str, str], *, blank: bool = True) -> web.StreamResponse:
        """Tell it no: as a status while that is possible, else as the last event of the stream.

        ``blank``: nothing of an answer was sent yet."""
        self.outcome = refusal.outcome
        if self._instead is not None and blank and stands_for(refusal):
            return await self._answer(self._instead, refusal, headers)
        if not self.begun:
            return web.Response(
                status=refusal.http_status(self.surface),
                body=refusal.body(self.surface),
                headers={**headers, **refusal.all_headers(), "Content-Type": JSON_TYPE},
            )
        return await self._end(refusal.event(self.surface))

    async def _answer(self, instead: Instead, refusal: Refusal, headers: Mapping[str, str]) -> web.StreamResponse:
        said = {**headers, **refusal.all_headers(), "x-tidegate-degraded": "refused"}
        if not self.stream:
            whole = self._voice.whole(instead.whole(refusal))
            body = json.dumps(whole, ensure_ascii=False).encode("utf-8", "replace")
            return web.Response(body=body, headers={**said, "Content-Type": JSON_TYPE})
        if not self.begun:
            await self.begin(200, {**stream_headers(self._voice.stream_type), **said})
        chunks = [self._voice.chunk(chunk, sse.data_event(chunk)) for chunk in instead.chunks(refusal)]
        return await self._end(b"".join(chunks) + self._voice.done())

    async def _end(self, data: bytes) -> web.StreamResponse:
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self.write(data)
                return await self.finish()
        except TimeoutError as error:
            # Its stream has begun, so nothing else may be written behind this.
            self.break_off()
            raise ClientGoneError from error

    def break_off(self) -> None:
        """End an answer that is no event stream and cannot be completed, so that it does not look complete."""
        if self.request.transport is not None:
            self.request.transport.abort()


def stream_headers(stream_type: str = sse.STREAM_TYPE) -> dict[str, str]:
    """The head of a stream; proxies are told not to collect it."""
    return {
        "Content-Type": stream_type,
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",
    }
