"""May a request go to the worker now, and in what shape? Pure: the guard's state and a request in, a decision out.

| level, gate | what a request gets |
|---|---|
| normal | pass; ``max_tokens`` capped to what the context holds; trimmed only if memory has reduced the context |
| warn | trimmed to ``warn_context``, one request at a time |
| critical | a prompt above ``critical_prompt`` is refused at once, a short one is treated as at warn |
| gate ``drain`` or ``hold``, or no worker | queued (and at critical a long prompt refused at once) |
| gate ``refuse`` | refused |

A higher level never gives a friendlier decision for the same request (:class:`Action` is in that order).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from tidegate.policy.level import Level

# Room for an answer that a *reduced* context must leave before history is given up for it: an eighth of the context,
# but no more than 128 tokens. A client that fills a context of full size chose to do so, and is left alone.
_ANSWER_SHARE = 8
_ANSWER_MOST = 128
_NO_LIMIT = 1 << 30


class Gate(StrEnum):
    """What the guard lets through to the worker (docs/guard-socket.md)."""

    OPEN = "open"
    DRAIN = "drain"
    HOLD = "hold"
    REFUSE = "refuse"


class Action(IntEnum):
    """What happens to a request, friendliest first."""

    PASS = 0
    TRIM = 1
    QUEUE = 2
    REFUSE = 3


class Why(StrEnum):
    """The reason of a refusal."""

    NONE = ""
    TOO_LONG = "too_long"  # for the best profile: for ever
    TOO_LONG_NOW = "too_long_now"  # for the worker as memory has reduced it
    PRESSURE = "memory_pressure"  # a long prompt at critical
    CLOSED = "closed"  # the guard said refuse


@dataclass(frozen=True)
class Board:
    """What the guard said last, as far as admission needs it. Sizes are tokens, ``override`` None when unset."""

    level: Level = Level.NORMAL
    gate: Gate = Gate.HOLD
    ready: bool = False
    context: int = 0
    slots: int = 1
    best_context: int = 0
    warn_context: int = 1024
    override: int | None = None
    critical_prompt: int = 256

    @property
    def usable(self) -> bool:
        """A request may be sent to the worker at this moment."""
        return self.gate is Gate.OPEN and self.ready

    @property
    def reduced(self) -> bool:
        """Memory has cost the worker some of the context that its best profile has."""
        return self.context < self.best_context


@dataclass(frozen=True)
class Ask:
    """One request. ``max_tokens`` is None when the client left it to us.

    ``exact`` says that the engine itself counted ``prompt_tokens``; an estimate never leads to a final refusal for
    length. ``can_trim`` is False once nothing more can be dropped. ``admitted`` marks a request that was sent before
    and lost its worker: it is not refused for being long at critical, since the new worker was planned for it.
    """

    prompt_tokens: int
    exact: bool
    can_trim: bool
    max_tokens: int | None = None
    admitted: bool = False


@dataclass(frozen=True)
class Decision:
    """``limit`` is tokens the prompt is to be trimmed to (TRIM); ``max_tokens`` is what to ask the engine for (PASS).

    ``max_tokens`` None leaves the engine's own bound; ``capped`` says that the answer may end earlier than the
    client could expect from the best profile.
    """

    action: Action
    why: Why = Why.NONE
    limit: int = 0
    max_tokens: int | None = None
    capped: bool = False


def places(board: Board) -> int:
    """How many requests may be with the worker at once: its slots, but one at a time above normal."""
    return max(1, board.slots) if board.level is Level.NORMAL else 1


def admit(board: Board, ask: Ask) -> Decision:
    """The decision for ``ask`` while ``board`` holds."""
    longest = max(board.best_context, board.context)
    if ask.exact and longest > 0 and ask.prompt_tokens >= longest:
        return Decision(Action.REFUSE, Why.TOO_LONG)
    if board.gate is Gate.REFUSE:
        return Decision(Action.REFUSE, Why.CLOSED)
    if board.level is Level.CRITICAL and ask.prompt_tokens > board.critical_prompt and not ask.admitted:
        return Decision(Action.REFUSE, Why.PRESSURE)
    if not board.usable:
        return Decision(Action.QUEUE)
    limit = prompt_limit(board)
    if ask.prompt_tokens > limit and ask.can_trim:
        return Decision(Action.TRIM, limit=limit)
    if ask.exact and board.context > 0 and ask.prompt_tokens >= board.context:
        return Decision(Action.REFUSE, Why.TOO_LONG_NOW)
    return _capped(board, ask)


def prompt_limit(board: Board) -> int:
    """Tokens that a prompt with history to spare is trimmed to at this moment.

    With all its context and no pressure nothing is trimmed: a prompt that does not fit then never fits.
    """
    if board.level is Level.NORMAL and board.override is None and not board.reduced:
        return _NO_LIMIT
    limit = board.context - 1 if board.context > 0 else _NO_LIMIT
    if board.reduced:
        limit -= min(_ANSWER_MOST, board.context // _ANSWER_SHARE)
    if board.override is not None:
        limit = min(limit, board.override)
    if board.level is not Level.NORMAL:
        limit = min(limit, board.warn_context)
    return max(1, limit)


def fits_surely(board: Board, most_tokens: int, max_tokens: int | None) -> bool:
    """A prompt of ``most_tokens`` at the very most passes as it is, so that nobody has to count it."""
    limit = min(prompt_limit(board), board.context - 1)
    if board.level is Level.CRITICAL:
        limit = min(limit, board.critical_prompt)
    return most_tokens <= limit and (max_tokens is None or most_tokens + max_tokens <= board.context)


def _capped(board: Board, ask: Ask) -> Decision:
    passed = Decision(Action.PASS, max_tokens=ask.max_tokens)
    if board.context <= 0:
        return passed
    if not ask.exact:
        # The engine ends at its own context; a cap from an estimate would cut answers that had room.
        return passed if ask.max_tokens is not None else replace(passed, max_tokens=board.context, capped=board.reduced)
    room = max(1, board.context - ask.prompt_tokens)
    if ask.max_tokens is None:
        return replace(passed, max_tokens=room, capped=board.reduced)
    if ask.max_tokens > room:
        return replace(passed, max_tokens=room, capped=True)
    return passed
