"""Is the worker alive? From what it answers, what its slots show and the CPU time it uses. Pure.

A long prefill is silent for a minute and looks like a hang to a client, so silence alone is no sign. llama-server's
HTTP threads answer ``/health`` while it generates (8.7 ms median, 43 ms at most), its ``/slots`` move with every batch,
and it burns CPU; a deadlocked one does none of the last two.
"""

from __future__ import annotations

from enum import StrEnum

from tidegate.frozen import frozen

#: One silence may be a board that stalls on its storage for some seconds.
MOST_SILENCES = 2
#: Work that shows no progress and takes no CPU for this long is suspect.
STUCK_S = 10.0
#: With a busy CPU: the slowest batch, 256 tokens at 3 tokens/s on a Raspberry Pi that swaps its weights.
SPINNING_S = 90.0
#: Share of one core below which a process does nothing: HTTP threads that wake up take less than 1 %.
_IDLE_SHARE = 0.02


class Verdict(StrEnum):
    """``SILENT``: it answers nothing. ``SUSPECT``: it answers, but does nothing: ask it for one token."""

    ALIVE = "alive"
    SILENT = "silent"
    SUSPECT = "suspect"


@frozen
class Beat:
    """One question and its answer. ``time`` is monotonic seconds; ``working`` is whether requests are with the worker;
    ``progress`` is anything that changes when slots move (None: not to be had); ``cpu`` is its CPU time in seconds."""

    time: float
    answered: bool
    working: bool
    progress: int | None
    cpu: float


@frozen
class Pulse:
    """What is remembered between two beats."""

    silences: int = 0
    last: Beat | None = None
    stuck_since: float | None = None
    idle: bool = True


def feel(pulse: Pulse, beat: Beat) -> tuple[Pulse, Verdict]:
    """The new memory and what to think of the worker."""
    if not beat.answered:
        silences = pulse.silences + 1
        verdict = Verdict.SILENT if silences >= MOST_SILENCES else Verdict.ALIVE
        return Pulse(silences, pulse.last, pulse.stuck_since, pulse.idle), verdict
    last = pulse.last
    if last is None or not beat.working or not last.working or beat.progress != last.progress:
        return Pulse(last=beat), Verdict.ALIVE
    idle = beat.cpu - last.cpu < _IDLE_SHARE * (beat.time - last.time)
    if beat.progress is None and not idle:
        # Without slots to look at, a busy CPU is all the progress that can be seen.
        return Pulse(last=beat), Verdict.ALIVE
    since = pulse.stuck_since if pulse.stuck_since is not None else last.time
    idle = idle and pulse.idle
    stuck = beat.time - since >= (STUCK_S if idle else SPINNING_S)
    return Pulse(0, beat, since, idle), Verdict.SUSPECT if stuck else Verdict.ALIVE
