"""Limits in force on the group and its ancestors: which is nearest, whether they are apart enough, what they did."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board, Group
from tidegate.doctor.finding import Finding, Severity
from tidegate.doctor.memory import headroom_axes
from tidegate.policy.headroom import Axis, system_axis
from tidegate.units import format_size

#: tidegate's critical line; beyond it a limit is close.
_CLOSE = 0.91
#: memory.high below this share of memory.max throttles for long before anything ends it.
_FAR_UNDER = 0.8


def check(board: Board) -> Iterator[Finding]:
    """The nearest limit; one that can never be reached; cache that fills it; kills; memory.high far under."""
    axes = {axis.name.removeprefix("cgroup:"): axis for axis in headroom_axes(board) if axis.name.startswith("cgroup:")}
    yield from _nearest(board, axes)
    yield from _never_reached(board)
    for group in board.chain:
        yield from _killed(board, group)
        yield from _high_far_under(group)


def _nearest(board: Board, axes: dict[str, Axis]) -> Iterator[Finding]:
    groups = {group.reading.path: group for group in board.chain}
    limited = [limit for limit in board.limits if limit.path in axes]
    if not limited or board.info is None:
        return
    limit = min(limited, key=lambda each: axes[each.path].available)
    axis, reading = axes[limit.path], groups[limit.path].reading
    is_nearest = axis.available <= system_axis(board.info, board.info.mapped).available
    is_close = axis.ratio >= _CLOSE
    cache = reading.active_file + reading.inactive_file
    where = f"{limit.limit_name} of {limit.path}"
    evidence = (
        f"{where} is {format_size(limit.limit)}; {_current(board)} {format_size(reading.current)}, of which "
        f"{format_size(cache)} is page cache (active_file + inactive_file) and {format_size(reading.slab_reclaimable)} "
        f"reclaimable slab; {format_size(axis.available)} may still be taken"
    )
    hits = groups[limit.path].events.get("max", 0)
    if hits:
        source = "memory.failcnt" if board.hierarchy.is_v1 else "max in memory.events"
        evidence += f"; the limit was hit {hits} times ({source})"
    if not board.hierarchy.is_v1 and not groups[limit.path].has_oom_group:
        evidence += "; memory.oom.group is 0, so a kill may leave children of the server behind"
    full_of_cache = reading.current >= limit.limit * _CLOSE and not is_close
    yield Finding(
        id="limits.nearest",
        severity=Severity.WARNING if is_close else Severity.INFO,
        summary=f"{where} "
        + ("is nearly reached" if is_close else "is full of page cache" if full_of_cache else "limits this group")
        + (", and is reached before the board's own memory is" if is_nearest and not is_close else ""),
        evidence=evidence,
        why="the kernel kills inside the group at this limit, however much the board has left"
        if not full_of_cache
        else f"{_current(board)} counts cache that the kernel drops by itself: limit less {_current(board)} is not "
        "what is left, and a runner that reckons so refuses models that would fit",
        fix=f"raise {limit.limit_name} of {limit.path}, or give the server a smaller budget (memory.budget)"
        if is_close
        else f"nothing has to be done; tidegate reckons {limit.limit_name} less what cannot be reclaimed",
    )


def _current(board: Board) -> str:
    return "memory.usage_in_bytes" if board.hierarchy.is_v1 else "memory.current"


def _never_reached(board: Board) -> Iterator[Finding]:
    for inner, outer in ((a, b) for i, a in enumerate(board.limits) for b in board.limits[i + 1 :]):
        if outer.limit < inner.limit:
            yield Finding(
                id="limits.never_reached",
                severity=Severity.INFO,
                summary=f"{inner.limit_name} of {inner.path} can never be reached: {outer.limit_name} of "
                f"{outer.path} is "
                "lower",
                evidence=f"{inner.path} {format_size(inner.limit)}, its ancestor {outer.path} "
                f"{format_size(outer.limit)}",
                why="whoever plans by the inner limit is killed at the outer one",
                fix=f"set {inner.limit_name} of {inner.path} below {format_size(outer.limit)}",
            )
            return


def _killed(board: Board, group: Group) -> Iterator[Finding]:
    kills, path = group.events.get("oom_kill", 0), group.reading.path
    source = "memory.oom_control" if board.hierarchy.is_v1 else "memory.events.local"
    if group.events.get("oom_kill_disable") == 1:
        yield Finding(
            id="limits.oom_kill_disable",
            severity=Severity.CRITICAL,
            summary=f"oom_kill_disable is set on {path}: at the limit its tasks sleep for ever",
            evidence=f"memory.oom_control of {path}: oom_kill_disable 1, under_oom {group.events.get('under_oom', 0)}",
            why="nothing is killed and nothing goes on; what holds a lock there takes others with it",
            fix=f"echo 0 > /sys/fs/cgroup/memory{path}/memory.oom_control",
        )
    if kills:
        dirty = group.stat.get("total_dirty", group.stat.get("file_dirty", 0))
        full = (
            f"; {format_size(dirty)} of it is dirty page cache, which a kill does not free" if dirty > 64 << 20 else ""
        )
        yield Finding(
            id="limits.oom_kill",
            severity=Severity.WARNING,
            summary=f"the kernel's OOM killer has struck in {path}: oom_kill {kills}",
            evidence=f"{source} of {path}: oom_kill {kills}{full}",
            why="the limit is too low for what runs there, or nothing gives ground before it is reached",
            fix="run the server under tidegate (tidegate up, or tidegate guard --cgroup), which restarts it "
            "before this "
            "limit; dmesg has the kernel's own report",
        )


def _high_far_under(group: Group) -> Iterator[Finding]:
    high, most = group.limits.get("memory.high"), group.limits.get("memory.max")
    if high is None or (most is not None and high >= most * _FAR_UNDER):
        return
    path = group.reading.path
    above = "no memory.max" if most is None else f"memory.max {format_size(most)}"
    yield Finding(
        id="limits.high_far_under_max",
        severity=Severity.WARNING,
        summary=f"memory.high of {path} is far under its memory.max",
        evidence=f"{path}: memory.high {format_size(high)}, {above}",
        why="memory.high throttles and never kills: a working set between the two sleeps at the kernel's brake (2 "
        "s for "
        "each 256 KiB at 18 % above it), looks alive and answers nothing",
        fix=f"echo {high * 5 // 4 if most is None else int(most * 0.95)} > "
        + (f"/sys/fs/cgroup{path}/memory.max" if most is None else f"/sys/fs/cgroup{path}/memory.high")
        + " (a unit: MemoryMax= close above MemoryHigh=)",
    )
