"""systemd's unit files as they lie on disk, with their drop-ins. systemd itself is not asked: a tree has none running.

The rules are those of systemd.unit(5): what `systemctl set-property` wrote, then /etc before /run before /usr/lib,
drop-ins by name over all directories, an empty value takes back what was said before, an empty file masks the unit.
"""

from __future__ import annotations

import os
import re

from tidegate.frozen import frozen
from tidegate.host.files import read_file, rooted

#: First come, first served.
DIRECTORIES = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
#: What the operator wrote, by hand or with set-property, and no package.
OPERATORS = ("/etc/", "/run/systemd/system.control/")
_SUFFIXES = (".service", ".slice", ".scope", ".socket", ".mount", ".timer", ".target")
_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")
_MOST_UNITS = 5000
_MOST_BYTES = 1 << 18


@frozen
class Unit:
    """``settings``: ("Section.Key", value), in the order of systemd's reading; ``files``: where they stand, the main
    file first (none for drop-ins alone). ``enabled``: something wants it at boot."""

    name: str
    settings: tuple[tuple[str, str], ...]
    files: tuple[str, ...]
    enabled: bool

    def all(self, key: str) -> tuple[str, ...]:
        """Every value of ``key`` ("Service.ExecStart") that is in force."""
        values: list[str] = []
        for name, value in self.settings:
            if name == key:
                values = [*values, value] if value else []
        return tuple(values)

    def last(self, key: str) -> str | None:
        """The value of ``key`` ("Service.Restart") that is in force, or None: unset."""
        values = self.all(key)
        return values[-1] if values else None


def parse_unit(data: bytes) -> list[tuple[str, str]]:
    """("Section.Key", value) of each line; comments, lines before a section and what is no assignment are skipped."""
    found: list[tuple[str, str]] = []
    section, pending = "", ""
    for raw in data.decode("utf-8", "replace").splitlines():
        line = raw.strip()
        if line[:1] in ("#", ";"):
            continue
        line = f"{pending} {line}".strip() if pending else line
        pending = ""
        if line.endswith("\\"):
            pending = line[:-1].rstrip()
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif section and "=" in line:
            key, _, value = line.partition("=")
            found.append((f"{section}.{key.strip()}", value.strip()))
    return found


def read_units(root: str = "/") -> tuple[Unit, ...]:
    """Every unit that has a file or a drop-in, by name. Never raises."""
    mains: dict[str, str] = {}
    dropins: dict[str, dict[str, str]] = {}
    wanted: set[str] = set()
    for directory in DIRECTORIES:
        for entry in _entries(rooted(root, directory)):
            path = f"{directory}/{entry}"
            if entry.endswith(".d") and entry[:-2].endswith(_SUFFIXES):
                _collect(dropins.setdefault(entry[:-2], {}), path, root)
            elif entry.endswith((".wants", ".requires")):
                wanted.update(name for name in _entries(rooted(root, path)) if _NAME.fullmatch(name))
            elif entry.endswith(_SUFFIXES) and _NAME.fullmatch(entry):
                mains.setdefault(entry, path)
    # What is wanted as an instance has its template's file.
    for name in wanted:
        template = re.sub(r"@.*\.", "@.", name, count=1)
        if name not in mains and template in mains:
            mains[name] = mains[template]
    names = sorted(mains.keys() | dropins.keys())[:_MOST_UNITS]
    return tuple(_read(name, mains.get(name), dropins.get(name, {}), root, enabled=name in wanted) for name in names)


def _collect(found: dict[str, str], directory: str, root: str) -> None:
    for name in _entries(rooted(root, directory)):
        if name.endswith(".conf"):
            found.setdefault(name, f"{directory}/{name}")


def _read(name: str, main: str | None, dropins: dict[str, str], root: str, *, enabled: bool) -> Unit:
    paths = [*([main] if main else []), *(dropins[each] for each in sorted(dropins))]
    settings: list[tuple[str, str]] = []
    for path in paths:
        settings += parse_unit(read_file(rooted(root, path), _MOST_BYTES) or b"")
    return Unit(name, tuple(settings), tuple(paths), enabled)


def _entries(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))[:_MOST_UNITS]
    except OSError:
        return []
