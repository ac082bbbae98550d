"""The keys that attach to a server which somebody else starts: which one, where it listens, who starts it again."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Any

from tidegate.errors import Exit, TidegateError
from tidegate.frozen import replace
from tidegate.settings.model import WorkerSettings

#: ``restart = "supervisor"``: somebody whom we cannot see starts the server again.
SUPERVISOR = "supervisor"
#: Any of them attaches.
TARGETS = ("unit", "process", "cgroup")

#: Characters of a unit name, systemd.unit(5); at most 255 bytes.
UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,247}")
#: Unit types that hold processes.
UNIT_TYPES = (".service", ".scope", ".slice")
#: What an attached server has of its own, so that a setting of it would do nothing.
_ITS_OWN = ("command", "engine", "oom_score_adj", "step_up_after")
#: sun_path of unix(7), less the NUL.
_MOST_SOCKET_PATH = 107


def check(
    worker: WorkerSettings, document: Mapping[str, Any], flags: Mapping[str, str], *, model: str
) -> WorkerSettings:
    """``worker`` with its unit name, url and engine made plain.

    Raises:
        TidegateError: no or more than one target, a malformed one, or settings that an attached server cannot take.
    """

    def fault(key: str, why: str, hint: str = "") -> TidegateError:
        value = getattr(worker, key)
        shown = " ".join(value) if isinstance(value, tuple) else value
        code = Exit.USAGE if f"worker.{key}" in flags else Exit.CANNOT_START
        return TidegateError(f"cannot use worker.{key} = {shown!r:.70}: {why}", hint=hint, exit_code=code)

    named = [key for key in TARGETS if getattr(worker, key)]
    if not named:
        key = "url" if worker.url else "restart"
        raise fault(key, "there is no server to attach to", "name it by worker.unit, worker.process or worker.cgroup")
    if len(named) > 1:
        raise fault(named[1], f"worker.{named[0]} names the server already")
    given = document.get("worker", {})
    if model or given.get("profile"):
        raise fault(named[0], "a server that somebody else starts has no profiles and no model of ours")
    for key in _ITS_OWN:
        if key in given or f"worker.{key}" in flags:
            raise fault(named[0], f"worker.{key} has no meaning for a server that somebody else starts")
    if worker.unit and (UNIT.fullmatch(worker.unit) is None or worker.unit.startswith((".", "-"))):
        raise fault("unit", "not the name of a systemd unit", "such as llama.service")
    if worker.process and ("/" in worker.process or worker.process.isspace()):
        raise fault("process", "not the name of a command", "as /proc/PID/comm has it, such as llama-server")
    path = worker.cgroup
    if path and (not path.startswith("/") or path.strip("/") == "" or ".." in path.split("/")):
        raise fault("cgroup", "not a path below the cgroup mount", "such as /ai_inference")
    if path.startswith("/sys/fs/cgroup/"):
        raise fault("cgroup", "it is named below the mount", f"such as {path.removeprefix('/sys/fs/cgroup')}")
    url = worker.url
    if url:
        try:
            url = _endpoint(url)
        except ValueError as error:
            raise fault("url", str(error), "such as http://127.0.0.1:8081") from None
    unit = worker.unit
    if unit and not unit.endswith(UNIT_TYPES):
        unit += ".service"
    return replace(
        worker, unit=unit, process=comm(worker.process), cgroup=path.rstrip("/"), url=url, engine="llama-server"
    )


def comm(name: str) -> str:
    """The part of ``name`` that the kernel keeps: TASK_COMM_LEN is 16 with the NUL."""
    return os.fsdecode(os.fsencode(name)[:15])


def _endpoint(url: str) -> str:
    """``url`` as the guard's client takes it: ``unix:PATH`` or ``http://IP:PORT``.

    Raises:
        ValueError: another scheme, a host name (the guard has no resolver), a path, or no port.
    """
    if url.startswith("unix:"):
        path = url.removeprefix("unix:")
        if not path.startswith("/") or len(os.fsencode(path)) > _MOST_SOCKET_PATH:
            raise ValueError("a socket has an absolute path of at most 107 bytes")
        return url
    scheme, separator, rest = url.partition("://")
    if not separator or scheme != "http":
        raise ValueError("not http://IP:PORT or unix:PATH")
    host, colon, port = rest.rstrip("/").rpartition(":")
    digits = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not digits or not 1 <= int(port) <= 65535:
        raise ValueError("it has no port, or something after it")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address("127.0.0.1" if bare == "localhost" else bare)
    except ValueError:
        raise ValueError("its host is no IP address, and names are not looked up") from None
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"
