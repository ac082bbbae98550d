"""A small fake llama-server: a standalone program for tests, standard library only, up in under 40 ms.

    python -I -S fake_engine.py --host /tmp/x.sock -c 1024 -np 1 --fake-load-ms 200 --fake-token-ms 20

It takes llama-server's flags (``--host PATH.sock`` or ``--host IP --port N``, ``-m``, ``-c``, ``-np``; others are
ignored) and these of its own:

    --fake-load-ms N       milliseconds after start during which every route answers 503 "Loading model"
    --fake-token-ms N      milliseconds between two tokens
    --fake-prefill-ms N    milliseconds before the first token (and before the answer's headers)
    --fake-ignore-term     SIGTERM does nothing, as a loaded llama-server often behaves
    --fake-crash-at N      the Nth generating request (1 = the first) ends the process with SIGKILL ...
    --fake-crash-tokens K  ... after K tokens of it were sent (0: after a stream's opening; unset: before anything)
    --fake-crash-word W    a generating request whose prompt contains the word W ends the process at once
    --fake-fail MESSAGE    write MESSAGE to stderr and exit at start ...
    --fake-fail-code N     ... with this code (default 1)
    --fake-anon-mib N      touch N MiB of anonymous memory when loaded
    --fake-leak-kib N      keep N more KiB of it for every generating request (the host prompt cache)
    --fake-flood           write to stderr all the time, as fast as it takes it
    --fake-log PATH        append a JSON line for everything that happens (survives a SIGKILL)

A prompt's tokens are its whitespace-separated words plus one for each message; an answer is "tok0 tok1 tok2 ...", up
to ``max_tokens`` (16 when unset). A closed *stream* is noticed before the next token, a closed plain request only at
its end: llama-server does the same. ``GET /fake/stats`` counts what happened.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
import time

START = time.monotonic()
MODEL = "fake-model"


class GoneError(Exception):
    """The client closed its connection."""


class Options:
    """The command line, llama-server's part and ours."""

    def __init__(self, argv: list[str]) -> None:
        self.host = "127.0.0.1"
        self.port = 8080
        self.model = MODEL
        self.context = 4096
        self.slots = 0
        self.load_ms = 0.0
        self.token_ms = 0.0
        self.prefill_ms = 0.0
        self.ignore_term = False
        self.flood = False
        self.crash_at = 0
        self.crash_tokens = -1
        self.crash_word = ""
        self.fail = ""
        self.fail_code = 1
        self.anon_mib = 0
        self.leak_kib = 0
        self.log = ""
        self._parse(argv)
        # As llama-server: an explicit -np splits -c between its slots; unset is four slots sharing all of it.
        self.slot_context = self.context // self.slots if self.slots > 0 else self.context
        self.slots = self.slots if self.slots > 0 else 4

    def _parse(self, argv: list[str]) -> None:
        names = {
            "--host": "host", "--port": "port", "-m": "model", "--model": "model", "-c": "context",
            "--ctx-size": "context", "-np": "slots", "--parallel": "slots",
        }  # fmt: skip
        index = 0
        while index < len(argv):
            flag, _, value = argv[index].partition("=")
            name = names.get(flag)
            if name is None and flag.startswith("--fake-"):
                name = flag[len("--fake-") :].replace("-", "_")
                if not hasattr(self, name):
                    sys.exit(f"cannot start: unknown option {flag}")
            index += 1
            if name is None:
                continue
            if name in ("ignore_term", "flood"):
                setattr(self, name, True)
                continue
            if not value:
                if index >= len(argv):
                    sys.exit(f"cannot start: {flag} needs a value")
                value = argv[index]
                index += 1
            setattr(self, name, type(getattr(self, name))(value))


