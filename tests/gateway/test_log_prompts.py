"""What people say is not for the log, unless asked for."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

from gateway.harness import Scene, chat, scene
from tidegate.gateway.app import SHOWN_CHARACTERS, shown

SECRET = "persimmon"


def say_everything(stage: Scene) -> None:
    """The secret in good requests, bad ones, refused ones, and such as workers fail or die of."""
    messages = [{"role": "user", "content": SECRET}]
    stage.start(1, "--fake-crash-at", "3", "--fake-crash-tokens", "2")
    assert stage.post("/v1/chat/completions", {"messages": messages}).status == 200
    assert stage.post("/v1/completion", {"prompt": SECRET}).status == 200
    stream = stage.stream(body={"messages": messages, "stream": True})
    stream.read_until(b"tok1")
    stage.engine(2, "--fake-fail-from", "1")
    stage.announce(2)
    stream.rest()
    for path in ("/v1/chat/completions", "/v1/messages", "/api/generate", f"/v1/{SECRET}"):
        stage.post(path, {"messages": messages, "max_tokens": 2, "prompt": SECRET})
    for body in (f'{{"messages": "{SECRET}"}}', f'{{"{SECRET}', f'{{"messages": [{{"role": "{SECRET}"}}]}}', SECRET):
        stage.post("/v1/chat/completions", body.encode())
    stage.post("/v1/chat/completions", b"\xff" + SECRET.encode())
    stage.post("/v1/chat/completions", chat(9999, user=SECRET))
    for data in (
        f"POST /v1/x HTTP/1.1\r\n{SECRET}\r\n\r\n",
        f"{SECRET}\r\n\r\n",
        f"GET /{SECRET}\x01 HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", stage.port), 10) as sock, contextlib.suppress(OSError):
            sock.sendall(data.encode())
            while sock.recv(65536):
                pass


def test_no_prompt_is_in_the_log() -> None:
    with scene(log_level="debug") as stage:
        say_everything(stage)
    assert "lost its worker" in stage.log
    assert "what is no HTTP" in stage.log
    assert SECRET not in stage.log


def test_it_is_where_that_was_asked_for() -> None:
    with scene(log_prompts=True) as stage:
        stage.start()
        stage.post("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}]})
        stage.get("/v1/models")
    (found,) = [line for line in stage.log.splitlines() if SECRET in line]
    assert "request: POST /v1/chat/completions {" in found


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"a":"\xc3\xa9\xe4\xb8\xad"}', '{"a":"é中"}'),
        (b"a\n\x1b[31m\r\x00", "a\\n\\x1b[31m\\r\\x00"),
        ("\u2028\u202e".encode(), "\\u2028\\u202e"),
        (b"\xff", "�"),
        (json.dumps("x" * 9999).encode(), '"' + "x" * (SHOWN_CHARACTERS - 1)),
    ],
)
def test_it_is_one_line_of_bounded_length(body: bytes, text: str) -> None:
    assert shown(body) == text
