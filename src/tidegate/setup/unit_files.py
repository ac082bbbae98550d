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
    return any(
        os.path.lexists(rooted(root, f"{directory}/{name}")) for directory in DIRECTORIES for name in _names(unit)
    )


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
    mains = (f"{place}/{name}" for name in _names(unit) for place in places)
    main = next((path for path in mains if os.path.isfile(path)), None)
    kind = unit.rpartition(".")[2]
    found: dict[str, str] = {}
    for directory in (
        *(f"{place}/{name}.d" for place in places for name in _names_of_drop_ins(unit)),
        *(f"{place}/{kind}.d" for place in places),
    ):
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            if name.endswith(".conf") and name != DROP_IN:
                found.setdefault(name, f"{directory}/{name}")
    return [*([main] if main else []), *(found[name] for name in sorted(found))]


def _names(unit: str) -> tuple[str, ...]:
    """``unit``, and its template's name if it is an instance."""
    stem, _, kind = unit.rpartition(".")
    prefix, at, instance = stem.partition("@")
    return (unit, f"{prefix}@.{kind}") if at and instance else (unit,)


def _names_of_drop_ins(unit: str) -> tuple[str, ...]:
    """Those of which drop-ins count for ``unit``, the most particular first: a-b@c.service has a-b@.service's and those
    of a-@c.service and a-@.service (systemd.unit(5))."""
    stem, _, kind = unit.rpartition(".")
    prefix, at, instance = stem.partition("@")
    found: list[str] = []
    while True:
        found += _names(f"{prefix}{at}{instance}.{kind}")
        dash = prefix.removesuffix("-").rfind("-")
        if dash <= 0:
            return tuple(found)
        prefix = prefix[: dash + 1]
