"""A guard that died under a service manager left its gateway behind: the next one gets its port from it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.conftest import Start
from running import Running, eventually, is_alive


@pytest.fixture(name="manager")
def manager_fixture(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a program that a service manager started."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        yield {"NOTIFY_SOCKET": str(tmp_path / "notify")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def gateway_of(running: Running) -> int:
    """The pid of this guard's gateway, once it answers through it."""

    def probe() -> int:
        for task in Path(f"/proc/{running.process.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if b"tidegate.gateway" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return 0

    return eventually(probe, what="a gateway")


def answers(port: int) -> bool:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        client.request("GET", "/readyz")
        return client.getresponse().status == 200
    except OSError:
        return False
    finally:
        client.close()


def test_the_next_guard_takes_the_port_over(start: Start, manager: dict[str, str]) -> None:
    port = free_port()
    arguments = ("--listen", f"127.0.0.1:{port}")
    first = start(*arguments, kind="up", env=manager, extra=("--fake-token-ms", "20"))
    worker = first.wait_ready()
    gateway = gateway_of(first)
    eventually(lambda: answers(port), what="the gateway")
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "stream": True}
    client.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    stream = client.getresponse()
    assert stream.read(5) == b"data:"
    first.process.kill()
    first.process.wait()
    assert answers(port), "the gateway goes on with the last worker"
    second = start(*arguments, kind="up", env=manager, directory=first.directory, extra=("--fake-token-ms", "20"))
    assert second.wait_ready()["pid"] == worker["pid"]
    assert gateway_of(second) != gateway
    eventually(lambda: answers(port), what="the second gateway")
    # What the first one had in flight was finished by it, and then it left.
    assert stream.read().endswith(b"data: [DONE]\n\n")
    client.close()
    eventually(lambda: not is_alive(gateway), what="the first gateway gone")
    assert second.stop() == 0
    assert not is_alive(worker["pid"])
    assert sorted(path.name for path in second.run_directory.iterdir()) == ["gateway.json", "lock", "state.json"]


def test_a_gateway_that_hangs_is_ended(start: Start, manager: dict[str, str]) -> None:
    arguments = ("--listen", f"127.0.0.1:{free_port()}")
    first = start(*arguments, kind="up", env=manager)
    first.wait_ready()
    gateway = gateway_of(first)
    os.kill(gateway, signal.SIGSTOP)
    first.process.kill()
    first.process.wait()
    second = start(*arguments, kind="up", env=manager, directory=first.directory)
    second.wait_ready()
    eventually(lambda: not is_alive(gateway), what="the first gateway gone")


def test_a_stranger_who_says_that_it_is_the_gateway(start: Start) -> None:
    running = start("--listen", "127.0.0.1:0", kind="up")
    running.wait_ready()
    eventually(lambda: "gate open" in running.log, what="the gateway's first state")
    for pid in (os.getpid(), 1 << 80, True, None):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.settimeout(10)
            stranger.connect(str(running.run_directory / "guard.sock"))
            stranger.sendall(json.dumps({"hello": "gateway", "pid": pid}).encode() + b"\n")
            assert stranger.recv(4096) == b"", "the door is shut"
    assert "the guard is gone" not in running.log


def test_a_pid_that_is_none_does_not_end_the_guard(start: Start) -> None:
    running = start()
    running.wait_ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(10)
        peer.connect(str(running.run_directory / "guard.sock"))
        peer.sendall(b'{"hello": "gateway", "pid": %d}\n' % (1 << 80))
        assert b'"state"' in peer.recv(65536)
    assert running.worker()["state"] == "ready"
