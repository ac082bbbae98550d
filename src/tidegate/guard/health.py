"""Notice a worker that lives but does not answer: while requests are with it or wait for it, it is asked.

llama-server's HTTP threads answer ``/health`` while it generates (8.7 ms median, 43 ms at most), so silence is no long
prefill. At rest nobody waits for it, and nothing is asked.
"""

from __future__ import annotations

from tidegate.engines import llama_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.guard.helper import Helper
    from tidegate.guard.reactor import Reactor

EVERY_S = 5.0
#: A hundred times what a busy server takes; a thrashing board takes long too, and a reset is its cure as well.
TIMEOUT_S = 5.0
#: One silence may be a board that stalls on its storage for some seconds.
MOST_SILENCES = 2


class Health:
    """``silent`` is called with the generation that gave no answer ``MOST_SILENCES`` times running."""

    def __init__(self, reactor: Reactor, helper: Helper, silent: Callable[[int], None]) -> None:
        self._reactor = reactor
        self._helper = helper
        self._silent = silent
        self._watched: int | None = None
        self._busy = False
        self._was_busy = False

    def watch(self, url: str, generation: int) -> None:
        """Ask ``generation`` at ``url`` from now on; asking it already goes on."""
        self._busy = self._was_busy = True
        if self._watched != generation:
            self._watched = generation
            self._later(url, generation, 0)

    def rest(self) -> None:
        """Nobody waits for the worker now. If nobody has since the last question, the next one is not asked.

        A request that finds nobody listening leaves the line and enters it again once a second: such a moment must
        neither start the count anew nor hide the worker.
        """
        self._busy = False

    def _later(self, url: str, generation: int, silences: int) -> None:
        self._reactor.after("health", EVERY_S, lambda: self._ask(url, generation, silences))

    def _ask(self, url: str, generation: int, silences: int) -> None:
        if not self._was_busy:
            self._watched = None
            return
        self._was_busy = self._busy

        def done(answer: object) -> None:
            if self._watched != generation:
                return
            count = silences + 1 if isinstance(answer, llama_api.WireError) else 0
            if count < MOST_SILENCES:
                self._later(url, generation, count)
                return
            self._watched = None
            self._silent(generation)

        self._helper.submit(lambda: llama_api.request(url, "GET", "/health", timeout=TIMEOUT_S), done)
