"""A head that does not come to its end: its client is let go, and nobody else is."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tidegate.gateway.app import Desk
from tidegate.gateway.http_server import HttpServer

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def serving(
    *, head_s: float, keepalive_s: float = 60.0, desk: Desk | None = None
) -> AsyncIterator[tuple[HttpServer, int]]:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if desk is not None:
            return await desk.handle(request)
        if request.path == "/slow":
            await asyncio.sleep(0.3)
        return web.Response(text="hi")

    server = HttpServer(handle, keepalive_s=keepalive_s, head_s=head_s)
    runner = web.ServerRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield server, runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Mistaken(Desk):
    """A desk with a mistake: it raises, at once or in the middle of an answer."""

    def __init__(self) -> None:
        pass

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/begun":
            answer = web.StreamResponse()
            await answer.prepare(request)
            await answer.write(b"a part")
        raise ZeroDivisionError


async def trickled(port: int, head: bytes) -> bytes:
    """What a client hears that sends ``head`` byte by byte, for as long as it is let."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    hears = asyncio.create_task(reader.read())
    for byte in head:
        if hears.done():
            break
        writer.write(bytes([byte]))
        await asyncio.wait({hears}, timeout=0.02)
    heard = await hears
    writer.close()
    return heard


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nX-Long: " + b"y" * 500])
def test_a_head_without_an_end_is_let_go(head: bytes) -> None:
    async def run() -> None:
        async with serving(head_s=0.2) as (server, port), asyncio.timeout(5):
            assert (await trickled(port, head)).startswith(b"HTTP/1.1 408 ")
            assert server.connections == []

    asyncio.run(run())


def test_a_slow_head_in_time_is_answered_and_a_slow_answer_is_not_cut() -> None:
    async def run() -> None:
        async with serving(head_s=0.2) as (_, port), asyncio.timeout(5):
            for head in (HEAD, HEAD.replace(b"/ ", b"/slow ", 1)):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head[:7])
                await asyncio.sleep(0)
                writer.write(head[7:])
                assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
                writer.close()

    asyncio.run(run())


def test_between_requests_a_client_may_be_silent_but_not_trickle_for_ever() -> None:
    async def run() -> None:
        async with serving(head_s=0.1, keepalive_s=0.5) as (_, port), asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(HEAD)
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(2) == b"hi"
                await asyncio.sleep(0.2)
            hears = asyncio.create_task(reader.read())
            writer.write(b"GET / HT")
            while not hears.done():
                writer.write(b"T")
                await asyncio.wait({hears}, timeout=0.05)
            assert b"200 OK" not in await hears
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(("path", "heads"), [("/", [b"HTTP/1.1 500"]), ("/begun", [b"HTTP/1.1 200"])])
def test_a_mistake_of_ours_is_told_but_not_in_the_middle_of_an_answer(path: str, heads: list[bytes]) -> None:
    async def run() -> None:
        async with serving(head_s=5.0, desk=Mistaken()) as (_, port), asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            heard = bytearray()
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(4096):
                    heard += data
            assert re.findall(rb"HTTP/1.1 \d+", heard) == heads
            writer.close()

    asyncio.run(run())
