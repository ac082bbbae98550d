"""A server of one prepared answer, for clients' own packages; and the engine's chunks, fed to a voice one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

from tidegate.gateway.assemble import Assembler, Object
from tidegate.gateway.sse import data_event
from tidegate.gateway.voice import Voice

#: Takes a path and a body, gives status, Content-Type and body.
Answering = Callable[[str, bytes], tuple[int, str, bytes]]

TOP: Object = {"created": 1764550000, "id": "chatcmpl-x", "model": "m", "object": "chat.completion.chunk"}
OPENING: Object = {"role": "assistant", "content": None}
TIMINGS: Object = {"cache_n": 5, "prompt_n": 2, "prompt_ms": 2.5, "predicted_n": 3, "predicted_ms": 30.0}
USAGE: Object = {
    "completion_tokens": 3,
    "prompt_tokens": 7,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 5},
}


def deltas(*said: Object, reason: str = "stop", usage: bool = True) -> list[Object]:
    """A chat's stream as llama-server sends it, opening and end included."""
    chunks: list[Object] = [_chunk(delta, None) for delta in (OPENING, *said)]
    chunks.append({**_chunk({}, reason), "timings": TIMINGS})
    return [*chunks, {**TOP, "choices": [], "usage": USAGE}] if usage else chunks


def _chunk(delta: Object, reason: str | None) -> Object:
    return {"choices": [{"finish_reason": reason, "index": 0, "delta": delta}], **TOP}


def call(index: int, arguments: str, *, id: str | None = None, name: str | None = None) -> Object:  # noqa: A002
    """A piece of a tool's call; only the first has its id and name."""
    function: Object = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    more: Object = {} if id is None else {"id": id, "type": "function"}
    return {"tool_calls": [{"index": index, **more, "function": function}]}


def tell(voice: Voice, chunks: Sequence[Object]) -> list[bytes]:
    """What the voice says to each chunk, and at the end."""
    return [*(voice.chunk(chunk, data_event(chunk)) for chunk in chunks), voice.done()]


def assembled(chunks: Sequence[Object]) -> Object:
    """The same chunks as one answer."""
    assembler = Assembler(chat=True)
    for chunk in chunks:
        assembler.add(chunk)
    return assembler.whole()


@contextmanager
def serving(answer: Answering) -> Iterator[str]:
    """A server on this machine that gives these answers; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def do_GET(self) -> None:
            self._answer(b"")

        def _answer(self, asked: bytes) -> None:
            status, kind, body = answer(self.path, asked)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


#: What is said in pieces: a thought, a text, two calls.
TALK: tuple[Object, ...] = (
    {"reasoning_content": "hm"},
    {"content": "Hé"},
    {"content": "llo"},
    call(0, "{", id="a", name="f"),
    call(0, '"x":1}'),
    call(1, "", id="b", name="g"),
)
