"""Which messages of a conversation stay when it has to fit fewer tokens. Pure.

A conversation is cut at whole *turns*: a user message and everything up to the next one, so that roles still
alternate and a tool call never loses its result (an orphaned tool message is a 400 in most chat templates).
The oldest turns go first. What always stays: every system or developer message, and the last user message with all
that follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True)
class Piece:
    """One message: its role and what it costs, in tokens (>= 0)."""

    role: str
    cost: int


@dataclass(frozen=True)
class Trimmed:
    """What stays: ``keep`` are indices into the conversation in their order, ``cost`` is their tokens."""

    keep: tuple[int, ...]
    dropped: int
    cost: int


def trim(messages: Sequence[Piece], limit: int, *, fixed: int = 0) -> Trimmed:
    """Drop the oldest turns of ``messages`` until they and ``fixed`` (tools, template) cost at most ``limit`` tokens.

    The result may still cost more: what always stays is never dropped. Trimming a result again with the same
    limit changes nothing.
    """
    turns = _droppable_turns(messages)
    cost = fixed + sum(piece.cost for piece in messages)
    gone: set[int] = set()
    for turn in turns:
        if cost <= limit:
            break
        gone.update(turn)
        cost -= sum(messages[index].cost for index in turn)
    keep = tuple(index for index in range(len(messages)) if index not in gone)
    return Trimmed(keep=keep, dropped=len(gone), cost=cost)


def may_trim(roles: Sequence[str]) -> bool:
    """Whether a limit that is low enough makes :func:`trim` drop any of the messages with these roles."""
    last_user = max((index for index, role in enumerate(roles) if role == "user"), default=0)
    return any(role not in _SYSTEM_ROLES for role in roles[:last_user])


def _droppable_turns(messages: Sequence[Piece]) -> list[list[int]]:
    """The turns that may go, oldest first, as lists of indices."""
    last_user = max((index for index, piece in enumerate(messages) if piece.role == "user"), default=None)
    if last_user is None:
        # Nobody asked anything: there is no turn to keep whole and none that is safe to cut.
        return []
    turns: list[list[int]] = []
    for index in range(last_user):
        role = messages[index].role
        if role in _SYSTEM_ROLES:
            continue
        # What comes before the first user message (a greeting) is a turn of its own.
        if role == "user" or not turns:
            turns.append([])
        turns[-1].append(index)
    return turns
