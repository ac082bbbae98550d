"""What all requests share: the guard's word, the line, the connections, the counters."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from tidegate.gateway.assemble import Object
from tidegate.gateway.carry_over import CarryOver
from tidegate.gateway.costs import Costs
from tidegate.gateway.errors import retry_after
from tidegate.gateway.flight import FAILED_S, Loss
from tidegate.gateway.link import Link
from tidegate.gateway.quarantine import Quarantine
from tidegate.gateway.queue import Line
from tidegate.gateway.state import GuardState, Station
from tidegate.gateway.tokens import Ratios
from tidegate.gateway.upstream import Pool
from tidegate.policy.admission import Gate, places
from tidegate.policy.level import Level
from tidegate.record.metrics import Counters, Family
from tidegate.settings.model import Settings

log = logging.getLogger(__name__)

#: Retry-After in seconds when the guard gave none: a restart takes 0.3 to 4 s, a level is held for 10 s.
RETRY_WORKER_S = 2.0
RETRY_LEVEL_S = 10.0

REQUESTS = Family("tidegate_requests_total", "counter", "Requests by how they ended.")
DEGRADED = Family("tidegate_degraded_total", "counter", "Answers by what was done to them.")
TOKENS = Family("tidegate_tokens_total", "counter", "Tokens as the engine counted them.")
DEATHS = Family("tidegate_lost_attempts_total", "counter", "Attempts that lost their worker, by how.")

DEGRADATIONS = ("trimmed", "capped", "fallback", "replayed")


class Front:
    """One gateway. Must be made inside the running loop; ``run()`` talks to the guard until cancelled."""

    def __init__(self, settings: Settings, socket_path: str, on_stop: Callable[[float], None]) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.station = Station()
        self.ratios = Ratios()
        self.quarantine = Quarantine()
        self._costs: dict[str, Costs] = {}
        #: Held by who has a waiting request's prompt counted.
        self.counting = asyncio.Lock()
        self.counters = Counters()
        self.counters.start(DEGRADED, "how", DEGRADATIONS)
        self.counters.start(TOKENS, "kind", ("prompt", "completion"))
        self.counters.start(REQUESTS, "outcome", ("answered",))
        self.counters.start(DEATHS, "how", [loss.value for loss in Loss])
        self.carry_over = CarryOver(settings.worker, self.counters)
        self.stopping = False
        self.link = Link(socket_path, self.station, ledger=self._ledger, on_open=self._forget_drained, on_stop=on_stop)
        self.line = Line(self._places, self.link.ledger_changed)
        self.pool = Pool(self.station, self._flights_changed)
        #: Answers that no healthy engine gives: errors of its own (5xx) and what cannot be read.
        self.engine_faults = 0
        self._told_drained = -1
        self._seen_url = ""
        self._unreachable_epoch = -1
        self._unreachable_until = 0.0
        self._models = {profile.name: profile.model for profile in settings.worker.profiles}
        self.station.listen(self._moved)

    async def run(self) -> None:
        """Keep in touch with the guard."""
        await self.link.run()

    def stop(self) -> None:
        """Take nothing new: whoever waits is refused, what is at the worker goes on."""
        self.stopping = True
        self.link.leave()
        self.line.wake_all()

    def break_off(self) -> None:
        """End what is still at the worker: its clients are told."""
        self.pool.abort_all(Loss.ORDERED)

    def close(self) -> None:
        """Close every connection to the worker."""
        self.carry_over.stop()
        self.pool.close()

    def unreachable(self) -> None:
        """Nobody listens at the worker's address: leave it alone for a second, or until it is announced anew."""
        self._unreachable_epoch = self.station.epoch
        self._unreachable_until = self.loop.time() + FAILED_S

    def engine_fault(self) -> None:
        """The worker answered with an error of its own, or with nonsense: the guard asks whether it still generates."""
        self.engine_faults += 1
        self.link.ledger_changed()

    def reachable_at(self) -> float:
        """The loop time from which the worker may be tried."""
        return self._unreachable_until if self._unreachable_epoch == self.station.epoch else 0.0

    def model_key(self) -> str:
        """What the token ratio depends on: the model of the worker's profile."""
        profile = self.station.state.worker.profile
        return self._models.get(profile, profile)

    @property
    def costs(self) -> Costs:
        """What requests cost with the worker's model."""
        return self._costs.setdefault(self.model_key(), Costs())

    def fallback(self) -> bool:
        """The worker's model is not the one of the best profile."""
        profiles = self.settings.worker.profiles
        profile = self.station.state.worker.profile
        return bool(profiles) and profile in self._models and self._models[profile] != profiles[0].model

    def headers(self) -> dict[str, str]:
        """The headers of every answer."""
        state = self.station.state
        return {"x-tidegate-level": state.board.level.label, "x-tidegate-profile": header_text(state.worker.profile)}

    def retry_after(self, default: float = 0.0) -> int:
        """Whole seconds for Retry-After, from the guard if it gave any."""
        if not default:
            default = RETRY_LEVEL_S if self.station.state.board.level is Level.CRITICAL else RETRY_WORKER_S
        return retry_after(self.station.state.retry_after_s, default, random.random())

    def _places(self) -> int:
        board = self.station.state.board
        return places(board) if board.usable and not self.stopping else 0

    def _ledger(self) -> Object:
        return {
            "in_flight": self.pool.in_flight(),
            "queued": self.line.waiting,
            "prompt_tokens": self.pool.prompt_tokens(),
            "engine_faults": self.engine_faults,
        }

    def _flights_changed(self) -> None:
        self.link.ledger_changed()
        self._check_drained()

    def _check_drained(self) -> None:
        state = self.station.state
        if state.board.gate is not Gate.DRAIN or self._told_drained == state.worker.generation:
            return
        if self.pool.in_flight(state.worker.generation) == 0:
            self._told_drained = state.worker.generation
            self.link.drained(state.worker.generation)

    def _forget_drained(self) -> None:
        """A new guard at the other end, or a new drain: it has not been told yet."""
        self._told_drained = -1

    def _moved(self, before: GuardState, after: GuardState) -> None:
        if before.board.gate is not Gate.DRAIN:
            self._forget_drained()
        self._check_drained()
        if before.relevant() == after.relevant():
            return
        log.info(
            "guard: level %s, gate %s, worker %s generation %d profile %s",
            after.board.level.label,
            after.board.gate,
            after.worker.state or "none",
            after.worker.generation,
            after.worker.profile or "-",
        )
        if after.board.usable and before.raw and after.worker.url != self._seen_url:
            # One that was there before us has its slots full of what is going on.
            self.carry_over.begin(self.pool.current(), after.worker)
        if after.board.usable:
            self._seen_url = after.worker.url
        self.line.dispatch()
        self.line.wake_all()


def header_text(text: str) -> str:
    """``text`` as a header value: printable ASCII only."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)
