"""The guard: look, judge, take at most one step, and let the next looks prove that the bytes came back."""

from __future__ import annotations

from tidegate import engines
from tidegate.frozen import replace
from tidegate.guard.gateway_link import GatewayLink
from tidegate.guard.health import Health
from tidegate.guard.judge import Judge, WorkerFacts
from tidegate.guard.known_bytes import KnownBytes
from tidegate.guard.proof import Proof
from tidegate.guard.reactor import PRIORITY
from tidegate.guard.worker_control import Owner, WorkerControl
from tidegate.policy import forecast, ladder
from tidegate.policy.ladder import LadderState, Situation, Step, StepKind, Tuning, WorkerPhase
from tidegate.policy.level import Level
from tidegate.units import format_duration, format_size
from tidegate.worker.lifecycle import WorkerState, stop_grace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.guard.helper import Helper
    from tidegate.guard.log import Log
    from tidegate.guard.notify import Notifier
    from tidegate.guard.plan import Plan
    from tidegate.guard.reactor import Reactor
    from tidegate.guard.sensors import Sensors
    from tidegate.guard.state_file import WorkerRecord
    from tidegate.settings.model import Profile

#: Failures in a row after which a profile is given up for the next lower one.
_GIVE_UP_AFTER = 3
#: How long the first of two TERMs lets requests in flight end.
_STOP_DRAIN_S = 5.0
#: What an idle engine needs to leave on SIGTERM (0.03 s measured), with a margin for a slow board.
_STOP_GRACE_S = 1.0

_PHASES = {
    WorkerState.READY: WorkerPhase.READY,
    WorkerState.STARTING: WorkerPhase.STARTING,
    WorkerState.PARKED: WorkerPhase.PARKED,
}


