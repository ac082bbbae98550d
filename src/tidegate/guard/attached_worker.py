"""A worker that somebody else starts: found, watched, ended by the rule, and found again after its restart."""

from __future__ import annotations

import os

from tidegate.engines import llama_api
from tidegate.frozen import replace
from tidegate.guard.reactor import READ
from tidegate.guard.worker_control import HungError, Owner, WorkerControl
from tidegate.host import cgroup, process
from tidegate.policy.pulse import MOST_SILENCES
from tidegate.settings.model import ATTACHED
from tidegate.units import format_duration, format_size
from tidegate.worker import foreign
from tidegate.worker.foreign import Foreign
from tidegate.worker.lifecycle import WorkerState, backoff
from tidegate.worker.process import Child, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.engines.base import Engine
    from tidegate.guard.helper import Helper
    from tidegate.guard.log import Log
    from tidegate.guard.plan import Attachment
    from tidegate.guard.reactor import Reactor
    from tidegate.guard.state_file import WorkerRecord
    from tidegate.settings.model import WorkerSettings

#: Between two searches: a cgroup is one file, a command's name means every process of the board (3 ms with 150).
_SEARCH_GROUP_S = 0.02
_SEARCH_PROCESS_S = 0.1
#: After this long without a worker somebody has stopped it: the search becomes a patrol.
_SEARCH_KEENLY_S = 15.0
_SEARCH_SLOWLY_S = 1.0
#: Ends before being ready that are followed by a search at once.
_FREE_CRASHES = 3
#: How long a process that is new has precedence over one that was there beside the last worker.
_PREFER_NEW_S = 10.0
_PROPERTIES_TIMEOUT_S = 5.0
_HEALTH_TIMEOUT_S = 5.0
_HUNG_AGAIN_S = 30.0
#: systemctl without --no-block waits for the unit's start, which is the load of a model.
_RESTART_TIMEOUT_S = 120.0
#: Loading from an SD card gives 20 MB/s: a process that takes less than a MiB in 3 s does not load.
_SETTLED_S = 3.0
_BREATHING = 1 << 20
#: Processes of one worker that are read on the hot path.
_MOST_PROCESSES = 4


