"""sd_notify(3): ready, status and watchdog messages to the service manager."""

from __future__ import annotations

import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Notifier:
    """Speaks to ``$NOTIFY_SOCKET``; silent without it. ``watchdog`` is seconds between two pings, 0 for none."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        self._status = ""
        self.watchdog = 0.0
        if not address or address[0] not in "/@":
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        # "@" stands for the NUL of an abstract address.
        self._address = "\0" + address[1:] if address[0] == "@" else address
        microseconds = environ.get("WATCHDOG_USEC", "")
        if microseconds.isdecimal() and environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            # Half the limit, as sd_watchdog_enabled(3) advises.
            self.watchdog = int(microseconds) / 2e6

    @property
    def active(self) -> bool:
        return self._socket is not None

    def ready(self) -> None:
        self._send(f"READY=1\nMAINPID={os.getpid()}")

    def reloading(self, monotonic: float) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic * 1e6)}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """The line that ``systemctl status`` shows; sent only when it changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def _send(self, message: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError:
            # A full or vanished socket: the manager's watchdog will judge, the guard goes on.
            pass
