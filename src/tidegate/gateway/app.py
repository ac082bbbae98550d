"""The routes: which request goes where, and the bounds on what is read from a client."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import HttpVersion11, web

from tidegate.gateway import dialects, errors, instead, ollama_embed, openai
from tidegate.gateway.access import CREDENTIALS, Access, is_loopback
from tidegate.gateway.carry import Carrier
from tidegate.gateway.client import JSON_TYPE, Client
from tidegate.gateway.completion import CompletionJob
from tidegate.gateway.control import Control, refusal_response
from tidegate.gateway.embed_job import EmbedJob
from tidegate.gateway.errors import OVERLOADED, Refusal, Surface
from tidegate.gateway.front import REQUESTS, Front
from tidegate.gateway.headers import plain_path, request_headers
from tidegate.gateway.instead import Instead
from tidegate.gateway.models import Models
from tidegate.gateway.ollama_embed import Embedding
from tidegate.gateway.passthrough import PassJob, generates, keeps_slots, wants_stream

log = logging.getLogger(__name__)

#: One request's body: three photographs of 4 MB as base64. A text with one emoji takes four bytes a character in
#: Python, and parsing holds it three times: a body of 40 MiB took 569 MB.
MOST_BODY_BYTES = 16 << 20
#: All bodies that are held at once. The gateway must not be what fills the memory it guards.
MOST_BODIES_BYTES = 32 << 20

#: Seconds: how long a client may be silent in the middle of its body, and take for all of it (16 MiB at 1 Mbit/s: 134).
SLOW_SENDER_S = 20.0
WHOLE_BODY_S = 180.0
#: Of a request, in the log, if ``gateway.log_prompts`` asks for it.
SHOWN_CHARACTERS = 2000
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def shown(body: bytes) -> str:
    """The beginning of a body as one line."""
    text = body[: 4 * SHOWN_CHARACTERS].decode("utf-8", "replace")[:SHOWN_CHARACTERS]
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class RefusedError(Exception):
    """The request ends here with this refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Desk:
    """Takes every request. Serve it with ``handler_cancellation``: a client that leaves must end its request."""

    def __init__(self, front: Front, access: Access) -> None:
        self._front = front
        self._access = access
        self._control = Control(front)
        self._models = Models(front)
        self._held_bytes = 0
        self._busy = 0
        #: How many requests have come in.
        self.served = 0
        #: Set while nothing is being served, the gateway's own endpoints left out.
        self.idle = asyncio.Event()
        self.idle.set()
        self._own: dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            ("GET", "/"): self._control.dashboard,
            ("GET", "/healthz"): self._control.healthz,
            ("GET", "/readyz"): self._control.readyz,
            ("GET", "/metrics"): self._control.metrics,
            ("GET", "/tidegate/status"): self._control.status,
            ("GET", "/tidegate/events"): self._control.events,
            ("GET", "/v1/models"): self._models.list,
            ("GET", "/models"): self._models.list,
            ("GET", "/api/tags"): self._models.tags,
            ("GET", "/api/version"): self._models.version,
            ("GET", "/api/ps"): self._models.ps,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Any request at all; a mistake of ours is a 500 in the shape that clients read."""
        try:
            return await self._handle(request)
        except ConnectionError:
            # It went while it was told something, before its request was whole.
            return web.Response(status=499)
        except Exception:
            log.exception("cannot answer a request")
            if request.writer.output_size and request.transport is not None:
                # A part of an answer is out, behind which a second head would be read as more of it.
                request.transport.abort()
                return web.Response(status=499)
            text = "cannot answer: a mistake in the gateway, see its log"
            return refusal_response(Refusal(500, text, "server_error", None))

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = plain_path(request.raw_path)
        if path is None or request.method not in _METHODS:
            status = 400 if path is None else 405
            return refusal_response(errors.invalid("cannot pass this on: its path or method is unusual", status=status))
        barred = self._access.refusal(path, request.headers, request.method, loopback=_over_loopback(request))
        if barred is not None:
            self._front.counters.add(REQUESTS, outcome=barred.outcome)
            return refusal_response(barred, dialects.surface(path))
        own = self._own.get(("GET" if request.method == "HEAD" else request.method, path))
        if own is not None:
            return await own(request)
        self._busy += 1
        self.served += 1
        self.idle.clear()
        size = 0
        try:
            body = await self._read(request)
            size = len(body)
            if self._front.settings.gateway.log_prompts and body:
                log.info("request: %s %s %s", request.method, path, shown(body))
            if request.method == "POST" and path == "/slots/action":
                return await self._control.slots_action(request, body)
            if request.method == "POST" and path == "/api/show":
                return await self._models.show(body)
            if request.method == "POST" and path in ollama_embed.PATHS:
                return await self._embed(request, ollama_embed.parse(path, body, time.time))
            if request.method == "POST" and (read := dialects.find(path)) is not None:
                return await self._complete(request, read, body)
            return await self._pass(request, path, body)
        except openai.InvalidRequestError as error:
            refusal = errors.invalid(error.message, error.param)
            self._front.counters.add(REQUESTS, outcome=refusal.outcome)
            return refusal_response(refusal, dialects.surface(path))
        except RefusedError as refused:
            self._front.counters.add(REQUESTS, outcome=refused.refusal.outcome)
            return refusal_response(refused.refusal, dialects.surface(path))
        finally:
            self._held_bytes -= size
            self._busy -= 1
            if not self._busy:
                self.idle.set()

    async def _read(self, request: web.BaseRequest) -> bytes:
        """The whole body, counted into what all requests hold.

        Raises:
            RefusedError: too large, no room for it now, or broken off.
        """
        body = bytearray()
        if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11:
            # curl holds a body of more than 1 MB back for a second if nobody says this.
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        by = self._front.loop.time() + WHOLE_BODY_S
        try:
            while True:
                if request.content.is_eof():
                    # Short bodies come with their head: no timer for those.
                    data = request.content.read_nowait()
                else:
                    async with asyncio.timeout(min(SLOW_SENDER_S, by - self._front.loop.time())):
                        data = await request.content.readany()
                if not data:
                    break
                body += data
                self._held_bytes += len(data)
                if len(body) > MOST_BODY_BYTES:
                    text = f"cannot read the body: it is larger than {MOST_BODY_BYTES >> 20} MiB"
                    raise RefusedError(errors.invalid(text, status=413))
                if self._held_bytes > MOST_BODIES_BYTES:
                    retry = self._front.retry_after()
                    text = f"cannot read the body: too many large requests are waiting. Retry in {retry} s."
                    more = {"reason": "queue_full"}
                    raise RefusedError(Refusal(503, text, code=OVERLOADED, retry_after=retry, more={**more}))
        except TimeoutError:
            self._held_bytes -= len(body)
            text = (
                f"cannot read the body: nothing came for {SLOW_SENDER_S:.0f} s, or not all within {WHOLE_BODY_S:.0f} s"
            )
            raise RefusedError(errors.invalid(text, status=408)) from None
        except web.RequestPayloadError:
            self._held_bytes -= len(body)
            raise RefusedError(errors.invalid("cannot read the body: it is broken")) from None
        except BaseException:
            self._held_bytes -= len(body)
            raise
        return bytes(body)

    async def _complete(self, request: web.BaseRequest, read: dialects.Dialect, body: bytes) -> web.StreamResponse:
        asked = read(body, time.time)
        if asked.at_once is not None:
            return web.Response(body=json.dumps(asked.at_once).encode(), headers={"Content-Type": JSON_TYPE})
        completion, voice = asked.completion, asked.voice
        passed = self._passed(request, readable=True)
        query = request.raw_path.partition("?")[2]
        target = asked.target + (f"?{query}" if query else "")
        job = CompletionJob(self._front, completion, target, passed, voice)
        wish = self._instead(request, completion)
        client = Client(request, key=self._who(request), stream=completion.stream, voice=voice, instead=wish)
        return await Carrier(self._front, client, job).run()

    def _instead(self, request: web.BaseRequest, completion: openai.Completion) -> Instead | None:
        """The shape of an answer in place of a refusal, if one is wanted."""
        wish = request.headers.get(instead.HEADER, self._front.settings.gateway.on_pressure)
        if wish not in ("error", "answer"):
            raise RefusedError(errors.invalid(f"cannot take {instead.HEADER}: it is neither 'error' nor 'answer'"))
        return Instead.of(completion, time.time()) if wish == "answer" else None

    async def _embed(self, request: web.BaseRequest, embedding: Embedding) -> web.StreamResponse:
        if not embedding.body:
            body = json.dumps(embedding.answer(b"", time.time())).encode()
            return web.Response(body=body, headers={"Content-Type": JSON_TYPE})
        job = EmbedJob(self._front, self._passed(request, readable=True), embedding)
        client = Client(request, key=self._who(request), stream=False, surface=Surface.OLLAMA)
        return await Carrier(self._front, client, job).run()

    async def _pass(self, request: web.BaseRequest, path: str, body: bytes) -> web.StreamResponse:
        if keeps_slots(request.method, path, request.raw_path.partition("?")[2]):
            text = "cannot save or restore slots: the gateway does so itself"
            raise RefusedError(errors.invalid(text, status=501))
        counted = generates(request.method, path)
        headers = self._passed(request, readable=False)
        job = PassJob(self._front, request.method, request.raw_path, headers, body, counted=counted)
        stream = counted and wants_stream(body)
        client = Client(request, key=self._who(request), stream=stream, surface=dialects.surface(path))
        return await Carrier(self._front, client, job).run()

    def _who(self, request: web.BaseRequest) -> str:
        return self._access.who(request.headers, request.remote or "")

    def _passed(self, request: web.BaseRequest, *, readable: bool) -> dict[str, str]:
        """The client's headers for the engine, without a key that is for us."""
        found = request_headers(request.headers.items(), readable=readable)
        if not self._access.asks:
            return found
        return {name: value for name, value in found.items() if name.lower() not in CREDENTIALS}


def _over_loopback(request: web.BaseRequest) -> bool:
    """Whether it came to a loopback address; a Unix socket has none, and no browser finds it."""
    address = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return isinstance(address, tuple) and is_loopback(address[0])
