"""The guard's Unix socket: lines of JSON in and out, bounded, never waiting for a peer."""

from __future__ import annotations

import json
import os
import socket

from tidegate.guard.reactor import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tidegate.guard.reactor import Reactor

#: docs/guard-socket.md: a longer line is no message of ours.
MOST_LINE_BYTES = 65536
#: What a peer that does not read may make us keep; then it is dropped.
_MOST_WAITING_BYTES = 1 << 20
#: More than any person and gateway open at once; each costs one descriptor.
_MOST_PEERS = 16
_ACCEPT_AGAIN_S = 1.0


class Peer:
    """One connection. ``send`` queues a message; a message that cannot be sent closes the connection."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self._server = server
        self._connection = connection
        self._fd = connection.fileno()
        self._incoming = b""
        self._outgoing = b""
        self.is_gateway = False
        self.open = True
        server.reactor.watch(self._fd, READ, self._ready)

    def send(self, message: dict[str, Any]) -> None:
        """Queue ``message`` and send what the socket takes now."""
        if not self.open:
            return
        self._outgoing += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(self._outgoing) > _MOST_WAITING_BYTES:
            self.close()
            return
        self._flush()

    def close(self) -> None:
        """Close the connection and tell the owner; may be called twice."""
        if not self.open:
            return
        self.open = False
        self._server.reactor.unwatch(self._fd)
        self._connection.close()
        self._server.forget(self)

    def _ready(self, mask: int) -> None:
        if mask & WRITE:
            self._flush()
        if self.open and mask & ~WRITE:
            self._receive()

    def _receive(self) -> None:
        try:
            data = self._connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self._incoming = (self._incoming + data).split(b"\n")
        if len(self._incoming) > MOST_LINE_BYTES:
            self.close()
            return
        for line in lines:
            if len(line) > MOST_LINE_BYTES:
                self.close()
            if self.open and line.strip():
                self._handle(line)

    def _handle(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self.send({"ok": False, "error": "cannot read the message: not a JSON object on one line"})
            return
        self._server.on_message(self, message)

    def _flush(self) -> None:
        try:
            while self._outgoing:
                sent = self._connection.send(self._outgoing)
                self._outgoing = self._outgoing[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._server.reactor.watch(self._fd, READ | WRITE if self._outgoing else READ, self._ready)


class Server:
    """Listens on ``path`` (mode 0600). ``on_message`` gets every JSON object, ``on_close`` every peer that left."""

    def __init__(
        self,
        reactor: Reactor,
        path: str,
        on_message: Callable[[Peer, dict[str, Any]], None],
        on_close: Callable[[Peer], None],
    ) -> None:
        self.reactor = reactor
        self.on_message = on_message
        self._on_close = on_close
        self._peers: set[Peer] = set()
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The run directory is locked by us, so a socket that lies there is a dead guard's.
            os.unlink(path)
        except OSError:
            pass
        previous = os.umask(0o177)
        try:
            self._listener.bind(path)
        finally:
            os.umask(previous)
        self._listener.listen(_MOST_PEERS)
        self._listener.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        self.reactor.watch(self._listener.fileno(), READ, self._accept)

    def forget(self, peer: Peer) -> None:
        """Called by a peer that closed."""
        self._peers.discard(peer)
        self._on_close(peer)

    def close(self) -> None:
        """Close everything and remove the socket."""
        for peer in list(self._peers):
            peer.close()
        self.reactor.unwatch(self._listener.fileno())
        self._listener.close()
        try:
            os.unlink(self._path)
        except OSError:
            pass

    def _accept(self, _mask: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # EMFILE: the connection stays in the backlog and poll() would spin on it; ask again in a second.
            self.reactor.unwatch(self._listener.fileno())
            self.reactor.after("accept", _ACCEPT_AGAIN_S, self._listen)
            return
        if len(self._peers) >= _MOST_PEERS:
            connection.close()
            return
        connection.setblocking(False)
        self._peers.add(Peer(self, connection))
