"""A child that is run for what it prints: the parts of tidegate that the guard does not import (TOML, GGUF)."""

from __future__ import annotations

import os

from tidegate.guard.reactor import READ
from tidegate.worker.process import start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.guard.reactor import Reactor
    from tidegate.worker.process import Child

#: What is printed is some kilobytes; it takes 0.1 s.
_MOST_BYTES = 1 << 20
_LONGEST_S = 20.0


class Errand:
    """Runs one command at a time. ``name`` is its timer's; ``source`` is the directory that has the package."""

    def __init__(self, name: str, reactor: Reactor, *, source: str, oom_score_adj: int) -> None:
        self._name = name
        self._reactor = reactor
        self._source = source
        self._score = oom_score_adj
        self._child: Child | None = None
        self._data = b""
        self._done: Callable[[bytes], None] = lambda _data: None

    @property
    def busy(self) -> bool:
        """Whether a command runs."""
        return self._child is not None

    @property
    def pid(self) -> int | None:
        """The command at work."""
        return None if self._child is None else self._child.pid

    def run(self, command: tuple[str, ...], done: Callable[[bytes], None]) -> None:
        """Run ``command`` and call ``done`` with what it printed (on both streams). Only while not :attr:`busy`.

        Raises:
            OSError: it cannot be started.
        """
        child = start(
            list(command),
            oom_score_adj=self._score,
            death_signal=True,
            environment={**os.environ, "PYTHONPATH": self._source},
        )
        self._child, self._data, self._done = child, b"", done
        self._reactor.watch(child.output, READ, lambda _mask: self._read())
        self._reactor.after(self._name, _LONGEST_S, child.kill)

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
        self._reactor.cancel(self._name)
        if not child.reap():
            # It has closed its output, so it is ending; what it said is whole.
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED)
        child.close()
        self._done(self._data)
