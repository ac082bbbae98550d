"""What a check has to say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """``CRITICAL``: the board will go down, or protection is not there. ``WARNING``: it will hurt under pressure.
    ``INFO``: worth knowing; it does not make the exit code 1."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Finding:
    """One thing found.

    ``id`` is stable, "check.what". ``summary`` names the kernel's own term or file key; ``evidence`` is what was read,
    and where; ``why`` is what it leads to on this board; ``fix`` is the exact command or file line.
    """

    id: str
    severity: Severity
    summary: str
    evidence: str
    why: str
    fix: str

    def to_json(self) -> dict[str, str]:
        """The finding as ``doctor --json`` prints it."""
        return {
            "id": self.id,
            "severity": self.severity.value,
            "summary": self.summary,
            "evidence": self.evidence,
            "why": self.why,
            "fix": self.fix,
        }
