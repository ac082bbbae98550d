"""Other memory killers on this board, and which of them acts before tidegate does."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.settings.model import MemorySettings
from tidegate.units import format_size

#: earlyoom(1): SIGTERM at 10 % of memory *and* of swap, SIGKILL at half of either.
_EARLYOOM = 10.0
#: nohang.conf: soft_threshold_min_mem and hard_threshold_min_mem, as shipped.
_NOHANG = (5.0, 2.0)
#: oomd.conf(5).
_OOMD_SWAP, _OOMD_PRESSURE, _OOMD_SECONDS = "90%", "60%", "30s"


def check(board: Board) -> Iterator[Finding]:
    """earlyoom, nohang, systemd-oomd: those that run or are enabled."""
    if _is_here(board, "earlyoom"):
        yield _earlyoom(board)
    for name in ("nohang", "nohang-desktop"):
        if _is_here(board, name):
            yield _nohang(board, name)
            break
    if _is_here(board, "systemd-oomd"):
        yield from _oomd(board)


def _is_here(board: Board, name: str) -> bool:
    unit = board.unit(f"{name}.service")
    running = any(row.name == name[:15] for row in board.processes)
    return running or (unit is not None and unit.enabled)


def _earlyoom(board: Board) -> Finding:
    words = _earlyoom_arguments(board)
    memory = _earlyoom_share(board, words, "-m", "-M", board.total) or _EARLYOOM
    swap = _earlyoom_share(board, words, "-s", "-S", board.info.swap_total if board.info else 0)
    swap = _EARLYOOM if swap is None else swap
    no_swap = board.info is None or board.info.swap_total == 0
    # Since 1.8 its percentages are of user memory (MemAvailable + AnonPages), before that of MemTotal: taken of the
    # larger of the two, at which it would act earlier.
    acts = memory / 100 * board.total
    condition = f"available memory is at or below {memory:g} % (about {format_size(acts)})"
    condition += ", there being no swap" if no_swap else f" and free swap at or below {swap:g} % as well"
    settings = f"/etc/default/earlyoom: {' '.join(words) or 'no options'}" if board.rivals.earlyoom else "its defaults"
    return _finding(
        board,
        "earlyoom",
        acts=100 - memory,
        condition=f"SIGTERM to the highest oom_score when {condition}; SIGKILL at half",
        evidence=settings,
        may_wait="" if no_swap else f"; while more than {swap:g} % of swap is free it waits",
        fix='EARLYOOM_ARGS="-m 4,2 -s 100,100 --avoid (^|/)(tidegate|llama-server)$" in /etc/default/earlyoom, or '
        "systemctl disable --now earlyoom",
    )


def _earlyoom_arguments(board: Board) -> list[str]:
    text = ""
    for line in board.rivals.earlyoom.splitlines():
        if line.strip().startswith("EARLYOOM_ARGS="):
            text = line.strip().partition("=")[2]
    try:
        words = [word for part in shlex.split(text) for word in part.split()]
    except ValueError:
        words = text.strip("\"'").split()
    unit = board.unit("earlyoom.service")
    if not words and unit is not None:
        words = (unit.last("Service.ExecStart") or "").split()[1:]
    return words


def _earlyoom_share(board: Board, words: list[str], percent: str, kilobytes: str, whole: int) -> float | None:
    """The SIGTERM limit in percent of ``whole``, by the option that is given last."""
    found: float | None = None
    for place, word in enumerate(words):
        for option in (percent, kilobytes):
            if word == option and place + 1 < len(words):
                value = words[place + 1]
            elif word.startswith(option) and len(word) > 2 and word[2].isdigit():
                value = word[2:]
            else:
                continue
            number = re.match(r"\d{1,12}(\.\d{1,6})?", value)
            if number and option == percent:
                found = min(float(number[0]), 100.0)
            elif number and whole:
                found = min(float(number[0]) * 1024 / whole * 100, 100.0)
    return found


def _nohang(board: Board, name: str) -> Finding:
    soft = _nohang_share(board, "soft_threshold_min_mem", _NOHANG[0])
    hard = _nohang_share(board, "hard_threshold_min_mem", _NOHANG[1])
    return _finding(
        board,
        name,
        acts=100 - soft,
        condition=f"SIGTERM at {soft:g} % available memory, SIGKILL at {hard:g} %, each with its own line for swap",
        evidence="/etc/nohang/nohang.conf" if board.rivals.nohang else "its defaults",
        may_wait="; with free swap it waits",
        fix=f"raise nothing above tidegate's lines in /etc/nohang/{name}.conf, or systemctl disable --now {name}",
    )


def _nohang_share(board: Board, key: str, default: float) -> float:
    found = re.search(rf"^\s*{key}\s*=\s*(\d{{1,9}}(?:\.\d{{1,6}})?)\s*(%|M)", board.rivals.nohang, re.MULTILINE)
    if found is None:
        return default
    amount = float(found[1])
    return min(amount if found[2] == "%" or not board.total else amount * (1 << 20) / board.total * 100, 100.0)


def _oomd(board: Board) -> Iterator[Finding]:
    enrolled = [
        unit.name
        for unit in board.units
        if any(
            unit.last(f"{section}.{key}") == "kill"
            for section in ("Slice", "Service", "Scope")
            for key in ("ManagedOOMMemoryPressure", "ManagedOOMSwap")
        )
    ]
    swap = _oomd_value(board, "SwapUsedLimit", _OOMD_SWAP)
    pressure = _oomd_value(board, "DefaultMemoryPressureLimit", _OOMD_PRESSURE)
    seconds = _oomd_value(board, "DefaultMemoryPressureDurationSec", _OOMD_SECONDS)
    has_swap = board.info is not None and board.info.swap_total > 0
    parts = [f"PSI full above {pressure} for {seconds} in an enrolled group"]
    if has_swap:
        parts.append(f"more than {swap} of memory and swap in use")
    # Ubuntu and Debian enrol the users' managers: a server under the system's is out of its reach.
    reaches = [name for name in enrolled if not name.startswith("user@")]
    who = ", ".join(enrolled[:6]) or "no unit file enrols a group (ManagedOOMMemoryPressure=kill), so it never acts"
    yield Finding(
        id="rivals.systemd-oomd",
        severity=Severity.WARNING if reaches else Severity.INFO,
        summary="systemd-oomd is active: it kills whole groups by SIGKILL, after tidegate's lines, "
        + ("without asking it" if reaches else "in users' own units alone" if enrolled else "but nothing is enrolled"),
        evidence=f"acts on {' or '.join(parts)}; enrolled: {who}; tidegate acts at {_ours()} in use",
        why="tidegate acts first while it can: it goes by bytes, oomd by seconds of stall. If both act, a worker "
        "that was "
        "just restarted may be killed again"
        + ("" if has_swap else "; without swap oomd sees pressure alone, and late"),
        fix="ManagedOOMPreference=omit in the unit of the server (root's units only), or systemctl disable --now "
        "systemd-oomd.service systemd-oomd.socket",
    )


def _oomd_value(board: Board, key: str, default: str) -> str:
    found = re.findall(rf"^\s*{key}\s*=\s*([\w.%]{{1,20}})", board.rivals.oomd, re.MULTILINE)
    return found[-1] if found else default


def _ours() -> str:
    return f"{MemorySettings.warn:.0%} (warn) and {MemorySettings.critical:.0%} (critical)"


def _finding(
    board: Board, name: str, *, acts: float, condition: str, evidence: str, may_wait: str, fix: str
) -> Finding:
    warn, critical = MemorySettings.warn * 100, MemorySettings.critical * 100
    if acts <= warn:
        order = f"{name} acts first, at {acts:g} % in use, before tidegate's warn line ({warn:g} %)"
    elif acts < critical:
        order = f"tidegate's warn line ({warn:g} %) comes first, {name} at {acts:g} %, our critical at {critical:g} %"
    else:
        order = f"tidegate acts first, at {warn:g} % and {critical:g} % in use; {name} at {acts:g} %"
    return Finding(
        id=f"rivals.{name}",
        severity=Severity.WARNING if acts < critical else Severity.INFO,
        summary=f"{name} is active: {order}",
        evidence=f"{evidence}; {condition}{may_wait}",
        why="two guards may kill twice for one shortage: the second takes somebody else, because the first kill's "
        "memory "
        "is not back yet",
        fix=fix,
    )