class Engine:
    """What the connections share: counters, the slots, the log."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.slots = threading.Semaphore(options.slots)
        self.lock = threading.Lock()
        self.stats = {"requests": 0, "generations": 0, "generating": 0, "completed": 0, "cancelled": 0, "tokens": 0}
        self.ballast: list[bytearray] = []
        self.log_fd = -1
        if options.log:
            self.log_fd = os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def loaded(self) -> bool:
        return (time.monotonic() - START) * 1000 >= self.options.load_ms

    def count(self, name: str, change: int = 1) -> int:
        with self.lock:
            self.stats[name] += change
            return self.stats[name]

    def log(self, event: str, **more: object) -> None:
        if self.log_fd >= 0:
            line = json.dumps({"event": event, "time": time.time(), "pid": os.getpid(), **more})
            os.write(self.log_fd, line.encode() + b"\n")

    def touch(self, size: int) -> None:
        block = bytearray(size)
        for offset in range(0, size, 4096):
            block[offset] = 1
        with self.lock:
            self.ballast.append(block)

    def crash(self) -> None:
        self.log("crash")
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(10)


class Connection:
    """One client connection: keep-alive, one request after the other."""

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

    def _head(self, status: int, kind: str, length: int | None) -> bytes:
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        head = f"HTTP/1.1 {status} X\r\nServer: llama.cpp\r\nContent-Type: {kind}\r\n{size}\r\n\r\n"
        return head.encode()

    def _json(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.sock.sendall(self._head(status, "application/json; charset=utf-8", len(data)) + data)

    def _error(self, status: int, message: str, kind: str, **more: object) -> None:
        self._json(status, {"error": {"code": status, "message": message, "type": kind, **more}})

    def _event(self, value: object) -> None:
        data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
        self.sock.sendall(b"%x\r\n%s\r\n" % (len(data), data))

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
        if path == "/fake/stats":
            self._json(200, engine.stats)
        elif not engine.loaded():
            self._error(503, "Loading model", "unavailable_error")
        elif method == "GET":
            self._get(path)
        else:
            self._post(path, body)
        return headers.get("connection", "").lower() != "close"

    def _get(self, path: str) -> None:
        options = self.engine.options
        if path == "/health":
            self._json(200, {"status": "ok"})
        elif path in ("/v1/models", "/models"):
            entry = {"id": options.model, "object": "model", "created": 1, "owned_by": "llamacpp"}
            self._json(200, {"object": "list", "data": [entry]})
        elif path == "/slots":
            busy = self.engine.stats["generating"]
            slots = [{"id": i, "n_ctx": options.slot_context, "is_processing": i < busy} for i in range(options.slots)]
            self._json(200, slots)
        elif path == "/props":
            settings = {"n_ctx": options.slot_context}
            self._json(200, {"default_generation_settings": settings, "total_slots": options.slots})
        else:
            self._error(404, "File Not Found", "not_found_error")

    def _post(self, path: str, body: bytes) -> None:
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
            self._json(200, {"tokens": list(range(len(str(request.get("content", "")).split())))})
        elif short in ("/chat/completions", "/completions", "/completion"):
            self._generate(short, request, words, prompt)
        elif short == "/echo":
            self._json(200, {"length": len(body)})
        else:
            self._error(404, "File Not Found", "not_found_error")

    # -- generating ---------------------------------------------------------------------------------------------

    def _generate(self, path: str, request: dict[str, object], words: int, prompt: str) -> None:
        engine, options = self.engine, self.engine.options
        number = engine.count("generations")
        if options.crash_word and options.crash_word in prompt.split():
            engine.crash()
        if options.leak_kib:
            engine.touch(options.leak_kib << 10)
        crashing = number == options.crash_at
        if crashing and options.crash_tokens < 0:
            engine.crash()
        with engine.slots:
            if words >= options.slot_context:
                message = (
                    f"request ({words} tokens) exceeds the available context size "
                    f"({options.slot_context} tokens), try increasing it"
                )
                more = {"n_prompt_tokens": words, "n_ctx": options.slot_context}
                self._error(400, message, "exceed_context_size_error", **more)
                return
            engine.count("generating")
            engine.log("start", number=number)
            try:
                self._answer(path, request, words, crashing)
                engine.count("completed")
                engine.log("done", number=number)
            except (OSError, GoneError):
                engine.count("cancelled")
                engine.log("cancelled", number=number)
                raise
            finally:
                engine.count("generating", -1)

    def _answer(self, path: str, request: dict[str, object], words: int, crashing: bool) -> None:
        options = self.engine.options
        asked = request.get("max_tokens", request.get("max_completion_tokens", request.get("n_predict")))
        limit = asked if isinstance(asked, int) and asked >= 0 else 16
        room = options.slot_context - words
        reason = "length" if limit > room or asked == limit else "stop"
        shape = Shape(path, options.model, words)
        stream = bool(request.get("stream"))
        self._wait(options.prefill_ms, stream)
        if stream:
            self.sock.sendall(self._head(200, "text/event-stream", None))
            for chunk in shape.opening():
                self._event(chunk)
        text = ""
        for index in range(min(limit, room)):
            if crashing and index >= options.crash_tokens:
                self.engine.crash()
            piece = f"tok{index}" if index == 0 else f" tok{index}"
            self._wait(options.token_ms if index else 0, stream)
            text += piece
            shape.sent += 1
            self.engine.count("tokens")
            if stream:
                self._event(shape.piece(piece))
        if not stream:
            self._json(200, shape.whole(text, reason))
            return
        wanted = request.get("stream_options")
        for chunk in shape.closing(reason, bool(isinstance(wanted, dict) and wanted.get("include_usage"))):
            self._event(chunk)
        if path != "/completion":
            self._event(b"[DONE]")
        self.sock.sendall(b"0\r\n\r\n")

    def _wait(self, milliseconds: float, stream: bool) -> None:
        """Sleep; a stream's client that leaves meanwhile raises GoneError."""
        if milliseconds > 0 and not stream:
            time.sleep(milliseconds / 1000)
        elif milliseconds > 0:
            select.select([self.sock], [], [], milliseconds / 1000)
        if stream and self._client_gone():
            raise GoneError


