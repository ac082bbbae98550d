"""What the guard said last, checked and frozen, and who wants to know when it changes.

:func:`parse` never trusts the other side: a message with a missing or wrong field gives None and the last good state
stays. :class:`Station` numbers every announcement of a usable worker (*epoch*), so that "the same worker again" and
"still the one that just failed" are told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tidegate.gateway.assemble import MOST, Json, Object
from tidegate.gateway.flight import Cause
from tidegate.policy.admission import Board, Gate
from tidegate.policy.level import Level

#: Worker states in which it answers requests.
_ANSWERING = frozenset({"ready", "draining"})
#: Worker states of an ordered end. After a death that nobody ordered the guard says `backoff`, or goes straight on to
#: the next generation.
_LEAVING = frozenset({"draining", "stopping"})
#: More than the deaths that one request can have seen.
_MOST_CAUSES = 64
_LEVELS = {level.label: level for level in Level}


@dataclass(frozen=True)
class Worker:
    """The worker as announced; ``url`` is ``unix:PATH``, ``http://HOST:PORT`` or empty, sizes are tokens."""

    state: str = ""
    generation: int = 0
    profile: str = ""
    url: str = ""
    context: int = 0
    slots: int = 1
    message: str = ""
    #: How generations ended by themselves, the last few.
    deaths: tuple[tuple[int, Cause], ...] = ()


@dataclass(frozen=True)
class GuardState:
    """One state message. ``retry_after_s`` is seconds, 0 when the guard gave none."""

    board: Board = field(default_factory=Board)
    worker: Worker = field(default_factory=Worker)
    reason: str = ""
    retry_after_s: float = 0.0
    raw: Object = field(default_factory=dict, compare=False)

    def relevant(self) -> tuple[Board, Worker, str]:
        """What changes the lot of a request; the rest (bytes, times) changes several times a second."""
        return self.board, self.worker, self.reason


def parse(message: Json) -> GuardState | None:
    """The state in a ``state`` message's value, or None if it is not one."""
    if not isinstance(message, dict):
        return None
    worker = message.get("worker")
    try:
        level, gate = _LEVELS[str(message.get("level"))], Gate(str(message.get("gate")))
    except (KeyError, ValueError):
        return None
    if not isinstance(worker, dict):
        return None
    seen = Worker(
        state=_text(worker.get("state")),
        generation=_number(worker.get("generation"), 0),
        profile=_text(worker.get("profile")),
        url=_text(worker.get("url")),
        context=_number(worker.get("context"), 0),
        slots=_number(worker.get("slots"), 1),
        message=_text(worker.get("message")),
        deaths=_deaths(worker.get("deaths")),
    )
    if not _can_be_reached(seen.url):
        return None
    override = message.get("context_override")
    defaults = Board()
    board = Board(
        level=level,
        gate=gate,
        ready=seen.state in _ANSWERING and bool(seen.url),
        context=seen.context,
        slots=seen.slots,
        best_context=_number(message.get("best_context"), 0),
        warn_context=_number(message.get("warn_context"), defaults.warn_context) or defaults.warn_context,
        override=None if override is None else _number(override, 0) or None,
        critical_prompt=_number(message.get("critical_prompt"), defaults.critical_prompt),
    )
    return GuardState(board, seen, _text(message.get("reason")), seconds(message.get("retry_after_s")) or 0.0, message)


def seconds(value: Json) -> float | None:
    """``value`` as a time; None if it is none."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST
    return float(value) if good and isinstance(value, (int, float)) else None


def _can_be_reached(url: str) -> bool:
    try:
        return url.startswith("unix:") or urlsplit(url).port != 0
    except ValueError:
        return False


def _deaths(value: Json) -> tuple[tuple[int, Cause], ...]:
    found = []
    for entry in value if isinstance(value, list) else []:
        generation, cause = (entry.get("generation"), entry.get("cause")) if isinstance(entry, dict) else (None, None)
        if isinstance(generation, int) and cause in list(Cause):
            found.append((generation, Cause(str(cause))))
    return tuple(found)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Json, default: int) -> int:
    """``value`` as a count; ``default`` if it is none (a bool is an int to Python, but no count)."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


class Station:
    """The last state and its listeners."""

    def __init__(self) -> None:
        self.state = GuardState()
        self.epoch = 0
        #: The last generation for which the guard ordered a change while it was alive: its losses are no crashes.
        self.ordered_generation = -1
        #: How generations ended that nobody ended.
        self.causes: dict[int, Cause] = {}
        self._fresh = True
        self._listeners: list[Callable[[GuardState, GuardState], None]] = []

    def listen(self, listener: Callable[[GuardState, GuardState], None]) -> None:
        """Call ``listener(before, after)`` at every new state, in the order of the calls to this method."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[GuardState, GuardState], None]) -> None:
        """The opposite of :meth:`listen`."""
        self._listeners.remove(listener)

    def reconnected(self) -> None:
        """The guard's socket was opened anew: its first state announces the worker again."""
        self._fresh = True

    def update(self, after: GuardState) -> None:
        """Take a new state and tell everyone."""
        before = self.state
        self.state = after
        self.causes.update(after.worker.deaths)
        while len(self.causes) > _MOST_CAUSES:
            del self.causes[min(self.causes)]
        was, new = before.board.usable, after.board.usable
        moved = (before.worker.generation, before.worker.url) != (after.worker.generation, after.worker.url)
        if new and (moved or not was or self._fresh):
            self.epoch += 1
        if new:
            self._fresh = False
        if after.board.gate is Gate.DRAIN or after.worker.state in _LEAVING:
            self.ordered_generation = after.worker.generation
        for listener in list(self._listeners):
            listener(before, after)
