"""What an attached server was told when it was started: read once by a child each time one is found."""

from __future__ import annotations

import json

from tidegate.guard.errand import Errand
from tidegate.guard.plan import ProfileBytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.guard.log import Log
    from tidegate.guard.plan import Plan
    from tidegate.guard.reactor import Reactor

#: Beside a restart: the child reads a model file, which must not compete with the load of the same file.
_AFTER_S = 0.5


class Inspection:
    """``told`` gets the server's planned bytes and the most that its prompt cache may take, in bytes."""

    def __init__(self, plan: Plan, *, reactor: Reactor, log: Log, told: Callable[[ProfileBytes, int], None]) -> None:
        self._python = plan.python
        self._reactor = reactor
        self._log = log
        self._told = told
        score = plan.settings.worker.oom_score_adj
        self._errand = Errand("inspection", reactor, source=plan.source, oom_score_adj=score)
        self._wanted = 0
        self._said: list[str] = []

    @property
    def pid(self) -> int | None:
        """The child at work."""
        return self._errand.pid

    def of(self, pid: int) -> None:
        """Inspect ``pid`` soon; an inspection that is waiting or under way is of no interest any more."""
        self._wanted = pid
        self._reactor.after("inspect", _AFTER_S, lambda: self._begin(pid))

    def _begin(self, pid: int) -> None:
        if self._errand.busy:
            self.of(pid)
            return
        try:
            command = (self._python, "-P", "-m", "tidegate.cli.inspect_server", str(pid))
            self._errand.run(command, lambda data: self._read(pid, data))
        except OSError as error:
            self._log.warning(f"cannot inspect the worker: {error.strerror}")

    def _read(self, pid: int, data: bytes) -> None:
        if pid != self._wanted:
            return
        try:
            document = json.loads(data)
            planned = ProfileBytes(**document["bytes"])
            cache, found = int(document["prompt_cache"]), [str(each) for each in document["findings"]]
        except (ValueError, TypeError, KeyError):
            self._log.warning(f"cannot inspect the worker: {data.decode(errors='replace').strip()[-200:]}")
            return
        if found != self._said:
            self._said = found
            for each in found:
                self._log.warning(f"worker: {each}")
        self._told(planned, cache)
