"""What the kernel does at its worst: panic, reset, or stay dead; and who may ask it to."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity

#: Not the file of tidegate setup, which leaves that alone for good once somebody else has changed it; and after it.
_FILE = "/etc/sysctl.d/90-memory.conf"
#: "enable signalling of processes (term, kill, oom-kill)", Documentation/admin-guide/sysrq.rst.
_SYSRQ_SIGNALS = 64
_WATCHDOG = re.compile(r"^\s*RuntimeWatchdogSec\s*=\s*(\S+)", re.MULTILINE)


def check(board: Board) -> Iterator[Finding]:
    """panic_on_oom, oom_kill_allocating_task, hung tasks, kernel.panic, sysrq, the hardware watchdog."""
    yield from _panic_on_oom(board)
    if board.sysctls.get("vm.oom_kill_allocating_task", 0) != 0:
        yield Finding(
            id="panic.oom_kill_allocating_task",
            severity=Severity.WARNING,
            summary="vm.oom_kill_allocating_task is set: whoever asks last is killed",
            evidence=f"vm.oom_kill_allocating_task={board.sysctls['vm.oom_kill_allocating_task']}",
            why="oom_score is not looked at, so the board's own job, sshd or the guard die for the model's growth",
            fix=f"sysctl -w vm.oom_kill_allocating_task=0, and vm.oom_kill_allocating_task = 0 in {_FILE}",
        )
    if board.sysctls.get("vm.oom_dump_tasks") == 0:
        yield Finding(
            id="panic.oom_dump_tasks",
            severity=Severity.INFO,
            summary="vm.oom_dump_tasks=0: the kernel's report of a kill does not list who had the memory",
            evidence="vm.oom_dump_tasks=0",
            why="a post-mortem then knows the victim and not the cause",
            fix=f"sysctl -w vm.oom_dump_tasks=1, and vm.oom_dump_tasks = 1 in {_FILE}",
        )
    if board.sysctls.get("kernel.hung_task_panic", 0) > 0 and board.sysctls.get("kernel.hung_task_timeout_secs", 1) > 0:
        timeout = board.sysctls.get("kernel.hung_task_timeout_secs")
        yield Finding(
            id="panic.hung_task",
            severity=Severity.WARNING,
            summary="kernel.hung_task_panic is set: a task that waits for memory long enough takes the board down",
            evidence=f"kernel.hung_task_panic={board.sysctls['kernel.hung_task_panic']}, "
            f"kernel.hung_task_timeout_secs={'not readable' if timeout is None else timeout}",
            why="thrashing on slow storage holds tasks in state D for minutes: that is a panic here",
            fix=f"sysctl -w kernel.hung_task_panic=0, and kernel.hung_task_panic = 0 in {_FILE}",
        )
    if not board.is_container:
        yield from _after_a_panic(board)
        yield from _sysrq(board)
        yield from _watchdog(board)


def _panic_on_oom(board: Board) -> Iterator[Finding]:
    mode = board.sysctls.get("vm.panic_on_oom", 0)
    if mode == 0:
        return
    reboots = board.sysctls.get("kernel.panic")
    then = (
        f"and the board restarts {reboots} s later (kernel.panic)"
        if reboots and reboots > 0
        else "at once (kernel.panic below 0)"
        if reboots
        else "and the board stays dead (kernel.panic=0)"
        if reboots == 0
        else "and with kernel.panic=0 the board stays dead"
    )
    scope = "also when only a group reaches its memory.max" if mode >= 2 else "when the board itself runs out"
    yield Finding(
        id="panic.panic_on_oom",
        severity=Severity.CRITICAL if mode >= 2 or not reboots else Severity.WARNING,
        summary=f"vm.panic_on_oom={mode}: running out of memory panics the kernel, {scope}",
        evidence=f"vm.panic_on_oom={mode}" + ("" if reboots is None else f", kernel.panic={reboots}"),
        why=f"instead of one killed worker everything ends, {then}; the board's real job with it",
        fix=f"sysctl -w vm.panic_on_oom=0, and vm.panic_on_oom = 0 in {_FILE}",
    )


def _after_a_panic(board: Board) -> Iterator[Finding]:
    if board.sysctls.get("kernel.panic") == 0:
        yield Finding(
            id="panic.stays_dead",
            severity=Severity.INFO,
            summary="kernel.panic=0: after a panic the board stays dead until somebody resets it",
            evidence="kernel.panic=0",
            why="nobody stands beside an edge board",
            fix=f"sysctl -w kernel.panic=10, and kernel.panic = 10 in {_FILE}",
        )


def _sysrq(board: Board) -> Iterator[Finding]:
    mask = board.sysctls.get("kernel.sysrq")
    if mask is not None and mask != 1 and not mask & _SYSRQ_SIGNALS:
        yield Finding(
            id="panic.sysrq",
            severity=Severity.INFO,
            summary="kernel.sysrq does not allow f (OOM kill) at the keyboard or serial console",
            evidence=f"kernel.sysrq={mask}: bit {_SYSRQ_SIGNALS} is not set",
            why="on a board that thrashes too much to log in it is the last way out short of the power switch; root's "
            "/proc/sysrq-trigger works in any case",
            fix=f"sysctl -w kernel.sysrq={mask | _SYSRQ_SIGNALS}, and kernel.sysrq = {mask | _SYSRQ_SIGNALS} in "
            f"{_FILE}",
        )


def _watchdog(board: Board) -> Iterator[Finding]:
    if not board.has_watchdog:
        return
    found = _WATCHDOG.findall(board.rivals.system)
    if not found or found[-1] in ("0", "off", "infinity"):
        yield Finding(
            id="panic.watchdog",
            severity=Severity.INFO,
            summary="there is a hardware watchdog, and nothing feeds it",
            evidence="watchdog0 is there; RuntimeWatchdogSec is not set in system.conf of systemd or a drop-in of it",
            why="when the kernel itself no longer gets on, only the watchdog brings the board back",
            fix="RuntimeWatchdogSec=30s in /etc/systemd/system.conf ([Manager]), then systemctl daemon-reexec",
        )
