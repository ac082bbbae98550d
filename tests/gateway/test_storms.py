"""Clients that send nothing, read nothing or send nonsense, all at once, while others want an answer."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from gateway.harness import Background, Scene, chat, readable, scene, tokens, until
from running import memory_of
from tidegate.gateway import app, client

MIB = 1 << 20
SILENT, SLOW = 1000, 200
#: What a thousand silent clients and two hundred that do not read may cost.
MOST_GROWTH = 20 * MIB


@pytest.fixture(name="descriptors")
def descriptors_fixture() -> Iterator[None]:
    """Enough for both ends of the storm; the gateway gets its own from us."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096
    if before[1] < wanted:
        pytest.skip(f"a process may have only {before[1]} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], wanted), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def rss(stage: Scene) -> int:
    memory = memory_of(stage.process.pid)
    return memory["RssAnon"] + memory["RssShmem"]


def say(stage: Scene, data: bytes) -> bytes:
    """Send raw bytes and read until the end of the first answer, or of the connection."""
    with socket.create_connection(("127.0.0.1", stage.port), 20) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(data)
        found = b""
        with contextlib.suppress(OSError):
            while readable(sock, 10) and (piece := sock.recv(65536)):
                found += piece
                if re.search(rb"\r\n\r\n.*\}", found, re.DOTALL):
                    break
        return found


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0


def raw(body: bytes, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST /v1/chat/completions HTTP/{version}", "Host: a", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


CHAT = json.dumps(chat(max_tokens=2)).encode()
NONSENSE: list[tuple[str, bytes, set[int]]] = [
    ("nested 100,000 deep", raw(b"[" * 100_000, "Content-Length: 100000"), {400}),
    ("invalid UTF-8", raw(b'{"messages":"\xff\xfe"}', "Content-Length: 17"), {400}),
    ("another type", raw(CHAT, f"Content-Length: {len(CHAT)}", "Content-Type: text/plain"), {200}),
    ("no body", raw(b"", "Content-Length: 0"), {400}),
    ("two lengths", raw(CHAT, f"Content-Length: {len(CHAT)}", "Content-Length: 5"), {400}),
    ("length and chunks", raw(b"0\r\n\r\nGET /x", "Content-Length: 9", "Transfer-Encoding: chunked"), {400}),
    ("unknown coding", raw(CHAT, "Transfer-Encoding: xchunked"), {400, 501}),
    ("a space before the colon", raw(CHAT, f"Content-Length : {len(CHAT)}"), {400}),
    ("a bare line feed", b"GET /healthz HTTP/1.1\nHost: a\n\n", {400}),
    ("another host's path", b"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: a\r\n\r\n", {400}),
    ("a hidden path", b"GET /v1/../slots HTTP/1.1\r\nHost: a\r\n\r\n", {400}),
    ("HTTP/1.0", raw(CHAT, f"Content-Length: {len(CHAT)}", version="1.0"), {200}),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 0}),
    ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" * 20 + b"\r\n\r\n", {400, 0}),
    ("a head of 1 MB", b"GET / HTTP/1.1\r\nX: " + b"a" * MIB + b"\r\n\r\n", {400, 431, 0}),
]


@pytest.mark.parametrize(("data", "wanted"), [case[1:] for case in NONSENSE], ids=[case[0] for case in NONSENSE])
def test_nonsense_gets_its_status(stage: Scene, data: bytes, wanted: set[int]) -> None:
    engine = stage.start()
    assert status(say(stage, data)) in wanted
    assert stage.chat(max_tokens=2).content == tokens(2)
    assert not any(entry["target"].endswith(("/x", "/slots")) for entry in engine.events("request"))


def test_a_body_of_100_mb_is_refused_when_it_has_become_too_large(stage: Scene) -> None:
    stage.start()
    before = rss(stage)
    head = raw(b"", f"Content-Length: {100 * MIB}")
    answer = say(stage, head + b" " * (100 * MIB))
    # The rest is not read, so that the answer may be lost with the connection.
    assert status(answer) in (413, 0)
    assert stage.metric("tidegate_requests_total", outcome="refused_invalid") == 1
    assert rss(stage) - before < MOST_GROWTH


