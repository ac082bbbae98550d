"""Where tidegate keeps what: run directory, models, saved slots."""

from __future__ import annotations

import os
from collections.abc import Mapping


def run_directory(environ: Mapping[str, str], *, uid: int) -> str:
    """Directory of the socket, the lock and the state file: gone after a reboot.

    ``$RUNTIME_DIRECTORY`` (set by systemd), else ``/run/tidegate`` for root, else ``$XDG_RUNTIME_DIR/tidegate``,
    else a directory of this user's own below ``/tmp``.
    """
    given = environ.get("RUNTIME_DIRECTORY")
    if given:
        # systemd separates several directories by colons; the first is the unit's own.
        return given.split(":")[0]
    if uid == 0:
        return "/run/tidegate"
    runtime = environ.get("XDG_RUNTIME_DIR")
    return os.path.join(runtime, "tidegate") if runtime else f"/tmp/tidegate-{uid}"


def slot_directory(environ: Mapping[str, str], *, uid: int) -> str:
    """Directory of what is kept of prompts: on a disk, for in the run directory it would be memory.

    Below ``$STATE_DIRECTORY`` (set by systemd), else ``/var/lib/tidegate`` for root, else ``$XDG_STATE_HOME/tidegate``,
    else ``~/.local/state/tidegate``.
    """
    given = environ.get("STATE_DIRECTORY")
    if given:
        return os.path.join(given.split(":")[0], "slots")
    if uid == 0:
        return "/var/lib/tidegate/slots"
    state = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or "/root", ".local/state")
    return os.path.join(state, "tidegate/slots")


def model_directory(environ: Mapping[str, str]) -> str:
    """Directory of downloaded models: ``$XDG_CACHE_HOME/tidegate``, else ``~/.cache/tidegate``."""
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or "/root", ".cache")
    return os.path.join(cache, "tidegate")
