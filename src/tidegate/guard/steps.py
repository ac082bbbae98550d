"""Which step is due, taking it, and whether it gave back what it promised. At most one is under way."""

from __future__ import annotations

from tidegate.frozen import replace
from tidegate.guard.proof import Proof
from tidegate.policy import ladder, patrol
from tidegate.policy.ladder import LadderState, Situation, Step, StepKind, Tuning, WorkerPhase
from tidegate.policy.level import Level
from tidegate.units import format_size
from tidegate.worker.lifecycle import WorkerState, stop_grace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.guard.judge import Judge
    from tidegate.guard.known_bytes import KnownBytes
    from tidegate.guard.log import Log
    from tidegate.guard.plan import Plan
    from tidegate.guard.worker_control import WorkerControl
    from tidegate.settings.model import Profile

_PHASES = {
    WorkerState.READY: WorkerPhase.READY,
    WorkerState.STARTING: WorkerPhase.STARTING,
    WorkerState.PARKED: WorkerPhase.PARKED,
}


class Steps:
    """``quiet`` says whether nothing is in flight; ``clock`` is monotonic seconds, as all times here; ``relieve`` is
    called before a worker is stopped."""

    #: Set right after making it: the worker needs what is decided here, and the other way round.
    worker: WorkerControl

    def __init__(
        self,
        plan: Plan,
        *,
        judge: Judge,
        known: KnownBytes,
        log: Log,
        clock: Callable[[], float],
        quiet: Callable[[], bool],
        changed: Callable[[], None],
        relieve: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.state = LadderState()
        self.paused_until: float | None = None
        self.proof = Proof(judge, log)
        self._judge = judge
        self._known = known
        self._log = log
        self._clock = clock
        self._quiet = quiet
        self._changed = changed
        self._relieve = relieve
        self._said = ""

    # -- what there is to choose from ---------------------------------------------------------------------------

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The ladder, best first."""
        return self.plan.settings.worker.profiles

    @property
    def tuning(self) -> Tuning:
        memory = self.plan.settings.memory
        return Tuning(memory.warn, memory.release, memory.hold, self.plan.settings.worker.step_up_after)

    @property
    def rungs(self) -> tuple[ladder.Rung, ...]:
        return self._known.rungs(self.profiles)

    @property
    def under_way(self) -> bool:
        """Whether the old worker of a step is not gone yet."""
        return self.state.pending is not None

    def profile(self, name: str) -> Profile:
        """The profile called ``name``; after a reload that took it away, the last one."""
        index = self.index_of(name)
        return self.profiles[-1 if index is None else index]

    def index_of(self, name: str | None) -> int | None:
        """Place of the profile ``name`` in the ladder, 0 the best, or None."""
        for index, profile in enumerate(self.profiles):
            if profile.name == name:
                return index
        return None

    def first_profile(self) -> str | None:
        """The profile to start with, or None: none fits, and the worker counts as parked."""
        index = ladder.first_profile(self._judge.axis_uses(), self.rungs, self.tuning)
        if index is not None:
            return self.profiles[index].name
        self.state = replace(self.state, parked_at=self._clock(), park_delay=0.0)
        near = self._judge.nearest
        self._log.warning(f"parked: no profile fits into {format_size(near.available)} of {near.name}")
        return None

    def prompt_cache(self, name: str) -> int:
        """Bytes of prompt cache for the next worker in the profile ``name``: after growth no more than fits."""
        configured = self.profile(name).prompt_cache
        index = self.index_of(name)
        planned = self._known.planned(name)
        if not self.state.grown or index is None or planned is None:
            return configured
        return ladder.clamp_prompt_cache(
            self._judge.axis_uses(),
            self.rungs[index],
            entry_bytes=planned.entry,
            configured=configured,
            tuning=self.tuning,
        )

    # -- deciding -----------------------------------------------------------------------------------------------

    def decide(self, now: float) -> None:
        """Take the step that is due, if any."""
        if self.paused_until is not None:
            if now < self.paused_until:
                return
            self.paused_until = None
            self._changed()
        if self._runs_without_profile():
            self._find_profile()
            return
        attachment = self.plan.attachment
        decide = ladder.decide if attachment is None else patrol.decide
        state, step = decide(self.state, self._situation(now), self.tuning)
        if step is not None and self.plan.observe:
            self._only_say(step)
        elif step is not None and not self.worker.armed:
            self._only_say(step, "; but nobody would start the server again: the kill is not armed")
        else:
            self.state = state
            if step is not None:
                self._act(step)

    def _situation(self, now: float) -> Situation:
        judge, life = self._judge, self.worker.life
        return Situation(
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
            quiet=self._quiet(),
            rungs=self.rungs,
        )

    def _runs_without_profile(self) -> bool:
        """After a reload that took the worker's profile away: the ladder does not know such a worker, so it would never
        step."""
        life = self.worker.life
        settled = life.state in (WorkerState.STARTING, WorkerState.READY, WorkerState.BACKOFF)
        gone = life.profile is not None and self.index_of(life.profile) is None
        return gone and settled and not self.under_way and not self.plan.observe

    def _find_profile(self) -> None:
        index = ladder.first_profile(self._judge.axis_uses(), self.rungs, self.tuning)
        name = self.profiles[-1 if index is None else index].name
        reason = f"{self.worker.life.profile} is no profile any more"
        self.order(Step(StepKind.DOWN, name, reason, self._judge.worker_bytes, ladder.DRAIN_S))

    def _only_say(self, step: Step, why: str = "") -> None:
        if step.label != self._said:
            self._said = step.label
            self._log.warning(f"would step {step.label}: {step.reason}{why}", expected=format_size(step.expected_bytes))

    # -- acting -------------------------------------------------------------------------------------------------

    def order(self, step: Step) -> None:
        """Take ``step`` because somebody asked for it. The caller has checked that none is under way."""
        self.state = ladder.begin(self.state, self._clock(), step, self._judge.diagnosis, self.tuning)
        self._act(step)

    def replace_failed(self, generation: int, why: str) -> None:
        """Reset the worker of ``generation``, which does not serve (any more), unless only looking is allowed."""
        life = self.worker.life
        lives = life.state in (WorkerState.READY, WorkerState.STARTING)
        if not lives or life.generation != generation or self.under_way:
            return
        assert life.profile is not None
        step = Step(StepKind.RESET, life.profile, why, self._judge.worker_bytes)
        if self.plan.observe or self.paused_until is not None:
            self._only_say(step)
        elif not self.worker.armed:
            self._only_say(step, "; but nobody would start the server again: the kill is not armed")
        else:
            self.order(step)

    def give_up(self, *, stopping: bool) -> None:
        """The worker's profile does not start: the next lower one, if there is one."""
        if not self.under_way:
            self.proof.fail()
        life = self.worker.life
        index = self.index_of(life.profile)
        lower = self.profiles[index + 1 :] if index is not None else ()
        if lower and not self.plan.observe and not stopping and not self.under_way:
            self.order(Step(StepKind.DOWN, lower[0].name, f"{life.profile} does not start"))

    def _act(self, step: Step) -> None:
        self.proof.begin(step, self._clock())
        had_worker = self.worker.child is not None
        self._relieve()
        self.worker.change(step.profile, drain=step.drain, grace=stop_grace(self._judge.time_to_limit))
        if not had_worker and self.under_way:
            self._prove(0)

    # -- proving ------------------------------------------------------------------------------------------------

    def worker_gone(self) -> None:
        """The old worker is gone: what it really gave back."""
        if self.under_way:
            self._prove(self.proof.freed)

    def bytes_are_back(self) -> bool:
        """Whether the bytes of the step under way came back, by a look now."""
        pending = self.state.pending
        if pending is None:
            return True
        self._judge.glance(self._clock())
        return self.proof.is_given(pending)

    def over(self) -> float | None:
        """The new worker is ready, or nothing runs any more: seconds since the step began, or None without one."""
        return self.proof.over(self._clock()) if not self.under_way else None

    def level_changed(self, level: Level) -> None:
        """A new level: what was only said may be said again; and at warn, what an attached engine can give back."""
        self._said = ""
        if level is Level.WARN and self.plan.attachment is not None and not self.worker.engine.capabilities.frees_bytes:
            self._log.info("the engine's API can free nothing (erasing a slot gives back 0 bytes): only a reset does")

    def _prove(self, freed: int) -> None:
        self.state, effective = ladder.finish(self.state, self._clock(), freed)
        self.proof.close(effective=effective, freed=freed)
