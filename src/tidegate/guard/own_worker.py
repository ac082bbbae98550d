"""The worker that the guard starts itself: command line, cgroup, socket, output, and a record for the next guard."""

from __future__ import annotations

import os
import socket
import time

from tidegate.engines.base import worker_environment
from tidegate.guard import state_file
from tidegate.guard.reactor import READ
from tidegate.guard.worker_control import Owner, WorkerControl
from tidegate.host import process as host_process
from tidegate.worker.group import make_group
from tidegate.worker.process import Child, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.engines.base import Engine
    from tidegate.guard.helper import Helper
    from tidegate.guard.log import Log
    from tidegate.guard.reactor import Reactor
    from tidegate.settings.model import WorkerSettings
    from tidegate.worker.foreign import Foreign

#: Between two reads of the engine's output: one that floods it must not cost more than 1 % of a core.
_OUTPUT_EVERY_S = 0.05
#: How long an earlier guard's worker may take to go, and between two looks at it.
_ENDING_S = 10.0
_ENDING_EVERY_S = 0.005
#: sun_path of unix(7), less the NUL.
_MOST_SOCKET_PATH = 107


class OwnWorker(WorkerControl):
    """``tied`` makes the worker die with the guard; otherwise it is recorded for the next guard. ``groups`` is the v2
    group below which each worker gets one of its own, or empty."""

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
        super().__init__(engine, owner, load_timeout=settings.load_timeout, reactor=reactor, helper=helper, log=log)
        self._settings = settings
        self._run_directory = run_directory
        self._state_path = os.path.join(run_directory, state_file.WORKER)
        self._groups = groups
        self._tied = tied
        self._argv: tuple[str, ...] = ()
        self._state_trouble = ""

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self.child is None else (self.child.pid, *host_process.find_children(self.child.pid))

    def reload(self, settings: WorkerSettings, engine: Engine) -> None:
        self._settings, self.engine = settings, engine

    def take_over(self, *, expected: Callable[[state_file.WorkerRecord], bool]) -> bool:
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
            if child.group:
                self._owner.fence(child.group, record.profile)
            self._watch(child)
            self._log.info(f"took over worker {record.pid}, profile {record.profile}")
            self.apply(self.life.adopt(record.profile, record.generation))
            self._probe(record.generation)
            return True
        self._log.warning(f"ending worker {record.pid} of an earlier guard")
        child.kill()
        deadline = self._reactor.clock() + _ENDING_S
        while not child.is_empty() and self._reactor.clock() < deadline:
            time.sleep(_ENDING_EVERY_S)
        child.close()
        return False

    def _spawn(self, name: str, generation: int) -> None:
        self.shape = profile = self._owner.profile(name)
        self.url = self._endpoint(generation)
        self.ready_at = None
        self.prompt_cache = self._owner.prompt_cache(name)
        self._argv = tuple(self.engine.argv(profile, prompt_cache=self.prompt_cache, endpoint=self.url))
        self._oom_kills = self._owner.oom_kills()
        group = make_group(self._groups, f"tidegate-worker-{os.getpid()}-{generation}") if self._groups else ""
        # Before anything lives in it: lowering a limit on what is used would reclaim, or kill, on our time.
        self._owner.fence(group, name)
        try:
            child = start(
                list(self._argv),
                oom_score_adj=self._settings.oom_score_adj,
                death_signal=self._tied,
                environment=worker_environment(os.environ),
                group=group,
            )
        except OSError as error:
            why = f"cannot start {self._argv[0]}: {error.strerror}"
            self._reactor.after("spawn", 0, lambda: self._never_started(generation, why))
            return
        self.child = child
        self._watch(child)
        self._watch_output()
        self._record(child, name, generation)
        self._log.debug(f"starting worker {child.pid}, profile {name}", generation=generation)
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

    def _watch_output(self) -> None:
        if self.child is not None and self.child.output >= 0:
            self._reactor.watch(self.child.output, READ, lambda _mask: self._output())

    def _output(self) -> None:
        if self.child is None or self.child.output < 0:
            return
        self._reactor.unwatch(self.child.output)
        for line in self.child.read_output():
            self._log.debug(f"engine: {line}")
        self._reactor.after("output", _OUTPUT_EVERY_S, self._watch_output)

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

    def _forget(self, child: Child | Foreign) -> None:
        if self.url.startswith("unix:"):
            _remove(self.url.removeprefix("unix:"))
        if not self._tied:
            self._save(None)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
