"""The guard: look, judge, take at most one step, and let the next looks prove that the bytes came back."""

from __future__ import annotations

from tidegate import engines
from tidegate.guard.attached_worker import AttachedWorker
from tidegate.guard.fencing import Fencing
from tidegate.guard.gateway_link import GatewayLink
from tidegate.guard.group_watch import GroupWatch
from tidegate.guard.health import PATROL_S, Health
from tidegate.guard.idle import IdleWatch
from tidegate.guard.inspection import Inspection
from tidegate.guard.judge import Judge, WorkerFacts
from tidegate.guard.known_bytes import KnownBytes
from tidegate.guard.own_worker import OwnWorker
from tidegate.guard.protection import Protection
from tidegate.guard.reactor import PRIORITY
from tidegate.guard.steps import Steps
from tidegate.guard.worker_control import Owner, WorkerControl
from tidegate.policy import forecast
from tidegate.policy.diagnosis import Diagnosis
from tidegate.policy.level import Level
from tidegate.settings.model import ATTACHED
from tidegate.units import format_duration, format_size
from tidegate.worker.lifecycle import WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.guard.helper import Helper
    from tidegate.guard.log import Log
    from tidegate.guard.notify import Notifier
    from tidegate.guard.plan import Plan, ProfileBytes
    from tidegate.guard.reactor import Reactor
    from tidegate.guard.sensors import Sensors
    from tidegate.guard.state_file import WorkerRecord

#: Failures in a row after which a profile is given up for the next lower one.
_GIVE_UP_AFTER = 3
#: How long the first of two TERMs lets requests in flight end.
_STOP_DRAIN_S = 5.0
#: What an idle engine needs to leave on SIGTERM (0.03 s measured), with a margin for a slow board.
_STOP_GRACE_S = 1.0
#: The longest that the rule gives between SIGTERM and SIGKILL; and what a patrol gives, that cannot close the server's
#: connections: idle it leaves in 0.03 s, and busy not in 8 s, while it refuses everybody.
_STOP_GRACE_MOST_S = 2.0
_PATROL_GRACE_S = 0.3


