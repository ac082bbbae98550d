"""The guard's HTTP client against the fake engine, and against servers that lie, stall and cut off."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines.conftest import Launch
from tidegate.engines.llama_api import Properties, WireError, busy_slots, is_ready, properties, request

Serve = Callable[..., str]


# -- the fake engine -------------------------------------------------------------------------------------------------


@pytest.fixture(name="engine")
def engine_fixture(launch: Launch) -> Serve:
    """``engine(*flags)`` starts a fake engine and gives its endpoint once it can be reached."""
    return lambda *flags, **more: launch(*flags, **more).endpoint


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def test_ready_is_healthy_and_one_token_without_a_trace(engine: Serve, directory: Path) -> None:
    log = directory / "log"
    endpoint = engine("--fake-log", str(log))
    assert is_ready(endpoint, timeout=5)
    _, data = request(endpoint, "GET", "/fake/stats", timeout=5)
    assert json.loads(data)["tokens"] == 1
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    (probe,) = [json.loads(line["body"]) for line in asked if line.get("target") == "/completion"]
    # Kept by the host's prompt cache, the probe's prompt would count as the client's.
    assert probe["cache_prompt"] is False


def test_over_a_port(engine: Serve) -> None:
    assert is_ready(engine(port=free_port()), timeout=5)


def test_loading_is_not_ready(engine: Serve) -> None:
    endpoint = engine("--fake-load-ms", "60000")
    assert not is_ready(endpoint, timeout=5)
    assert request(endpoint, "GET", "/health", timeout=5)[0] == 503


def test_an_engine_that_does_not_generate_is_not_ready(engine: Serve) -> None:
    # A probe of one word does not fit a context of one token: answered with 400.
    assert not is_ready(engine("-c", "1", "-np", "1"), timeout=5)


def test_busy_slots(engine: Serve) -> None:
    endpoint = engine("-np", "3", "--fake-token-ms", "60000")
    assert busy_slots(endpoint, timeout=5) == 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(endpoint.removeprefix("unix:"))
        body = b'{"prompt":"a","max_tokens":5,"stream":true}'
        client.sendall(b"POST /completion HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        client.settimeout(5)
        client.recv(100)
        assert busy_slots(endpoint, timeout=5) == 1


def test_an_answer_of_many_reads(engine: Serve) -> None:
    endpoint = engine()
    status, data = request(endpoint, "POST", "/echo", body={"content": "x" * 300_000}, timeout=5)
    assert (status, json.loads(data)["length"]) == (200, 300_000 + len('{"content": ""}'))


# -- servers that are not what they should be --------------------------------------------------------------------------


@pytest.fixture(name="serve")
def serve_fixture(directory: Path) -> Iterator[Serve]:
    """``serve(*pieces, keep=False, health=b"")`` answers every connection with ``pieces``, ``/health`` with ``health``
    if it is given; ``keep`` then leaves it open."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(directory / "s.sock"))
    listener.listen(4)
    threads: list[threading.Thread] = []
    kept: list[socket.socket] = []

    def start(*pieces: bytes, keep: bool = False, health: bytes = b"") -> str:
        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    asked = connection.recv(65536)
                    for piece in [health] if health and asked.startswith(b"GET /health ") else pieces:
                        connection.sendall(piece)
                except OSError:
                    pass
                if keep:
                    kept.append(connection)
                else:
                    connection.close()

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return f"unix:{directory}/s.sock"

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    listener.close()
    for connection in kept:
        connection.close()


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("health", "completion", "body", "ready"),
    [
        (200, 200, b'{"content": "a"}', True),
        (200, 200, b'{"content": ""}', True),
        (200, 200, b'{"conten', False),
        (200, 200, b"[]", False),
        (200, 503, b'{"error": {}}', False),
        (503, 200, b'{"content": "a"}', False),
        (404, 200, b'{"content": "a"}', False),
        (200, 401, b'{"error": {}}', True),
    ],
)
def test_ready_takes_both(serve: Serve, health: int, completion: int, body: bytes, ready: bool) -> None:
    """A server that wants a key which we do not have is taken at its word."""
    endpoint = serve(b"HTTP/1.1 %d X\r\n\r\n" % completion, body, health=b"HTTP/1.1 %d X\r\n\r\n" % health)
    assert is_ready(endpoint, timeout=5) is ready


