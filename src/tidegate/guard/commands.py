"""What people and the gateway ask of the guard over its socket: docs/guard-socket.md."""

from __future__ import annotations

import time

from tidegate.frozen import frozen, replace
from tidegate.guard.status import gateway_state, status_document
from tidegate.policy.ladder import DRAIN_S, Step, StepKind
from tidegate.worker.lifecycle import WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tidegate.guard.loop import Guard
    from tidegate.guard.server import Peer

#: How long a context given by hand holds.
OVERRIDE_S = 600.0
#: clear_context restarts the worker only if that gives back this share of what it uses.
_CLEAR_WORTH = 0.10
_MOST_PAUSE_S = 86400.0
#: Steps that a person ordered are answered after this long at the latest.
_ANSWER_WITHIN_S = 55.0


@frozen
class ContextOverride:
    """``keep_tokens`` of history are kept at every level until ``until`` (monotonic seconds)."""

    keep_tokens: int
    until: float


@frozen
class _Waiter:
    """Somebody who waits for the end of a step. ``answer`` gets an error text, or "" once a worker is ready."""

    after_generation: int
    answer: Callable[[str], None]
    timer: str


class RefusedError(Exception):
    """A command that cannot be carried out: message and hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Commands:
    """Answers messages on the guard's socket, and tells the gateway every change."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.override: ContextOverride | None = None
        self._waiters: list[_Waiter] = []
        self._numbers = 0
        self._told: dict[str, Any] = {}
        guard.on_change = self.changed

    def on_message(self, peer: Peer, message: dict[str, Any]) -> None:
        """One JSON object from ``peer``."""
        guard = self._guard
        if message.get("hello") == "gateway":
            guard.gateway.connected(peer, message)
            self._told = gateway_state(guard, self.override)
            peer.send({"state": self._told})
        elif "ledger" in message and peer.is_gateway:
            guard.gateway.take_ledger(message["ledger"])
        elif "drained" in message and peer.is_gateway:
            if isinstance(message["drained"], int):
                guard.worker.drained(message["drained"])
        elif "command" in message:
            self._command(peer, message)
        else:
            peer.send({"ok": False, "error": "cannot read the message: it is no command"})

    def on_close(self, peer: Peer) -> None:
        """``peer`` went away. Steps that it ordered go on."""
        self._guard.gateway.disconnected(peer)

    def changed(self) -> None:
        """Something that the gateway or a waiter may want to know has changed."""
        guard = self._guard
        if self.override is not None and guard.reactor.clock() >= self.override.until:
            self.override = None
        state = gateway_state(guard, self.override)
        if state != self._told:
            self._told = state
            guard.gateway.announce(state)
        life = guard.worker.life
        for waiter in list(self._waiters):
            if life.state is WorkerState.READY and life.generation > waiter.after_generation:
                self._answer(waiter, "")
            elif life.state is WorkerState.BACKOFF and life.failures >= 1 and life.generation > waiter.after_generation:
                self._answer(waiter, f"the worker does not start: {life.message}")
            elif life.state is WorkerState.PARKED:
                self._answer(waiter, "the worker is parked")

    def _command(self, peer: Peer, message: dict[str, Any]) -> None:
        number, name = message.get("id"), message["command"]

        def answer(result: dict[str, Any]) -> None:
            peer.send({"id": number, "ok": True, "result": result})

        def refuse(error: str, hint: str = "") -> None:
            peer.send({"id": number, "ok": False, "error": error, "hint": hint})

        try:
            match name:
                case "status":
                    answer(status_document(self._guard))
                case "step":
                    self._step(message, answer, refuse)
                case "reset":
                    self._reset(answer, refuse)
                case "pause":
                    answer(self._pause(message))
                case "resume":
                    self._guard.steps.paused_until = None
                    self._guard.log.info("resumed")
                    self.changed()
                    answer({})
                case "clear_context":
                    self._clear_context(message, answer)
                case _:
                    known = "status, step, reset, pause, resume, clear_context"
                    raise RefusedError(f"cannot do {str(name)[:40]!r}: no such command", f"known: {known}")
        except RefusedError as error:
            refuse(str(error), error.hint)

    def _step(self, message: dict[str, Any], answer: Callable[..., None], refuse: Callable[..., None]) -> None:
        guard, wanted = self._guard, message.get("profile")
        names = [profile.name for profile in guard.settings.worker.profiles]
        if wanted not in names:
            raise RefusedError(f"cannot step to {str(wanted)[:40]}: no such profile", f"profiles: {', '.join(names)}")
        running = guard.steps.index_of(guard.worker.life.profile)
        there = guard.worker.life.state is not WorkerState.BACKOFF and not guard.worker.waiting
        if running is not None and names[running] == wanted and there:
            raise RefusedError(f"cannot step to {wanted}: it runs already", "tidegate reset starts it anew")
        up = running is not None and names.index(wanted) < running
        self._order(StepKind.UP if up else StepKind.DOWN, str(wanted), "ordered by hand", answer, refuse)

    def _reset(self, answer: Callable[..., None], refuse: Callable[..., None]) -> None:
        guard = self._guard
        profile = guard.worker.life.profile or guard.settings.worker.profiles[-1].name
        self._order(StepKind.RESET, profile, "ordered by hand", answer, refuse)

    def _order(
        self,
        kind: StepKind,
        profile: str,
        reason: str,
        answer: Callable[..., None],
        refuse: Callable[..., None],
        *,
        drain: float = DRAIN_S,
    ) -> None:
        guard = self._guard
        state = guard.worker.life.state
        if guard.steps.under_way or state in (WorkerState.DRAINING, WorkerState.STOPPING):
            raise RefusedError("cannot step: a step is under way", "tidegate status shows it")
        if not guard.worker.armed:
            raise RefusedError("cannot end the worker: nobody would start it again", "set worker.restart")
        if guard.worker.waiting:
            raise RefusedError(f"cannot step: there is no worker; {guard.worker.life.message}")
        generation = guard.worker.life.generation

        def over(error: str) -> None:
            running = guard.worker.life.profile
            if error or running != profile:
                refuse(f"cannot step to {profile}: {error or f'{running} runs now, because it does not fit'}")
                return
            action = guard.steps.proof.actions.to_json()[-1]
            answer(
                {
                    "profile": guard.worker.life.profile,
                    "generation": guard.worker.life.generation,
                    "freed_bytes": action["freed_bytes"],
                    "took_ms": action["took_ms"],
                }
            )

        # A person's order begins a new episode: the ladder may use every profile again to mend what comes of it.
        guard.steps.state = replace(guard.steps.state, tried=frozenset())
        self._wait(generation, _ANSWER_WITHIN_S, over)
        guard.steps.order(Step(kind, profile, reason, guard.judge.worker_bytes, drain))

    def _pause(self, message: dict[str, Any]) -> dict[str, Any]:
        seconds = message.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= _MOST_PAUSE_S:
            raise RefusedError("cannot pause: seconds must be above 0 and at most 86400", "such as 10m")
        guard = self._guard
        guard.steps.paused_until = guard.reactor.clock() + seconds
        guard.log.warning(f"paused for {seconds:g} s: no step will be taken")
        self.changed()
        return {"until": round(time.time() + seconds, 3)}

    def _clear_context(self, message: dict[str, Any], answer: Callable[..., None]) -> None:
        guard = self._guard
        keep, within = message.get("keep_tokens"), message.get("within_s", 1.8)
        if isinstance(keep, bool) or not isinstance(keep, int) or not 1 <= keep <= 1 << 20:
            raise RefusedError("cannot clear the context: keep_tokens must be a whole number from 1 to 1048576")
        if isinstance(within, bool) or not isinstance(within, (int, float)) or not 0 <= within <= 60:
            raise RefusedError("cannot clear the context: within_s must be from 0 to 60")
        self.override = ContextOverride(keep, guard.reactor.clock() + OVERRIDE_S)
        guard.reactor.after("override", OVERRIDE_S, self.changed)
        guard.log.info(f"context limited to {keep} tokens for {OVERRIDE_S:g} s")
        context = min(keep, guard.steps.profile(guard.worker.life.profile or "").context)
        life = guard.worker.life
        winnable = guard.judge.worker_bytes - guard.known.of(life.profile)
        idle = not guard.steps.under_way and life.state is WorkerState.READY
        worth = winnable > _CLEAR_WORTH * max(1, guard.judge.worker_bytes)
        self.changed()
        if not idle or not worth or life.profile is None or guard.plan.observe or not guard.worker.armed:
            answer({"success": True, "freed_bytes": 0, "context": context})
            return

        def over(_error: str) -> None:
            freed = guard.steps.proof.actions.to_json()[-1]["freed_bytes"]
            answer({"success": True, "freed_bytes": freed, "context": context})

        self._wait(life.generation, float(within), over)
        # Half the time for requests in flight, half for the stop and the new start.
        step = Step(StepKind.RESET, life.profile, "clear_context", guard.judge.worker_bytes, float(within) / 2)
        guard.steps.order(step)

    def _wait(self, generation: int, seconds: float, over: Callable[[str], None]) -> None:
        self._numbers += 1
        waiter = _Waiter(generation, over, f"waiter {self._numbers}")
        self._waiters.append(waiter)
        late = f"not ready after {seconds:g} s"
        self._guard.reactor.after(waiter.timer, seconds, lambda: self._answer(waiter, late))

    def _answer(self, waiter: _Waiter, error: str) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self._guard.reactor.cancel(waiter.timer)
            waiter.answer(error)
