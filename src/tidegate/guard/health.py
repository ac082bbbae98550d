"""Notice a worker that lives but does not serve: while requests are with it or wait for it, it is asked.

At rest nobody waits for it, and nothing is asked: a patrol without a gateway, which sees no requests, asks seldom.
"""

from __future__ import annotations

from tidegate.engines import llama_api
from tidegate.policy.pulse import Beat, Pulse, Verdict, feel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.guard.helper import Helper
    from tidegate.guard.reactor import Reactor

EVERY_S = 5.0
#: A patrol in front of which no gateway counts requests asks all the time, but seldom.
PATROL_S = 15.0
#: A hundred times what a busy server takes; a thrashing board takes long too, and a reset is its cure as well.
TIMEOUT_S = 5.0
#: A token takes 0.02 to 1 s on a board, and one that is asked for behind a long prompt waits for it; but it is only
#: asked for when nothing moves.
TOKEN_TIMEOUT_S = 10.0
#: Faults that the gateway tells of are looked into at most this often.
_FAULT_EVERY_S = 10.0

SILENT = "it does not answer"
WEDGED = "its health is fine, but it generates nothing"


class Health:
    """``failed`` is called with the generation that does not serve, and why. ``cpu`` gives the worker's CPU time in
    seconds, ``waited_for`` whether requests are with it or wait for it (None: nobody knows, its slots tell)."""

    def __init__(
        self,
        reactor: Reactor,
        helper: Helper,
        failed: Callable[[int, str], None],
        *,
        cpu: Callable[[], float],
        waited_for: Callable[[], bool | None],
    ) -> None:
        self._reactor = reactor
        self._helper = helper
        self._failed = failed
        self._cpu = cpu
        self._waited_for = waited_for
        self._watched: int | None = None
        self._url = ""
        self._busy = False
        self._was_busy = False
        self._pulse = Pulse()
        self._probing = False
        self._fault_at: float | None = None

    def watch(self, url: str, generation: int, *, every: float = EVERY_S) -> None:
        """Ask ``generation`` at ``url`` every ``every`` seconds from now on; asking it already goes on."""
        self._busy = self._was_busy = True
        self._url = url
        if self._watched != generation:
            self._watched = generation
            self._pulse = Pulse()
            self._later(generation, every)

    def rest(self) -> None:
        """Nobody waits for the worker now. If nobody has since the last question, the next one is not asked.

        A request that finds nobody listening leaves the line and enters it again once a second: such a moment must
        neither start the count anew nor hide the worker.
        """
        self._busy = False

    def fault(self, url: str, generation: int) -> None:
        """The worker answered a request with an error of its own or with nonsense: does it still generate?"""
        now = self._reactor.clock()
        if self._probing or (self._fault_at is not None and now - self._fault_at < _FAULT_EVERY_S):
            return
        self._fault_at = now
        self._probe(url, generation, lambda: None)

    def _later(self, generation: int, every: float) -> None:
        self._reactor.after("health", every, lambda: self._ask(generation, every))

    def _ask(self, generation: int, every: float) -> None:
        if self._watched != generation:
            return
        if not self._was_busy:
            self._watched = None
            return
        self._was_busy = self._busy
        url = self._url

        def done(answer: object) -> None:
            if self._watched != generation:
                return
            verdict = self._feel(answer)
            if verdict is Verdict.SUSPECT and not self._probing:
                self._probe(url, generation, lambda: self._later(generation, every))
                return
            if verdict is Verdict.SILENT:
                self._pulse = Pulse()
                self._failed(generation, SILENT)
            # Also after a failure: while paused it is only spoken of, and has to be told again afterwards.
            self._later(generation, every)

        self._helper.submit(lambda: llama_api.vital_signs(url, timeout=TIMEOUT_S), done)

    def _feel(self, answer: object) -> Verdict:
        signs = answer if isinstance(answer, llama_api.VitalSigns) else None
        waited_for = self._waited_for()
        busy_slots = signs is not None and bool(signs.busy)
        beat = Beat(
            time=self._reactor.clock(),
            answered=signs is not None,
            working=busy_slots if waited_for is None else waited_for,
            progress=None if signs is None else signs.progress,
            cpu=self._cpu(),
        )
        self._pulse, verdict = feel(self._pulse, beat)
        return verdict

    def _probe(self, url: str, generation: int, then: Callable[[], None]) -> None:
        self._probing = True

        def done(answer: object) -> None:
            self._probing = False
            if self._watched not in (generation, None):
                return
            self._pulse = Pulse()
            if answer is not True:
                self._failed(generation, WEDGED)
            then()

        self._helper.submit(lambda: llama_api.generates(url, timeout=TOKEN_TIMEOUT_S), done)
