"""Whom the kernel would kill now, and whether that is who should go."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.host.process_table import ProcessRow
from tidegate.units import format_size

_TOP = 10
#: A board without them cannot be reached, or does not tell what happened.
_VITAL = ("sshd", "systemd-journal", "dropbear", "systemd-logind", "dbus-daemon", "NetworkManager", "wpa_supplicant")
_OWNER = 0.2


def check(board: Board) -> Iterator[Finding]:
    """The ten with the highest oom_score; a large owner that nothing marks; vital services that nothing spares."""
    scored = [row for row in board.processes if row.oom_score is not None and row.oom_score_adj > -1000]
    if not board.total or not scored:
        return
    top = sorted(scored, key=lambda row: (-(row.oom_score or 0), row.pid))[:_TOP]
    engines = {engine.row.pid for engine in board.engines}
    first = top[0]
    yield Finding(
        id="victims.next",
        severity=Severity.INFO,
        summary=f"the OOM killer would take {first.name} (pid {first.pid}) now, oom_score {first.oom_score}",
        evidence="pid comm %mem oom_score adj: " + "; ".join(_line(board, row) for row in top),
        why="oom_score counts mapped weights that could simply be dropped; oom_score_adj decides between equals"
        + ("" if first.pid in engines or not engines else ". It is no inference server"),
        fix="as it should be"
        if first.pid in engines
        else "see it again: ps -eo pid,comm,pmem,oom_score --sort=-oom_score",
    )
    yield from _owner(board, engines)
    yield from _vital(board, top)


def _line(board: Board, row: ProcessRow) -> str:
    share = (row.memory.rss_anon + row.memory.rss_file + row.memory.rss_shmem) / board.total
    return f"{row.pid} {row.name} {share:.1%} {row.oom_score} {row.oom_score_adj}"


def _owner(board: Board, engines: set[int]) -> Iterator[Finding]:
    """The largest owner of memory that only a kill gives back."""
    largest = max(board.processes, key=lambda row: row.memory.unreclaimable)
    size = largest.memory.unreclaimable
    if size < board.total * _OWNER or largest.oom_score_adj > 0:
        return
    spared = largest.pid in engines and largest.oom_score_adj <= -500
    yield Finding(
        id="victims.owner",
        severity=Severity.WARNING if largest.pid in engines else Severity.INFO,
        summary=f"{largest.name} (pid {largest.pid}) owns the most memory, {format_size(size)}, and has oom_score_adj "
        f"{largest.oom_score_adj}",
        evidence=f"/proc/{largest.pid}/status: RssAnon + RssShmem + VmSwap {size >> 10} kB, "
        f"{size / board.total:.0%} of the RAM",
        why="when the board runs out it is the cause, whoever is killed: a database or controller beside it may "
        "go first" + ("; at this value the kernel hardly looks at it" if spared else ""),
        fix=f"echo 800 > /proc/{largest.pid}/oom_score_adj, OOMScoreAdjust=800 in its unit"
        if largest.pid in engines
        else "if it is the inference server: OOMScoreAdjust=800 in its unit; if it is the board's job: -1000",
    )


def _vital(board: Board, top: list[ProcessRow]) -> Iterator[Finding]:
    # A daemon that is spared starts children that are not, on purpose: each session's own sshd is at 0.
    spared = {row.name for row in board.processes if row.oom_score_adj < 0}
    vital = [row for row in board.processes if row.name in _VITAL and row.name not in spared]
    bare = [row for row in vital if row.oom_score_adj >= 0 and row in top]
    listener = [row for row in vital if row.name in ("sshd", "systemd-journal") and row.oom_score_adj >= 0]
    shown = {row.pid: row for row in (*bare, *listener)}
    if not shown:
        return
    rows = "; ".join(f"{row.name} (pid {row.pid}) {row.oom_score_adj}" for row in list(shown.values())[:8])
    yield Finding(
        id="victims.vital",
        severity=Severity.INFO,
        summary="vital services have no protection value: " + ", ".join(sorted({row.name for row in shown.values()})),
        evidence=f"oom_score_adj: {rows}",
        why="a board without its login, log and network services cannot be reached, and does not say why",
        fix="systemctl edit ssh (systemd-journald): [Service] OOMScoreAdjust=-900; the board's own job: [protect] in "
        "tidegate.toml",
    )
