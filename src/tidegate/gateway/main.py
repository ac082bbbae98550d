"""The gateway process: what it inherits, how it serves, how it stops."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tidegate.errors import Exit, TidegateError
from tidegate.gateway.access import Access
from tidegate.gateway.app import Desk
from tidegate.gateway.front import Front
from tidegate.gateway.http_server import HttpServer
from tidegate.settings.keys import read_keys
from tidegate.settings.model import GatewaySettings, LogSettings, Settings

log = logging.getLogger(__name__)

#: Seconds for what is in flight at a first TERM or INT; the guard's own stop message brings its own figure.
STOP_S = 5.0
#: Idle keep-alive connections are closed after this many seconds; a phone's browser comes back within a minute.
KEEPALIVE_S = 75.0
#: A client that has just been connected sends its request within this many seconds.
HAND_OVER_S = 0.25
#: Seconds for the last bytes to clients when everything is broken off.
FAREWELL_S = 1.0

#: Descriptors, as in the shipped unit. A shell's 1024 would be gone with so many clients, and with it the worker.
DESCRIPTORS = 16384

#: systemd reads these prefixes (sd-daemon(3)).
_PRIORITY = {"debug": "<7>", "info": "<6>", "warning": "<4>", "error": "<3>", "critical": "<2>"}


class _Handler(logging.StreamHandler[TextIO]):
    """Loses lines rather than wait: a log reader that hangs must not hold every client."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._room = select.poll()
        self._room.register(stream.fileno(), select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        if self._room.poll(0):
            super().emit(record)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class _NoHttpTracebacks(logging.Filter):
    """A port scanner's bytes are one line in the log and not thirty."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
            # What was sent follows the first line, and may be somebody's prompt.
            said = error.message.strip().partition("\n")[0].rstrip(":")
            record.msg, record.args = "a client sent what is no HTTP: %s", (said,)
        return True


class _TextFormatter(logging.Formatter):
    """As the guard's lines, so that they read as one log. ``journal`` leaves the clock to it and says the priority."""

    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        text = ("" if level == "info" else f"{level}: ") + record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        if self._journal:
            return f"{_PRIORITY.get(level, '<6>')}tidegate gateway: {text}"
        return time.strftime("%H:%M:%S ", time.localtime(record.created)) + f"tidegate gateway: {text}"


def set_up_logging(settings: LogSettings) -> None:
    """Log to standard error as the settings say; unknown levels mean info."""
    handler = _Handler(sys.stderr)
    journal = "JOURNAL_STREAM" in os.environ
    handler.setFormatter(_JsonFormatter() if settings.format == "json" else _TextFormatter(journal=journal))
    logging.getLogger("aiohttp.server").addFilter(_NoHttpTracebacks())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(getattr(logging, settings.level.upper(), logging.INFO))


class Process:
    """Serves ``sockets`` until told to stop."""

    def __init__(self, settings: Settings, socket_path: str, sockets: Sequence[socket.socket], access: Access) -> None:
        self._settings = settings
        self._access = access
        self._socket_path = socket_path
        self._sockets = sockets
        self._stop_within: asyncio.Future[float] | None = None
        self._at_once = asyncio.Event()

    async def run(self) -> None:
        """From the first request taken to the last answer given."""
        loop = asyncio.get_running_loop()
        self._stop_within = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        front = Front(self._settings, self._socket_path, self.stop)
        desk = Desk(front, self._access)
        server = HttpServer(desk.handle, keepalive_s=KEEPALIVE_S)
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=FAREWELL_S)
        await runner.setup()
        sites = [web.SockSite(runner, sock) for sock in self._sockets]
        link = loop.create_task(front.run())
        for site in sites:
            await site.start()
        # What was imported and built up to here stays for good: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        try:
            seconds = await self._stop_within
            for site in sites:
                await site.stop()
            if not front.link.connected:
                await self._hand_over(front, desk, seconds)
            front.stop()
            await self._finish(desk, seconds)
            front.break_off()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await desk.idle.wait()
        finally:
            await runner.cleanup()
            front.close()
            link.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await link

    def stop(self, seconds: float) -> None:
        """Take nothing new and end when what is in flight has ended, within ``seconds``; a second call ends at once."""
        assert self._stop_within is not None
        if self._stop_within.done():
            self._at_once.set()
        else:
            log.info("stopping within %g s", seconds)
            self._stop_within.set_result(seconds)

    def _signalled(self) -> None:
        self.stop(STOP_S)

    async def _hand_over(self, front: Front, desk: Desk, seconds: float) -> None:
        """The guard has died and the next one wants our place: who is connected is answered still. New clients wait in
        the listening socket, which is the next gateway's too."""
        front.link.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet(desk)

    async def _quiet(self, desk: Desk) -> None:
        """Until nothing has been asked for :data:`HAND_OVER_S`, or it is to end at once."""
        while not self._at_once.is_set():
            served = desk.served
            await self._finish(desk, STOP_S)
            await asyncio.sleep(HAND_OVER_S)
            if desk.idle.is_set() and desk.served == served:
                return

    async def _finish(self, desk: Desk, seconds: float) -> None:
        waits = [asyncio.ensure_future(desk.idle.wait()), asyncio.ensure_future(self._at_once.wait())]
        _, pending = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()


def _access(settings: GatewaySettings) -> Access:
    named = (("gateway.keys", settings.keys), ("gateway.control_keys", settings.control_keys))
    keys, control = (() if path is None else read_keys(path, name) for name, path in named)
    return Access(keys, control)


def main(argv: Sequence[str]) -> Exit:
    """``--settings-fd N --listen-fd M [--listen-fd M2] --socket PATH``: the guard's way of starting it."""
    parser = argparse.ArgumentParser(prog="python -m tidegate.gateway")
    parser.add_argument("--settings-fd", type=int, required=True, help="where the settings are read from, as JSON")
    parser.add_argument("--listen-fd", type=int, required=True, action="append", help="a listening socket")
    parser.add_argument("--socket", required=True, help="path of the guard's socket")
    options = parser.parse_args(argv)
    try:
        with os.fdopen(options.settings_fd, "rb") as file:
            settings = Settings.from_json(json.load(file))
        sockets = [socket.socket(fileno=number) for number in options.listen_fd]
        access = _access(settings.gateway)
    except (OSError, ValueError, KeyError, TypeError, TidegateError) as error:
        print(f"cannot start the gateway: {error}", file=sys.stderr)
        return Exit.CANNOT_START
    for sock in sockets:
        sock.setblocking(False)
    set_up_logging(settings.log)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, DESCRIPTORS), most))

    async def serve() -> None:
        await Process(settings, options.socket, sockets, access).run()

    asyncio.run(serve())
    return Exit.FINE
