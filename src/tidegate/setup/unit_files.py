"""What unit files of others say, below a root: settings of one key, without the drop-ins that setup itself wrote."""

from __future__ import annotations

import os

from tidegate.host.files import read_file, rooted
from tidegate.host.unit_files import DIRECTORIES, parse_unit

#: Name of our drop-ins: after those of packages, before those of a person who wants other values (90-*).
DROP_IN = "60-tidegate.conf"
_MOST_BYTES = 1 << 18


def exists(unit: str, root: str = "/") -> bool:
    """Whether ``unit``, or the template that it is an instance of, has a file."""
    stem, _, suffix = unit.rpartition(".")
    names = [unit, f"{stem.partition('@')[0]}@.{suffix}"] if "@" in stem else [unit]
    return any(os.path.lexists(rooted(root, f"{directory}/{name}")) for directory in DIRECTORIES for name in names)


def setting(unit: str, key: str, root: str = "/") -> str | None:
    """The value of ``key`` ("Service.Slice") that others gave ``unit``, or None: nobody did."""
    value: str | None = None
    for path in _files(unit, root):
        for name, given in parse_unit(read_file(path, _MOST_BYTES) or b""):
            if name == key:
                value = given or None
    return value


def _files(unit: str, root: str) -> list[str]:
    """The main file, then the drop-ins by name over all directories."""
    places = [rooted(root, directory) for directory in DIRECTORIES]
    main = next((f"{place}/{unit}" for place in places if os.path.isfile(f"{place}/{unit}")), None)
    found: dict[str, str] = {}
    for place in places:
        try:
            names = os.listdir(f"{place}/{unit}.d")
        except OSError:
            continue
        for name in names:
            if name.endswith(".conf") and name != DROP_IN:
                found.setdefault(name, f"{place}/{unit}.d/{name}")
    return [*([main] if main else []), *(found[name] for name in sorted(found))]
