"""Drop-ins for the units that are to be spared, and for the slices above them. Pure but for reading unit files."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.settings.model import ProtectSettings
from tidegate.setup import unit_files
from tidegate.setup.unit import NAME, OWN_MEMORY_MIN
from tidegate.units import parse_size

_BANNER = "# Written by tidegate setup, taken back by tidegate setup --undo."
_SECTIONS = {"service": "Service", "slice": "Slice", "scope": "Scope"}
#: sshd puts itself at -1000, and what it found at its start into every session: with -1000 in its unit nothing that is
#: started over ssh could ever be killed (oom_adjust_setup and oom_adjust_restore, openbsd-compat/port-linux.c).
_KEEPS_ITS_OWN_SCORE = frozenset(("ssh.service", "sshd.service"))


@dataclass(frozen=True)
class DropIns:
    """``files`` are (path, text); ``notes`` are for a person."""

    files: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def render(protect: ProtectSettings, root: str = "/") -> DropIns:
    """The drop-ins for ``protect``, and those of the slices: one without memory.min or memory.low takes away what its
    units were given."""
    files, notes = [], []
    promised = {"MemoryMin": protect.memory_min, "MemoryLow": protect.memory_low}
    #: What each slice has to have, by key.
    sums: dict[str, dict[str, int]] = {"MemoryMin": {}, "MemoryLow": {}}
    _add(sums["MemoryMin"], _slice_of(NAME, root), OWN_MEMORY_MIN)
    for unit in protect.units:
        kind = unit.rpartition(".")[2]
        lines = []
        if kind == "service" and unit in _KEEPS_ITS_OWN_SCORE:
            notes.append(f"{unit}: no OOMScoreAdjust, which every login would inherit; sshd spares itself")
        elif kind == "service":
            lines.append("OOMScoreAdjust=-1000")
        for key, size in promised.items():
            if size:
                more, held = _wanted(unit, kind, key, size, root, notes)
                lines += more
                _add(sums[key], _slice_of(unit, root), held)
        if not unit_files.exists(unit, root) and kind != "scope":
            notes.append(f"{unit}: there is no such unit here (yet)")
        if lines:
            files.append(_drop_in(unit, kind, lines))
    for name in sorted({name for each in sums.values() for name in each}):
        lines = [
            line
            for key, each in sums.items()
            if name in each
            for line in _wanted(name, "slice", key, each[name], root, notes)[0]
        ]
        if lines:
            files.append(_drop_in(name, "slice", lines))
    return DropIns(tuple(files), tuple(notes))


def _wanted(unit: str, kind: str, key: str, size: int, root: str, notes: list[str]) -> tuple[list[str], int]:
    """The line that gives ``unit`` ``size`` bytes, none where somebody else gave it as much; and what it has then.

    What has no number, "infinity" or a share, counts as ``size``.
    """
    theirs = unit_files.setting(unit, f"{_SECTIONS[kind]}.{key}", root)
    if theirs is None:
        return [f"{key}={size}"], size
    held = _bytes(theirs)
    if held is not None and held < size:
        return [f"{key}={size}"], size
    notes.append(f"{unit}: its {key}={theirs} of somebody else's stays; {size} are needed")
    # Claims above what their slice has are cut in proportion, those of the units beside it too (cgroup-v2.rst).
    return [], size if held is None else held


def chain(slice_name: str) -> tuple[str, ...]:
    """``slice_name`` and the slices above it, without the root, which has no limits: a-b.slice is in a.slice
    (systemd.slice(5))."""
    parts = slice_name.removesuffix(".slice").split("-")
    if "" in parts:
        return ()
    return tuple(f"{'-'.join(parts[:count])}.slice" for count in range(len(parts), 0, -1))


def _slice_of(unit: str, root: str) -> tuple[str, ...]:
    """The slices that ``unit`` is in."""
    if unit.endswith(".slice"):
        return chain(unit)[1:]
    section = _SECTIONS[unit.rpartition(".")[2]]
    return chain(unit_files.setting(unit, f"{section}.Slice", root) or _default_slice(unit))


def _default_slice(unit: str) -> str:
    """Instances get a slice of their template's, others the system's (systemd.resource-control(5), Slice=)."""
    template, at, _ = unit.rpartition(".")[0].partition("@")
    return f"system-{template.replace('-', chr(92) + 'x2d')}.slice" if at else "system.slice"


def _add(sums: dict[str, int], slices: tuple[str, ...], size: int) -> None:
    for name in slices:
        sums[name] = sums.get(name, 0) + size


def _drop_in(unit: str, kind: str, lines: list[str]) -> tuple[str, str]:
    text = "\n".join([_BANNER, f"[{_SECTIONS[kind]}]", *lines, ""])
    return f"/etc/systemd/system/{unit}.d/{unit_files.DROP_IN}", text


def _bytes(value: str) -> int | None:
    """The size ``value``; None for "infinity" and for shares."""
    try:
        return parse_size(value)
    except ValueError:
        return None
