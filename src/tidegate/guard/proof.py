"""Did a step give back what it promised? From its first moment until the new worker is ready."""

from __future__ import annotations

import time

from tidegate.guard.actions import EFFECTIVE, FAILED, INEFFECTIVE, Action, ActionLog
from tidegate.policy.ladder import EFFECTIVE_SHARE
from tidegate.units import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.guard.judge import Judge
    from tidegate.guard.log import Log
    from tidegate.policy.ladder import Step


class Proof:
    """Follows one step after the other, and keeps the log of actions. Times are monotonic seconds."""

    def __init__(self, judge: Judge, log: Log) -> None:
        self.actions = ActionLog()
        self._judge = judge
        self._log = log
        self._began: float | None = None
        self._axis, self._before = "", 0

    def begin(self, step: Step, now: float) -> None:
        """``step`` begins: what the nearest axis holds now is what its promise is measured against."""
        self._log.warning(f"step {step.label}: {step.reason}", expected=format_size(step.expected_bytes))
        self.actions.begin(Action(round(time.time(), 3), step.label, step.reason, step.expected_bytes))
        near = self._judge.nearest
        self._began, self._axis, self._before = now, near.name, near.used

    @property
    def freed(self) -> int:
        """Bytes by which the step's axis has fallen since its beginning, by the last look."""
        after = self._judge.used_on(self._axis)
        return 0 if self._began is None or after is None else max(0, self._before - after)

    def is_given(self, step: Step) -> bool:
        """Whether the bytes of ``step`` came back, by the last look."""
        return self.freed >= EFFECTIVE_SHARE * step.expected_bytes

    def close(self, *, effective: bool, freed: int) -> None:
        """The old worker is gone."""
        action = self.actions.amend(freed_bytes=freed, result=EFFECTIVE if effective else INEFFECTIVE)
        self._log.info(f"step {action.step} freed {format_size(freed)} ({action.result})")

    def over(self, now: float) -> float | None:
        """The new worker is ready, or nothing runs any more: seconds since the step began, or None without one."""
        if self._began is None:
            return None
        took, self._began = now - self._began, None
        self.actions.amend(took_ms=round(took * 1000))
        return took

    def fail(self) -> None:
        """The new worker does not start."""
        if self._began is not None:
            self._began = None
            self.actions.amend(result=FAILED)
