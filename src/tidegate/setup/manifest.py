"""What setup has done, and what was there before: /var/lib/tidegate/setup/manifest.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tidegate.errors import TidegateError
from tidegate.setup.operations import STATE
from tidegate.setup.sysctls import KEYS
from tidegate.setup.tree import Found, Link, RegularFile

PATH = f"{STATE}/manifest.json"
_VERSION = 1
#: Where setup writes; a manifest that names other places is not one of ours.
PLACES = ("/etc/systemd/system/", "/etc/sysctl.d/")


@dataclass(frozen=True)
class Entry:
    """A file of ours. ``ours`` are fingerprints of what setup put there, the newest last; ``before`` is what it
    replaced."""

    path: str
    ours: tuple[str, ...]
    before: Found


@dataclass(frozen=True)
class SysctlEntry:
    """A kernel setting that was ``before`` and was set to ``after``."""

    key: str
    before: int
    after: int


@dataclass(frozen=True)
class Manifest:
    """``directories`` were made by setup; ``done`` is False while a run is at work, or was killed."""

    entries: tuple[Entry, ...] = ()
    directories: tuple[str, ...] = ()
    sysctls: tuple[SysctlEntry, ...] = ()
    done: bool = False

    def entry(self, path: str) -> Entry | None:
        """The entry of ``path``."""
        return next((entry for entry in self.entries if entry.path == path), None)

    def original(self, key: str) -> int | None:
        """The value of the kernel setting ``key`` before tidegate, if it was changed."""
        return next((entry.before for entry in self.sysctls if entry.key == key), None)


def to_text(manifest: Manifest) -> str:
    """The file's text."""
    document = {
        "version": _VERSION,
        "done": manifest.done,
        "files": [
            {"path": entry.path, "ours": list(entry.ours), "before": _found_to_json(entry.before)}
            for entry in manifest.entries
        ],
        "directories": list(manifest.directories),
        "sysctls": [asdict(entry) for entry in manifest.sysctls],
    }
    return json.dumps(document, indent=1) + "\n"


def from_text(data: bytes) -> Manifest:
    """The manifest in ``data``.

    Raises:
        TidegateError: it is not one of ours.
    """
    try:
        document = json.loads(data)
        if document["version"] != _VERSION:
            raise ValueError
        return Manifest(
            entries=tuple(_entry(each) for each in document["files"]),
            directories=tuple(_directory(each) for each in document["directories"]),
            sysctls=tuple(_sysctl(each) for each in document["sysctls"]),
            done=document["done"] is True,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise TidegateError(
            f"cannot read {PATH}: it is not what tidegate setup wrote",
            hint=f"the files that were there before are in {STATE}",
        ) from None


def _entry(data: dict[str, Any]) -> Entry:
    ours = tuple(_text(word) for word in data["ours"])
    path = _path(data["path"])
    if not path.startswith(PLACES):
        raise ValueError
    return Entry(path, ours, _found_from_json(data["before"]))


def _sysctl(data: dict[str, Any]) -> SysctlEntry:
    if data["key"] not in KEYS:
        raise ValueError
    return SysctlEntry(data["key"], _integer(data["before"]), _integer(data["after"]))


def _path(value: object) -> str:
    path = _text(value)
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ValueError
    return path


def _directory(value: object) -> str:
    """Above one of the places, or in it."""
    path = _path(value) + "/"
    if not any(place.startswith(path) or path.startswith(place) for place in (*PLACES, f"{STATE}/")):
        raise ValueError
    return path[:-1]


def _found_to_json(found: Found) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _found_from_json(data: dict[str, Any] | None) -> Found:
    if data is None:
        return None
    if "target" in data:
        return Link(_text(data["target"]))
    digest = _text(data["sha256"])
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ValueError
    numbers = [_integer(data[name]) for name in ("mode", "uid", "gid", "mtime_ns")]
    return RegularFile(digest, *numbers)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _integer(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TypeError
    return value
