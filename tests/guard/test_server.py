"""The guard's socket in this process: lines in and out, and peers that send too much, read nothing or leave."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.guard.reactor import Reactor
from tidegate.guard.server import MOST_LINE_BYTES, Peer, Server


class Harness:
    """A server with one reactor that is turned by hand; ``clients`` connect to it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "guard.sock"
        self.reactor = Reactor()
        self.messages: list[dict[str, Any]] = []
        self.closed: list[Peer] = []
        self.peers: list[Peer] = []
        self.reply: Callable[[Peer, dict[str, Any]], None] = lambda peer, message: peer.send({"echo": message})
        self.server = Server(self.reactor, str(self.path), self._on_message, self.closed.append)
        self._clients: list[socket.socket] = []

    def _on_message(self, peer: Peer, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.peers.append(peer)
        self.reply(peer, message)

    def client(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(str(self.path))
        client.setblocking(False)
        self._clients.append(client)
        self.turn()
        return client

    def turn(self) -> None:
        """Handle everything that has arrived; sockets of one machine deliver at once."""
        for _ in range(3):
            self.reactor.after("turn", 0, lambda: None)
            self.reactor.run_once()

    def push(self, client: socket.socket, data: bytes) -> None:
        """Send all of ``data`` while the server reads, or until it has closed the connection."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while data:
                with contextlib.suppress(BlockingIOError):
                    data = data[client.send(data) :]
                self.turn()
        self.turn()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.turn()
        self.server.close()
        self.reactor.close()


@pytest.fixture(name="harness")
def harness_fixture() -> Iterator[Harness]:
    directory = Path(tempfile.mkdtemp(prefix="tg"))
    harness = Harness(directory)
    yield harness
    harness.close()
    shutil.rmtree(directory)


def answers(client: socket.socket) -> list[Any]:
    data = client.recv(1 << 20)
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def is_closed(client: socket.socket) -> bool:
    """Whether the server has closed the connection; what it sent before is read away."""
    try:
        while client.recv(1 << 20):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_only_this_user_may_connect(harness: Harness) -> None:
    assert stat.S_IMODE(harness.path.stat().st_mode) == 0o600


def test_a_message_and_its_answer(harness: Harness) -> None:
    client = harness.client()
    harness.push(client, b'{"id": 1}\n')
    assert answers(client) == [{"echo": {"id": 1}}]


def test_lines_in_pieces_and_several_at_once(harness: Harness) -> None:
    client = harness.client()
    for piece in (b'{"n"', b": 1", b'}\n{"n": 2}\n\n  \n{"n', b'": 3}\n'):
        harness.push(client, piece)
    assert harness.messages == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert len(answers(client)) == 3


@pytest.mark.parametrize(
    "line",
    [b"hello", b"[1]", b"3", b"null", b'"x"', b"\xff\xfe", b"{", b"GET / HTTP/1.1", b"[" * 60_000],
    ids=lambda line: line[:6],
)
def test_what_is_no_object_is_told_so_and_the_connection_goes_on(harness: Harness, line: bytes) -> None:
    client = harness.client()
    harness.push(client, line + b"\n" + b'{"n": 1}\n')
    refusal, echo = answers(client)
    assert refusal == {"ok": False, "error": "cannot read the message: not a JSON object on one line"}
    assert echo == {"echo": {"n": 1}}


def test_the_longest_line(harness: Harness) -> None:
    client = harness.client()
    message = {"x": "y" * (MOST_LINE_BYTES - 10)}
    line = json.dumps(message).encode()
    assert len(line) <= MOST_LINE_BYTES
    harness.push(client, line + b"\n")
    assert harness.messages == [message]


def test_a_line_without_end_is_cut_off(harness: Harness) -> None:
    client = harness.client()
    harness.push(client, b'{"x": "' + b"y" * (3 * MOST_LINE_BYTES))
    assert is_closed(client)
    assert harness.messages == []
    assert len(harness.closed) == 1


def test_a_peer_that_does_not_read_is_dropped_before_it_costs_much(harness: Harness) -> None:
    harness.reply = lambda peer, message: None
    client = harness.client()
    harness.push(client, b"{}\n")
    (peer,) = harness.peers
    sent = 0
    while peer.open:
        peer.send({"state": "x" * 10_000})
        sent += 10_000
        assert sent < 3 << 20
    assert sent > 1 << 20
    assert harness.closed == [peer]
    peer.send({"after": "the end"})
    assert harness.closed == [peer]


def test_a_slow_reader_gets_everything_in_order(harness: Harness) -> None:
    harness.reply = lambda peer, message: None
    client = harness.client()
    harness.push(client, b"{}\n")
    (peer,) = harness.peers
    for number in range(60):
        peer.send({"n": number, "x": "y" * 10_000})
    data = b""
    while data.count(b"\n") < 60:
        harness.turn()
        data += client.recv(50_000)
    assert [json.loads(line)["n"] for line in data.splitlines()] == list(range(60))
    # Nothing is left to be sent, so the loop must come to rest.
    rounds, rested = harness.reactor.rounds, []
    harness.reactor.after("rest", 0.02, lambda: rested.append(True))
    while not rested:
        harness.reactor.run_once()
    assert harness.reactor.rounds - rounds <= 2


def test_a_peer_that_leaves(harness: Harness) -> None:
    client = harness.client()
    harness.push(client, b"{}\n")
    client.close()
    harness.turn()
    assert harness.closed == harness.peers
    harness.peers[0].send({"to": "nobody"})
    harness.peers[0].close()
    assert len(harness.closed) == 1


def test_a_peer_that_leaves_in_the_middle_of_a_line(harness: Harness) -> None:
    client = harness.client()
    harness.push(client, b'{"half": ')
    client.close()
    harness.turn()
    assert harness.messages == []
    assert len(harness.closed) == 1


def test_a_peer_closed_by_one_of_its_lines_gets_no_more_of_them(harness: Harness) -> None:
    harness.reply = lambda peer, message: peer.close()
    client = harness.client()
    harness.push(client, b'{"n": 1}\n{"n": 2}\n')
    assert harness.messages == [{"n": 1}]


def test_no_more_peers_than_descriptors_are_for(harness: Harness) -> None:
    clients = [harness.client() for _ in range(16)]
    surplus = harness.client()
    assert is_closed(surplus)
    assert not is_closed(clients[0])
    clients[0].close()
    harness.turn()
    late = harness.client()
    harness.push(late, b"{}\n")
    assert answers(late) == [{"echo": {}}]


def test_the_socket_of_a_dead_guard_is_replaced(harness: Harness) -> None:
    """The run directory's lock is held by then, so it can be nobody else's."""
    second = Harness(harness.path.parent)
    client = second.client()
    second.push(client, b"{}\n")
    assert answers(client) == [{"echo": {}}]
    second.close()


def test_close_leaves_neither_socket_nor_descriptor(harness: Harness) -> None:
    before = len(os.listdir("/proc/self/fd"))
    directory = Path(tempfile.mkdtemp(prefix="tg"))
    for _ in range(5):
        again = Harness(directory)
        for _ in range(3):
            again.client()
        again.close()
        assert os.listdir(directory) == []
    directory.rmdir()
    assert len(os.listdir("/proc/self/fd")) == before
