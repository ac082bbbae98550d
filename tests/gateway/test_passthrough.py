"""The engine's own API through the gateway, and what must not get through."""

from __future__ import annotations

import gzip
import json
import socket

import pytest

from gateway.harness import Background, Scene, until


def raw(stage: Scene, data: bytes) -> bytes:
    """Send bytes as they are; everything that comes back until the connection ends."""
    with socket.create_connection(("127.0.0.1", stage.port), timeout=10) as sock:
        sock.sendall(data)
        found = b""
        while part := sock.recv(65536):
            found += part
        return found


def test_method_path_query_headers_and_body_go_through(stage: Scene) -> None:
    engine = stage.start()
    body = b'{"a":"' + b"x" * 299_992 + b'"}'
    headers = {"X-Mine": "1", "Connection": "close, X-Drop", "X-Drop": "1"}
    reply = stage.request("POST", "/echo?a=1&b=%20", body, headers)
    assert (reply.status, reply.json) == (200, {"length": 300_000})
    request = next(entry for entry in engine.events("request") if entry["target"].startswith("/echo"))
    assert (request["method"], request["target"]) == ("POST", "/echo?a=1&b=%20")
    assert request["headers"]["x-mine"] == "1"
    assert request["headers"]["content-length"] == "300000"
    for name in ("x-drop", "transfer-encoding", "user-agent"):
        assert name not in request["headers"]
    assert stage.get("/slots").json[0]["id"] == 0
    assert reply.headers["x-tidegate-profile"] == "full"


def test_a_passed_get_is_held_too(stage: Scene) -> None:
    job = Background(lambda: stage.get("/props"))
    generating = Background(lambda: stage.post("/completion", {"prompt": "a b", "n_predict": 2}))
    until(lambda: stage.queued() == 1)
    stage.start()
    assert job.result().json["total_slots"] == 4
    assert generating.result().json["content"] == "tok0 tok1"


def test_a_generating_post_takes_a_place_and_is_sent_again(stage: Scene) -> None:
    engine = stage.start(1, "--fake-prefill-ms", "300", "-np", "1", slots=1)
    jobs = [Background(lambda: stage.post("/completion", {"prompt": "a b", "n_predict": 3})) for _ in range(3)]
    until(lambda: engine.events("start"))
    until(lambda: stage.queued() == 2)
    engine.kill()
    stage.engine(2)
    stage.announce(2, slots=1)
    assert [job.result().json["content"] for job in jobs] == ["tok0 tok1 tok2"] * 3


def test_a_passed_stream_keeps_its_bytes(stage: Scene) -> None:
    stage.start()
    body = stage.stream("/completion", {"prompt": "a", "n_predict": 2, "stream": True}).rest()
    assert [json.loads(line[6:])["content"] for line in body.split(b"\n") if line.startswith(b"data: ")] == [
        "tok0",
        " tok1",
        "",
    ]


def test_critical_refuses_long_generating_posts_in_their_own_shape(stage: Scene) -> None:
    stage.start()
    stage.tell(level="critical")
    reply = stage.post("/v1/embeddings", {"input": "word " * 2000})
    assert (reply.status, reply.error["reason"]) == (503, "memory_pressure")
    long = {"messages": [{"role": "user", "content": "word " * 2000}]}
    for path, body in (("/api/chat", long), ("/api/generate", {"prompt": "word " * 2000})):
        reply = stage.post(path, body)
        assert reply.status == 503
        assert reply.json.keys() == {"error"}
        assert "memory on this device is low" in reply.json["error"]
    reply = stage.post("/v1/messages", {**long, "max_tokens": 5})
    assert (reply.status, reply.json["type"], reply.error["type"]) == (529, "error", "overloaded_error")
    assert int(reply.headers["retry-after"]) >= 1


def test_engine_errors_get_a_code_that_clients_can_read(stage: Scene) -> None:
    stage.start()
    reply = stage.get("/v1/nothing")
    assert reply.status == 404
    assert reply.error == {"message": "File Not Found", "type": "not_found_error", "param": None, "code": None}
    assert stage.get("/nothing").error["code"] == 404


def test_a_compressed_body_is_read(stage: Scene) -> None:
    engine = stage.start()
    body = gzip.compress(json.dumps({"prompt": "a b", "max_tokens": 1}).encode())
    reply = stage.request("POST", "/v1/completions", body, {"Content-Encoding": "gzip"})
    assert reply.status == 200
    assert "content-encoding" not in engine.events("request")[-1]["headers"]


def test_a_client_that_asks_first_is_told_to_go_on(stage: Scene) -> None:
    stage.start()
    body = json.dumps({"prompt": "a b", "max_tokens": 2}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", stage.port), timeout=10) as sock:
        sock.sendall(head.encode() + b"Expect: 100-continue\r\nConnection: close\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert sock.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_client_of_http_1_0_is_not_told_to(stage: Scene) -> None:
    stage.start()
    body = json.dumps({"prompt": "a b", "max_tokens": 2}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection(("127.0.0.1", stage.port), timeout=10) as sock:
        sock.sendall(head.encode() + body)
        assert sock.recv(100).startswith(b"HTTP/1.0 200 OK\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"GET /props HTTP/1.1\r\nHost: a\r\nX-A: b\nGET /slots\r\n\r\n",
        b"GET http://elsewhere/slots HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET //elsewhere/slots HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /v1/%2e%2e/slots HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"POST /v1/chat/%63ompletions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        b"CONNECT elsewhere:80 HTTP/1.1\r\nHost: elsewhere:80\r\nConnection: close\r\n\r\n",
        b"TRACE /slots HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /sl\x00ots HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ],
)
def test_smuggling_ends_here(stage: Scene, head: bytes) -> None:
    engine = stage.start()
    before = len(engine.events("request"))
    answer = raw(stage, head)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400", b"HTTP/1.1 405"))
    assert len(engine.events("request")) == before
    assert stage.chat(max_tokens=1).status == 200


def test_a_body_that_is_too_large_is_refused(stage: Scene) -> None:
    stage.start()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", stage.port), timeout=10) as sock:
        sock.sendall(head)
        try:
            for _ in range(80):
                sock.sendall(b" " * (1 << 20))
        except ConnectionError:
            pass
        assert sock.recv(100).startswith(b"HTTP/1.1 413")
    assert stage.chat(max_tokens=1).status == 200
