"""A gateway as a real process, with a scripted guard in front of it and fake engines behind it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidegate.settings.model import GatewaySettings, LogSettings, Profile, Settings, WorkerSettings

FAKE_ENGINE = os.path.join(os.path.dirname(__file__), "..", "engines", "fake_engine.py")
SRC = os.path.join(os.path.dirname(__file__), "..", "..", "src")

T = TypeVar("T")


def until(probe: Callable[[], T], seconds: float = 10.0) -> T:
    """The first true value of ``probe``; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.005)


#: What the guard's status says of memory, as far as the gateway looks at it.
STATUS = {
    "gateway": {"in_flight": 0, "queued": 0},
    "axes": [
        {"name": "system", "limit_bytes": 8000, "used_bytes": 3000},
        {"name": "budget", "limit_bytes": 400, "used_bytes": 100},
    ],
    "worker": {"anon_bytes": 70, "file_bytes": 50, "shmem_bytes": 20, "swap_bytes": 10, "prompt_cache_bytes": 0},
    "guard": {"rss_bytes": 13},
}


class Guard:
    """The guard's side of its socket. ``answers`` maps a command to a function of the message giving the result."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.received: list[dict[str, Any]] = []
        self.answers: dict[str, Callable[[dict[str, Any]], Any]] = {"status": lambda _: STATUS}
        self.connections = 0
        self._state: dict[str, Any] | None = None
        self._lock = threading.Condition()
        self._client: socket.socket | None = None
        self._server: socket.socket | None = None
        self.listen()

    def listen(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(self.path)
        server.listen(4)
        self._server = server
        threading.Thread(target=self._serve, args=(server,), daemon=True).start()

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with self._lock:
                self._client = client
                self.connections += 1
                if self._state is not None:
                    self._send({"state": self._state})
            threading.Thread(target=self._read, args=(client,), daemon=True).start()

    def _read(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as lines:
            try:
                for line in lines:
                    message = json.loads(line)
                    with self._lock:
                        self.received.append(message)
                        self._lock.notify_all()
                    answer = self.answers.get(message.get("command", ""))
                    if answer is not None:
                        self._answer(client, message, answer)
            except OSError:
                pass
        with self._lock:
            if self._client is client:
                self._client = None

    def _answer(self, client: socket.socket, message: dict[str, Any], answer: Callable[[dict[str, Any]], Any]) -> None:
        try:
            reply = {"id": message["id"], "ok": True, "result": answer(message)}
        except ValueError as error:
            reply = {"id": message["id"], "ok": False, "error": str(error)}
        client.sendall(json.dumps(reply).encode() + b"\n")

    def _send(self, message: dict[str, Any]) -> None:
        if self._client is not None:
            self._client.sendall(json.dumps(message).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        with self._lock:
            assert self._client is not None
            self._client.sendall(data)

    def say(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._send(message)

    def announce(self, state: dict[str, Any]) -> None:
        """Send a state, now and to whoever connects later."""
        with self._lock:
            self._state = state
            self._send({"state": state})

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], seconds: float = 5.0) -> dict[str, Any]:
        """The first message received that is wanted."""
        with self._lock:
            found: list[dict[str, Any]] = []

            def look() -> bool:
                found.extend(message for message in self.received if wanted(message))
                return bool(found)

            assert self._lock.wait_for(look, seconds), f"no such message in {self.received}"
            return found[0]

    def forget(self) -> None:
        with self._lock:
            self.received.clear()

    def die(self) -> None:
        """Close everything, as a killed guard."""
        if self._server is not None:
            # shutdown() wakes the accept() in the other thread, close() alone does not.
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
            self._server = None
        with self._lock:
            if self._client is not None:
                with contextlib.suppress(OSError):
                    self._client.shutdown(socket.SHUT_RDWR)
                self._client = None


class Engine:
    """A fake engine process on a Unix socket."""

    def __init__(self, folder: str, generation: int, *options: str) -> None:
        self.path = os.path.join(folder, f"worker-{generation}.sock")
        self.log_path = os.path.join(folder, f"engine-{generation}.log")
        # A killed server leaves its socket, and whoever starts the next one has to take it away, as the guard does.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        argv = [sys.executable, "-I", "-S", FAKE_ENGINE, "--host", self.path, "--fake-log", self.log_path, *options]
        self.process = subprocess.Popen(argv)
        until(self._listens)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(self.path) == 0

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the engine logged under this name."""
        with open(self.log_path) as file:
            entries = [json.loads(line) for line in file if line.endswith("\n")]
        return [entry for entry in entries if entry["event"] == name]

    def bodies(self, path: str = "/v1/chat/completions") -> list[dict[str, Any]]:
        """The request bodies that came to a path."""
        return [json.loads(entry["body"]) for entry in self.events("request") if entry["target"] == path]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@dataclass
