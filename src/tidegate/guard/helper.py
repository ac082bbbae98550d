"""The one helper thread: calls that may be slow (an engine's HTTP, freeing gigabytes) run here, results come back."""

from __future__ import annotations

import threading
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Helper:
    """Jobs run one after another. ``deliver`` results from the loop after ``wake`` was called."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._jobs: deque[tuple[Callable[[], object], Callable[[object], None]]] = deque()
        self._results: deque[tuple[Callable[[object], None], object]] = deque()
        self._pending = threading.Semaphore(0)
        # A daemon: an engine that hangs in a call must not keep the guard from ending.
        self._thread = threading.Thread(target=self._run, name="helper", daemon=True)

    def start(self) -> None:
        """Start the thread; at start-up, so that its stack is there before memory is short."""
        self._thread.start()

    def submit(self, job: Callable[[], object], then: Callable[[object], None]) -> None:
        """Run ``job`` in the thread and ``then`` with its result, or the exception it raised, in the loop."""
        self._jobs.append((job, then))
        self._pending.release()

    def deliver(self) -> None:
        """Hand over the results that are there; called by the loop."""
        while self._results:
            then, result = self._results.popleft()
            then(result)

    def _run(self) -> None:
        while True:
            self._pending.acquire()
            job, then = self._jobs.popleft()
            try:
                result = job()
            except Exception as error:
                result = error
            self._results.append((then, result))
            self._wake()
