"""Server-sent events as bytes: cutting a stream into events, and what ours look like. Pure."""

from __future__ import annotations

import json

#: No event of an engine comes near this (logprobs of one token are a few kB); a stream without a blank line must not
#: grow the buffer for ever.
MOST_EVENT_BYTES = 4 << 20

STREAM_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
WAITING = b": tidegate: waiting for the worker\n\n"


class Splitter:
    """Cuts bytes that arrive in any pieces into the ``data`` of whole events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that ended in ``data``; comments and other fields are skipped.

        Raises:
            ValueError: an event is larger than :data:`MOST_EVENT_BYTES`.
        """
        self._rest += data
        if b"\r" in self._rest:
            # A CRLF may be cut in two: leave a trailing CR for the next piece.
            tail = b"\r" if self._rest.endswith(b"\r") else b""
            self._rest = self._rest[: len(self._rest) - len(tail)].replace(b"\r\n", b"\n") + tail
        *events, self._rest = self._rest.split(b"\n\n")
        if len(self._rest) > MOST_EVENT_BYTES:
            raise ValueError("cannot read the engine's stream: an event is larger than 4 MiB")
        return [found for found in map(event_data, events) if found is not None]


def event_data(event: bytes) -> bytes | None:
    """The joined ``data`` lines of one event; None if it has none."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def data_event(value: object) -> bytes:
    """``value`` as one event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def comment(text: str) -> bytes:
    """A comment line, which every client ignores; ``text`` must be one line."""
    return f": {text}\n\n".encode()
