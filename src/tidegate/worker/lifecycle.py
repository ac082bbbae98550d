"""The life of the worker as a pure state machine: one method an event, effects out, no clock and no process here.

Every method returns the effects that the shell has to carry out, in order. What cannot happen in a state is ignored by
an explicit default: a late exit of an older generation, a timer that fired while it was being cancelled.
The diagram in docs/design.md is written from this machine by a test.
"""

from __future__ import annotations

from enum import StrEnum

from tidegate.frozen import frozen

#: Failures that are followed by an immediate new start; from the next one on the wait doubles.
FREE_FAILURES = 2
FIRST_BACKOFF_S = 1.0
MOST_BACKOFF_S = 60.0
#: The longest wait where somebody else kills it while it loads: requests are held for 60 s, and lost after that.
KILLED_BACKOFF_S = 5.0
#: A worker that leaves by itself sooner than this after it was ready has failed, later it has merely ended.
QUICK_S = 5.0
#: SIGKILL is repeated this often until the process is gone: a task in uninterruptible sleep takes it when it wakes.
KILL_AGAIN_S = 1.0


class WorkerState(StrEnum):
    """As in the status document."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    PARKED = "parked"


class Gate(StrEnum):
    """What the gateway may send: docs/guard-socket.md."""

    OPEN = "open"
    DRAIN = "drain"
    HOLD = "hold"
    REFUSE = "refuse"


@frozen
class Spawn:
    """Start ``profile`` as ``generation`` and watch for its readiness."""

    profile: str
    generation: int


@frozen
class Terminate:
    """Send SIGTERM to ``generation``."""

    generation: int


@frozen
class Kill:
    """SIGKILL everything of ``generation`` and let the kernel take its memory at once."""

    generation: int


@frozen
class Arm:
    """(Re)start the one life-cycle timer: after ``seconds`` call the method that its ``name`` says."""

    name: str
    seconds: float


@frozen
class Disarm:
    """Stop the life-cycle timer."""


@frozen
class Gone:
    """The old worker is gone and its memory is back; ``generation`` was it."""

    generation: int


Effect = Spawn | Terminate | Kill | Arm | Disarm | Gone


@frozen
class Next:
    """What follows when the running worker is gone: a profile, or nothing (parked)."""

    profile: str | None


class Lifecycle:
    """State, generation and what is to come next. ``message`` says why the last worker failed.

    ``load_timeout`` is seconds; None for a worker that somebody else starts: it takes its time and its failures are
    not ours to pace, so it is waited for, in ``starting``, without a timer and without a back-off."""

    def __init__(self, *, load_timeout: float | None, generation: int = 0) -> None:
        self._load_timeout = load_timeout
        self._grace = 0.0
        self.state = WorkerState.PARKED
        self.generation = generation
        self.profile: str | None = None
        self.failures = 0
        #: Foreign SIGKILLs in a row while it loaded.
        self.kills = 0
        self.message = ""
        self.next: Next | None = None
        self._failed = False

    @property
    def gate(self) -> Gate:
        """What requests may do now."""
        match self.state:
            case WorkerState.READY:
                return Gate.OPEN
            case WorkerState.DRAINING:
                return Gate.DRAIN
            case WorkerState.PARKED:
                return Gate.REFUSE
            case _:
                return Gate.HOLD

    def start(self, profile: str) -> list[Effect]:
        """Begin with ``profile``: from parked, or at once instead of a back-off."""
        match self.state:
            case WorkerState.PARKED | WorkerState.BACKOFF:
                return [Disarm(), *self._spawn(profile)]
            case _:
                return []

    def adopt(self, profile: str, generation: int) -> list[Effect]:
        """Take over a live worker of an earlier guard; it must prove itself ready like a new one."""
        match self.state:
            case WorkerState.PARKED:
                self.generation, self.profile = generation, profile
                self.state = WorkerState.STARTING
                return [] if self._load_timeout is None else [Arm("load_elapsed", self._load_timeout)]
            case _:
                return []

    def ready(self, generation: int) -> list[Effect]:
        """The worker answered a health check and a one-token completion."""
        match self.state:
            case WorkerState.STARTING if generation == self.generation:
                self.state = WorkerState.READY
                self.message = ""
                self.kills = 0
                return [Disarm()]
            case _:
                return []

    def exited(self, generation: int, *, why: str, ready_for: float | None, foreign_kill: bool) -> list[Effect]:
        """The worker's process ended. ``ready_for`` is for how many seconds it had been ready (None: never);
        ``foreign_kill`` is a SIGKILL that neither we nor the kernel's OOM killer sent."""
        if generation != self.generation:
            return []
        match self.state:
            case WorkerState.STARTING if foreign_kill and self._load_timeout is not None:
                # Says nothing of the profile; but whoever kills it again and again while it loads is given time.
                self.kills += 1
                self.message = why
                self.state = WorkerState.BACKOFF
                return [Arm("backoff_elapsed", self.pause)]
            case WorkerState.STARTING:
                return self._fail(why)
            case WorkerState.READY:
                assert self.profile is not None
                patient = self._load_timeout is None
                if patient or foreign_kill or (ready_for is not None and ready_for >= QUICK_S):
                    self.message = why
                    self.failures = 0 if not foreign_kill else self.failures
                    return [Gone(generation), *self._spawn(self.profile)]
                return self._fail(why)
            case WorkerState.DRAINING:
                # The rest of its group may live on: stop it by the rule, only quicker.
                self.state = WorkerState.STOPPING
                return [Kill(generation), Arm("kill_elapsed", KILL_AGAIN_S)]
            case _:
                return []

    def change(self, following: str | None, *, drain: float, grace: float) -> list[Effect]:
        """Replace the worker by ``following`` (None: park) after at most ``drain`` seconds of requests in flight and
        ``grace`` seconds between SIGTERM and SIGKILL (0: SIGKILL at once)."""
        match self.state:
            case WorkerState.READY if drain > 0:
                self.next = Next(following)
                self.state = WorkerState.DRAINING
                self._grace = grace
                return [Arm("drain_elapsed", drain)]
            case WorkerState.READY | WorkerState.STARTING:
                self.next = Next(following)
                return self._stop(grace)
            case WorkerState.DRAINING:
                self.next = Next(following)
                return self._stop(grace) if drain <= 0 else []
            case WorkerState.STOPPING:
                self.next = Next(following)
                self._failed = False
                return []
            case WorkerState.BACKOFF | WorkerState.PARKED:
                if following is None:
                    self.state = WorkerState.PARKED
                    self.profile = None
                    return [Disarm()]
                return [Disarm(), *self._spawn(following)]

    def drained(self, generation: int) -> list[Effect]:
        """The gateway has nothing in flight on ``generation`` any more."""
        match self.state:
            case WorkerState.DRAINING if generation == self.generation:
                return self._stop(self._grace)
            case _:
                return []

    def drain_elapsed(self) -> list[Effect]:
        """The drain took its whole time."""
        match self.state:
            case WorkerState.DRAINING:
                return self._stop(self._grace)
            case _:
                return []

    def load_elapsed(self) -> list[Effect]:
        """The worker was not ready in time."""
        match self.state:
            case WorkerState.STARTING:
                self._failed = True
                self.message = "it was not ready in time"
                assert self.profile is not None
                self.next = Next(self.profile)
                return self._stop(0.0)
            case _:
                return []

    def kill_elapsed(self) -> list[Effect]:
        """SIGTERM did not end it in time, or SIGKILL has not been obeyed yet."""
        match self.state:
            case WorkerState.STOPPING:
                return [Kill(self.generation), Arm("kill_elapsed", KILL_AGAIN_S)]
            case _:
                return []

    def emptied(self, generation: int) -> list[Effect]:
        """Nothing of the worker is left and its bytes came back."""
        match self.state:
            case WorkerState.STOPPING if generation == self.generation:
                following, self.next = self.next, None
                if self._failed:
                    self._failed = False
                    return [Gone(generation), *self._fail(self.message)]
                if following is None or following.profile is None:
                    self.state = WorkerState.PARKED
                    self.profile = None
                    return [Disarm(), Gone(generation)]
                return [Gone(generation), *self._spawn(following.profile)]
            case _:
                return []

    def backoff_elapsed(self) -> list[Effect]:
        """The wait after a failure is over."""
        match self.state:
            case WorkerState.BACKOFF if self.profile is not None:
                return self._spawn(self.profile)
            case _:
                return []

    def proved(self) -> None:
        """The worker has been ready long enough: earlier failures are forgotten."""
        if self.state is WorkerState.READY:
            self.failures = 0

    @property
    def pause(self) -> float:
        """Seconds to wait before the next start, after the failures and kills so far."""
        return max(backoff(self.failures), min(backoff(self.kills), KILLED_BACKOFF_S))

    def _spawn(self, profile: str) -> list[Effect]:
        self.generation += 1
        self.profile = profile
        self.state = WorkerState.STARTING
        if self._load_timeout is None:
            return [Spawn(profile, self.generation), Disarm()]
        return [Spawn(profile, self.generation), Arm("load_elapsed", self._load_timeout)]

    def _stop(self, grace: float) -> list[Effect]:
        self.state = WorkerState.STOPPING
        if grace <= 0:
            return [Kill(self.generation), Arm("kill_elapsed", KILL_AGAIN_S)]
        return [Terminate(self.generation), Arm("kill_elapsed", grace)]

    def _fail(self, why: str) -> list[Effect]:
        self.failures += 1
        self.message = why
        if self._load_timeout is None:
            assert self.profile is not None
            return self._spawn(self.profile)
        self.state = WorkerState.BACKOFF
        return [Arm("backoff_elapsed", self.pause)]


def backoff(failures: int) -> float:
    """Seconds to wait after the ``failures``-th failure running: 0, 0, 1, 2, 4 ... 60."""
    if failures <= FREE_FAILURES:
        return 0.0
    return min(FIRST_BACKOFF_S * 2.0 ** min(failures - FREE_FAILURES - 1, 10), MOST_BACKOFF_S)


def stop_grace(time_to_limit: float) -> float:
    """Seconds between SIGTERM and SIGKILL: min(2 s, half the time to the limit), and none below 0.3 s."""
    if time_to_limit < 0.3:
        return 0.0
    return min(2.0, time_to_limit / 2)
