"""The few calls that the guard makes to a llama.cpp server, over a small HTTP client of our own.

``http.client`` would bring ssl and email and 5 MB into the guard. Addresses are literal (no resolver), every call has a
time-out, and what is read is bounded. All of it runs in the guard's helper thread.
"""

from __future__ import annotations

import json
import socket
import time

#: What a health check, a one-token completion or a slot list can be, with a wide margin.
_MOST_ANSWER_BYTES = 1 << 20


class WireError(Exception):
    """The server cannot be reached, or what it says is not HTTP."""


def request(endpoint: str, method: str, path: str, *, body: object = None, timeout: float) -> tuple[int, bytes]:
    """Status and body of one HTTP call to ``endpoint`` (``unix:PATH`` or ``http://127.0.0.1:PORT``).

    ``timeout`` is seconds for the whole call.

    Raises:
        WireError: refused, timed out, cut off, or not HTTP.
    """
    deadline = time.monotonic() + timeout
    payload = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    try:
        with _connect(endpoint, timeout) as connection:
            connection.sendall(head.encode() + payload)
            data = b""
            while True:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                chunk = connection.recv(65536)
                data += chunk
                if _is_complete(data):
                    return _parse(data)
                if not chunk:
                    return _parse_closed(data)
                if len(data) > _MOST_ANSWER_BYTES or time.monotonic() >= deadline:
                    raise WireError("cannot read the answer: too long")
    except OSError as error:
        raise WireError(f"cannot reach {endpoint}: {error}") from None


def is_ready(endpoint: str, *, timeout: float) -> bool:
    """Whether the server is healthy *and* really generates: /health 200 and one token.

    Raises:
        WireError: it cannot be reached (yet).
    """
    status, _ = request(endpoint, "GET", "/health", timeout=timeout)
    if status != 200:
        return False
    # cache_prompt off: the probe must not leave a prompt behind that the host cache would keep.
    probe = {"prompt": "a", "n_predict": 1, "cache_prompt": False}
    status, _ = request(endpoint, "POST", "/completion", body=probe, timeout=timeout)
    return status == 200


def busy_slots(endpoint: str, *, timeout: float) -> int:
    """How many slots are generating.

    Raises:
        WireError: it cannot be reached, or its answer is not a slot list.
    """
    status, data = request(endpoint, "GET", "/slots", timeout=timeout)
    try:
        slots = json.loads(data) if status == 200 else []
        return sum(bool(slot["is_processing"]) for slot in slots)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise WireError("cannot read /slots: not a slot list") from None


def _connect(endpoint: str, timeout: float) -> socket.socket:
    if endpoint.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: str | tuple[str, int] = endpoint.removeprefix("unix:")
    else:
        host, _, port = endpoint.removeprefix("http://").rpartition(":")
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        address = (host, int(port))
    connection.settimeout(timeout)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _content_length(head: bytes) -> int | None:
    for line in head.lower().split(b"\r\n")[1:]:
        if line.startswith(b"content-length:"):
            length = line[15:].strip()
            # Nine digits are a gigabyte: more is no length of ours, and int() of thousands of them raises.
            return int(length) if length.isdigit() and len(length) <= 9 else None
    return None


def _is_complete(data: bytes) -> bool:
    head, blank, body = data.partition(b"\r\n\r\n")
    length = _content_length(head) if blank else None
    return length is not None and len(body) >= length


def _parse_closed(data: bytes) -> tuple[int, bytes]:
    """The answer that ended with its connection: whole only if it did not say how long it would be."""
    head, blank, _ = data.partition(b"\r\n\r\n")
    if blank and _content_length(head) is not None:
        raise WireError("cannot read the answer: it was cut off")
    return _parse(data)


def _parse(data: bytes) -> tuple[int, bytes]:
    head, blank, body = data.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if not blank or len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1][:3].isdigit():
        raise WireError("cannot read the answer: not HTTP")
    return int(words[1][:3]), body