class AttachedWorker(WorkerControl):
    """``url`` is where it listens, "" if that is not known; ``most_grace`` is the longest time between SIGTERM and
    SIGKILL, in seconds. ``found`` is told the pid of every worker that is found and
    ready; ``ours`` gives the pids of the guard's own children, which are never the worker."""

    def __init__(
        self,
        attachment: Attachment,
        url: str,
        engine: Engine,
        owner: Owner,
        *,
        most_grace: float,
        keen: bool,
        found: Callable[[int], None],
        ours: Callable[[], tuple[int | None, ...]],
        reactor: Reactor,
        helper: Helper,
        log: Log,
    ) -> None:
        super().__init__(engine, owner, load_timeout=None, reactor=reactor, helper=helper, log=log, keen=keen)
        self.attachment = attachment
        #: Whether a signal of ours reaches the worker that was found.
        self.may_end = True
        self._url = url
        self._most_grace = most_grace
        self._found = found
        self._ours = ours
        self._matches: tuple[foreign.Match, ...] = ()
        self._beside: frozenset[process.ProcessId] = frozenset()
        self._searching_since = 0.0
        self._said = ""
        #: Whether none has been found yet; ``_was_there``: the present one was there when the guard started.
        self._first = True
        self._was_there = False
        #: Whether the end of the last worker was our order: then its restart is ours too.
        self._ordered = False
        self._restart: Child | None = None
        self._restart_again = False
        self._restart_failures = 0
        #: Workers running that ended before they were ready.
        self._crashes = 0

    @property
    def armed(self) -> bool:
        return self.attachment.armed and self.may_end

    @property
    def fresh(self) -> bool:
        return not self._was_there

    @property
    def pids(self) -> tuple[int, ...]:
        if self.child is None:
            return ()
        if self.attachment.kind == "process":
            return (self.child.pid, *process.find_children(self.child.pid))[:_MOST_PROCESSES]
        largest = tuple(match.pid for match in self._matches[:_MOST_PROCESSES])
        return largest if self.child.pid in largest else (self.child.pid, *largest)[:_MOST_PROCESSES]

    @property
    def waiting(self) -> bool:
        return self.child is None and self.life.state is WorkerState.STARTING

    def reload(self, settings: WorkerSettings, engine: Engine) -> None:
        """Nothing of an attached worker is ours to change."""

    def take_over(self, *, expected: Callable[[WorkerRecord], bool]) -> bool:
        """There is nothing to take over: an attached worker is found."""
        return False

    def leave(self) -> bool:
        child = self.child
        if child is not None and self.life.state is WorkerState.STOPPING:
            # Half an end is the worst: nobody would start it again.
            child.kill()
        elif child is not None:
            self._log.info(f"leaving worker {child.pid} as it is")
        for timer in ("search", "restart", "worker"):
            self._reactor.cancel(timer)
        self._cancel_probe.set()
        self._detach()
        if self._ordered and child is not None and self.life.state is WorkerState.STOPPING and self.attachment.restart:
            self._run_restart()
        return True

    def change(self, following: str | None, *, drain: float, grace: float) -> None:
        self._ordered = True
        most = 0.0 if self.attachment.by_kill else self._most_grace
        super().change(following, drain=drain, grace=min(grace, most))

    # -- finding it ---------------------------------------------------------------------------------------------

    def _spawn(self, name: str, generation: int) -> None:
        self.shape = self._owner.profile(name)
        self.url = ""
        self.ready_at = None
        kills, before = self._owner.oom_kills(), self._oom_kills
        self._oom_kills = kills
        self._searching_since = self._reactor.clock()
        # Whoever stopped it by hand does not want it back; the kernel has no such wish.
        struck = before is not None and kills != before
        if (self._ordered or struck) and self.attachment.restart:
            self._restart_failures = 0
            self._run_restart()
        self._ordered = False
        # One that crashes at every start is not worth twenty looks, and lines in the log, a second.
        self._crashes += 1
        pause = min(_SEARCH_SLOWLY_S, _SEARCH_GROUP_S * 2.0**self._crashes) if self._crashes > _FREE_CRASHES else 0.0
        self._reactor.after("search", pause, lambda: self._search(generation))
        if not pause:
            self._search(generation)

    def _search(self, generation: int) -> None:
        if generation != self.life.generation or self.child is not None:
            return
        match = self._choose(foreign.find(self.attachment))
        if match is not None:
            try:
                self._adopt(match, generation)
                return
            except OSError:
                # It has ended between the look and the open.
                pass
        searching = self._reactor.clock() - self._searching_since
        if searching > _SEARCH_KEENLY_S or (self._first and searching > 0):
            self._say_waiting(f"waiting for {self.attachment.label}: {self._absence()}")
        pause = _SEARCH_PROCESS_S if self.attachment.kind == "process" else _SEARCH_GROUP_S
        if searching > _SEARCH_KEENLY_S:
            pause = _SEARCH_SLOWLY_S
        self._reactor.after("search", pause, lambda: self._search(generation))

    def _choose(self, matches: tuple[foreign.Match, ...]) -> foreign.Match | None:
        """The largest one; but after a death the others that were there before are not its successor."""
        ours = self._ours()
        self._matches = matches = tuple(match for match in matches if match.pid not in ours)
        if self._reactor.clock() - self._searching_since < _PREFER_NEW_S:
            matches = tuple(match for match in matches if match.id not in self._beside)
        return matches[0] if matches else None

    def _absence(self) -> str:
        if self.attachment.kind == "process":
            return "no process has that name"
        if not cgroup.directories(self.attachment.group):
            return "it has no cgroup now" if self.attachment.kind == "cgroup" else "it is not running"
        return "there is no process in its cgroup"

    def _say_waiting(self, message: str) -> None:
        self.life.message = message
        if message != self._said:
            self._said = message
            self._log.warning(message)
            self._owner.changed()

    def _adopt(self, match: foreign.Match, generation: int) -> None:
        child = Foreign(match, group=self._group())
        self.child, self.url, self._said = child, self._url, ""
        if child.group:
            self._owner.fence(child.group, ATTACHED)
        self.may_end = child.may_be_ended()
        self._watch(child)
        self._reactor.cancel("restart")
        took = self._reactor.clock() - self._searching_since
        self._was_there = self._first and not self.life.message
        after = "" if self._first else f", {format_duration(took)} after the last one"
        self._log.info(f"found worker {match.pid} of {self.attachment.label}{after}")
        if self.attachment.kind == "process":
            self._beside = frozenset(other.id for other in self._matches if other.id != match.id)
            others = foreign.others((match, *(other for other in self._matches if other.id != match.id)))
            if others:
                self._log.warning(f"{match.pid} holds the most, {format_size(match.anon)}; not guarded: {others}")
        if not self.may_end:
            self._log.warning(f"may not signal worker {match.pid}, which is another user's: the kill is not armed")
        self._owner.changed()
        self._probe(generation)

    def _group(self) -> str:
        """The directory of the cgroup that is wholly the worker's, v2 first; "" for a process."""
        if self.attachment.kind == "process":
            return ""
        found = (directory for directory in cgroup.directories(self.attachment.group) if cgroup.members_of(directory))
        return next(found, "")

    # -- readiness ----------------------------------------------------------------------------------------------

    def _readiness(self) -> Callable[[float], bool]:
        url, child = self.url, self.child
        if not url:
            assert child is not None
            return _Settling(child.pid, self._reactor.clock) if not self._was_there else lambda _timeout: True
        if self._was_there:
            # It has been serving others: a token would only stand in its queue.
            return lambda timeout: llama_api.is_healthy(url, timeout=timeout)
        return _Readiness(url, self._reactor.clock)

    def _became_ready(self, generation: int) -> None:
        if self.attachment.kind != "process":
            self._look_again_at_group()
        self._first = False
        self._crashes = 0
        assert self.child is not None
        self._found(self.child.pid)
        if not self.url:
            super()._became_ready(generation)
            return
        url = self.url

        def done(answer: object) -> None:
            if generation != self.life.generation or self.life.state is not WorkerState.STARTING:
                return
            if isinstance(answer, llama_api.Properties):
                self.shape = replace(self._owner.profile(ATTACHED), context=answer.context, slots=max(1, answer.slots))
            super(AttachedWorker, self)._became_ready(generation)

        self._helper.submit(lambda: llama_api.properties(url, timeout=_PROPERTIES_TIMEOUT_S), done)

    def _is_hung(self) -> None:
        generation = self.life.generation
        # Where it may not be ended it is asked again.
        self._reactor.after("search", _HUNG_AGAIN_S, lambda: self._ask_again(generation))
        self._owner.failed(generation, "it takes connections and answers none")

    def _ask_again(self, generation: int) -> None:
        if generation == self.life.generation and self.life.state is WorkerState.STARTING and self.child is not None:
            self._probe(generation)

    def _look_again_at_group(self) -> None:
        """A shell that starts the engine is found first; now that it is ready the engine is the largest."""
        self._matches = foreign.find(self.attachment)
        if not self._matches or self.child is None or self._matches[0].pid == self.child.pid:
            return
        try:
            child = Foreign(self._matches[0], group=self._group())
        except OSError:
            return
        self._unwatch(self.child)
        self.child.close()
        self.child = child
        self._watch(child)

    # -- starting it again --------------------------------------------------------------------------------------

    def _run_restart(self) -> None:
        if self.child is not None:
            return
        if self._restart is not None:
            # A command that stays with its server ends with it, a moment later than the server itself.
            self._restart_again = True
            return
        command = self.attachment.restart
        try:
            child = start(
                list(command), oom_score_adj=0, death_signal=False, environment=dict(os.environ), capture=False
            )
        except OSError as error:
            self._restart_failed(error.strerror or str(error))
            return
        self._log.info(f"running {' '.join(command)}")
        self._restart = child
        self._reactor.watch(child.pidfd, READ, lambda _mask: self._restart_ended(child))
        self._reactor.after("restart", _RESTART_TIMEOUT_S, child.kill)

    def _restart_ended(self, child: Child) -> None:
        if not child.reap():
            return
        self._reactor.unwatch(child.pidfd)
        self._restart = None
        status = child.status
        child.close()
        again, self._restart_again = self._restart_again, False
        if self.child is not None:
            return
        self._reactor.cancel("restart")
        if again:
            self._run_restart()
        elif status != 0:
            self._restart_failed(f"status {status}")

    def _restart_failed(self, why: str) -> None:
        self._restart_failures += 1
        pause = max(1.0, backoff(self._restart_failures))
        self._say_waiting(f"cannot start {self.attachment.label} again: {self.attachment.restart[0]}: {why}")
        self._reactor.after("restart", pause, self._run_restart)