def test_ten_thousand_messages(stage: Scene) -> None:
    stage.start()
    messages = [{"role": ("user", "assistant")[index % 2], "content": "a"} for index in range(10_001)]
    begun = time.monotonic()
    reply = stage.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert time.monotonic() - begun < 5


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_storm(descriptors: None) -> None:
    with scene() as stage, contextlib.ExitStack() as stack:
        stage.start(1, "-np", "4", "--fake-token-ms", "1", slots=4)
        calm, begun = ordinary(stage, 100), rss(stage)
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", stage.port))) for _ in range(SILENT)]
        body = json.dumps(chat(stream=True, max_tokens=200)).encode()
        for number in range(SLOW):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", stage.port)))
            slow.sendall(raw(body, f"Content-Length: {len(body)}", f"Authorization: Bearer slow{number % 20}"))
        nonsense = [Background(lambda: [status(say(stage, data)) for _, data, _ in NONSENSE]) for _ in range(4)]
        large = [Background(lambda: say(stage, raw(b"", f"Content-Length: {100 * MIB}") + b" " * (100 * MIB)))]
        most, over = [begun], threading.Event()

        def sample() -> None:
            while not over.wait(0.05):
                most.append(rss(stage))

        sampler = threading.Thread(target=sample)
        sampler.start()
        stormy = ordinary(stage, 200)
        for job in (*nonsense, *large):
            job.result(120)
        until(lambda: stage.metric("tidegate_requests_in_flight") == 0, 120)
        over.set()
        sampler.join()
        assert len(silent) == SILENT
        growth = max(most) - begun
        print(
            f"\n{SILENT} silent clients, {SLOW} that do not read, nonsense and 100 MB: ordinary requests p50 "
            f"{stormy[100] * 1000:.0f} ms, p99 {stormy[198] * 1000:.0f} ms (calm {calm[50] * 1000:.0f} and "
            f"{calm[98] * 1000:.0f}); the gateway grew by {growth / MIB:.1f} MiB"
        )
        assert growth < MOST_GROWTH
        assert stage.chat(max_tokens=2).content == tokens(2)


def ordinary(stage: Scene, count: int) -> list[float]:
    """Seconds that each of ``count`` short requests took, ascending; all are answered."""
    took = []
    for _ in range(count):
        begun = time.monotonic()
        reply = stage.post("/v1/chat/completions", chat(max_tokens=4), {"Authorization": "Bearer ordinary"})
        assert reply.status == 200, reply.body
        took.append(time.monotonic() - begun)
    return sorted(took)


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("stream", [True, False])
def test_who_is_slow_for_too_long_is_let_go(stage: Scene, stream: bool) -> None:
    stage.start(1, "-c", "4000000", "-np", "2", context=2_000_000, slots=2)
    stage.tell(best_context=2_000_000)
    # So much that the kernel cannot take it all for a reader that reads nothing.
    body = json.dumps(chat(stream=stream, max_tokens=1_000_000)).encode()
    with (
        socket.create_connection(("127.0.0.1", stage.port)) as reader,
        socket.create_connection(("127.0.0.1", stage.port)) as sender,
    ):
        reader.sendall(raw(body, f"Content-Length: {len(body)}"))
        sender.sendall(raw(b'{"mess', "Content-Length: 1000"))
        until(lambda: stage.metric("tidegate_requests_in_flight") == 1)
        begun = time.monotonic()
        assert readable(sender, app.SLOW_SENDER_S + 5)
        assert status(sender.recv(65536)) == 408
        assert time.monotonic() - begun > app.SLOW_SENDER_S - 2
        until(lambda: stage.metric("tidegate_requests_total", outcome="client_gone") == 1, client.SLOW_READER_S + 30)
        assert stage.metric("tidegate_requests_in_flight") == 0
    assert stage.chat(max_tokens=2).content == tokens(2)


def test_a_half_closed_connection_holds_nothing(stage: Scene) -> None:
    engine = stage.start(1, "--fake-token-ms", "20")
    body = json.dumps(chat(stream=True, max_tokens=2000)).encode()
    with socket.create_connection(("127.0.0.1", stage.port)) as sock:
        sock.sendall(raw(body, f"Content-Length: {len(body)}"))
        until(lambda: engine.events("start"))
        # It says that it sends nothing more, which is what a client that has left looks like.
        sock.shutdown(socket.SHUT_WR)
        until(lambda: engine.events("cancelled"))
        until(lambda: stage.metric("tidegate_requests_in_flight") == 0)
