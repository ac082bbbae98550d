"""Log lines of the guard: one write to stderr each, never an exception, never a wait.

The standard logging module would cost 0.6 MB; and a log that raises on a full disk would end the guard.
"""

from __future__ import annotations

import json
import os
import select
import time

LEVELS = ("debug", "info", "warning", "error")
#: systemd reads these prefixes (sd-daemon(3)); a terminal does not need them.
_PRIORITY = {"debug": "<7>", "info": "<6>", "warning": "<4>", "error": "<3>"}
#: A pipe that polls as writable takes this much at once (pipe(7)), less the newline.
_MOST_BYTES = select.PIPE_BUF - 1


class Log:
    """``format`` is text or json, ``level`` the least that is written. ``lost`` counts lines that could not be."""

    def __init__(self, *, level: str, format: str, fd: int = 2, journal: bool = False) -> None:  # noqa: A002
        self.level = level
        self.format = format
        self.lost = 0
        self._fd = fd
        self._journal = journal
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)

    def debug(self, message: str, **facts: object) -> None:
        self.write("debug", message, facts)

    def info(self, message: str, **facts: object) -> None:
        self.write("info", message, facts)

    def warning(self, message: str, **facts: object) -> None:
        self.write("warning", message, facts)

    def error(self, message: str, **facts: object) -> None:
        self.write("error", message, facts)

    def write(self, level: str, message: str, facts: dict[str, object]) -> None:
        """Write one line if ``level`` is high enough."""
        if LEVELS.index(level) < LEVELS.index(self.level):
            return
        if self.format == "json":
            line = json.dumps({"time": round(time.time(), 3), "level": level, "message": message, **facts}, default=str)
        else:
            tail = "".join(f" {key}={value}" for key, value in facts.items())
            clock = "" if self._journal else time.strftime("%H:%M:%S ")
            prefix = _PRIORITY[level] if self._journal else ""
            line = f"{prefix}{clock}tidegate: {'' if level == 'info' else level + ': '}{message}{tail}"
        # An engine's output may hold escape sequences; a terminal must not obey them.
        shown = "".join(char if char >= " " else f"\\x{ord(char):02x}" for char in line.replace("\n", " | "))
        data = shown.encode("utf-8", "backslashreplace")[:_MOST_BYTES] + b"\n"
        # The descriptor is shared, so it cannot be made non-blocking; and a reader that hangs, or a terminal that was
        # stopped by Ctrl-S, would hold a blocking write for ever.
        if not self._room.poll(0):
            self.lost += 1
            return
        try:
            os.write(self._fd, data)
        except OSError:
            # ENOSPC, EPIPE, EAGAIN: the guard's work goes on without its log.
            self.lost += 1
