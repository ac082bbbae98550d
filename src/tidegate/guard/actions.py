"""The last actions and what came of them, as the status shows them."""

from __future__ import annotations

from collections import deque

from tidegate.frozen import as_json, frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEPT = 32

PENDING = "pending"
EFFECTIVE = "effective"
INEFFECTIVE = "ineffective"
FAILED = "failed"


@frozen
class Action:
    """One step. ``time`` is Unix seconds; ``took_ms`` runs until the new worker is ready (or nothing is left)."""

    time: float
    step: str
    reason: str
    expected_bytes: int
    freed_bytes: int = 0
    took_ms: int = 0
    result: str = PENDING

    def to_json(self) -> dict[str, Any]:
        return dict(as_json(self))


class ActionLog:
    """The last ``KEPT`` actions, oldest first."""

    def __init__(self) -> None:
        self._actions: deque[Action] = deque(maxlen=KEPT)

    def begin(self, action: Action) -> None:
        """Append ``action``."""
        self._actions.append(action)

    def amend(self, **changes: Any) -> Action:
        """Change the newest action, and return it."""
        self._actions[-1] = replace(self._actions[-1], **changes)
        return self._actions[-1]

    def to_json(self) -> list[dict[str, Any]]:
        return [action.to_json() for action in self._actions]
