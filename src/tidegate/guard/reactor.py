"""One thread, one poll(): descriptors with their callbacks, named timers, and a pipe that wakes it from elsewhere."""

from __future__ import annotations

import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READ = select.POLLIN
WRITE = select.POLLOUT
PRIORITY = select.POLLPRI


class Reactor:
    """``clock`` is monotonic seconds. Callbacks get the event mask; timers fire once, each name has one deadline."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.rounds = 0
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self._signals: dict[int, Callable[[], None]] = {}
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._on_wake: Callable[[], None] = lambda: None
        self.watch(self._wake_read, READ, self._woken)

    def watch(self, fd: int, mask: int, callback: Callable[[int], None]) -> None:
        """Call ``callback`` whenever ``fd`` has one of ``mask``, or an error. Watching again replaces."""
        self._callbacks[fd] = callback
        self._poll.register(fd, mask)

    def unwatch(self, fd: int) -> None:
        """Forget ``fd``; must come before it is closed. Unknown descriptors are ignored."""
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def after(self, name: str, seconds: float, callback: Callable[[], None]) -> None:
        """Call ``callback`` in ``seconds``; an earlier timer of that ``name`` is replaced."""
        self._timers[name] = (self.clock() + max(0.0, seconds), callback)

    def cancel(self, name: str) -> None:
        """Stop the timer ``name``, if there is one."""
        self._timers.pop(name, None)

    def on_signal(self, number: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` from the loop, not from the signal handler, when signal ``number`` arrives."""
        self._signals[number] = callback
        signal.signal(number, lambda *_: None)
        # Python writes the signal's number into this pipe, so a signal between two polls is not lost.
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def on_wake(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` from the loop after :meth:`wake`."""
        self._on_wake = callback

    def wake(self) -> None:
        """Make the loop go round; may be called from another thread."""
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            # The pipe is full of wake-ups already.
            pass

    def run_once(self) -> None:
        """Wait for the next event or timer, and handle everything that is due."""
        wait = None
        if self._timers:
            wait = max(0.0, min(deadline for deadline, _ in self._timers.values()) - self.clock()) * 1000
            # poll() takes whole milliseconds and would spin through the last one.
            wait = int(wait) + 1 if wait else 0
        for fd, mask, callback in [(fd, mask, self._callbacks.get(fd)) for fd, mask in self._poll.poll(wait)]:
            # An earlier one of this round may have closed it and opened another under its number.
            if callback is not None and self._callbacks.get(fd) is callback:
                callback(mask)
        now = self.clock()
        due = [name for name, (deadline, _) in self._timers.items() if deadline <= now]
        for name in due:
            # An earlier one of this round may have cancelled it, or put it off.
            timer = self._timers.get(name)
            if timer is not None and timer[0] <= now:
                del self._timers[name]
                timer[1]()
        self.rounds += 1

    def close(self) -> None:
        """Close the pipe."""
        self.unwatch(self._wake_read)
        signal.set_wakeup_fd(-1)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _woken(self, _mask: int) -> None:
        try:
            data = os.read(self._wake_read, 4096)
        except BlockingIOError:
            return
        for number in sorted(set(data)):
            if number == 0:
                self._on_wake()
            elif number in self._signals:
                self._signals[number]()
