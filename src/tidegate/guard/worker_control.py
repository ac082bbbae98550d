"""Carries out what the life cycle says: proves the worker ready, stops it by the rule, sees it gone."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial

from tidegate.engines import llama_api
from tidegate.frozen import frozen
from tidegate.guard.reactor import READ
from tidegate.units import format_duration
from tidegate.worker import lifecycle
from tidegate.worker.lifecycle import Lifecycle, WorkerState
from tidegate.worker.process import release_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.engines.base import Engine
    from tidegate.guard.helper import Helper
    from tidegate.guard.log import Log
    from tidegate.guard.reactor import Reactor
    from tidegate.guard.state_file import WorkerRecord
    from tidegate.settings.model import Profile, WorkerSettings
    from tidegate.worker.foreign import Foreign
    from tidegate.worker.process import Child

#: Between two tries of the readiness probe. A try on a socket that is not there yet costs 0.1 ms, an answer that it is
#: loading some milliseconds of both processes on a slow board, which the load lacks.
_PROBE_EVERY_S = 0.01
_PROBE_LOADING_S = 0.04
_PROBE_TIMEOUT_S = 10.0
#: A load that has taken this long is not over within the next milliseconds.
_PROBE_KEENLY_S = 15.0
_PROBE_SLOWLY_S = 0.25
#: A pipe holds 64 KiB, so four reads and the end of it are all that a dead engine can have left.
_LAST_READS = 5
_SLOTS_EVERY_S = 0.05
_SLOTS_TIMEOUT_S = 1.0
#: Between two looks at whether a killed group is empty and its bytes are back.
_SETTLE_EVERY_S = 0.005
#: A gateway that was away for a moment still learns of each.
_DEATHS_KEPT = 8
#: The kernel's counters follow an exit within milliseconds; longer than this a neighbour has eaten the bytes.
_SETTLE_MOST_S = 0.5


@frozen
class Owner:
    """What the guard's loop is asked and told. ``bytes_are_back`` is asked after the worker's last process ended;
    ``failed`` is told the generation that does not serve, and why; ``fence`` puts the kernel's limits on the cgroup of
    a profile's worker."""

    profile: Callable[[str], Profile]
    prompt_cache: Callable[[str], int]
    changed: Callable[[], None]
    gone: Callable[[], None]
    bytes_are_back: Callable[[], bool]
    failed: Callable[[int, str], None]
    oom_kills: Callable[[], int | None]
    fence: Callable[[str, str], None]


class HungError(Exception):
    """A starting worker is silent, which is not what loading looks like."""


