"""SIGHUP: the launcher's reader is run as a child, because the guard itself has no TOML and no GGUF reader."""

from __future__ import annotations

import json

from tidegate.frozen import replace
from tidegate.guard.errand import Errand
from tidegate.guard.plan import profiles_from_json
from tidegate.settings.model import Settings, changes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.guard.log import Log
    from tidegate.guard.loop import Guard
    from tidegate.guard.notify import Notifier
    from tidegate.guard.reactor import Reactor

#: How the command line begins the line that says what is wrong.
_OUR_ERROR = "tidegate: "


class Reloader:
    """Runs ``plan.reload``, and puts what it prints in force."""

    def __init__(self, guard: Guard, *, reactor: Reactor, log: Log, notifier: Notifier) -> None:
        self._guard = guard
        self._reactor = reactor
        self._log = log
        self._notifier = notifier
        score = guard.settings.worker.oom_score_adj
        self._errand = Errand("reload", reactor, source=guard.plan.source, oom_score_adj=score)
        self._again = False

    def begin(self) -> None:
        """Start reading the settings anew; one reading at a time, and another if asked for during it."""
        if self._errand.busy:
            self._again = True
            return
        self._again = False
        self._notifier.reloading(self._reactor.clock())
        try:
            self._errand.run(self._guard.plan.reload, self._read)
        except OSError as error:
            self._log.error(f"cannot reload: {error.strerror}")
            self._notifier.ready()

    def _read(self, data: bytes) -> None:
        self._finish(data)
        self._notifier.ready()
        if self._again:
            # The file may have been written after it was read.
            self.begin()

    def _finish(self, data: bytes) -> None:
        try:
            document = json.loads(data)
            settings = Settings.from_json(document["settings"])
            profiles = profiles_from_json(document["profiles"])
        except (ValueError, TypeError, KeyError):
            self._log.error(f"cannot reload: {_reason(data)}")
            return
        guard = self._guard
        if settings.worker.attached != guard.settings.worker.attached:
            # Whose the worker is decides who may end it, and that was found out before the guard began.
            self._log.error("cannot reload: whether somebody else starts the worker changes only after a restart")
            return
        found = changes(guard.settings, settings)
        # The gateway looks for saved slots where it was told to at its start.
        kept = guard.settings.worker.carry_over
        settings = replace(settings, worker=replace(settings.worker, carry_over=kept))
        for change in found:
            self._log.info(f"reload: {change}")
        if not found:
            self._log.info("reload: nothing changed")
            return
        guard.adopt(replace(guard.plan, settings=settings, profiles=profiles))


def _reason(output: bytes) -> str:
    """Why the reader gave no settings: its error line, without its name, and the hint that follows."""
    lines = output.decode(errors="replace").strip().splitlines() or ["no settings came back"]
    start = max((place for place, line in enumerate(lines) if line.startswith(_OUR_ERROR)), default=len(lines) - 1)
    return "; ".join(line.removeprefix(_OUR_ERROR).strip() for line in lines[start:])[:400]