def test_content_length_ends_an_answer_of_a_connection_that_stays(serve: Serve) -> None:
    endpoint = serve(OK + b"CONTENT-length:  2 \r\n\r", b"\n", b"h", b"i", keep=True)
    assert request(endpoint, "GET", "/", timeout=5) == (200, b"hi")


def test_without_a_length_the_end_of_the_connection_ends_it(serve: Serve) -> None:
    assert request(serve(OK + b"\r\n", b"all", b" of it"), "GET", "/", timeout=5) == (200, b"all of it")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
        bytes(range(256)) * 8,
    ],
)
def test_what_is_not_http(serve: Serve, answer: bytes) -> None:
    with pytest.raises(WireError, match="cannot read the answer: not HTTP"):
        request(serve(answer), "GET", "/", timeout=5)


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"", b"99999999999999999999", b"\xb2"])
def test_a_length_that_is_none_ends_with_the_connection(serve: Serve, length: bytes) -> None:
    endpoint = serve(OK + b"Content-Length: " + length + b"\r\n\r\nhi")
    assert request(endpoint, "GET", "/", timeout=5) == (200, b"hi")


def test_cut_off_in_the_body(serve: Serve) -> None:
    with pytest.raises(WireError):
        request(serve(OK + b"Content-Length: 5\r\n\r\nhi"), "GET", "/", timeout=5)


def test_a_server_that_says_nothing(serve: Serve) -> None:
    before = time.monotonic()
    with pytest.raises(WireError, match="timed out"):
        request(serve(keep=True), "GET", "/", timeout=0.1)
    assert time.monotonic() - before < 3


def test_an_answer_without_end_is_given_up(serve: Serve) -> None:
    """3 MB, of which the client takes one and no more."""
    endpoint = serve(OK + b"\r\n", *[bytes(65536)] * 48)
    with pytest.raises(WireError, match="too long"):
        request(endpoint, "GET", "/", timeout=5)


def test_a_server_that_stops_in_the_middle_is_given_up_at_the_deadline(serve: Serve) -> None:
    begun = OK + b"X: " + b"x" * 1000
    before = time.monotonic()
    with pytest.raises(WireError):
        request(serve(begun, keep=True), "GET", "/", timeout=0.1)
    assert time.monotonic() - before < 3


@pytest.mark.parametrize("endpoint", ["unix:/nonexistent/x.sock", "unix:" + "x" * 200, "unix:/tmp"])
def test_nobody_there(endpoint: str) -> None:
    with pytest.raises(WireError, match=r"^cannot reach unix:"):
        is_ready(endpoint, timeout=5)


def test_nobody_at_the_port() -> None:
    with pytest.raises(WireError, match="Connection refused"):
        request(f"http://127.0.0.1:{free_port()}", "GET", "/", timeout=5)


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"{}x", b"5", b'{"a": 1}', b'["a"]', b"[{}]", b"[null]", b"\xff", b"null"]
)
def test_slots_that_are_no_slots(serve: Serve, body: bytes) -> None:
    endpoint = serve(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    with pytest.raises(WireError, match="cannot read /slots: not a slot list"):
        busy_slots(endpoint, timeout=5)


def test_slots_nested_without_end(serve: Serve) -> None:
    with pytest.raises(WireError):
        busy_slots(serve(OK + b"\r\n" + b"[" * 200_000), timeout=5)


@pytest.mark.parametrize("status", [501, 401, 503])
def test_slots_that_are_not_shown_are_not_idle(serve: Serve, status: int) -> None:
    """llama-server answers 501 with --no-slots, 401 with an API key, 503 while it loads."""
    with pytest.raises(WireError, match=f"cannot read /slots: status {status}"):
        busy_slots(serve(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n[]" % status), timeout=5)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"default_generation_settings": {"n_ctx": 512}, "total_slots": 2}', Properties(512, 2)),
        (b'{"default_generation_settings": {"n_ctx": -5}, "total_slots": 1e9}', Properties()),
        (b'{"default_generation_settings": [], "total_slots": true}', Properties()),
        (b"[1]", Properties()),
        (b"\xff", Properties()),
        (b"[" * 200_000, Properties()),
    ],
)
def test_properties(serve: Serve, body: bytes, found: Properties) -> None:
    endpoint = serve(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert properties(endpoint, timeout=5) == found
