"""Carries out what the life cycle says: starts the engine, proves it ready, stops it by the rule, sees it gone."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from functools import partial

from tidegate.engines import llama_api
from tidegate.engines.base import worker_environment
from tidegate.frozen import frozen
from tidegate.guard import state_file
from tidegate.guard.reactor import READ
from tidegate.host import process as host_process
from tidegate.units import format_duration
from tidegate.worker import lifecycle
from tidegate.worker.group import make_group
from tidegate.worker.lifecycle import Lifecycle, WorkerState
from tidegate.worker.process import Child, release_memory, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.engines.base import Engine
    from tidegate.guard.helper import Helper
    from tidegate.guard.log import Log
    from tidegate.guard.reactor import Reactor
    from tidegate.settings.model import Profile, WorkerSettings

#: Between two tries of the readiness probe. A try on a socket that is not there yet costs 0.1 ms.
_PROBE_EVERY_S = 0.01
_PROBE_TIMEOUT_S = 10.0
#: Between two reads of the engine's output: one that floods it must not cost more than 1 % of a core.
_OUTPUT_EVERY_S = 0.05
#: A pipe holds 64 KiB, so four reads and the end of it are all that a dead engine can have left.
_LAST_READS = 5
_SLOTS_EVERY_S = 0.05
_SLOTS_TIMEOUT_S = 1.0
#: Between two looks at whether a killed group is empty and its bytes are back.
_SETTLE_EVERY_S = 0.005
#: The kernel's counters follow an exit within milliseconds; longer than this a neighbour has eaten the bytes.
_SETTLE_MOST_S = 0.5
#: sun_path of unix(7), less the NUL.
_MOST_SOCKET_PATH = 107


@frozen
class Owner:
    """What the guard's loop is asked and told. ``bytes_are_back`` is asked after the worker's last process ended."""

    profile: Callable[[str], Profile]
    prompt_cache: Callable[[str], int]
    changed: Callable[[], None]
    gone: Callable[[], None]
    bytes_are_back: Callable[[], bool]
    oom_kills: Callable[[], int | None]


class WorkerControl:
    """The one worker. ``tied`` makes it die with the guard; otherwise it is recorded for the next guard. ``groups`` is
    the v2 group below which each worker gets one of its own, or empty."""

    def __init__(
        self,
        settings: WorkerSettings,
        engine: Engine,
        owner: Owner,
        *,
        reactor: Reactor,
        helper: Helper,
        log: Log,
        run_directory: str,
        groups: str,
        tied: bool,
    ) -> None:
        self.life = Lifecycle(load_timeout=settings.load_timeout)
        self.engine = engine
        self.url = ""
        self.child: Child | None = None
        self.ready_at: float | None = None
        self.prompt_cache = 0
        #: The running worker's shape, which a reload does not change.
        self.shape: Profile | None = None
        self._settings = settings
        self._owner = owner
        self._reactor = reactor
        self._helper = helper
        self._log = log
        self._run_directory = run_directory
        self._state_path = os.path.join(run_directory, state_file.WORKER)
        self._groups = groups
        self._tied = tied
        self._argv: tuple[str, ...] = ()
        self._cancel_probe = threading.Event()
        self._oom_kills: int | None = None
        self._settle_until: float | None = None
        self._state_trouble = ""

    @property
    def pid(self) -> int | None:
        return None if self.child is None else self.child.pid

    def reload(self, settings: WorkerSettings, engine: Engine) -> None:
        """Use new settings from the next start on."""
        self._settings, self.engine = settings, engine

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

    def take_over(self, *, expected: Callable[[state_file.WorkerRecord], bool]) -> bool:
        """Adopt the live worker of an earlier guard if ``expected`` says it is right, else end it. True: adopted."""
        record = state_file.load(self._state_path)
        if record is None or not host_process.is_alive(host_process.ProcessId(record.pid, record.start_time)):
            return False
        try:
            child = Child(record.pid, output=-1, group=record.group)
        except OSError:
            return False
        if not self._tied and expected(record):
            self.child, self.url, self._argv, self.prompt_cache = child, record.url, record.argv, record.prompt_cache
            self.shape = self._owner.profile(record.profile)
            self._watch(child)
            self._log.info(f"took over worker {record.pid}, profile {record.profile}")
            self.apply(self.life.adopt(record.profile, record.generation))
            self._probe(record.generation)
            return True
        self._log.warning(f"ending worker {record.pid} of an earlier guard")
        child.kill()
        deadline = self._reactor.clock() + 10
        while not child.is_empty() and self._reactor.clock() < deadline:
            time.sleep(_SETTLE_EVERY_S)
        child.close()
        return False

    def apply(self, effects: list[lifecycle.Effect]) -> None:
        """Carry out ``effects``, then tell the owner that the state changed."""
        for effect in effects:
            match effect:
                case lifecycle.Spawn(profile, generation):
                    self._spawn(profile, generation)
                case lifecycle.Terminate():
                    self._cancel_probe.set()
                    if self.child is not None:
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
        self.shape = profile = self._owner.profile(name)
        self.url = self._endpoint(generation)
        self.ready_at = None
        self.prompt_cache = self._owner.prompt_cache(name)
        self._argv = tuple(self.engine.argv(profile, prompt_cache=self.prompt_cache, endpoint=self.url))
        self._oom_kills = self._owner.oom_kills()
        try:
            self.child = start(
                list(self._argv),
                oom_score_adj=self._settings.oom_score_adj,
                death_signal=self._tied,
                environment=worker_environment(os.environ),
                group=make_group(self._groups, f"tidegate-worker-{os.getpid()}-{generation}") if self._groups else "",
            )
        except OSError as error:
            why = f"cannot start {self._argv[0]}: {error.strerror}"
            self._reactor.after("spawn", 0, lambda: self._never_started(generation, why))
            return
        self._watch(self.child)
        self._record(self.child, name, generation)
        self._log.debug(f"starting worker {self.child.pid}, profile {name}", generation=generation)
        self._probe(generation)

    def _never_started(self, generation: int, why: str) -> None:
        self._log.error(why)
        effects = self.life.exited(generation, why=why, ready_for=None, foreign_kill=False)
        # An order that came in between waits for the end of a process that never was.
        self.apply(effects or self.life.emptied(generation))

    def _endpoint(self, generation: int) -> str:
        path = os.path.join(self._run_directory, f"worker-{generation}.sock")
        if self.engine.capabilities.unix_socket and len(os.fsencode(path)) <= _MOST_SOCKET_PATH:
            _remove(path)
            return f"unix:{path}"
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", 0))
            return f"http://127.0.0.1:{probe.getsockname()[1]}"

    def _watch(self, child: Child) -> None:
        self._reactor.watch(child.pidfd, READ, lambda _mask: self._ended())
        self._watch_output()

    def _watch_output(self) -> None:
        if self.child is not None and self.child.output >= 0:
            self._reactor.watch(self.child.output, READ, lambda _mask: self._output())

    def _unwatch(self, child: Child) -> None:
        self._reactor.unwatch(child.pidfd)
        if child.output >= 0:
            self._reactor.unwatch(child.output)

    def _output(self) -> None:
        if self.child is None or self.child.output < 0:
            return
        self._reactor.unwatch(self.child.output)
        for line in self.child.read_output():
            self._log.debug(f"engine: {line}")
        self._reactor.after("output", _OUTPUT_EVERY_S, self._watch_output)

    def _probe(self, generation: int) -> None:
        self._cancel_probe = cancel = threading.Event()
        url = self.url

        def job() -> bool:
            while not cancel.is_set():
                try:
                    if llama_api.is_ready(url, timeout=_PROBE_TIMEOUT_S):
                        return True
                except llama_api.WireError:
                    pass
                cancel.wait(_PROBE_EVERY_S)
            return False

        def done(result: object) -> None:
            if result is True and generation == self.life.generation and self.life.state is WorkerState.STARTING:
                self._became_ready(generation)

        self._helper.submit(job, done)

    def _became_ready(self, generation: int) -> None:
        self.ready_at = self._reactor.clock()
        self.apply(self.life.ready(generation))
        self._reactor.after("proved", lifecycle.QUICK_S, lambda: self._elapsed("proved"))

    def _record(self, child: Child, profile: str, generation: int) -> None:
        # From the start on, not from ready on: a guard that dies during a load must not leave an orphan.
        identity = None if self._tied else host_process.read_process_id(child.pid)
        if identity is not None:
            self._save(
                state_file.WorkerRecord(
                    child.pid,
                    identity.start_time,
                    generation,
                    profile,
                    self.url,
                    child.group,
                    self._argv,
                    self.prompt_cache,
                )
            )

    def _save(self, record: state_file.WorkerRecord | None) -> None:
        trouble = state_file.save(self._state_path, record)
        if trouble and trouble != self._state_trouble:
            self._log.warning(trouble)
        self._state_trouble = trouble

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
        foreign = child.status == -signal.SIGKILL and self._owner.oom_kills() == self._oom_kills
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

    def _why(self, child: Child) -> str:
        status = child.status
        if status is None:
            how = "ended"
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
        self._reactor.cancel("output")
        self._reactor.cancel("settle")
        self._reactor.cancel("proved")
        if self.url.startswith("unix:"):
            _remove(self.url.removeprefix("unix:"))
        self.url = ""
        self.ready_at = None
        if not self._tied:
            self._save(None)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