class WorkerControl:
    """The one worker. How it comes to be is the subclasses' part: :meth:`_spawn`. ``keen``: somebody waits to hear that
    it is ready, so every millisecond counts more than the CPU time that the questions cost the load."""

    def __init__(
        self,
        engine: Engine,
        owner: Owner,
        *,
        load_timeout: float | None,
        reactor: Reactor,
        helper: Helper,
        log: Log,
        keen: bool = True,
    ) -> None:
        self.life = Lifecycle(load_timeout=load_timeout)
        self.engine = engine
        self.url = ""
        self.child: Child | Foreign | None = None
        self.ready_at: float | None = None
        self.prompt_cache = 0
        #: The running worker's shape, which a reload does not change.
        self.shape: Profile | None = None
        self._owner = owner
        self._reactor = reactor
        self._helper = helper
        self._log = log
        self._keen = keen
        self._cancel_probe = threading.Event()
        self._oom_kills: int | None = None
        #: Generations that ended by themselves, and how; the last few.
        self.deaths: tuple[tuple[int, str], ...] = ()
        self._settle_until: float | None = None

    @property
    def pid(self) -> int | None:
        return None if self.child is None else self.child.pid

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes whose memory is the worker's; () without one."""
        raise NotImplementedError

    @property
    def group(self) -> str:
        """The directory of the worker's own v2 cgroup, or ""."""
        return "" if self.child is None else self.child.group

    @property
    def fresh(self) -> bool:
        """Whether the worker was started under our eyes: then what it holds when it is ready is what it needs."""
        return True

    @property
    def armed(self) -> bool:
        """Whether the worker may be ended: somebody starts it again."""
        return True

    @property
    def waiting(self) -> bool:
        """Whether there is no worker and it is not ours to bring one."""
        return False

    def reload(self, settings: WorkerSettings, engine: Engine) -> None:
        """Use new settings from the next start on."""
        raise NotImplementedError

    def take_over(self, *, expected: Callable[[WorkerRecord], bool]) -> bool:
        """Adopt the live worker of an earlier guard if ``expected`` says it is right, else end it. True: adopted."""
        raise NotImplementedError

    def leave(self) -> bool:
        """The guard ends. True: the worker is not ours to end, and was let go."""
        return False

    def start(self, profile: str) -> None:
        """Start the first worker, or one out of parking."""
        self.apply(self.life.start(profile))

    def change(self, following: str | None, *, drain: float, grace: float) -> None:
        """Replace the worker: docs at :meth:`Lifecycle.change`."""
        self.apply(self.life.change(following, drain=drain, grace=grace))

    def drain_by_slots(self) -> None:
        """Without a gateway nobody says when nothing is in flight: ask the engine until its slots are idle.

        An engine that does not answer that is drained by time.
        """
        generation, url = self.life.generation, self.url

        def done(busy: object) -> None:
            if self.life.state is WorkerState.DRAINING and generation == self.life.generation and busy == 0:
                self.drained(generation)
            else:
                self._reactor.after("slots", _SLOTS_EVERY_S, again)

        def again() -> None:
            if self.life.state is WorkerState.DRAINING and generation == self.life.generation:
                self._helper.submit(lambda: llama_api.busy_slots(url, timeout=_SLOTS_TIMEOUT_S), done)

        again()

    def drained(self, generation: int) -> None:
        """The gateway has nothing in flight any more."""
        self.apply(self.life.drained(generation))

    def apply(self, effects: list[lifecycle.Effect]) -> None:
        """Carry out ``effects``, then tell the owner that the state changed."""
        for effect in effects:
            match effect:
                case lifecycle.Spawn(profile, generation):
                    self._spawn(profile, generation)
                case lifecycle.Terminate():
                    self._cancel_probe.set()
                    if self.child is not None:
                        self._log.debug(f"stopping worker {self.child.pid}")
                        self.child.terminate()
                case lifecycle.Kill():
                    self._kill()
                case lifecycle.Arm(name, seconds):
                    self._reactor.after("worker", seconds, partial(self._elapsed, name))
                case lifecycle.Disarm():
                    self._reactor.cancel("worker")
                case lifecycle.Gone():
                    self._detach()
                    self._owner.gone()
        if effects:
            self._owner.changed()

    def _elapsed(self, name: str) -> None:
        match name:
            case "load_elapsed":
                self.apply(self.life.load_elapsed())
            case "drain_elapsed":
                self.apply(self.life.drain_elapsed())
            case "kill_elapsed":
                self.apply(self.life.kill_elapsed())
            case "backoff_elapsed":
                self.apply(self.life.backoff_elapsed())
            case "proved":
                self.life.proved()
            case _:
                raise AssertionError(name)

    def _spawn(self, name: str, generation: int) -> None:
        raise NotImplementedError

    def _output(self) -> None:
        """Read what the worker printed, if that is ours to read."""

    def _forget(self, child: Child | Foreign) -> None:
        """``child`` is gone and its descriptors are closed."""

    def _watch(self, child: Child | Foreign) -> None:
        self._reactor.watch(child.pidfd, READ, lambda _mask: self._ended())

    def _unwatch(self, child: Child | Foreign) -> None:
        self._reactor.unwatch(child.pidfd)
        if child.output >= 0:
            self._reactor.unwatch(child.output)

    def _probe(self, generation: int) -> None:
        self._cancel_probe = cancel = threading.Event()
        is_ready = self._readiness()

        def job() -> bool:
            keen_until = self._reactor.clock() + _PROBE_KEENLY_S
            while not cancel.is_set():
                pause = _PROBE_LOADING_S
                try:
                    if is_ready(_PROBE_TIMEOUT_S):
                        return True
                except llama_api.WireError:
                    pause = _PROBE_EVERY_S
                keen = self._keen and self._reactor.clock() < keen_until
                cancel.wait(pause if keen else _PROBE_SLOWLY_S)
            return False

        def done(result: object) -> None:
            if generation != self.life.generation or self.life.state is not WorkerState.STARTING:
                return
            if result is True:
                self._became_ready(generation)
            elif isinstance(result, HungError):
                self._is_hung()

        self._helper.submit(job, done)

    def _readiness(self) -> Callable[[float], bool]:
        """What the helper thread asks the starting worker, with a time-out in seconds, until it is true."""
        url = self.url
        return lambda timeout: llama_api.is_ready(url, timeout=timeout)

    def _is_hung(self) -> None:
        """The starting worker takes connections and answers none."""

    def _became_ready(self, generation: int) -> None:
        self.ready_at = self._reactor.clock()
        self.apply(self.life.ready(generation))
        self._reactor.after("proved", lifecycle.QUICK_S, lambda: self._elapsed("proved"))

    def _kill(self) -> None:
        self._cancel_probe.set()
        child = self.child
        if child is None:
            return
        child.kill()
        # In the other thread: freeing gigabytes takes a core for 100s of ms, and the loop has to look meanwhile.
        # The pidfd is a copy, for ours may be closed by then.
        try:
            pidfd = os.dup(child.pidfd)
        except OSError:
            return
        self._helper.submit(lambda: release_memory(pidfd), lambda _result: None)

    def _ended(self) -> None:
        child = self.child
        if child is None or not child.reap():
            return
        self._cancel_probe.set()
        self._reactor.unwatch(child.pidfd)
        # Its last words are the reason.
        for _ in range(_LAST_READS):
            self._output()
        if self.life.state in (WorkerState.STOPPING, WorkerState.DRAINING):
            self.apply(self.life.exited(self.life.generation, why=self._why(child), ready_for=None, foreign_kill=False))
            self._settle_until = self._reactor.clock() + _SETTLE_MOST_S
            self._settle()
            return
        # Whatever it left behind in its group would hold memory and the socket.
        child.kill()
        ready_for = None if self.ready_at is None else self._reactor.clock() - self.ready_at
        why = self._why(child)
        cause = self._cause(child)
        self.deaths = (*self.deaths, (self.life.generation, cause))[-_DEATHS_KEPT:]
        foreign = cause == "killed"
        self._log.warning(f"worker {child.pid} {why}", ready_for=format_duration(ready_for or 0))
        self._detach()
        self.apply(self.life.exited(self.life.generation, why=why, ready_for=ready_for, foreign_kill=foreign))

    def _settle(self) -> None:
        """Stopped means: nothing of it is left, and the bytes came back (or clearly will not)."""
        child = self.child
        if child is None or self.life.state is not WorkerState.STOPPING:
            return
        late = self._settle_until is not None and self._reactor.clock() >= self._settle_until
        if not child.is_empty():
            child.kill()
        elif late or self._owner.bytes_are_back():
            self._settle_until = None
            self.apply(self.life.emptied(self.life.generation))
            return
        self._reactor.after("settle", _SETTLE_EVERY_S, self._settle)

    def _cause(self, child: Child | Foreign) -> str:
        """How it ended by itself: one of docs/guard-socket.md's causes."""
        if self._owner.oom_kills() != self._oom_kills and child.status in (None, -signal.SIGKILL):
            return "oom"
        if child.status is None:
            return "unknown"
        return "killed" if child.status == -signal.SIGKILL else "crashed"

    def _why(self, child: Child | Foreign) -> str:
        status = child.status
        if status is None:
            # Nobody's parent but its own learns the status; the kernel's counter is the other witness.
            how = "ended" if self._owner.oom_kills() == self._oom_kills else "ended, and the kernel's OOM killer struck"
        elif status < 0:
            name = signal.Signals(-status).name if -status in signal.valid_signals() else str(-status)
            killer = ""
            if status == -signal.SIGKILL and self._owner.oom_kills() != self._oom_kills:
                killer = " by the kernel's OOM killer"
            how = f"was killed{killer} ({name})"
        else:
            how = f"exited with status {status}"
        # A SIGKILL gives no last words: the lines that are there say nothing of it.
        last = "" if status == -signal.SIGKILL else " | ".join(list(child.lines)[-3:])
        return f"{how}: {last}" if last else how

    def _detach(self) -> None:
        child, self.child = self.child, None
        if child is None:
            return
        self._unwatch(child)
        child.close()
        for timer in ("output", "settle", "proved"):
            self._reactor.cancel(timer)
        self._forget(child)
        self.url = ""
        self.ready_at = None