class _Readiness:
    """Health and one token, of a server whose clients may have come before us."""

    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        self._url = url
        self._clock = clock
        self._silences = 0

    def __call__(self, timeout: float) -> bool:
        """Whether it is ready.

        Raises:
            WireError: not reached yet.
            HungError: it was silent twice; while it loads it says so, or refuses the connection.
        """
        begun = self._clock()
        try:
            healthy = llama_api.is_healthy(self._url, timeout=_HEALTH_TIMEOUT_S)
        except llama_api.WireError:
            if self._clock() - begun >= _HEALTH_TIMEOUT_S:
                self._silences += 1
                if self._silences >= MOST_SILENCES:
                    raise HungError from None
            raise
        if not healthy:
            return False
        begun = self._clock()
        try:
            return llama_api.generates(self._url, timeout=timeout)
        except llama_api.WireError:
            # Its slots are busy with others, or it is wedged: its signs of life will tell.
            if self._clock() - begun >= timeout:
                return True
            raise


class _Settling:
    """Without a url nobody says when a server is ready: when its memory has stood still for a while."""

    def __init__(self, pid: int, clock: Callable[[], float]) -> None:
        self._pid = pid
        self._clock = clock
        self._most = 0
        self._since = clock()

    def __call__(self, _timeout: float) -> bool:
        memory = process.read_memory(self._pid)
        now, size = self._clock(), 0 if memory is None else memory.unreclaimable + memory.rss_file
        if size > self._most + _BREATHING:
            self._most, self._since = size, now
        return now - self._since >= _SETTLED_S
