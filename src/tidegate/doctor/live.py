"""``doctor --live``: what did not prove itself is not protection, and is said to be none."""

from __future__ import annotations

import json
import subprocess

from tidegate.doctor.finding import Finding, Severity
from tidegate.doctor.live_proofs import PROOFS, Proof
from tidegate.doctor.live_unit import COMMAND, can_use_units, run_in_unit

#: Without these the kernel's last line, or ours, is not there; the others make it slower or weaker.
_VITAL = ("limit", "oom_kill", "cgroup_kill", "signals")
_WHY = {
    "group": "without a group of its own the worker has no fence but the budget, and its children may outlive it",
    "limit": "memory.max is the last fence; without it one step too late is the board's OOM kill",
    "oom_kill": "a kill by the kernel is noticed by the worker's absence alone",
    "poll": "events are seen at the next look, up to 3 s later, not at once",
    "psi": "stalls are seen by their averages, which move every 2 s",
    "cgroup_kill": "a worker's children may survive it and keep the port and the memory",
    "signals": "a worker that must go cannot be made to",
    "mrelease": "a dying worker's memory comes back when the kernel gets to it, not at once",
    "oom_score_adj": "the guard may be killed before the worker",
    "mlock": "the guard itself may be paged out when it is needed",
}
_FIX = {
    "group": "Delegate=yes in the guard's unit (tidegate setup writes it), on cgroup v2 with the memory controller on",
    "psi": "CAP_SYS_RESOURCE for the guard's unit, psi on at boot",
    "oom_score_adj": "CapabilityBoundingSet= of the guard's unit with CAP_SYS_RESOURCE",
    "mlock": "CapabilityBoundingSet= with CAP_IPC_LOCK, or LimitMEMLOCK=infinity",
    "signals": "CapabilityBoundingSet= with CAP_KILL; SystemCallFilter= with pidfd_open and pidfd_send_signal",
    "mrelease": "Linux 5.15 or later; SystemCallFilter= with process_mrelease",
    "cgroup_kill": "Linux 5.14 or later; no ProtectControlGroups= in the guard's unit",
}
_ELSE = "tidegate setup writes a unit in which it works; see docs/doctor.md"
_MOST_S = 60.0


def prove() -> list[Finding]:
    """Run the proofs, in the installed unit's sandbox where that can be had, and judge them.

    Raises:
        TidegateError: a throw-away unit cannot be written.
    """
    if can_use_units():
        text, sandbox, result = run_in_unit()
    else:
        text, sandbox, result = _run_here()
    return judge(parse_proofs(text), sandbox, result)


def _run_here() -> tuple[str, str, str]:
    try:
        done = subprocess.run(COMMAND, stdout=subprocess.PIPE, timeout=_MOST_S, check=False)
    except subprocess.TimeoutExpired:
        return "", "this process", "timeout"
    result = "success" if done.returncode == 0 else "signal" if done.returncode < 0 else "exit-code"
    return done.stdout.decode("utf-8", "replace"), "this process", result


def parse_proofs(text: str) -> tuple[Proof, ...]:
    """What :mod:`tidegate.doctor.live_proofs` printed; () for anything else."""
    try:
        found = json.loads(text)
        return tuple(Proof(str(each["name"]), each["held"] is True, str(each["detail"])) for each in found)
    except (ValueError, TypeError, KeyError):
        return ()


def judge(proofs: tuple[Proof, ...], sandbox: str, result: str) -> list[Finding]:
    """A finding for each thing that was not proved, and one for all that was."""
    by_name = {proof.name: proof for proof in proofs}
    missing = "the proofs did not come to an end" + (f" ({result})" if result != "success" else "")
    if result == "signal":
        missing += ": most likely ended by a seccomp filter (SIGSYS) or the OOM killer"
    found = []
    for name, what in PROOFS.items():
        proof = by_name.get(name, Proof(name, False, missing))
        if not proof.held:
            found.append(
                Finding(
                    id=f"live.{name}",
                    severity=Severity.CRITICAL if name in _VITAL else Severity.WARNING,
                    summary=f"not protected: it was not proved that {what}",
                    evidence=f"tried in {sandbox}: {proof.detail}",
                    why=_WHY[name],
                    fix=_FIX.get(name, _ELSE),
                )
            )
    held = [f"{PROOFS[proof.name]} ({proof.detail})" for proof in proofs if proof.held and proof.name in PROOFS]
    if held:
        found.append(
            Finding(
                id="live.proved",
                severity=Severity.INFO,
                summary=f"{len(held)} of {len(PROOFS)} things that protection rests on were tried, and work",
                evidence=f"tried in {sandbox}: {'; '.join(held)}",
                why="a capability or a file that is there does not mean that it works: it was done",
                fix="nothing has to be done",
            )
        )
    return found