class Shape:
    """The chunks and the whole object of one answer, as the three routes shape them."""

    def __init__(self, path: str, model: str, words: int) -> None:
        self.path = path
        self.words = words
        self.sent = 0
        kind = "chat.completion" if path == "/chat/completions" else "text_completion"
        self.kind = kind
        self.base = {"id": "fake-1", "created": 1, "model": model, "system_fingerprint": "fake"}

    def usage(self) -> dict[str, int]:
        return {"prompt_tokens": self.words, "completion_tokens": self.sent, "total_tokens": self.words + self.sent}

    def timings(self) -> dict[str, object]:
        return {"prompt_n": self.words, "cache_n": 0, "predicted_n": self.sent}

    def _chat(self, delta: object, reason: str | None) -> dict[str, object]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {**self.base, "object": "chat.completion.chunk", "choices": [choice]}

    def _text(self, text: str, reason: str | None) -> dict[str, object]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return {**self.base, "object": self.kind, "choices": [choice]}

    def opening(self) -> list[dict[str, object]]:
        if self.path != "/chat/completions":
            return []
        return [self._chat({"role": "assistant", "content": None}, None)]

    def piece(self, text: str) -> dict[str, object]:
        if self.path == "/completion":
            return {"content": text, "stop": False}
        return self._chat({"content": text}, None) if self.path == "/chat/completions" else self._text(text, None)

    def closing(self, reason: str, with_usage: bool) -> list[dict[str, object]]:
        if self.path == "/completion":
            return [{"content": "", "stop": True, "tokens_evaluated": self.words, "tokens_predicted": self.sent}]
        last = self._chat({}, reason) if self.path == "/chat/completions" else self._text("", reason)
        if not with_usage:
            return [{**last, "timings": self.timings()}]
        usage = {**last, "choices": [], "usage": self.usage(), "timings": self.timings()}
        return [last, usage]

    def whole(self, text: str, reason: str) -> dict[str, object]:
        if self.path == "/completion":
            return {"content": text, "stop": True, "tokens_evaluated": self.words, "tokens_predicted": self.sent}
        if self.path == "/chat/completions":
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        else:
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        tail = {"usage": self.usage(), "timings": self.timings()}
        return {**self.base, "object": self.kind, "choices": [choice], **tail}


def count_prompt(request: dict[str, object]) -> tuple[int, str]:
    """Tokens of the prompt (words, plus one for each message) and its text."""
    if "messages" not in request:
        prompt = request.get("prompt", request.get("content", ""))
        text = " ".join(str(part) for part in prompt) if isinstance(prompt, list) else str(prompt)
        return len(text.split()), text
    messages = request["messages"]
    if not isinstance(messages, list):
        raise ValueError("'messages' must be an array")
    texts = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "image")) for part in content)
        texts.append(content or "")
    text = " ".join(texts)
    return len(text.split()) + len(messages), text


def listen(options: Options) -> socket.socket:
    if options.host.endswith(".sock"):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.path.exists(options.host):
            os.unlink(options.host)
        server.bind(options.host)
    else:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((options.host, options.port))
    server.listen(128)
    return server


def flood() -> None:
    while True:
        try:
            os.write(2, b"flood " * 100 + b"\n")
        except BlockingIOError:
            pass


HELP = """fake llama-server

-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path
-c,    --ctx-size N                     size of the prompt context (see also -np, --not-a-flag)
-np,   --parallel N                     number of server slots
-b,    --batch-size N                   logical maximum batch size
-ub,   --ubatch-size N                  physical maximum batch size
-t,    --threads N                      number of threads
-ctk,  --cache-type-k TYPE              KV cache data type for K
-ctv,  --cache-type-v TYPE              KV cache data type for V
-fa,   --flash-attn [on|off|auto]       flash attention
-cram, --cache-ram N                    host prompt cache in MiB
       --ctx-checkpoints N              checkpoints of a slot
-fit,  --fit [on|off]                   adjust unset arguments to fit
       --no-warmup                      skip the warm-up
       --metrics                        serve /metrics
       --no-webui                       no web UI
       --offline                        no downloads
-to,   --timeout N                      read and write time-out
       --host HOST                      address, or a path that ends in .sock
       --port PORT                      port
"""


def main() -> None:
    if "--help" in sys.argv:
        own = (line.split()[0] for line in __doc__.splitlines() if line.strip().startswith("--fake-"))
        print(HELP + "\n".join(own))
        sys.exit(0)
    options = Options(sys.argv[1:])
    if options.fail:
        sys.stderr.write(options.fail + "\n")
        sys.exit(options.fail_code)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    engine = Engine(options)
    server = listen(options)
    engine.log("listening", host=options.host)
    if options.anon_mib:
        threading.Thread(target=engine.touch, args=(options.anon_mib << 20,), daemon=True).start()
    if options.flood:
        threading.Thread(target=flood, daemon=True).start()
    while True:
        sock, _ = server.accept()
        threading.Thread(target=Connection(engine, sock).run, daemon=True).start()


if __name__ == "__main__":
    main()