class Guard:
    """Ties readings, policy and worker together. One thread; everything happens in :meth:`run`.

    ``groups`` is the v2 group below which each worker gets one of its own, or ""; ``no_fence`` is why the kernel's
    limits cannot be put there, or ""."""

    def __init__(
        self,
        plan: Plan,
        *,
        reactor: Reactor,
        sensors: Sensors,
        helper: Helper,
        log: Log,
        notifier: Notifier,
        groups: str = "",
        no_fence: str = "",
    ) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.reactor = reactor
        self.sensors = sensors
        self.log = log
        self.judge = Judge(sensors, plan.settings.memory, reactor.clock())
        self.known = KnownBytes(plan.profiles)
        self.exit_code: int | None = None
        self.looks = 0
        self.on_change: Callable[[], None] = lambda: None
        self._notifier = notifier
        self._stopping = False
        #: What the running worker held when it became ready; None where nobody saw that.
        self._ready_bytes: int | None = None
        self.steps = Steps(
            plan,
            judge=self.judge,
            known=self.known,
            log=log,
            clock=reactor.clock,
            # In front of an attached server the gateway lets what is in flight end and holds the rest, at any moment.
            quiet=lambda: self.quiet or (plan.attachment is not None and plan.gateway),
            changed=self._changed,
            relieve=self._relieve,
        )
        self._patrols = patrols = plan.attachment is not None and not plan.gateway
        self._health = Health(
            reactor,
            helper,
            self.steps.replace_failed,
            cpu=sensors.cpu_time,
            waited_for=lambda: None if patrols else not self.gateway.quiet,
        )
        self._fencing = Fencing(lambda: self.plan, self.known, sensors, log, why_not=no_fence)
        self._group_watch = GroupWatch(reactor, log, self.observe)
        self._groups = groups
        self._idle = IdleWatch(reactor, helper, self.observe)
        tied = not plan.supervised
        self.gateway = GatewayLink(
            plan,
            reactor=reactor,
            log=log,
            run_directory=plan.run_directory,
            tied=tied,
            lower_score=sensors.capabilities.lower_oom_score_adj,
            ledger_changed=self._ledger_changed,
            fault=self._engine_fault,
        )
        self.worker = self.steps.worker = self._make_worker(helper, tied=tied)
        self._protection = Protection(
            plan.settings.protect,
            plan.protected,
            reactor=reactor,
            log=log,
            calm=lambda: self.judge.level.level is Level.NORMAL,
            worker=lambda: self.worker.pids,
        )

    def _make_worker(self, helper: Helper, *, tied: bool) -> WorkerControl:
        plan, worker = self.plan, self.settings.worker
        engine = engines.create(worker, plan.python, plan.engine_flags)
        owner = Owner(
            profile=self.steps.profile,
            prompt_cache=self.steps.prompt_cache,
            changed=self._worker_changed,
            gone=self._worker_gone,
            bytes_are_back=self.steps.bytes_are_back,
            failed=self.steps.replace_failed,
            oom_kills=self.sensors.oom_kills,
            fence=self._fencing.put_around,
        )
        if plan.attachment is not None:
            inspection = Inspection(plan, reactor=self.reactor, log=self.log, told=self._inspected)
            return AttachedWorker(
                plan.attachment,
                worker.url,
                engine,
                owner,
                keen=plan.gateway,
                most_grace=_PATROL_GRACE_S if self._patrols else _STOP_GRACE_MOST_S,
                found=inspection.of,
                ours=lambda: (self.gateway.pid, inspection.pid),
                reactor=self.reactor,
                helper=helper,
                log=self.log,
            )
        return OwnWorker(
            worker,
            engine,
            owner,
            reactor=self.reactor,
            helper=helper,
            log=self.log,
            run_directory=plan.run_directory,
            groups=self._groups,
            tied=tied,
        )

    # --- life of the process ---

    def run(self) -> int:
        """Guard until told to stop; the exit code."""
        trigger = self.sensors.open_trigger()
        if trigger is not None:
            self.reactor.watch(trigger, PRIORITY, lambda mask: self._stalled(trigger, mask))
        if not self.worker.take_over(expected=self._is_ours):
            first = ATTACHED if self.plan.attachment is not None else self.steps.first_profile()
            if first is not None:
                self.worker.start(first)
        self.gateway.ensure()
        if not self.plan.observe:
            self._protection.begin()
        self.observe()
        while self.exit_code is None:
            self.reactor.run_once()
        return self.exit_code

    def stop(self) -> None:
        """First call: let requests in flight end, then stop. Second call: at once."""
        if self._stopping:
            self.gateway.kill()
            self._end_worker(0.0)
            return
        self._stopping = True
        self.log.info("stopping")
        self._notifier.stopping()
        self.gateway.stop(_STOP_DRAIN_S, lambda: self._end_worker(_STOP_GRACE_S))

    def _end_worker(self, grace: float) -> None:
        if self.worker.leave():
            self._fencing.restore()
            self.exit_code = 0
            return
        self.worker.change(None, drain=0.0, grace=grace)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._stopping and self.worker.life.state is WorkerState.PARKED and self.worker.child is None:
            self.exit_code = 0

    def _is_ours(self, record: WorkerRecord) -> bool:
        if self.steps.index_of(record.profile) is None:
            return False
        profile = self.steps.profile(record.profile)
        argv = self.worker.engine.argv(profile, prompt_cache=record.prompt_cache, endpoint=record.url)
        return tuple(argv) == record.argv

    def adopt(self, plan: Plan) -> None:
        """Put new settings in force. The running worker keeps its shape until its next start, if its profile stays."""
        self.plan, self.settings, self.steps.plan = plan, plan.settings, plan
        self.judge.memory = plan.settings.memory
        self.sensors.budget = plan.settings.memory.budget
        self.log.level, self.log.format = plan.settings.log.level, plan.settings.log.format
        if plan.attachment is None:
            self.known.replan(plan.profiles)
            profile = self.worker.life.profile
            if self.worker.group and profile is not None:
                # A budget that was raised must not end in the memory.max of the old one.
                self._fencing.put_around(self.worker.group, profile)
        self.worker.reload(plan.settings.worker, engines.create(plan.settings.worker, plan.python, plan.engine_flags))
        self.on_change()
        self.observe()

    # --- the kernel's fences ---

    def _relieve(self) -> None:
        """A worker that is throttled to death would not even hear a SIGTERM: the brake comes off first."""
        if self.judge.diagnosis is Diagnosis.LIVELOCK:
            self._fencing.lift()

    def _follow(self, pids: tuple[int, ...]) -> None:
        self.sensors.follow(pids, self.worker.group)
        self._group_watch.follow(self.sensors.group)

    # --- looking ---

    @property
    def quiet(self) -> bool:
        """Nothing in flight. Without a gateway nobody counts: then an attached worker's slots tell, else the worker's
        bytes standing still is the sign."""
        if self.plan.gateway:
            return self.gateway.quiet
        return self._idle.idle if self.worker.url and self.plan.attachment else not self.judge.worker_moved

    @property
    def at_rest(self) -> bool:
        """Level normal, nothing in flight, and the worker neither loads nor stops."""
        settled = self.worker.life.state in (WorkerState.READY, WorkerState.PARKED, WorkerState.BACKOFF)
        if self.judge.level.level is not Level.NORMAL:
            return False
        # A patrol does not see the requests that make its worker grow: with one there it never rests.
        return self.worker.waiting or (settled and self.quiet and not self._patrols)

    def observe(self) -> None:
        """One look and what follows from it."""
        self.looks += 1
        if self.sensors.group != self._group_watch.directory:
            # It was found in another group, or its group has gone and come back.
            self._group_watch.follow(self.sensors.group)
        now = self.reactor.clock()
        life = self.worker.life
        planned = self.known.planned(life.profile)
        facts = WorkerFacts(
            loading=life.state is WorkerState.STARTING,
            known_bytes=self.known.of(life.profile),
            burst_bytes=2 * planned.entry if planned is not None and self.worker.prompt_cache else 0,
        )
        if self.judge.observe(now, facts):
            self._level_changed()
        # What a server of somebody else's grows by may be its prompt cache: it is not learned as its need.
        own = self.plan.attachment is None
        if own and life.state is WorkerState.READY and self.judge.last.worker is not None:
            self.known.observe(life.profile, self.judge.worker_bytes, cached=self.worker.prompt_cache > 0)
        if not self._stopping:
            self.steps.decide(now)
        self._look_again()

    def _changed(self) -> None:
        self.on_change()

    def _announce(self) -> None:
        """Tell the gateway, those who wait, and the service manager what changed."""
        self.on_change()
        life, near = self.worker.life, self.judge.nearest
        shape = life.profile or "nothing"
        level = self.judge.level.level.label
        self._notifier.status(f"{level}: {shape} {life.state.value}, {near.ratio:.0%} of {near.name} in use")

    def _look_again(self) -> None:
        pause = forecast.next_look(self.judge.headroom, self.settings.memory.interval, rest=self.at_rest)
        self.reactor.after("look", pause, self.observe)

    def _stalled(self, trigger: int, mask: int) -> None:
        if mask & ~PRIORITY:
            self.reactor.unwatch(trigger)
            self.log.warning("the kernel took the PSI trigger back")
        self.observe()

    def _ledger_changed(self) -> None:
        # A request has begun or ended: the pace of looking changes with it. And a client that asks one thing after the
        # other leaves gaps of milliseconds: only a look at once sees the quiet that a step up needs.
        self.reactor.after("look", 0.0, self.observe)
        self._watch_worker()

    def _engine_fault(self) -> None:
        life = self.worker.life
        if life.state is WorkerState.READY:
            self._health.fault(self.worker.url, life.generation)

    def _watch_worker(self) -> None:
        """Ask the worker for signs of life while somebody waits for it; without a gateway that is always."""
        life, url = self.worker.life, self.worker.url
        ready = life.state is WorkerState.READY and bool(url)
        if ready and self._patrols:
            self._health.watch(url, life.generation, every=PATROL_S)
            self._idle.watch(url if self.judge.level.level is not Level.NORMAL else "")
            return
        self._idle.watch("")
        if ready and not self.gateway.quiet:
            self._health.watch(url, life.generation)
        else:
            self._health.rest()

    def _level_changed(self) -> None:
        level, near = self.judge.level.level, self.judge.nearest
        self.log.write(
            "info" if level is Level.NORMAL else "warning",
            f"level {level.label}: {near.name} at {near.ratio:.1%}, {format_size(near.available)} left",
            {"diagnosis": self.judge.diagnosis.value},
        )
        self.steps.level_changed(level)
        self._watch_worker()
        self._announce()

    # --- the worker's news ---

    def _worker_gone(self) -> None:
        self._follow(())
        self._fencing.restore()
        self.judge.worker_is_gone(self.reactor.clock())
        self.steps.worker_gone()

    def _worker_changed(self) -> None:
        life = self.worker.life
        match life.state:
            case WorkerState.READY:
                self._worker_is_ready()
            case WorkerState.STARTING:
                self._follow(self.worker.pids)
            case WorkerState.BACKOFF:
                self._worker_failed()
            case WorkerState.PARKED:
                self.steps.over()
            case WorkerState.DRAINING if not self.plan.gateway:
                self.worker.drain_by_slots()
            case WorkerState.DRAINING if self.gateway.peer is None:
                # Its requests ended with the gateway, and nobody will ever say that it is drained.
                self.reactor.after("undrained", 0.0, lambda: self.worker.drained(life.generation))
            case _:
                pass
        self._watch_worker()
        self._announce()
        self._look_again()
        self._end_if_over()

    def _worker_is_ready(self) -> None:
        profile, fresh = self.worker.life.profile, self.worker.fresh
        self._fencing.check(self.worker.group)
        self._follow(self.worker.pids)
        self.judge.glance(self.reactor.clock())
        size = self.judge.worker_bytes
        self._ready_bytes = size if fresh else None
        self.sensors.cold_file = self.known.cold_file(profile, self._ready_bytes)
        self.judge.worker_is_ready(self.reactor.clock())
        if fresh:
            self.known.ready(profile, size)
        else:
            self.known.seen(profile, size)
        took = self.steps.over()
        after = "" if took is None else f", {format_duration(took)} after the step"
        self.log.info(f"worker {self.worker.pid} ready, profile {profile}, {format_size(size)}{after}")

    def _inspected(self, planned: ProfileBytes, prompt_cache: int) -> None:
        """An attached worker's command line was read."""
        self.known.inspected(ATTACHED, planned)
        self.worker.prompt_cache = prompt_cache
        self.sensors.cold_file = self.known.cold_file(ATTACHED, self._ready_bytes)
        self.on_change()

    def _worker_failed(self) -> None:
        life = self.worker.life
        self.log.error(f"worker failed, {max(life.failures, life.kills)} in a row: {life.message}")
        if life.failures >= _GIVE_UP_AFTER:
            self.reactor.after("give up", 0.0, self._give_up)

    def _give_up(self) -> None:
        if self.worker.life.state is WorkerState.BACKOFF:
            self.steps.give_up(stopping=self._stopping)
