"""memory.min and memory.low that are worth nothing, because a group above has less."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.host.cgroup_tree import ProtectedGroup
from tidegate.host.unit_files import OPERATORS, Unit
from tidegate.units import format_size

_KEYS = {"memory.min": "MemoryMin", "memory.low": "MemoryLow"}
_MOST = 8


def check(board: Board) -> Iterator[Finding]:
    """Groups that run, then units that only have files."""
    seen: set[tuple[str, str]] = set()
    for group in board.protected:
        # What systemd sets on its own init.scope and on sub-groups of a service is not the operator's.
        if group.at and group.weakest < group.asked and len(seen) < _MOST:
            seen.add((group.path.rpartition("/")[2], group.name))
            yield _capped(board, group)
    running = {group.path.rpartition("/")[2] for group in board.protected}
    for unit in board.units:
        for name, key in _KEYS.items():
            asked = unit.last(f"Service.{key}")
            slice_name = unit.last("Service.Slice") or "system.slice"
            if asked in (None, "", "0") or unit.name in running or len(seen) >= _MOST or not _is_local(unit):
                continue
            above = board.unit(slice_name)
            if above is None or above.last(f"Slice.{key}") in (None, "", "0"):
                seen.add((unit.name, name))
                yield _unit(board, unit.name, key, name, str(asked), slice_name, unit.files[-1])


def _capped(board: Board, group: ProtectedGroup) -> Finding:
    unit, above = group.path.rpartition("/")[2], group.at.rpartition("/")[2]
    key = _KEYS[group.name]
    asked = "max" if group.asked >= 1 << 62 else format_size(group.asked)
    nothing = group.weakest == 0
    return Finding(
        id="protection.capped",
        severity=Severity.WARNING if _is_local(board.unit(unit)) else Severity.INFO,
        summary=f"{group.name} of {unit} is worth {'nothing' if nothing else 'less'}: its parent {above} has "
        f"{'0' if nothing else format_size(group.weakest)}",
        evidence=f"{group.path}: {group.name} {asked}; {group.at}: {group.name} {format_size(group.weakest)}",
        why="the kernel caps protection by that of every group above: the board's own job is reclaimed like any other"
        + _recursive(board),
        fix=f"systemctl set-property {above} {key}={_amount(group.asked)}"
        + (f" (and the same for each slice above {above})" if "/" in group.at[1:] else ""),
    )


def _unit(board: Board, unit: str, key: str, name: str, asked: str, slice_name: str, file: str) -> Finding:
    return Finding(
        id="protection.slice",
        severity=Severity.WARNING,
        summary=f"{key}={asked} of {unit} will be worth nothing: {slice_name} has no {key}",
        evidence=f"{file}: {key}={asked}; no unit file or drop-in of {slice_name} sets {key}, so its {name} is 0",
        why="the kernel caps protection by that of every group above" + _recursive(board),
        fix=f"[Slice] {key}={asked} in /etc/systemd/system/{slice_name}.d/90-memory.conf, then systemctl daemon-reload",
    )


def _is_local(unit: Unit | None) -> bool:
    """Whether the operator asked for it: systemd-oomd and others come with a MemoryMin= that is worth nothing either.
    A group without a unit was made by hand."""
    return unit is None or any(file.startswith(OPERATORS) for file in unit.files)


def _recursive(board: Board) -> str:
    if board.mount_options is not None and "memory_recursiveprot" in board.mount_options:
        return "; memory_recursiveprot does not help: it hands down what the slice has, and the slice has none"
    return ""


def _amount(size: int) -> str:
    if size >= 1 << 62:
        return "infinity"
    return f"{size >> 20}M" if size % (1 << 20) == 0 else str(size)
