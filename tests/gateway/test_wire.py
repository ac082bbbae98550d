"""The connections to the worker: kept, dropped, broken off, and what must never be written to one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tidegate.gateway import wire as module
from tidegate.gateway.wire import Reply, UnreachableError, Wire

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Plain; charset=x\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
END = b"0\r\n\r\n"


class Worker:
    """A server of scripted answers on a Unix socket: ``say`` gets (reader, writer, head) of every request."""

    def __init__(self, say: Callable[[Worker, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self._say = say
        self.connections = 0
        self.ended = 0
        self.heads: list[bytes] = []
        self.more = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
                await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
                await self._say(self, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            writer.close()


async def settled(probe: Callable[[], bool]) -> None:
    by = asyncio.get_running_loop().time() + 5
    while not probe():
        assert asyncio.get_running_loop().time() < by
        await asyncio.sleep(0.001)


@asynccontextmanager
async def wired(
    folder: Path, say: Callable[[Worker, asyncio.StreamWriter], Awaitable[None]], **more: Any
) -> AsyncIterator[tuple[Worker, Wire]]:
    worker = Worker(say)
    path = str(folder / "s")
    server = await asyncio.start_unix_server(worker.serve, path)
    wire = Wire(f"unix:{path}", **more)
    try:
        yield worker, wire
    finally:
        wire.close()
        server.close()
        await settled(lambda: worker.ended == worker.connections)


def writes(*pieces: bytes) -> Callable[[Worker, asyncio.StreamWriter], Awaitable[None]]:
    async def say(worker: Worker, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return say


async def ask(wire: Wire, method: str = "POST") -> Reply:
    return await wire.request(method, "/x?y=1", {"A": "b"}, b"")


async def whole(wire: Wire, method: str = "POST") -> bytes:
    async with await ask(wire, method) as reply:
        return await reply.read()


@pytest.mark.parametrize("said", [PLAIN, CHUNKED + END, b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN])
def test_one_connection_serves_one_request_after_the_other(said: bytes, tmp_path: Path) -> None:
    async def run() -> None:
        async with wired(tmp_path, writes(said)) as (worker, wire):
            assert [await whole(wire) for _ in range(3)] == [b"hi"] * 3
            assert worker.connections == 1
            assert worker.heads[0] == b"POST /x?y=1 HTTP/1.1\r\nHost: worker\r\nA: b\r\nContent-Length: 0\r\n\r\n"

    asyncio.run(run())


def test_only_one_idle_connection_is_kept_and_not_for_long(tmp_path: Path) -> None:
    async def run() -> None:
        async with wired(tmp_path, writes(PLAIN), keep_s=0.05) as (worker, wire):
            replies = [await ask(wire) for _ in range(3)]
            assert worker.connections == 3
            for reply in replies:
                async with reply:
                    assert await reply.read() == b"hi"
            # A thread of the worker waits at each that is left open.
            await settled(lambda: worker.ended == 2)
            await settled(lambda: worker.ended == 3)
            assert await whole(wire) == b"hi"
            assert worker.connections == 4

    asyncio.run(run())


def test_a_worker_that_is_to_end_has_no_idle_client(tmp_path: Path) -> None:
    async def run() -> None:
        async with wired(tmp_path, writes(PLAIN)) as (worker, wire):
            assert await whole(wire) == b"hi"
            wire.keep_idle(wanted=False)
            await settled(lambda: worker.ended == 1)
            assert await whole(wire) == b"hi"
            await settled(lambda: worker.ended == 2)
            wire.keep_idle(wanted=True)
            assert [await whole(wire) for _ in range(2)] == [b"hi"] * 2
            assert worker.connections == 3

    asyncio.run(run())


def test_an_answer_that_nobody_asked_for_is_nobodys(tmp_path: Path) -> None:
    async def run() -> None:
        async def say(worker: Worker, writer: asyncio.StreamWriter) -> None:
            writer.write(PLAIN + PLAIN.replace(b"hi", b"no") if worker.connections == 1 else PLAIN)

        async with wired(tmp_path, say) as (worker, wire):
            assert [await whole(wire) for _ in range(2)] == [b"hi"] * 2
            assert worker.connections == 2

    asyncio.run(run())


def test_a_stream_that_is_done_may_end_later(tmp_path: Path) -> None:
    async def run() -> None:
        async def say(worker: Worker, writer: asyncio.StreamWriter) -> None:
            writer.write(CHUNKED)
            await worker.more.wait()
            writer.write(END)

        async with wired(tmp_path, say) as (worker, wire):
            reply = await ask(wire)
            assert await reply.content.readany() == b"hi"
            reply.done()
            # Its end has not come: another request must not be written behind it.
            assert await (await ask(wire)).content.readany() == b"hi"
            assert worker.connections == 2
            worker.more.set()
            await settled(lambda: worker.ended == 1)

    asyncio.run(run())


def test_what_is_broken_off_is_closed_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async def say(worker: Worker, writer: asyncio.StreamWriter) -> None:
            writer.write(CHUNKED if worker.connections == 1 else b"")

        async with wired(tmp_path, say) as (worker, wire):
            async with await ask(wire) as reply:
                assert await reply.content.readany() == b"hi"
            await settled(lambda: worker.ended == 1)
            task = asyncio.create_task(ask(wire))
            await settled(lambda: worker.connections == 2)
            task.cancel()
            await asyncio.wait({task})
            await settled(lambda: worker.ended == 2)

    asyncio.run(run())


@pytest.mark.parametrize("last", [b"Connection: close\r\n", b""])
def test_a_connection_that_the_worker_closes_is_not_used_again(last: bytes, tmp_path: Path) -> None:
    async def run() -> None:
        async def say(worker: Worker, writer: asyncio.StreamWriter) -> None:
            writer.write(PLAIN.replace(b"\r\n\r\n", b"\r\n" + last + b"\r\n"))
            writer.close()

        async with wired(tmp_path, say) as (worker, wire):
            assert await whole(wire) == b"hi"
            await settled(lambda: worker.ended == 1)
            await asyncio.sleep(0)
            assert await whole(wire) == b"hi"
            assert worker.connections == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", aiohttp.ServerDisconnectedError),
        (b"HTTP/1.1 200 OK\r\nContent-", aiohttp.ServerDisconnectedError),
        (b"no HTTP at all\r\n\r\n", aiohttp.ClientPayloadError),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", aiohttp.ClientPayloadError),
        (CHUNKED, aiohttp.ClientPayloadError),
        (CHUNKED + b"zz\r\n", aiohttp.ClientPayloadError),
        (PLAIN[:-1], aiohttp.ClientPayloadError),
    ],
)
def test_what_is_cut_or_no_http_is_an_error(said: bytes, error: type[Exception], tmp_path: Path) -> None:
    async def run() -> None:
        async def say(worker: Worker, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            writer.close()

        async with wired(tmp_path, say) as (_, wire):
            with pytest.raises(error):
                await whole(wire)

    asyncio.run(run())


def test_nobody_there(tmp_path: Path) -> None:
    async def run() -> None:
        for url in (f"unix:{tmp_path}/none", "http://127.0.0.1:1"):
            with pytest.raises(UnreachableError, match="cannot connect to the worker"):
                await ask(Wire(url))

    asyncio.run(run())


def test_who_reads_from_a_closed_wire_hears_of_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with wired(tmp_path, writes(CHUNKED)) as (_, wire):
            reply = await ask(wire)
            assert await reply.content.readany() == b"hi"
            reading = asyncio.create_task(reply.read())
            await asyncio.sleep(0)
            wire.close()
            with pytest.raises(aiohttp.ClientError):
                await reading
            with pytest.raises(UnreachableError, match="replaced"):
                await ask(wire)

    asyncio.run(run())


def test_a_silent_worker_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_S", 0.05)

    async def run() -> None:
        async with wired(tmp_path, writes()) as (_, wire):
            with pytest.raises(TimeoutError):
                await ask(wire)

    asyncio.run(run())


def test_the_head_of_head_has_no_body(tmp_path: Path) -> None:
    async def run() -> None:
        async with wired(tmp_path, writes(PLAIN.removesuffix(b"hi"))) as (worker, wire):
            for _ in range(2):
                async with await ask(wire, "HEAD") as reply:
                    assert (await reply.read(), reply.content_type) == (b"", "text/plain")
            assert worker.connections == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/x HTTP/1.1\r\nEvil: 1", {}),
        ("/x y", {}),
        ("/\x7f", {}),
        ("/é", {}),
        ("/x", {"A": "b\r\nEvil: 1"}),
        ("/x", {"A": "b\nEvil: 1"}),
        ("/x", {"A\r\nEvil": "1"}),
        ("/x", {"A": "b\x00"}),
    ],
)
def test_nothing_is_smuggled_into_the_head(target: str, headers: dict[str, str], tmp_path: Path) -> None:
    async def run() -> None:
        async with wired(tmp_path, writes(PLAIN)) as (worker, wire):
            with pytest.raises(ValueError, match="cannot send the request"):
                await wire.request("POST", target, headers, b"")
            assert worker.connections == 0

    asyncio.run(run())


def test_a_large_body_goes_whole(tmp_path: Path) -> None:
    async def run() -> None:
        async with wired(tmp_path, writes(PLAIN)) as (worker, wire):
            async with await wire.request("POST", "/x", {}, b"z" * 3_000_000) as reply:
                assert await reply.read() == b"hi"
            assert b"Content-Length: 3000000\r\n" in worker.heads[0]

    asyncio.run(run())
