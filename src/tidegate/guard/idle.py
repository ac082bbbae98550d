"""Without a gateway nobody says when nothing is in flight: above normal an attached worker's slots are asked."""

from __future__ import annotations

from tidegate.engines import llama_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.guard.helper import Helper
    from tidegate.guard.reactor import Reactor

EVERY_S = 0.5
_TIMEOUT_S = 1.0
#: A client that asks one thing after the other leaves gaps of milliseconds, and its next request would be lost. Whoever
#: reads an answer before the next question leaves more.
QUIET_S = 3.0


class IdleWatch:
    """``became_idle`` is called when the slots have been idle for ``QUIET_S`` running."""

    def __init__(self, reactor: Reactor, helper: Helper, became_idle: Callable[[], None]) -> None:
        self.idle = False
        self._reactor = reactor
        self._helper = helper
        self._became_idle = became_idle
        self._url = ""
        self._asking = False
        self._idle_since: float | None = None

    def watch(self, url: str) -> None:
        """Ask the worker at ``url`` from now on; "": ask nobody."""
        self._url = url
        if not url:
            self.idle, self._idle_since = False, None
        elif not self._asking:
            self._ask()

    def _ask(self) -> None:
        url = self._url
        self._asking = bool(url)
        if url:
            self._helper.submit(lambda: llama_api.busy_slots(url, timeout=_TIMEOUT_S), self._answered)

    def _answered(self, busy: object) -> None:
        now = self._reactor.clock()
        if not self._url or busy != 0:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        was, self.idle = self.idle, self._idle_since is not None and now - self._idle_since >= QUIET_S
        self._reactor.after("idle", EVERY_S, self._ask)
        if self.idle and not was:
            self._became_idle()
