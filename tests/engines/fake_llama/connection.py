"""One client connection of the fake engine: HTTP/1.1 in, llama-server's routes, answers out."""

import json
import select
import socket
import time

from engines.fake_llama.answers import (
    Shape,
    answered,
    broken,
    count_prompt,
    embeddings,
    model_list,
    numbered,
    props,
    rendered,
    slot_list,
)
from engines.fake_llama.engine import Engine, Slot

#: As llama-server: these want no key.
OPEN_PATHS = ("/health", "/v1/health", "/fake/stats")


class GoneError(Exception):
    """The client closed its connection."""


class Connection:
    """Keep-alive, one request after the other."""

    def __init__(self, engine: Engine, sock: socket.socket) -> None:
        self.engine = engine
        self.sock = sock
        self.buffer = b""

    def run(self) -> None:
        try:
            while self._one():
                pass
        except (OSError, GoneError):
            pass
        finally:
            self.sock.close()

    # -- reading ------------------------------------------------------------------------------------------------

    def _more(self) -> None:
        data = self.sock.recv(65536)
        if self.engine.hung:
            self.engine.stay_silent()
        if not data:
            raise GoneError
        self.buffer += data

    def _line(self) -> bytes:
        while b"\r\n" not in self.buffer:
            self._more()
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line

    def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self._more()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = b""
            while True:
                size = int(self._line().split(b";")[0], 16)
                body += self._exactly(size)
                self._line()
                if size == 0:
                    return body
        return self._exactly(int(headers.get("content-length", "0")))

    def _client_gone(self) -> bool:
        readable = select.select([self.sock], [], [], 0)[0]
        return bool(readable) and not self.sock.recv(1, socket.MSG_PEEK)

    # -- answering ----------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        if self.engine.hung:
            self.engine.stay_silent()
        self.sock.sendall(data)

    def _head(self, status: int, kind: str, length: int | None) -> bytes:
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        head = f"HTTP/1.1 {status} X\r\nServer: llama.cpp\r\nContent-Type: {kind}\r\n{size}\r\n\r\n"
        return head.encode()

    def _json(self, status: int, value: object) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._send(self._head(status, "application/json; charset=utf-8", len(data)) + data)

    def _error(self, status: int, message: str, kind: str, **more: object) -> None:
        self._json(status, {"error": {"code": status, "message": message, "type": kind, **more}})

    def _events(self, *values: object) -> None:
        lines = (value if isinstance(value, bytes) else json.dumps(value).encode() for value in values)
        data = b"".join(b"data: " + line + b"\n\n" for line in lines)
        self._send(b"%x\r\n%s\r\n" % (len(data), data))

    def _one(self) -> bool:
        method, target, _ = self._line().decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        body = self._body(headers)
        path = target.partition("?")[0]
        engine = self.engine
        engine.count("requests")
        engine.log("request", method=method, target=target, headers=headers, body=body.decode("utf-8", "replace"))
        if not self._may(path, headers):
            self._error(401, "Invalid API Key", "authentication_error")
        elif path == "/fake/stats":
            self._json(200, engine.stats)
        elif not engine.loaded():
            self._error(503, "Loading model", "unavailable_error")
        elif method == "GET":
            self._get(path)
        else:
            self._post(target, body)
        return headers.get("connection", "").lower() != "close"

    def _may(self, path: str, headers: dict[str, str]) -> bool:
        key = self.engine.options.api_key
        given = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key")
        return not key or path in OPEN_PATHS or given == key

    def _get(self, path: str) -> None:
        options = self.engine.options
        if path == "/health":
            self._json(200, {"status": "ok"})
        elif path in ("/v1/models", "/models"):
            self._json(200, model_list(options))
        elif path == "/slots" and options.no_slots:
            what = "This server does not support slots endpoint. Start it with `--slots`"
            self._error(501, what, "not_supported_error")
        elif path == "/slots":
            if self.engine.wedged and options.wedge_deaf:
                self.engine.stay_silent()
            self._json(200, slot_list(self.engine.slots, options.slot_context))
        elif path == "/props":
            self._json(200, props(options))
        else:
            self._error(404, "File Not Found", "not_found_error")

    def _slot(self, path: str, action: str, name: str) -> None:
        if not self.engine.options.slot_path:
            what = "This server does not support slots action. Start it with `--slot-save-path`"
            self._error(501, what, "not_supported_error")
            return
        try:
            self._json(200, self.engine.slot_action(self.engine.slots[int(path.rpartition("/")[2])], action, name))
        except (ValueError, OSError, IndexError) as error:
            self._error(400, str(error), "invalid_request_error")

    def _post(self, target: str, body: bytes) -> None:
        path = target.partition("?")[0]
        try:
            request = json.loads(body or b"{}")
            words, prompt = count_prompt(request)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._error(400, str(error), "invalid_request_error")
            return
        short = path[3:] if path.startswith("/v1/") else path
        if short == "/chat/completions/input_tokens":
            self._json(200, {"object": "response.input_tokens", "input_tokens": words})
        elif short == "/tokenize":
            self._json(200, {"tokens": numbered(str(request.get("content", "")))})
        elif short == "/apply-template":
            self._json(200, {"prompt": rendered(request)})
        elif short in ("/chat/completions", "/completions", "/completion"):
            self._generate(short, request, words, prompt)
        elif short.startswith("/slots/"):
            self._slot(short, target.partition("?action=")[2], str(request.get("filename", "")))
        elif short == "/embeddings" and not self.engine.options.embedding:
            what = "This server does not support embeddings. Start it with `--embeddings`"
            self._error(501, what, "not_supported_error")
        elif short == "/embeddings":
            self._json(200, embeddings(request))
        elif short == "/echo":
            self._json(200, {"length": len(body)})
        else:
            self._error(404, "File Not Found", "not_found_error")

    # -- generating ---------------------------------------------------------------------------------------------

    def _generate(self, path: str, request: dict[str, object], words: int, prompt: str) -> None:
        engine, options = self.engine, self.engine.options
        number, faults = engine.next_generation(prompt)
        if "crash_word" in faults:
            engine.crash()
        if options.leak_kib:
            engine.touch(options.leak_kib << 10)
        if options.shmem_leak_kib:
            engine.touch(options.shmem_leak_kib << 10, shared=True)
        if "crash" in faults and options.crash_tokens < 0:
            engine.crash()
        if "hang" in faults:
            engine.hang()
        slot = engine.take_slot()
        try:
            self._in_slot(slot, path, request, words, prompt, number, faults)
        finally:
            engine.free_slot(slot)

    def _in_slot(
        self, slot: Slot, path: str, request: dict[str, object], words: int, prompt: str, number: int, faults: set[str]
    ) -> None:
        engine, options = self.engine, self.engine.options
        context = options.slot_context
        if words >= context:
            message = (
                f"request ({words} tokens) exceeds the available context size ({context} tokens), try increasing it"
            )
            self._error(400, message, "exceed_context_size_error", n_prompt_tokens=words, n_ctx=context)
            return
        asked = request.get("max_tokens", request.get("max_completion_tokens", request.get("n_predict")))
        slot.begin(number, words, asked if isinstance(asked, int) and asked >= 0 else 16)
        engine.log("start", number=number)
        stream = bool(request.get("stream"))
        if options.head_first and stream and "fail" not in faults:
            self._send(self._head(200, "text/event-stream", None))
        if "wedge" in faults:
            engine.wedge()
        if "fail" in faults:
            self._error(500, "Compute error.", "server_error")
            return
        try:
            reason = "length" if slot.limit > context - words or asked == slot.limit else "stop"
            self._answer(slot, path, request, prompt, reason, faults)
            engine.count("completed")
            engine.log("done", number=number)
        except (OSError, GoneError):
            engine.count("cancelled")
            engine.log("cancelled", number=number)
            raise

    def _answer(
        self, slot: Slot, path: str, request: dict[str, object], prompt: str, reason: str, faults: set[str]
    ) -> None:
        options = self.engine.options
        if options.slot_path:
            slot.read((rendered(request) if path == "/chat/completions" else prompt).split())
        shape = Shape(path, options, slot.prompt, slot.cached)
        stream = bool(request.get("stream"))

        def shown(value: object) -> object:
            return broken(value, slot.task) if "wrong_json" in faults else value

        self._wait(options.prefill_ms, stream)
        if stream and not options.head_first:
            self._send(self._head(200, "text/event-stream", None))
        # llama-server b11434 sends the opening and the first token in one piece.
        held = [shown(chunk) for chunk in shape.opening()]
        text = ""
        first = answered(prompt) or options.first_token
        for index in range(first, first + min(slot.limit, options.slot_context - slot.prompt)):
            if "crash" in faults and index - first >= options.crash_tokens:
                self.engine.crash()
            piece = f"tok{index}" if index == 0 else f" tok{index}"
            self._wait(options.token_ms if index > first else 0, stream)
            self.engine.read_weights()
            text += piece
            shape.sent += 1
            slot.decoded += 1
            self.engine.count("tokens")
            if stream:
                self._events(*held, shown(shape.piece(piece)))
                held = []
        if not stream:
            self._json(200, shown(shape.whole(text, reason)))
            return
        wanted = request.get("stream_options")
        for chunk in shape.closing(reason, bool(isinstance(wanted, dict) and wanted.get("include_usage"))):
            self._events(*held, shown(chunk))
            held = []
        if path != "/completion":
            self._events(b"[DONE]")
        self._send(b"0\r\n\r\n")

    def _wait(self, milliseconds: float, stream: bool) -> None:
        """Sleep; a stream's client that leaves meanwhile raises GoneError."""
        if milliseconds > 0 and not stream:
            time.sleep(milliseconds / 1000)
        elif milliseconds > 0:
            select.select([self.sock], [], [], milliseconds / 1000)
        if stream and self._client_gone():
            raise GoneError
