"""The adapter and its few calls against llama-server's own binary, and the fake engine beside it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.conftest import Launch
from real_engine import NotBuiltError, RealEngine, real_engine
from running import eventually
from tidegate.cli.demo_model import demo_model_path, is_present
from tidegate.cli.engine_check import check_engine
from tidegate.engines.llama_api import WireError, busy_slots, generates, is_ready, properties, request, vital_signs
from tidegate.engines.llama_flags import NEEDED_FLAGS, OWNED_FLAGS
from tidegate.errors import TidegateError
from tidegate.settings.model import Profile, WorkerSettings

#: One thread: two spin against every other test.
EXTRA = ("-t", "1", "-tb", "1")
_SEIZE, _INTERRUPT, _ALL_THREADS = 0x4206, 0x4207, 0x40000000


@pytest.fixture(scope="module", name="engine")
def engine_fixture() -> RealEngine:
    try:
        return real_engine("llama-server")
    except NotBuiltError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", name="model")
def model_fixture() -> str:
    path = demo_model_path(os.environ)
    assert is_present(path), "the demo model is not there: run tidegate model"
    return path


class Server:
    """A running llama-server."""

    def __init__(self, engine: RealEngine, profile: Profile, endpoint: str) -> None:
        self.endpoint = endpoint
        self.process = subprocess.Popen(
            engine.argv(profile, endpoint), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def ready(self) -> bool:
        assert self.process.poll() is None, self.said()
        try:
            return is_ready(self.endpoint, timeout=20)
        except WireError:
            return False

    def said(self) -> str:
        return self.process.communicate(timeout=20)[0].decode()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(name="start")
def start_fixture(engine: RealEngine, model: str, directory: Path) -> Iterator[Callable[..., Server]]:
    """``start(*extra, port=0, **profile)`` starts one that loads the demo model; it need not be ready yet."""
    started: list[Server] = []

    def start(*extra: str, port: int = 0, **more: Any) -> Server:
        profile = Profile("a", **{"model": model, "context": 512, "extra": (*EXTRA, *extra), **more})
        endpoint = f"http://127.0.0.1:{port}" if port else f"unix:{directory}/r.sock"
        started.append(Server(engine, profile, endpoint))
        return started[-1]

    yield start
    for server in started:
        server.__exit__()


def get(endpoint: str, path: str) -> Any:
    status, data = request(endpoint, "GET", path, timeout=20)
    assert status == 200, data
    return json.loads(data)


def generation(server: Server, prompt: str = "Count to one thousand:") -> socket.socket:
    """A long one, of which a token has come."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    connection.connect(server.endpoint.removeprefix("unix:"))
    body = json.dumps({"prompt": prompt, "n_predict": 400, "ignore_eos": True, "stream": True}).encode()
    connection.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    seen = b""
    while b'"content"' not in seen:
        seen += connection.recv(65536)
    return connection


# -- the command line --------------------------------------------------------------------------------------------------


def test_its_help_names_every_flag_that_is_sent_and_owned(engine: RealEngine) -> None:
    flags = frozenset(check_engine(WorkerSettings(engine="llama-server", command=engine.command)))
    assert flags >= OWNED_FLAGS
    assert all(flags.intersection(names) for names in NEEDED_FLAGS)
    argv = engine.argv(Profile("a", "m.gguf", threads=2), "http://127.0.0.1:1")
    assert {word for word in argv if word.startswith("-")} <= flags
    # Several names a line, values behind them, and none that a description only mentions.
    assert {"-h", "--usage", "-kvo", "--no-kv-offload", "--no-slots", "--sse-ping-interval"} <= flags
    assert not {flag for flag in flags if not flag.strip("-")[:1].isalpha()}


@pytest.mark.parametrize(("flag", "hint"), [("--no-mmprj", "--no-mmproj"), ("--cache-rm", "--cache-ram")])
def test_an_extra_flag_that_it_does_not_know(engine: RealEngine, flag: str, hint: str) -> None:
    settings = WorkerSettings(
        engine="llama-server", command=engine.command, profiles=(Profile("a", "m.gguf", extra=(flag,)),)
    )
    with pytest.raises(TidegateError) as caught:
        check_engine(settings)
    assert caught.value.hint == f"did you mean {hint!r}?"


def test_a_flag_that_it_does_not_know_would_end_it(start: Callable[..., Server]) -> None:
    server = start("--mlok")
    assert "invalid argument: --mlok" in server.said()
    assert server.process.returncode == 1


# -- its life ----------------------------------------------------------------------------------------------------------


