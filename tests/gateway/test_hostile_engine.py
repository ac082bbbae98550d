"""A worker that says what no engine should: the client gets a sentence, and neither a wait without end nor a traceback.

The harness fails every test here that leaves a traceback in the gateway's log.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from gateway.harness import Reply, Scene, chat, content_of, readable

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
#: More than a double holds.
HUGE = b"1" + b"0" * 400
# Python 3.13 reads 5,000 levels, 3.11 does not; none reads these.
DEEP = b'data: {"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"


class Script:
    """A worker that answers the first request with the first bytes, .., and all from the last on with the last."""

    def __init__(self, path: str, *said: bytes) -> None:
        self._said = list(said)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                data = b""
                while b"\r\n\r\n" not in data:
                    data += client.recv(65536)
                client.sendall(self._said.pop(0) if len(self._said) > 1 else self._said[0])

    def close(self) -> None:
        # shutdown() wakes the accept() in the other thread, close() alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextlib.contextmanager
def worker_saying(stage: Scene, *said: bytes) -> Iterator[None]:
    path = os.path.join(stage.folder, "script.sock")
    script = Script(path, *said)
    try:
        stage.tell(gate="open", worker={"state": "ready", "generation": 1, "url": f"unix:{path}"})
        yield
        assert (stage.metric("tidegate_requests_in_flight"), stage.queued()) == (0, 0)
    finally:
        script.close()


def ask(stage: Scene, said: bytes, *, stream: bool) -> Reply:
    with worker_saying(stage, said):
        return stage.post("/v1/chat/completions", chat(stream=stream))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}", "it is application/json"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "status 302"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "status 204"),
    ],
)
def test_an_answer_that_is_none(stage: Scene, said: bytes, why: str, stream: bool) -> None:
    reply = ask(stage, said, stream=stream)
    assert reply.status == 502
    assert reply.error["message"].startswith("cannot read the engine's answer: ")
    assert why in reply.error["message"]


@pytest.mark.parametrize("event", [DEEP, b'data: {"choices":\xff}\n\n', b"data: {\n\n"])
def test_a_chunk_that_cannot_be_read(stage: Scene, event: bytes) -> None:
    plain = ask(stage, STREAM + b"\r\n" + WORD + event + LAST, stream=False)
    assert plain.status == 502
    assert plain.error["message"].startswith("cannot read the engine's stream: ")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_without_an_answer(stage: Scene, stream: bool) -> None:
    reply = ask(stage, STREAM + b"\r\ndata: [DONE]\n\n", stream=stream)
    assert (reply.status, reply.error["message"]) == (502, "cannot read the engine's stream: it ends without an answer")


def test_a_stream_that_begins_with_it_is_an_error(stage: Scene) -> None:
    reply = ask(stage, STREAM + b"\r\n" + DEEP + LAST, stream=True)
    assert (reply.status, reply.error["message"][:31]) == (502, "cannot read the engine's stream")


def test_a_begun_stream_ends_with_an_error_there(stage: Scene) -> None:
    reply = ask(stage, STREAM + b"\r\n" + WORD + DEEP + LAST, stream=True)
    assert reply.status == 200
    assert content_of(reply.body) == "hi"
    *_, error, done, rest = reply.body.split(b"\n\n")
    assert json.loads(error[6:])["error"]["message"].startswith("cannot read the engine's stream: ")
    assert (done, rest) == (b"data: [DONE]", b"")


@pytest.mark.parametrize("header", [b"X-Odd: a\x01b", b"Access-Control-Allow-Origin: *"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_header_that_must_not_pass(stage: Scene, header: bytes, stream: bool) -> None:
    name = header.partition(b":")[0].decode().lower()
    said = STREAM + b"X-Good: 1\r\n" + header + b"\r\n\r\n" + WORD + LAST
    with worker_saying(stage, said):
        reply = stage.post("/v1/chat/completions", chat(stream=stream))
        passed = stage.post("/infill", chat())
    assert (content_of(reply.body) if stream else reply.content) == "hi"
    assert (reply.status, passed.status, passed.headers["x-good"]) == (200, 200, "1")
    assert name not in {*reply.headers, *passed.headers}


def test_a_passed_stream_that_is_shorter_than_it_said_ends(stage: Scene) -> None:
    with worker_saying(stage, STREAM + b"Content-Length: 5000\r\n\r\n" + WORD):
        stream = stage.stream("/infill", {**chat(), "stream": True})
        assert b'"code":"worker_lost"' in stream.rest().replace(b" ", b"")


def test_a_passed_answer_that_is_shorter_than_it_said_is_broken_off(stage: Scene) -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{"
    with worker_saying(stage, said), socket.create_connection(("127.0.0.1", stage.port), 10) as client:
        body = json.dumps(chat()).encode()
        head = f"POST /infill HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        data = b""
        while readable(client, 10) and (piece := client.recv(65536)):
            data += piece
        assert b"Content-Length: 5000" in data
        assert data.endswith(b"{")
        assert stage.metric("tidegate_requests_total", outcome="cut") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("surface", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_figures_that_are_none(stage: Scene, surface: str, stream: bool) -> None:
    usage = b'"usage":{"prompt_tokens":%b,"completion_tokens":%b}' % (HUGE, HUGE)
    timings = b'"timings":{"prompt_n":%b,"prompt_ms":%b,"predicted_n":%b,"predicted_ms":1}' % (HUGE, HUGE, HUGE)
    figures = b'data: {"choices":[],%b,%b}\n\n' % (usage, timings)
    end = LAST.replace(b"data: [DONE]", figures + b"data: [DONE]")
    with worker_saying(stage, STREAM + b"\r\n" + WORD + end):
        reply = stage.post(surface, {**chat(stream=stream), "max_tokens": 9})
    assert (reply.status, b"hi" in reply.body) == (200, True)


@pytest.mark.parametrize("said", [b'{"input_tokens":%b}' % HUGE, b"[" * 100_000])
def test_a_count_that_is_none(stage: Scene, said: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(said)
    with worker_saying(stage, head + said, STREAM + b"\r\n" + WORD + LAST):
        assert stage.chat(words=3000).content == "hi"


@pytest.mark.parametrize("surface", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_a_worker_that_dies_between_the_end_and_the_usage(stage: Scene, surface: str) -> None:
    cut = STREAM + b"\r\n" + WORD + LAST.removesuffix(b"data: [DONE]\n\n")
    figures = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}}\n\n'
    whole = cut + figures + b"data: [DONE]\n\n"
    body = {**chat(), "max_tokens": 9}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with worker_saying(stage, cut, cut, whole):
        begun = stage.post(surface, streamed)
        plain = stage.post(surface, {**body, "stream": False})
    # The stream's own words have ended: what is left to say is counted here. The plain answer is had once more.
    asked, answered = {"/v1/messages": ("input", "output"), "/api/chat": ("prompt_eval", "eval")}.get(
        surface, ("prompt", "completion")
    )
    kind = "count" if surface == "/api/chat" else "tokens"
    assert f'"{answered}_{kind}":1'.encode() in begun.body.replace(b" ", b"")
    assert plain.json.get("usage", plain.json)[f"{asked}_{kind}"] == 7
