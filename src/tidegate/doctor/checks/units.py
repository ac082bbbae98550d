"""systemd units of inference servers, and units whose memory settings work against them."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.engine_commands import names_engine
from tidegate.doctor.finding import Finding, Severity
from tidegate.host.unit_files import OPERATORS, Unit
from tidegate.units import format_size, parse_duration, parse_size

_FAR_UNDER = 0.8
#: systemd-system.conf(5): five starts in ten seconds, 100 ms apart.
_BURST, _INTERVAL_S, _RESTART_S = 5, 10.0, 0.1


def check(board: Board) -> Iterator[Finding]:
    """Units that the operator wrote, or that run at boot."""
    for unit in board.units:
        if not unit.name.endswith(".service") or not (unit.enabled or _is_local(unit)):
            continue
        yield from _memory(board, unit)
        engine = names_engine(word for line in unit.all("Service.ExecStart") for word in line.lstrip("-@:+!|").split())
        if engine or unit.name == "tidegate.service":
            yield from _restart(unit, engine or "tidegate")
            yield from _oom_policy(unit, engine or "tidegate")


def _is_local(unit: Unit) -> bool:
    return any(file.startswith(OPERATORS) for file in unit.files)


def _file(unit: Unit) -> str:
    return unit.files[-1] if unit.files else unit.name


def _memory(board: Board, unit: Unit) -> Iterator[Finding]:
    high, most = (_size(board, unit.last(f"Service.{key}")) for key in ("MemoryHigh", "MemoryMax"))
    if (high is not None or most is not None) and not board.hierarchy.memory:
        yield Finding(
            id="units.ignored",
            severity=Severity.WARNING,
            summary=f"MemoryMax= and MemoryHigh= of {unit.name} are ignored: the memory controller is not there",
            evidence=f"{_file(unit)}: MemoryHigh={unit.last('Service.MemoryHigh')}, "
            f"MemoryMax={unit.last('Service.MemoryMax')}",
            why="systemd says nothing about it, and systemctl status shows no memory",
            fix="turn the memory controller on (see the finding boot.memory_controller)",
        )
    elif high is not None and (most is None or high < most * _FAR_UNDER):
        above = "no MemoryMax=" if most is None else f"MemoryMax={format_size(most)}"
        yield Finding(
            id="units.high_far_under_max",
            severity=Severity.WARNING,
            summary=f"MemoryHigh= of {unit.name} is far under its MemoryMax=: memory.high throttles and never kills",
            evidence=f"{_file(unit)}: MemoryHigh={format_size(high)}, {above}",
            why="a working set between the two stands still for hours: the unit stays active and answers nothing",
            fix=f"systemctl edit {unit.name}: [Service] MemoryMax={(high * 11 // 10) >> 20}M, or MemoryHigh=infinity",
        )


def _size(board: Board, text: str | None) -> int | None:
    if text is None or text in ("", "infinity"):
        return None
    try:
        if text.endswith("%"):
            share = float(text[:-1])
            return int(board.total * share / 100) if 0 <= share <= 100 and board.total else None
        return parse_size(text)
    except ValueError:
        return None


def _restart(unit: Unit, engine: str) -> Iterator[Finding]:
    policy = unit.last("Service.Restart") or "no"
    if policy in ("no", "on-success") and unit.last("Service.Type") != "oneshot":
        yield Finding(
            id="units.restart",
            severity=Severity.WARNING,
            summary=f"{unit.name} starts {engine} with Restart={policy}: after a kill it stays down",
            evidence=f"{_file(unit)}: Restart={unit.last('Service.Restart') or 'is unset, which is no'}",
            why="after the kernel's OOM killer, or a reset by a guard, nobody starts it again",
            fix=f"systemctl edit {unit.name}: [Service] Restart=always, RestartSec=2",
        )
        return
    if policy in ("no", "on-success"):
        return
    interval = _duration(_either(unit, "StartLimitIntervalSec", "StartLimitInterval"), _INTERVAL_S)
    burst = _count(_either(unit, "StartLimitBurst"), _BURST)
    pause = _duration(unit.last("Service.RestartSec"), _RESTART_S)
    if interval > 0 and burst > 0 and pause * burst < interval:
        yield Finding(
            id="units.start_limit",
            severity=Severity.WARNING,
            summary=f"{unit.name} may run into its start limit and stay down for good",
            evidence=f"{_file(unit)}: Restart={policy}, RestartSec {pause:g} s, StartLimitBurst {burst} in "
            f"StartLimitIntervalSec {interval:g} s",
            why=f"{burst} ends within {interval:g} s (memory still short after each kill, or a port not yet free), and "
            "systemd gives up: the unit is failed, start-limit-hit, until somebody comes",
            fix=f"systemctl edit {unit.name}: [Unit] StartLimitIntervalSec=0, [Service] RestartSec=2",
        )


def _either(unit: Unit, *keys: str) -> str | None:
    """In [Unit], where it belongs, or in [Service], where old files have it."""
    for key in keys:
        for section in ("Unit", "Service"):
            value = unit.last(f"{section}.{key}")
            if value is not None:
                return value
    return None


def _duration(text: str | None, default: float) -> float:
    if text is None:
        return default
    if text == "infinity":
        return float("inf")
    words = {"min": "m", "sec": "s", "us": None}
    for suffix, ours in words.items():
        if text.endswith(suffix):
            if ours is None:
                return 0.0
            text = text[: -len(suffix)] + ours
            break
    try:
        return parse_duration(text)
    except ValueError:
        return default


def _count(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 9 else default


def _oom_policy(unit: Unit, engine: str) -> Iterator[Finding]:
    policy = unit.last("Service.OOMPolicy")
    delegated = (unit.last("Service.Delegate") or "no") not in ("no", "false", "0", "off", "")
    if engine == "tidegate":
        if policy != "continue" and not delegated:
            yield _policy(
                unit, policy or "unset, which is stop", "continue", "the worker's end by OOM stops the guard too"
            )
    elif policy == "continue":
        yield _policy(unit, policy, "kill", "what is left of it keeps the port and the memory, and the restart fails")


def _policy(unit: Unit, now: str, better: str, why: str) -> Finding:
    return Finding(
        id="units.oom_policy",
        severity=Severity.WARNING,
        summary=f"{unit.name}: OOMPolicy={now}",
        evidence=f"{_file(unit)}: OOMPolicy is {now}",
        why=why,
        fix=f"systemctl edit {unit.name}: [Service] OOMPolicy={better}",
    )