def test_over_a_port(start: Callable[..., Server]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = start(port=port)
    eventually(server.ready)
    assert busy_slots(server.endpoint, timeout=20) == 0


def test_a_profile_is_what_it_serves(start: Callable[..., Server], model: str) -> None:
    server = start(context=768, slots=2, kv_type="q8_0")
    eventually(server.ready)
    found = properties(server.endpoint, timeout=20)
    assert (found.context, found.slots) == (768, 2)
    name = os.path.basename(model).removesuffix(".gguf")
    assert get(server.endpoint, "/v1/models")["data"][0]["id"] == name
    _, data = request(server.endpoint, "POST", "/v1/completions", body={"prompt": "a", "max_tokens": 1}, timeout=20)
    assert json.loads(data)["model"] == name


def test_a_name_of_ones_own(start: Callable[..., Server]) -> None:
    server = start("--alias", "zebra")
    eventually(server.ready)
    assert [entry["id"] for entry in get(server.endpoint, "/v1/models")["data"]] == ["zebra"]


def test_slots_tell_what_it_does(start: Callable[..., Server]) -> None:
    server = start()
    eventually(server.ready)
    assert busy_slots(server.endpoint, timeout=20) == 0
    with generation(server):
        signs = vital_signs(server.endpoint, timeout=20)
        assert signs.busy == busy_slots(server.endpoint, timeout=20) == 1
        eventually(lambda: vital_signs(server.endpoint, timeout=20).progress != signs.progress)
    # The client has left a stream: llama-server looks once a second.
    eventually(lambda: busy_slots(server.endpoint, timeout=20) == 0)


def test_slots_that_are_off_and_a_key(start: Callable[..., Server]) -> None:
    server = start("--no-slots", "--api-key", "secret")
    eventually(server.ready)
    assert generates(server.endpoint, timeout=20)
    with pytest.raises(WireError, match="status 401"):
        busy_slots(server.endpoint, timeout=20)
    assert vital_signs(server.endpoint, timeout=20).busy is None


def test_wedged_it_is_healthy_and_generates_nothing(start: Callable[..., Server]) -> None:
    """Only the thread that decodes is stopped: in a decode /slots goes on being answered, between two it does not."""
    server = start()
    eventually(server.ready)
    with generation(server):
        libc = ctypes.CDLL(None, use_errno=True)
        for what in (_SEIZE, _INTERRUPT):
            if libc.ptrace(what, server.process.pid, 0, 0) != 0:
                pytest.skip(f"no thread can be stopped here: {os.strerror(ctypes.get_errno())}")
        os.waitpid(server.process.pid, _ALL_THREADS)
        signs = vital_signs(server.endpoint, timeout=0.5)
        assert signs.busy in (1, None)
        with pytest.raises(WireError, match="timed out"):
            generates(server.endpoint, timeout=0.5)
        assert vital_signs(server.endpoint, timeout=0.5) == signs
        assert get(server.endpoint, "/health") == {"status": "ok"}


def test_it_says_why_it_cannot_load(start: Callable[..., Server], directory: Path) -> None:
    server = start(model=str(directory / "none.gguf"))
    said = server.said()
    assert server.process.returncode == 1
    assert "No such file or directory" in "".join(said.splitlines(keepends=True)[-12:])


def test_a_dead_ones_socket_is_in_the_way(start: Callable[..., Server]) -> None:
    server = start()
    eventually(server.ready)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    second = start()
    assert "couldn't bind HTTP server socket" in second.said()
    assert second.process.returncode == 1


# -- the fake engine beside it ----------------------------------------------------------------------------------------


def shape(value: object) -> object:
    """Keys and kinds of a JSON value; of a list those of its first entry."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def is_part(small: object, large: object) -> bool:
    if isinstance(small, dict) and isinstance(large, dict):
        return all(key in large and is_part(inner, large[key]) for key, inner in small.items())
    if isinstance(small, list) and isinstance(large, list):
        return not small or (bool(large) and is_part(small[0], large[0]))
    return small == large


CALLS: list[tuple[str, str, object]] = [
    ("GET", "/health", None),
    ("GET", "/slots", None),
    ("GET", "/props", None),
    ("GET", "/v1/models", None),
    ("GET", "/nothing", None),
    ("POST", "/completion", {"prompt": "one two", "n_predict": 2, "ignore_eos": True}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 2}),
    ("POST", "/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": "one two"}]}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "one two " * 600}]}),
    ("POST", "/v1/chat/completions", {"messages": 5}),
    ("GET", "/slots", None),
]


def test_the_fake_engine_says_nothing_that_llama_server_does_not(start: Callable[..., Server], launch: Launch) -> None:
    server, fake = start(), launch("-c", "512", "-np", "1")
    eventually(server.ready)
    assert generates(fake.endpoint, timeout=20)
    for method, path, body in CALLS:
        real_status, real = request(server.endpoint, method, path, body=body, timeout=30)
        status, data = request(fake.endpoint, method, path, body=body, timeout=30)
        assert status == real_status, (path, data, real)
        said, real_said = shape(json.loads(data)), shape(json.loads(real))
        assert is_part(said, real_said), (path, said, real_said)


@pytest.mark.parametrize(
    ("real_flags", "fake_flags", "path"),
    [
        (("--api-key", "k"), ("--fake-api-key", "k"), "/v1/models"),
        (("--api-key", "k"), ("--fake-api-key", "k"), "/slots"),
        (("--no-slots",), ("--fake-no-slots",), "/slots"),
    ],
)
def test_the_fake_engine_refuses_as_llama_server_does(
    start: Callable[..., Server], launch: Launch, real_flags: tuple[str, ...], fake_flags: tuple[str, ...], path: str
) -> None:
    server, fake = start(*real_flags), launch(*fake_flags)
    eventually(server.ready)
    status, data = request(server.endpoint, "GET", path, timeout=20)
    fake_status, said = request(fake.endpoint, "GET", path, timeout=20)
    assert (fake_status, json.loads(said)) == (status, json.loads(data))
