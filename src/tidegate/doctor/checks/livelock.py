"""Groups and boards that are alive but stand still now: throttled at memory.high, or thrashing."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board, Group
from tidegate.doctor.finding import Finding, Severity
from tidegate.units import format_size

#: The signature (FootprintAI/Containarium#1454: steal/scan 3 %, full avg300 86 %, no kill for 90 min).
_STALLED = 50.0
_AT_HIGH = 0.97
_MANY_EVENTS = 1000
#: Of all time, all tasks stalled: people notice.
_PRESSED = 10.0


def check(board: Board) -> Iterator[Finding]:
    """A throttled livelock in the chain; otherwise pressure of the system."""
    stuck = [group for group in board.chain if _is_stuck(group)]
    for group in stuck:
        yield _livelock(group)
    if board.pressure is not None and board.pressure.full_avg10 >= _PRESSED and not stuck:
        yield Finding(
            id="livelock.pressure",
            severity=Severity.WARNING,
            summary=f"all tasks wait for memory {board.pressure.full_avg10:.0f} % of the time (PSI full)",
            evidence=f"/proc/pressure/memory: full avg10={board.pressure.full_avg10:.2f}, some "
            f"avg10={board.pressure.some_avg10:.2f}; MemAvailable {format_size(board.available)}",
            why="the board reads its programs and mapped weights again and again; each token takes seconds",
            fix="stop or shrink the largest worker now (ps -eo pid,comm,rss,oom_score --sort=-rss | head); a smaller "
            "model or context",
        )
    for group in board.chain[:1]:
        yield from _refaults(board, group, silent=bool(stuck))


def _is_stuck(group: Group) -> bool:
    high = group.limits.get("memory.high")
    pressed = group.pressure is None or group.pressure.full_avg10 >= _STALLED
    many = group.events.get("high", 0) >= _MANY_EVENTS
    at_high = high is not None and group.reading.current >= high * _AT_HIGH
    # Without PSI the events alone do not tell: they may be of last week.
    return at_high and many and pressed and (group.pressure is not None or _steal_share(group) < 0.05)


def _steal_share(group: Group) -> float:
    scanned = group.stat.get("pgscan", 0)
    return group.stat.get("pgsteal", 0) / scanned if scanned else 1.0


def _livelock(group: Group) -> Finding:
    path, high, most = group.reading.path, group.limits["memory.high"], group.limits.get("memory.max")
    pressed = f"full avg10={group.pressure.full_avg10:.2f} in memory.pressure, " if group.pressure else ""
    return Finding(
        id="livelock.memory_high",
        severity=Severity.CRITICAL,
        summary=f"{path} is throttled to a standstill at memory.high: a livelock",
        evidence=f"memory.current {format_size(group.reading.current)} at memory.high {format_size(high)}; "
        f"high {group.events.get('high', 0)}, max {group.events.get('max', 0)}, oom_kill "
        f"{group.events.get('oom_kill', 0)} in memory.events; {pressed}pgsteal/pgscan {_steal_share(group):.0%}; anon "
        f"{format_size(group.reading.anon)} cannot be reclaimed",
        why="the unit stays active, nothing is killed, and it will not end by itself: memory.high never kills, and "
        + (f"memory.max ({format_size(most)}) is too far above to be reached" if most else "there is no memory.max"),
        fix=f"echo max > /sys/fs/cgroup{path}/memory.high, then restart the server; for good: MemoryHigh= only with a "
        "MemoryMax= close above it",
    )


def _refaults(board: Board, group: Group, *, silent: bool) -> Iterator[Finding]:
    """Mapped weights that are read again and again."""
    refaults = group.stat.get("workingset_refault_file", group.stat.get("workingset_refault", 0))
    pressed = group.pressure if group.pressure is not None else board.pressure
    if silent or refaults < 100_000 or pressed is None or pressed.full_avg10 < 1.0:
        return
    yield Finding(
        id="livelock.refaults",
        severity=Severity.WARNING,
        summary=f"{group.reading.path} reads dropped file pages again: workingset_refault_file {refaults}",
        evidence=f"memory.stat: workingset_refault_file {refaults}, pgmajfault {group.stat.get('pgmajfault', 0)}; "
        "PSI full "
        f"avg10={pressed.full_avg10:.2f}",
        why="a mapped model that does not fit beside its own KV cache is paged in for each token, at the disk's speed",
        fix="a smaller model or context, so that the weights stay; compare the GGUF's size with MemAvailable",
    )