class Guard:
    """Ties readings, policy and worker together. One thread; everything happens in :meth:`run`."""

    def __init__(
        self, plan: Plan, *, reactor: Reactor, sensors: Sensors, helper: Helper, log: Log, notifier: Notifier
    ) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.reactor = reactor
        self.sensors = sensors
        self.log = log
        self.judge = Judge(sensors, plan.settings.memory, reactor.clock())
        self.known = KnownBytes(plan.profiles)
        self.proof = Proof(self.judge, log)
        self.ladder = LadderState()
        self.paused_until: float | None = None
        self.exit_code: int | None = None
        self.looks = 0
        self.on_change: Callable[[], None] = lambda: None
        self._notifier = notifier
        self._said = ""
        self._stopping = False
        self._health = Health(reactor, helper, self._worker_is_silent)
        tied = not plan.supervised
        self.gateway = GatewayLink(
            plan,
            reactor=reactor,
            log=log,
            run_directory=plan.run_directory,
            tied=tied,
            lower_score=sensors.capabilities.lower_oom_score_adj,
            ledger_changed=self._ledger_changed,
        )
        self.worker = WorkerControl(
            self.settings.worker,
            engines.create(self.settings.worker, plan.python, plan.engine_flags),
            Owner(
                profile=self.profile,
                prompt_cache=self._prompt_cache,
                changed=self._worker_changed,
                gone=self._worker_gone,
                bytes_are_back=self._bytes_are_back,
                oom_kills=sensors.oom_kills,
            ),
            reactor=reactor,
            helper=helper,
            log=log,
            run_directory=plan.run_directory,
            groups=sensors.worker_groups(),
            tied=tied,
        )

    # --- life of the process ---

    def run(self) -> int:
        """Guard until told to stop; the exit code."""
        trigger = self.sensors.open_trigger()
        if trigger is not None:
            self.reactor.watch(trigger, PRIORITY, lambda mask: self._stalled(trigger, mask))
        if not self.worker.take_over(expected=self._is_ours):
            self._first_start()
        self.gateway.ensure()
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
        self.worker.change(None, drain=0.0, grace=grace)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._stopping and self.worker.life.state is WorkerState.PARKED and self.worker.child is None:
            self.exit_code = 0

    def _first_start(self) -> None:
        index = ladder.first_profile(self.judge.axis_uses(), self._rungs, self.tuning)
        if index is None:
            self.ladder = replace(self.ladder, parked_at=self.reactor.clock(), park_delay=0.0)
            near = self.judge.nearest
            self.log.warning(f"parked: no profile fits into {format_size(near.available)} of {near.name}")
            return
        self.worker.start(self.settings.worker.profiles[index].name)

    def _is_ours(self, record: WorkerRecord) -> bool:
        if self.index_of(record.profile) is None:
            return False
        profile = self.profile(record.profile)
        argv = self.worker.engine.argv(profile, prompt_cache=record.prompt_cache, endpoint=record.url)
        return tuple(argv) == record.argv

    def adopt(self, plan: Plan) -> None:
        """Put new settings in force. The running worker keeps its shape until its next start, if its profile stays."""
        self.plan, self.settings = plan, plan.settings
        self.judge.memory = plan.settings.memory
        self.sensors.budget = plan.settings.memory.budget
        self.log.level, self.log.format = plan.settings.log.level, plan.settings.log.format
        self.known.replan(plan.profiles)
        self.worker.reload(plan.settings.worker, engines.create(plan.settings.worker, plan.python, plan.engine_flags))
        self.on_change()
        self.observe()

    # --- looking ---

    @property
    def tuning(self) -> Tuning:
        memory = self.settings.memory
        return Tuning(memory.warn, memory.release, memory.hold, self.settings.worker.step_up_after)

    @property
    def quiet(self) -> bool:
        """Nothing in flight. Without a gateway nobody counts: then the worker's bytes standing still is the sign."""
        return self.gateway.quiet if self.plan.gateway else not self.judge.worker_moved

    @property
    def at_rest(self) -> bool:
        """Level normal, nothing in flight, and the worker neither loads nor stops."""
        settled = self.worker.life.state in (WorkerState.READY, WorkerState.PARKED, WorkerState.BACKOFF)
        return self.judge.level.level is Level.NORMAL and self.quiet and settled

    @property
    def _rungs(self) -> tuple[ladder.Rung, ...]:
        return self.known.rungs(self.settings.worker.profiles)

    def profile(self, name: str) -> Profile:
        """The profile called ``name``; after a reload that took it away, the last one."""
        index = self.index_of(name)
        return self.settings.worker.profiles[-1 if index is None else index]

    def index_of(self, name: str | None) -> int | None:
        """Place of the profile ``name`` in the ladder, 0 the best, or None."""
        for index, profile in enumerate(self.settings.worker.profiles):
            if profile.name == name:
                return index
        return None

    def observe(self) -> None:
        """One look and what follows from it."""
        self.looks += 1
        now = self.reactor.clock()
        life = self.worker.life
        planned = self.plan.profiles.get(life.profile or "")
        facts = WorkerFacts(
            loading=life.state is WorkerState.STARTING,
            known_bytes=self.known.of(life.profile),
            burst_bytes=2 * planned.entry if planned is not None and self.worker.prompt_cache else 0,
        )
        if self.judge.observe(now, facts):
            self._say_level()
            self._announce()
        if life.state is WorkerState.READY and self.judge.last.worker is not None:
            self.known.observe(life.profile, self.judge.worker_bytes, cached=self.worker.prompt_cache > 0)
        if not self._stopping:
            self._decide(now)
        self._look_again()

    def _announce(self) -> None:
        """Tell the gateway, those who wait, and the service manager what changed."""
        self.on_change()
        life, near = self.worker.life, self.judge.nearest
        shape = life.profile or "nothing"
        level = self.judge.level.level.label
        self._notifier.status(f"{level}: {shape} {life.state.value}, {near.ratio:.0%} of {near.name} in use")

    def _look_again(self) -> None:
        pause = forecast.next_look(self.judge.nearest.available, self.settings.memory.interval, rest=self.at_rest)
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
        self._watch_health()

    def _watch_health(self) -> None:
        life = self.worker.life
        if life.state is WorkerState.READY and not self.gateway.quiet:
            self._health.watch(self.worker.url, life.generation)
        else:
            self._health.rest()

    def _worker_is_silent(self, generation: int) -> None:
        life = self.worker.life
        if life.state is WorkerState.READY and life.generation == generation and self.ladder.pending is None:
            assert life.profile is not None
            step = Step(StepKind.RESET, life.profile, "it does not answer", self.judge.worker_bytes)
            if self.plan.observe or self.paused_until is not None:
                self._only_say(step)
            else:
                self.order(step)

    def _say_level(self) -> None:
        level, near = self.judge.level.level, self.judge.nearest
        self.log.write(
            "info" if level is Level.NORMAL else "warning",
            f"level {level.label}: {near.name} at {near.ratio:.1%}, {format_size(near.available)} left",
            {"diagnosis": self.judge.diagnosis.value},
        )

    # --- deciding ---

    def _decide(self, now: float) -> None:
        if self.paused_until is not None:
            if now < self.paused_until:
                return
            self.paused_until = None
            self.on_change()
        if self._runs_without_profile():
            self._find_profile()
            return
        judge, life = self.judge, self.worker.life
        situation = Situation(
            time=now,
            level=judge.level.level,
            level_since=judge.level.since,
            ratio=judge.nearest.ratio,
            pressing=judge.pressing,
            diagnosis=judge.diagnosis,
            axes=judge.axis_uses(),
            rate=judge.rate,
            phase=_PHASES.get(life.state, WorkerPhase.BUSY),
            running=self.index_of(life.profile),
            worker_bytes=judge.worker_bytes,
            quiet=self.quiet,
            rungs=self._rungs,
        )
        state, step = ladder.decide(self.ladder, situation, self.tuning)
        if step is not None and self.plan.observe:
            self._only_say(step)
            return
        self.ladder = state
        if step is not None:
            self._act(step)

    def _runs_without_profile(self) -> bool:
        """After a reload that took the worker's profile away: the ladder does not know such a worker, so it would never
        step."""
        life = self.worker.life
        settled = life.state in (WorkerState.STARTING, WorkerState.READY, WorkerState.BACKOFF)
        gone = life.profile is not None and self.index_of(life.profile) is None
        return gone and settled and self.ladder.pending is None and not self.plan.observe

    def _find_profile(self) -> None:
        index = ladder.first_profile(self.judge.axis_uses(), self._rungs, self.tuning)
        name = self.settings.worker.profiles[-1 if index is None else index].name
        reason = f"{self.worker.life.profile} is no profile any more"
        self.order(Step(StepKind.DOWN, name, reason, self.judge.worker_bytes, ladder.DRAIN_S))

    def _only_say(self, step: Step) -> None:
        if step.label != self._said:
            self._said = step.label
            self.log.warning(f"would step {step.label}: {step.reason}", expected=format_size(step.expected_bytes))

    def order(self, step: Step) -> None:
        """Take ``step`` because somebody asked for it. The caller has checked that none is under way."""
        self.ladder = ladder.begin(self.ladder, self.reactor.clock(), step, self.judge.diagnosis, self.tuning)
        self._act(step)

    def _act(self, step: Step) -> None:
        self.proof.begin(step, self.reactor.clock())
        had_worker = self.worker.child is not None
        self.worker.change(step.profile, drain=step.drain, grace=stop_grace(self.judge.time_to_limit))
        if not had_worker and self.ladder.pending is not None:
            self._prove(0)

    # --- the worker's news ---

    def _worker_gone(self) -> None:
        """The old worker is gone: what it really gave back."""
        self.sensors.follow(None)
        self.judge.worker_is_gone(self.reactor.clock())
        if self.ladder.pending is not None:
            self._prove(self.proof.freed)

    def _bytes_are_back(self) -> bool:
        pending = self.ladder.pending
        if pending is None:
            return True
        self.judge.glance(self.reactor.clock())
        return self.proof.is_given(pending)

    def _prove(self, freed: int) -> None:
        self.ladder, effective = ladder.finish(self.ladder, self.reactor.clock(), freed)
        self.proof.close(effective=effective, freed=freed)

    def _worker_changed(self) -> None:
        life = self.worker.life
        match life.state:
            case WorkerState.READY:
                self._worker_is_ready()
            case WorkerState.STARTING:
                self.sensors.follow(self.worker.pid)
            case WorkerState.BACKOFF:
                self._worker_failed()
            case WorkerState.PARKED:
                self._step_is_over()
            case WorkerState.DRAINING if not self.plan.gateway:
                self.worker.drain_by_slots()
            case WorkerState.DRAINING if self.gateway.peer is None:
                # Its requests ended with the gateway, and nobody will ever say that it is drained.
                self.reactor.after("undrained", 0.0, lambda: self.worker.drained(life.generation))
            case _:
                pass
        self._watch_health()
        self._announce()
        self._look_again()
        self._end_if_over()

    def _worker_is_ready(self) -> None:
        profile = self.worker.life.profile
        self.sensors.follow(self.worker.pid)
        self.judge.glance(self.reactor.clock())
        self.sensors.cold_file = self.known.cold_file(profile, self.judge.worker_bytes)
        self.judge.worker_is_ready(self.reactor.clock())
        self.known.ready(profile, self.judge.worker_bytes)
        took = self._step_is_over()
        after = "" if took is None else f", {format_duration(took)} after the step"
        size = format_size(self.judge.worker_bytes)
        self.log.info(f"worker {self.worker.pid} ready, profile {profile}, {size}{after}")

    def _worker_failed(self) -> None:
        life = self.worker.life
        self.log.error(f"worker failed, {life.failures} in a row: {life.message}")
        if life.failures < _GIVE_UP_AFTER:
            return
        if self.ladder.pending is None:
            self.proof.fail()
        index = self.index_of(life.profile)
        lower = self.settings.worker.profiles[index + 1 :] if index is not None else ()
        if lower and not self.plan.observe and not self._stopping:
            why = f"{life.profile} does not start"
            self.reactor.after("give up", 0.0, lambda: self._give_up(lower[0].name, why))

    def _give_up(self, lower: str, why: str) -> None:
        if self.worker.life.state is WorkerState.BACKOFF and self.ladder.pending is None:
            self.order(Step(StepKind.DOWN, lower, why))

    def _step_is_over(self) -> float | None:
        return self.proof.over(self.reactor.clock()) if self.ladder.pending is None else None

    def _prompt_cache(self, name: str) -> int:
        configured = self.profile(name).prompt_cache
        index = self.index_of(name)
        planned = self.plan.profiles.get(name)
        if not self.ladder.grown or index is None or planned is None:
            return configured
        return ladder.clamp_prompt_cache(
            self.judge.axis_uses(),
            self._rungs[index],
            entry_bytes=planned.entry,
            configured=configured,
            tuning=self.tuning,
        )
