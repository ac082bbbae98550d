"""The fake engine does what its options say: other tests believe it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engines.conftest import Launch
from running import FAKE_ENGINE, eventually, memory_of
from tidegate.engines.help_text import parse_flags

MIB = 1 << 20


def ask(
    endpoint: str, method: str, path: str, body: object = None, *, headers: str = "", timeout: float = 10.0
) -> tuple[int, bytes]:
    """Status and whole body, with a stream's chunks put together.

    Raises:
        TimeoutError: nothing came for ``timeout`` seconds.
        ConnectionError: the server closed before it had said anything.
    """
    with open_call(endpoint, method, path, body, headers=headers) as connection:
        connection.settimeout(timeout)
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
    head, _, rest = data.partition(b"\r\n\r\n")
    if not head:
        raise ConnectionResetError("no answer")
    if b"chunked" in head.lower():
        rest = re.sub(rb"[0-9a-f]+\r\n(.*?)\r\n(?=[0-9a-f]+\r\n)", rb"\1", rest, flags=re.DOTALL)
        rest = rest.removesuffix(b"0\r\n\r\n")
    return int(head.split()[1]), rest


def open_call(endpoint: str, method: str, path: str, body: object = None, *, headers: str = "") -> socket.socket:
    payload = b"" if body is None else json.dumps(body).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(endpoint.removeprefix("unix:"))
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(payload)}\r\n{headers}\r\n"
    )
    connection.sendall(head.encode() + payload)
    return connection


def get(endpoint: str, path: str) -> Any:
    status, data = ask(endpoint, "GET", path)
    assert status == 200, data
    return json.loads(data)


def chat(endpoint: str, *, timeout: float = 10.0, **more: object) -> tuple[int, bytes]:
    body = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 4, **more}
    return ask(endpoint, "POST", "/v1/chat/completions", body, timeout=timeout)


def good(answer: tuple[int, bytes]) -> bool:
    return answer[0] == 200 and json.loads(answer[1])["choices"][0]["message"]["content"] == "tok0 tok1 tok2 tok3"


def events(stream: bytes) -> list[bytes]:
    return [line.removeprefix(b"data: ") for line in stream.split(b"\n\n") if line]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_help_names_every_option_and_llama_servers_flags() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(FAKE_ENGINE), "--help"], capture_output=True, text=True, check=True, timeout=20
    )
    flags = parse_flags(done.stdout)
    assert {"-m", "--ctx-size", "--host", "--fake-hang-at", "--fake-shmem-grow-mib-s", "--fake-once"} <= flags
    source = (FAKE_ENGINE.parent / "fake_llama" / "options.py").read_text()
    own = re.findall(r"self\.(\w+) = [^s]", source.partition("# Ours:")[2].partition("self._parse")[0])
    assert {flag for flag in flags if flag.startswith("--fake-")} == {
        f"--fake-{name.replace('_', '-')}" for name in own
    }


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--fake-nope"], "unknown option --fake-nope"),
        (["--fake-host", "x"], "unknown option --fake-host"),
        (["--fake-hang-at"], "--fake-hang-at needs a value"),
        (["--fake-once"], "--fake-once needs --fake-state"),
    ],
)
def test_slips_in_the_options(flags: list[str], why: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(FAKE_ENGINE), *flags], capture_output=True, text=True, check=False, timeout=20
    )
    assert (done.returncode, done.stderr.strip()) == (1, f"cannot start: {why}")


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "grows", "stays"),
    [("--fake-leak-kib", "RssAnon", "RssShmem"), ("--fake-shmem-leak-kib", "RssShmem", "RssAnon")],
)
def test_memory_of_each_generation(launch: Launch, flag: str, grows: str, stays: str) -> None:
    engine = launch(flag, str(20 << 10))
    assert good(chat(engine.endpoint))
    before = memory_of(engine.process.pid)
    for _ in range(3):
        assert good(chat(engine.endpoint))
    after = memory_of(engine.process.pid)
    assert after[grows] - before[grows] == pytest.approx(60 * MIB, abs=4 * MIB)
    assert after[stays] - before[stays] < 4 * MIB


@pytest.mark.parametrize(
    ("flag", "grows", "stays"),
    [("--fake-grow-mib-s", "RssAnon", "RssShmem"), ("--fake-shmem-grow-mib-s", "RssShmem", "RssAnon")],
)
def test_memory_by_the_second(launch: Launch, flag: str, grows: str, stays: str) -> None:
    began = time.monotonic()
    engine = launch(flag, "40.5")
    before = memory_of(engine.process.pid)[stays]

    def grown() -> int:
        size = memory_of(engine.process.pid)[grows]
        # Its own few MiB apart, it is never before the clock.
        assert size < (time.monotonic() - began) * 40.5 * MIB + 12 * MIB
        return size

    eventually(lambda: grown() > 40 * MIB, seconds=10)
    assert memory_of(engine.process.pid)[stays] - before < 4 * MIB


# -- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_is_of_the_nth_generation_and_by_the_signal(launch: Launch, number: signal.Signals) -> None:
    engine = launch("--fake-crash-at", "2", "--fake-crash-signal", str(int(number)))
    assert good(chat(engine.endpoint))
    with pytest.raises(ConnectionError):
        chat(engine.endpoint)
    assert engine.process.wait(10) == -number


def test_a_crash_in_the_middle_of_a_stream(launch: Launch) -> None:
    engine = launch("--fake-crash-at", "1", "--fake-crash-tokens", "2", "--fake-crash-signal", "11")
    _, stream = chat(engine.endpoint, stream=True)
    assert engine.process.wait(10) == -signal.SIGSEGV
    assert b"tok1" in stream
    assert b"tok2" not in stream
    assert b"[DONE]" not in stream


# -- hang and wedge --------------------------------------------------------------------------------------------------


def test_a_hang_silences_everything(launch: Launch) -> None:
    engine = launch("--fake-hang-at", "2", "--fake-token-ms", "10")
    with open_call(
        engine.endpoint, "POST", "/completion", {"prompt": "a", "n_predict": 3000, "stream": True}
    ) as before:
        before.settimeout(10)
        assert before.recv(65536)
        with pytest.raises(TimeoutError):
            chat(engine.endpoint, timeout=0.2)
        before.settimeout(0.3)
        with pytest.raises(TimeoutError):
            while before.recv(65536):
                pass
    for path in ("/health", "/slots", "/fake/stats"):
        with pytest.raises(TimeoutError):
            ask(engine.endpoint, "GET", path, timeout=0.1)
    assert engine.process.poll() is None


@pytest.mark.parametrize("spin", [False, True], ids=["still", "spinning"])
def test_a_wedge_is_of_generations_only(launch: Launch, spin: bool) -> None:
    engine = launch("--fake-wedge-at", "2", "-np", "2", *(["--fake-wedge-spin"] if spin else []))
    assert good(chat(engine.endpoint))
    for stream in (True, False):
        with pytest.raises(TimeoutError):
            chat(engine.endpoint, stream=stream, timeout=0.2)
    # Both clients have left; a decode that never returns does not notice.
    slots = get(engine.endpoint, "/slots")
    assert [slot["is_processing"] for slot in slots] == [True, True]
    assert [slot["next_token"][0]["n_decoded"] for slot in slots] == [0, 0]
    before = cpu_s(engine.process.pid)
    if spin:
        eventually(lambda: cpu_s(engine.process.pid) - before > 0.5, seconds=20)
    # Whatever else is asked is answered, and a further generation waits for a slot.
    assert get(engine.endpoint, "/health") == {"status": "ok"}
    assert get(engine.endpoint, "/props")["total_slots"] == 2
    with pytest.raises(TimeoutError):
        chat(engine.endpoint, timeout=0.1)
    if not spin:
        assert cpu_s(engine.process.pid) - before < 0.1
    assert get(engine.endpoint, "/slots") == slots


def test_a_wedge_that_slots_do_not_survive(launch: Launch) -> None:
    engine = launch("--fake-wedge-at", "1", "--fake-wedge-deaf")
    assert len(get(engine.endpoint, "/slots")) == 4
    with pytest.raises(TimeoutError):
        chat(engine.endpoint, timeout=0.2)
    with pytest.raises(TimeoutError):
        ask(engine.endpoint, "GET", "/slots", timeout=0.2)
    assert get(engine.endpoint, "/health") == {"status": "ok"}


# -- wrong answers -----------------------------------------------------------------------------------------------------


def test_wrong_json_is_cut_or_none_in_turn(launch: Launch) -> None:
    engine = launch("--fake-wrong-json-at", "2")
    assert good(chat(engine.endpoint))
    status, cut = chat(engine.endpoint)
    assert status == 200
    assert cut.startswith(b'{"id": "fake-1"')
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(cut)
    assert chat(engine.endpoint) == (200, b"<html>busy</html>")
    for said in (b'{"id": "fake-1"', b"<html>busy</html>"):
        status, stream = chat(engine.endpoint, stream=True)
        assert status == 200
        *pieces, done = events(stream)
        assert done == b"[DONE]"
        assert len(pieces) == 6
        for piece in pieces:
            assert piece.startswith(said)
            with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
                json.loads(piece)
    assert get(engine.endpoint, "/health") == {"status": "ok"}


@pytest.mark.parametrize("stream", [False, True])
def test_failing_generations(launch: Launch, stream: bool) -> None:
    engine = launch("--fake-fail-from", "2", "-np", "1")
    assert good(chat(engine.endpoint))
    for _ in range(3):
        status, data = chat(engine.endpoint, stream=stream)
        assert status == 500
        assert json.loads(data) == {"error": {"code": 500, "message": "Compute error.", "type": "server_error"}}
    assert get(engine.endpoint, "/health") == {"status": "ok"}


# -- over restarts -----------------------------------------------------------------------------------------------------


def expect(endpoint: str, *wedged: bool) -> None:
    """Ask once for each of ``wedged``."""
    for each in wedged:
        if each:
            with pytest.raises(TimeoutError):
                chat(endpoint, timeout=0.2)
        else:
            assert good(chat(endpoint))


def test_counts_begin_anew_with_the_process(launch: Launch) -> None:
    for _ in range(2):
        engine = launch("--fake-wedge-at", "2")
        expect(engine.endpoint, False, True)
        engine.process.kill()
        engine.process.wait()


@pytest.mark.parametrize(("once", "second"), [(False, True), (True, False)])
def test_counts_go_on_from_the_state_file(launch: Launch, directory: Path, once: bool, second: bool) -> None:
    flags = ["--fake-wedge-at", "2", "--fake-state", str(directory / "state"), *(["--fake-once"] if once else [])]
    engine = launch(*flags)
    # Once is of the process, not of the generation.
    expect(engine.endpoint, False, True, True)
    engine.process.kill()
    engine.process.wait()
    expect(launch(*flags).endpoint, second, second)


def test_once_is_of_each_fault(launch: Launch, directory: Path) -> None:
    flags = ["--fake-crash-at", "1", "--fake-fail-from", "2", "--fake-state", str(directory / "state"), "--fake-once"]
    first = launch(*flags)
    with pytest.raises(ConnectionError):
        chat(first.endpoint)
    first.process.wait(10)
    second = launch(*flags)
    assert chat(second.endpoint)[0] == 500
    second.process.kill()
    second.process.wait()
    assert good(chat(launch(*flags).endpoint))


# -- what llama-server says --------------------------------------------------------------------------------------------


def test_an_api_key(launch: Launch) -> None:
    engine = launch("--fake-api-key", "secret")
    refused = {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}
    for path in ("/slots", "/props", "/v1/models"):
        status, data = ask(engine.endpoint, "GET", path)
        assert (status, json.loads(data)) == (401, refused)
    assert chat(engine.endpoint)[0] == 401
    assert ask(engine.endpoint, "GET", "/slots", headers="Authorization: Bearer wrong\r\n")[0] == 401
    for header in ("Authorization: Bearer secret\r\n", "X-Api-Key: secret\r\n"):
        assert ask(engine.endpoint, "GET", "/slots", headers=header)[0] == 200
    assert get(engine.endpoint, "/health") == {"status": "ok"}


def test_no_slots(launch: Launch) -> None:
    engine = launch("--fake-no-slots")
    status, data = ask(engine.endpoint, "GET", "/slots")
    assert (status, json.loads(data)["error"]["type"]) == (501, "not_supported_error")
    assert get(engine.endpoint, "/props")["endpoint_slots"] is False
    assert good(chat(engine.endpoint))


def test_slots_and_props_show_the_shape_and_the_last_task(launch: Launch) -> None:
    engine = launch("-m", "/models/m.gguf", "-c", "2048", "-np", "2")
    idle = {"id": 0, "n_ctx": 1024, "speculative": False, "is_processing": False}
    assert get(engine.endpoint, "/slots") == [idle, {**idle, "id": 1}]
    assert good(chat(engine.endpoint))
    first, second = get(engine.endpoint, "/slots")
    assert second == {**idle, "id": 1}
    assert first["n_prompt_tokens"] == first["n_prompt_tokens_processed"] == 3
    assert first["next_token"] == [{"has_next_token": False, "has_new_line": False, "n_remain": 0, "n_decoded": 4}]
    shown = get(engine.endpoint, "/props")
    assert (shown["total_slots"], shown["default_generation_settings"]["n_ctx"]) == (2, 1024)
    assert shown["model_path"] == "/models/m.gguf"


@pytest.mark.parametrize("first", [False, True])
def test_the_headers_of_a_stream(launch: Launch, first: bool) -> None:
    engine = launch("--fake-prefill-ms", "60000", *(["--fake-head-first"] if first else []))
    body = {"prompt": "a", "stream": True}
    with open_call(engine.endpoint, "POST", "/completion", body) as connection:
        connection.settimeout(10 if first else 0.2)
        if first:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        else:
            with pytest.raises(TimeoutError):
                connection.recv(65536)
