"""All checks over one look."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tidegate.doctor.board import Board, look
from tidegate.doctor.checks import (
    boot,
    cma,
    engines,
    hierarchy,
    hugepages,
    limits,
    livelock,
    low_memory,
    outside,
    overcommit,
    panic,
    protection,
    readings,
    reclaim,
    rivals,
    swap,
    units,
    victims,
    weights,
)
from tidegate.doctor.finding import Finding, Severity
from tidegate.doctor.memory import MemorySummary, summarise
from tidegate.doctor.sysroot import safe_copy

#: In the order in which findings of the same severity are shown.
CHECKS: tuple[Callable[[Board], Iterable[Finding]], ...] = (
    readings.check,
    boot.check,
    hierarchy.check,
    livelock.check,
    limits.check,
    overcommit.check,
    panic.check,
    outside.check,
    cma.check,
    swap.check,
    weights.check,
    low_memory.check,
    hugepages.check,
    engines.check,
    victims.check,
    protection.check,
    units.check,
    rivals.check,
    reclaim.check,
)


@dataclass(frozen=True)
class Report:
    """What a board has, and what is wrong with it, worst first."""

    memory: MemorySummary
    findings: tuple[Finding, ...]

    @property
    def is_fine(self) -> bool:
        """Nothing of warning or above."""
        return all(finding.severity is Severity.INFO for finding in self.findings)

    def with_findings(self, more: Iterable[Finding]) -> Report:
        """A copy with ``more``, in its place by severity."""
        return Report(self.memory, _ordered([*more, *self.findings]))

    def to_json(self) -> dict[str, Any]:
        """The document of ``doctor --json``."""
        return {"memory": self.memory.to_json(), "findings": [finding.to_json() for finding in self.findings]}


def examine(board: Board) -> Report:
    """Every check over ``board``. Never raises: a check that fails is a finding itself and keeps no other away."""
    found: list[Finding] = []
    for check in CHECKS:
        try:
            found += check(board)
        except Exception as error:
            found.append(_broken(check, error))
    return Report(summarise(board), _ordered(found))


def examine_tree(root: str | None) -> Report:
    """The report on the tree ``root``, or on this machine.

    Raises:
        TidegateError: ``root`` is no directory, or cannot be copied.
    """
    if root is None:
        return examine(look())
    with safe_copy(root) as copy:
        board = look(copy)
    return examine(board)


def _ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: finding.severity.rank))


def _broken(check: Callable[[Board], Iterable[Finding]], error: Exception) -> Finding:
    name = check.__module__.rpartition(".")[2]
    return Finding(
        id=f"{name}.failed",
        severity=Severity.WARNING,
        summary=f"the check {name} could not judge what it read",
        evidence=f"{type(error).__name__}: {error}",
        why="what it would have found is not in this report",
        fix="report it as a bug of tidegate, with the output of: tidegate doctor --json",
    )