class Reply:
    """A whole HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def content(self) -> str:
        return str(self.json["choices"][0]["message"]["content"])


class Stream:
    """An answer that is read as it comes."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.seen = b""

    def read_until(self, text: bytes) -> bytes:
        """Read on until ``text`` was seen; what came so far."""
        while text not in self.seen:
            data = self._response.read1(65536)
            assert data, f"ended without {text!r}: {self.seen!r}"
            self.seen += data
        return self.seen

    def rest(self) -> bytes:
        """Everything, to the end."""
        while data := self._response.read1(65536):
            self.seen += data
        self._connection.close()
        return self.seen

    def close(self) -> None:
        """Leave."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._response.close()
        self._connection.close()


def content_of(stream: bytes) -> str:
    """The text in an event stream of chat chunks."""
    found: list[str] = []
    for line in stream.split(b"\n"):
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:]).get("choices", [])
            found += [choice.get("delta", {}).get("content") or "" for choice in choices]
    return "".join(found)


def tokens(count: int) -> str:
    """What the fake engine answers with for ``max_tokens`` = count."""
    return " ".join(f"tok{index}" for index in range(count))


def chat(words: int = 3, **more: Any) -> dict[str, Any]:
    """A chat request whose prompt is ``words + 1`` tokens to the fake engine."""
    return {"messages": [{"role": "user", "content": " ".join(["word"] * words)}], **more}


@dataclass
class Scene:
    """Guard, engines and gateway together."""

    folder: str
    guard: Guard
    process: subprocess.Popen[bytes]
    port: int
    engines: dict[int, Engine] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    #: What the gateway logged; there after its end.
    log: str = ""
    #: Sent with every request that has no Authorization of its own.
    key: str = ""

    def engine(self, generation: int = 1, *options: str) -> Engine:
        """Start an engine process; nobody is told of it yet."""
        engine = Engine(self.folder, generation, *options)
        self.engines[generation] = engine
        return engine

    def tell(self, *, worker: dict[str, Any] | None = None, **more: Any) -> None:
        """Announce the last state with changes, and wait until the gateway has it."""
        since = self.state["since"] + 1
        self.state = {**self.state, "since": since, **more, "worker": {**self.state["worker"], **(worker or {})}}
        self.guard.announce(self.state)
        until(lambda: self.known()["since"] == since)

    def known(self) -> Any:
        """The state that the gateway knows."""
        connection = self.connect()
        with contextlib.closing(connection):
            connection.request("GET", "/tidegate/events", headers={"Authorization": f"Bearer {self.key}"})
            with connection.getresponse() as response:
                response.readline()
                return json.loads(response.readline()[6:])

    def announce(self, generation: int = 1, **more: Any) -> None:
        """Announce generation's engine as ready behind an open gate."""
        url = f"unix:{self.engines[generation].path}"
        self.tell(gate="open", worker={"state": "ready", "generation": generation, "url": url, **more})

    def start(self, generation: int = 1, *options: str, **worker: Any) -> Engine:
        """An engine, announced, and the gateway ready."""
        engine = self.engine(generation, *options)
        self.announce(generation, **worker)
        until(lambda: self.get("/readyz").status == 200)
        return engine

    def connect(self, timeout: float = 30.0) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = self.connect()
        with contextlib.closing(connection):
            own = {"Authorization": f"Bearer {self.key}"} if self.key else {}
            connection.request(method, path, data, {"Content-Type": "application/json", **own, **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, {n.lower(): v for n, v in response.getheaders()}, response.read())

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        return self.request("POST", path, body, headers)

    def chat(self, words: int = 3, **more: Any) -> Reply:
        return self.post("/v1/chat/completions", chat(words, **more))

    def stream(self, path: str = "/v1/chat/completions", body: Any = None) -> Stream:
        connection = self.connect()
        connection.request("POST", path, json.dumps(body or chat(stream=True)), {"Content-Type": "application/json"})
        stream = Stream(connection, connection.getresponse())
        self.streams.append(stream)
        return stream

    def metric(self, name: str, **labels: str) -> float:
        """One value of /metrics."""
        wanted = name + ("{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else "") + " "
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(wanted):
                return float(line.removeprefix(wanted))
        return 0.0

    def queued(self) -> int:
        return int(self.metric("tidegate_requests_queued"))


class Background:
    """Runs a function in a thread; ``result()`` gives what it returned."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._run = run
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            self._value = self._run()
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, seconds: float = 30.0) -> Any:
        self._thread.join(seconds)
        assert self.done, "still running"
        if self._error is not None:
            raise self._error
        return self._value


BIG = Profile(name="full", model="/models/big.gguf", context=4096)
SMALL = Profile(name="small", model="/models/small.gguf", context=1024)


def settings(*, worker: WorkerSettings | None = None, log_level: str = "info", **gateway: Any) -> Settings:
    worker = worker or WorkerSettings(profiles=(BIG, SMALL))
    return Settings(worker=worker, gateway=GatewaySettings(**gateway), log=LogSettings(level=log_level))


def first_state() -> dict[str, Any]:
    worker = {"state": "starting", "generation": 0, "profile": "full", "url": "", "context": 4096, "slots": 4}
    return {
        "level": "normal",
        "since": 1.0,
        "paused": False,
        "gate": "hold",
        "reason": "",
        "retry_after_s": 0.0,
        "worker": {**worker, "message": ""},
        "best_context": 4096,
        "warn_context": 1024,
        "context_override": None,
        "critical_prompt": 256,
        "nearest_axis": {"name": "budget", "limit_bytes": 400, "used_bytes": 100, "used_ratio": 0.25},
    }


@contextlib.contextmanager
def scene(*, worker: WorkerSettings | None = None, log_level: str = "info", **gateway: Any) -> Iterator[Scene]:
    """A gateway with these settings, connected to its guard, and no worker yet."""
    # Not pytest's own folder: a Unix socket's path must stay below 108 bytes.
    folder = tempfile.mkdtemp(prefix="tg-")
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    guard = Guard(os.path.join(folder, "guard.sock"))
    read, write = os.pipe()
    os.write(write, json.dumps(settings(worker=worker, log_level=log_level, **gateway).to_json()).encode())
    os.close(write)
    argv = [sys.executable, "-m", "tidegate.gateway", "--settings-fd", str(read)]
    argv += ["--listen-fd", str(listener.fileno()), "--socket", guard.path]
    process = subprocess.Popen(
        argv, pass_fds=(read, listener.fileno()), env={**os.environ, "PYTHONPATH": SRC}, stderr=subprocess.PIPE
    )
    os.close(read)
    port = listener.getsockname()[1]
    listener.close()
    made = Scene(folder, guard, process, port, state=first_state())
    drain = Background(lambda: process.stderr.read() if process.stderr else b"")
    try:
        guard.announce(made.state)
        guard.wait_for(lambda message: message.get("hello") == "gateway")
        yield made
    finally:
        for stream in made.streams:
            stream.close()
        if process.poll() is None:
            process.kill()
        process.wait()
        errors = drain.result()
        if process.stderr is not None:
            process.stderr.close()
        guard.die()
        for engine in made.engines.values():
            engine.kill()
        shutil.rmtree(folder)
    made.log = errors.decode()
    assert "Traceback" not in made.log, made.log


def readable(sock: socket.socket, seconds: float) -> bool:
    """Something, or the end, arrived within ``seconds``."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
