"""A client that sends more than a request at a time: what we hold of it is bounded, and it is let go."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from tidegate.gateway import http_server
from tidegate.gateway.http_server import (
    HEAD_BYTES,
    HEAD_FIELDS,
    MOST_WAITING,
    MOST_WAITING_BYTES,
    READ_BYTES,
    HttpServer,
)

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
HOLD = b"GET /hold HTTP/1.1\r\nHost: x\r\n"
UPGRADE = b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
MIB = 1 << 20


async def until(probe: Callable[[], bool]) -> None:
    """Let the server work on until ``probe`` is true; :meth:`Site.open` has a time limit."""
    while not probe():  # noqa: ASYNC110 - nothing tells of what is looked for
        await asyncio.sleep(0)


class Site:
    """Answers with how long the body was; a request for /hold is answered never."""

    def __init__(self, most_connections: int = 100) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.server = HttpServer(self._handle, keepalive_s=60.0, most_connections=most_connections)
        self.port = 0

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.begun.set()
        if request.path != "/hold":
            return web.Response(text=str(sum([len(data) async for data in request.content.iter_any()])))
        try:
            return await asyncio.Future[web.StreamResponse]()
        finally:
            self.ended.set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Site]:
        runner = web.ServerRunner(self.server)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        try:
            async with asyncio.timeout(10):
                yield self
        finally:
            await runner.cleanup()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def hears(self, pieces: list[bytes]) -> bytes:
        """The first line that a client hears which sends ``pieces``, each taken by the server before the next."""
        async with self.client() as (reader, writer):
            line = asyncio.ensure_future(reader.readline())
            for piece in pieces:
                held = self.server.held
                writer.write(piece)
                while self.server.held == held and not line.done():  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0)
            return await line


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def fields(number: int, size: int) -> bytes:
    return b"".join(b"X-%03d: " % index + b"a" * (size - 9) + b"\r\n" for index in range(number))


def head(size: int) -> bytes:
    """A whole one."""
    start = GET + fields(size // 1000 - 1, 1000)
    return start + fields(1, size - len(start) - 2) + b"\r\n"


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[index : index + size] for index in range(0, len(data), size)]


@pytest.mark.parametrize("piece", [64 << 10, 10_000, 999, 37])
@pytest.mark.parametrize(("size", "status"), [(HEAD_BYTES, b"200"), (HEAD_BYTES + 1, b"431")])
def test_a_head_is_bounded_whichever_way_it_comes(piece: int, size: int, status: bytes) -> None:
    async def test() -> None:
        async with Site().open() as site:
            assert (await site.hears(cut(head(size), piece))).split()[1] == status
            assert site.begun.is_set() == (status == b"200")
            assert site.server.held == 0

    run(test())


def test_a_head_without_an_end_is_refused_with_its_first_byte_too_many() -> None:
    async def test() -> None:
        async with Site().open() as site:
            whole = GET + fields(50, 1000)
            assert b" 431 " in await site.hears([whole[:HEAD_BYTES], whole[HEAD_BYTES : HEAD_BYTES + 1]])

    run(test())


def test_the_next_head_is_bounded_too() -> None:
    async def test() -> None:
        async with Site().open() as site, site.client() as (reader, writer):
            for data, wanted in ((head(HEAD_BYTES), b" 200 "), (head(HEAD_BYTES), b" 200 "), (head(40_000), b" 431 ")):
                writer.write(data)
                assert wanted in await reader.readline()
                if wanted == b" 200 ":
                    await reader.readuntil(b"\r\n\r\n0")

    run(test())


@pytest.mark.parametrize(("more", "status"), [(0, b"200"), (1, b"400")])
def test_the_fields_of_a_head_are_counted(more: int, status: bytes) -> None:
    async def test() -> None:
        async with Site().open() as site:
            # One is Host.
            data = GET + fields(HEAD_FIELDS - 1 + more, 20) + b"\r\n"
            assert (await site.hears([data])).split()[1] == status

    run(test())


def test_all_heads_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "PARTS_BYTES", 50_000)

    async def test() -> None:
        async with Site().open() as site, contextlib.AsyncExitStack() as stack:
            part, lines = GET + fields(9, 1000), []
            for _ in range(10):
                reader, writer = await stack.enter_async_context(site.client())
                writer.write(part)
                lines.append(asyncio.ensure_future(reader.readline()))
            # Five are within the bound.
            await until(lambda: sum(line.done() for line in lines) == 5)
            assert {line.result().split()[1] for line in lines if line.done()} == {b"431"}
            await until(lambda: site.server.held == 5 * len(part))
            # One that comes at once, and a short one in parts, are answered still.
            assert b" 200 " in await site.hears([head(20_000)])
            assert b" 200 " in await site.hears(cut(head(2000), 500))

    run(test())


BEHIND = {
    "more requests than may wait": (b"\r\n", (GET + b"\r\n") * (MOST_WAITING + 1)),
    "requests without number": (b"\r\n", (GET + b"\r\n") * 1000),
    "heads of 1 MB": (b"\r\n", (GET + fields(120, 8000) + b"\r\n") * 20),
    "a head without an end": (b"\r\n", GET + fields(50, 1000)),
    "a large body": (b"\r\n", GET + b"Content-Length: 1048576\r\n\r\n" + b"a" * MIB),
    "large bodies": (b"\r\n", (GET + b"Content-Length: 100000\r\n\r\n" + b"a" * 100_000) * 2),
    "another protocol": (UPGRADE + b"\r\n", b"a" * MIB),
    "fields behind its body": (b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", fields(90, 8000)),
    "a chunk's extension": (b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1;", b"a" * MIB),
}


@pytest.mark.parametrize(("rest", "more"), BEHIND.values(), ids=BEHIND)
def test_too_much_behind_a_request_in_progress_ends_it(
    rest: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = RequestHandler.data_received

    def counted(self: RequestHandler, data: bytes) -> None:
        taken.append(len(data))
        take(self, data)

    async def test() -> None:
        async with Site().open() as site, site.client() as (reader, writer):
            writer.write(HOLD + rest)
            await site.begun.wait()
            monkeypatch.setattr(RequestHandler, "data_received", counted)
            writer.write(more)
            await site.ended.wait()
            assert sum(taken) <= MOST_WAITING_BYTES + READ_BYTES
            assert max(taken) <= READ_BYTES
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            await until(lambda: not site.server.connections)
            assert site.server.held == 0

    run(test())


@pytest.mark.parametrize("number", [0, MOST_WAITING, 32, 40])
def test_a_client_that_has_left_is_noticed_however_much_it_sent(number: int) -> None:
    async def test() -> None:
        async with Site().open() as site, site.client() as (_, writer):
            writer.write(HOLD + b"\r\n")
            await site.begun.wait()
            writer.write((GET + b"\r\n") * number)
            writer.close()
            await site.ended.wait()

    run(test())


def test_two_requests_in_one_packet_are_both_answered() -> None:
    async def test() -> None:
        async with Site().open() as site, site.client() as (reader, writer):
            for _ in range(3):
                writer.write((GET + b"\r\n") * 2)
                for _ in range(2):
                    assert b"HTTP/1.1 200 " in await reader.readuntil(b"\r\n\r\n0")

    run(test())


LARGE = b"a" * (16 * MIB)
ZIPPED = gzip.compress(LARGE[: 4 * MIB], 1)
BODIES = {
    "at once": (b"Content-Length: %d\r\n\r\n" % len(LARGE), LARGE, len(LARGE)),
    "in chunks": (
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"".join(b"%x\r\n%s\r\n" % (len(data), data) for data in cut(LARGE, 100_000)) + b"0\r\n\r\n",
        len(LARGE),
    ),
    "in chunks of a byte": (b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 40_000 + b"0\r\n\r\n", 40_000),
    "compressed": (b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(ZIPPED), ZIPPED, 4 * MIB),
}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("rest", "body", "length"), BODIES.values(), ids=BODIES)
def test_bodies_are_not_counted(rest: bytes, body: bytes, length: int, apart: bool) -> None:
    async def test() -> None:
        async with Site().open() as site, site.client() as (reader, writer):
            for _ in range(3):
                site.begun.clear()
                writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n" + rest)
                if apart:
                    # As after a 100 Continue: the body follows when its request is in progress.
                    await site.begun.wait()
                writer.write(body)
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(len(str(length))) == str(length).encode()

    run(test())


def test_connections_are_bounded() -> None:
    async def test() -> None:
        async with Site(most_connections=2).open() as site, site.client() as (reader, writer):
            async with site.client():
                with contextlib.suppress(ConnectionError):
                    assert await site.hears([GET + b"\r\n"]) == b""
                assert not site.begun.is_set()
                writer.write(GET + b"\r\n")
                assert b" 200 " in await reader.readline()
            await until(lambda: len(site.server.connections) == 1)
            assert b" 200 " in await site.hears([GET + b"\r\n"])

    run(test())
