"""SIGHUP: the launcher's reader is run as a child, because the guard itself has no TOML and no GGUF reader."""

from __future__ import annotations

import json
import os

from tidegate.frozen import replace
from tidegate.guard.plan import profiles_from_json
from tidegate.guard.reactor import READ
from tidegate.settings.model import Settings, changes
from tidegate.worker.process import start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.guard.log import Log
    from tidegate.guard.loop import Guard
    from tidegate.guard.notify import Notifier
    from tidegate.guard.reactor import Reactor
    from tidegate.worker.process import Child

#: A settings document is some kilobytes; the reader takes 0.1 s.
_MOST_BYTES = 1 << 20
_LONGEST_S = 20.0
#: How the command line begins the line that says what is wrong.
_OUR_ERROR = "tidegate: "


class Reloader:
    """Runs ``plan.reload``, and puts what it prints in force."""

    def __init__(self, guard: Guard, *, reactor: Reactor, log: Log, notifier: Notifier) -> None:
        self._guard = guard
        self._reactor = reactor
        self._log = log
        self._notifier = notifier
        self._child: Child | None = None
        self._data = b""
        self._again = False

    def begin(self) -> None:
        """Start reading the settings anew; one reading at a time, and another if asked for during it."""
        if self._child is not None:
            self._again = True
            return
        self._again = False
        plan = self._guard.plan
        self._notifier.reloading(self._reactor.clock())
        try:
            self._child = start(
                list(plan.reload),
                oom_score_adj=self._guard.settings.worker.oom_score_adj,
                death_signal=True,
                environment={**os.environ, "PYTHONPATH": plan.source},
            )
        except OSError as error:
            self._log.error(f"cannot reload: {error.strerror}")
            self._notifier.ready()
            return
        self._data = b""
        self._reactor.watch(self._child.output, READ, lambda _mask: self._read())
        self._reactor.after("reload", _LONGEST_S, self._child.kill)

    def _read(self) -> None:
        child = self._child
        assert child is not None
        try:
            data = os.read(child.output, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._data += data
        if data and len(self._data) <= _MOST_BYTES:
            return
        self._child = None
        self._reactor.unwatch(child.output)
        self._reactor.cancel("reload")
        if not child.reap():
            # It has closed its output, so it is ending; what it said is whole.
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED)
        child.close()
        self._finish()
        self._notifier.ready()
        if self._again:
            # The file may have been written after it was read.
            self.begin()

    def _finish(self) -> None:
        try:
            document = json.loads(self._data)
            settings = Settings.from_json(document["settings"])
            profiles = profiles_from_json(document["profiles"])
        except (ValueError, TypeError, KeyError):
            self._log.error(f"cannot reload: {_reason(self._data)}")
            return
        guard = self._guard
        found = changes(guard.settings, settings)
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
