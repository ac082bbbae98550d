"""The few calls that the guard makes to a llama.cpp server, over a small HTTP client of our own.

``http.client`` would bring ssl and email and 5 MB into the guard. Addresses are literal (no resolver), every call has a
time-out, and what is read is bounded. All of it runs in the guard's helper thread.
"""

from __future__ import annotations

import json
import socket
import time

from tidegate.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Answers to somebody without the server's API key.
_NO_KEY = (401, 403)
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


def is_healthy(endpoint: str, *, timeout: float) -> bool:
    """Whether the server says that it can serve.

    Raises:
        WireError: it cannot be reached (yet).
    """
    status, _ = request(endpoint, "GET", "/health", timeout=timeout)
    return status == 200


def is_ready(endpoint: str, *, timeout: float) -> bool:
    """Whether the server is healthy *and* really generates: /health 200 and one token.

    Raises:
        WireError: it cannot be reached (yet), or does not answer in time.
    """
    return is_healthy(endpoint, timeout=timeout) and generates(endpoint, timeout=timeout)


def generates(endpoint: str, *, timeout: float) -> bool:
    """Whether the server gives one token. One that asks us for a key (401, 403) is taken at its word.

    Raises:
        WireError: it cannot be reached, or does not answer in time.
    """
    # cache_prompt off: the probe must not leave a prompt behind that the host cache would keep.
    probe = {"prompt": "a", "n_predict": 1, "cache_prompt": False}
    status, data = request(endpoint, "POST", "/completion", body=probe, timeout=timeout)
    if status in _NO_KEY:
        return True
    answer = _object(data) if status == 200 else {}
    return "content" in answer


@frozen
class VitalSigns:
    """A healthy server. ``busy`` is how many slots are generating, ``progress`` a number that changes when any of them
    moves on; both None where /slots is not served."""

    busy: int | None
    progress: int | None


def vital_signs(endpoint: str, *, timeout: float) -> VitalSigns:
    """Ask for health and slots; ``timeout`` is seconds for each.

    Raises:
        WireError: it does not answer /health. Any answer is a sign of life.
    """
    request(endpoint, "GET", "/health", timeout=timeout)
    try:
        status, data = request(endpoint, "GET", "/slots", timeout=timeout)
        if status != 200:
            return VitalSigns(None, None)
        slots = json.loads(data)
        return VitalSigns(sum(bool(slot["is_processing"]) for slot in slots), hash(data))
    except (WireError, ValueError, TypeError, KeyError, RecursionError):
        return VitalSigns(None, None)


@frozen
class Properties:
    """What /props says: tokens of one slot's context, and slots; 0 where it does not."""

    context: int = 0
    slots: int = 0


def properties(endpoint: str, *, timeout: float) -> Properties:
    """Ask the server for its shape.

    Raises:
        WireError: it cannot be reached.
    """
    status, data = request(endpoint, "GET", "/props", timeout=timeout)
    answer = _object(data) if status == 200 else {}
    generation = answer.get("default_generation_settings")
    context = generation.get("n_ctx") if isinstance(generation, dict) else None
    return Properties(_count(context), _count(answer.get("total_slots")))


def busy_slots(endpoint: str, *, timeout: float) -> int:
    """How many slots are generating.

    Raises:
        WireError: it cannot be reached, or its answer is no slot list (501: --no-slots; 401: it has an API key).
    """
    status, data = request(endpoint, "GET", "/slots", timeout=timeout)
    if status != 200:
        # Nothing that is known is not nothing that is busy.
        raise WireError(f"cannot read /slots: status {status}")
    try:
        slots = json.loads(data)
        return sum(bool(slot["is_processing"]) for slot in slots)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise WireError("cannot read /slots: not a slot list") from None


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else 0


def _connect(endpoint: str, timeout: float) -> socket.socket:
    if endpoint.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: str | tuple[str, int] = endpoint.removeprefix("unix:")
    else:
        host, _, port = endpoint.removeprefix("http://").rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        address = (host.strip("[]"), int(port))
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
