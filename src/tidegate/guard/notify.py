"""sd_notify(3): ready, status and watchdog messages to the service manager."""

from __future__ import annotations

import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


#: Name of the kept sockets (sd_pid_notify_with_fds(3), LISTEN_FDNAMES).
LISTENER = "listener"


class Notifier:
    """Speaks to ``$NOTIFY_SOCKET``; silent without it. ``watchdog`` is seconds between two pings, 0 for none."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        self._status = ""
        # A manager that keeps none might never look at them, and the port would stay taken.
        self._keeps = environ.get("FDSTORE", "0").strip("0") != ""
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

    def keep(self, fds: tuple[int, ...]) -> None:
        """Leave copies of the listening sockets with the service manager, in place of earlier ones: it gives them to
        the next guard, and no client is refused meanwhile ($FDSTORE). (): only the earlier ones are given up."""
        if self._socket is None or not self._keeps:
            return
        self._send(f"FDSTOREREMOVE=1\nFDNAME={LISTENER}")
        if not fds:
            return
        packed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        try:
            self._socket.sendmsg(
                [f"FDSTORE=1\nFDNAME={LISTENER}".encode()],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)],
                0,
                self._address,
            )
        except OSError:
            pass

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
            # The name of a cgroup, which stands in the status, need not be UTF-8.
            self._socket.sendto(message.encode("utf-8", "backslashreplace"), self._address)
        except OSError:
            # A full or vanished socket: the manager's watchdog will judge, the guard goes on.
            pass
