"""Wakes the guard when something happens in the worker's cgroup: limits hit, kills, frozen or empty, tasks stalling."""

from __future__ import annotations

import os
import select

from tidegate.guard.reactor import PRIORITY
from tidegate.host import psi
from tidegate.host.cgroup_memory import group_id, parse_keyed
from tidegate.host.files import HeldFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.guard.log import Log
    from tidegate.guard.reactor import Reactor

#: 5 % of a second: the first event comes 0.1-0.2 s after the first throttling (measured on a 1 GB board).
STALL_US = 50_000
WINDOW_US = 1_000_000
#: Of memory.events: what is worth a line when it climbs. ``high`` climbs thousands of times a second (one for every
#: round of reclaim), ``max`` says only that the limit was met: both are read, compared, and left to the judge.
_TOLD = {"oom": "reclaim failed at its limit", "oom_kill": "the kernel killed in it"}


class GroupWatch:
    """Three descriptors of the v2 group that :meth:`follow` names. ``changed`` is called after an event; it is to read
    for itself, since a wake-up says that something happened and not what is true now."""

    def __init__(self, reactor: Reactor, log: Log, changed: Callable[[], None]) -> None:
        self.directory = ""
        self._id: int | None = None
        self._reactor = reactor
        self._log = log
        self._changed = changed
        self._files: list[HeldFile] = []
        self._trigger = -1
        self._seen: dict[str, int] = {}

    def follow(self, directory: str) -> None:
        """Watch the v2 group at ``directory`` from now on; "": none. The same path with another group behind it counts
        as another one."""
        identity = group_id(directory) if directory else None
        if directory == self.directory and identity == self._id:
            return
        if directory and directory == self.directory and self._id is not None and identity is not None:
            self._log.info(f"the worker's cgroup {directory} was made anew")
        self.close()
        if identity is None:
            return
        self.directory, self._id = directory, identity
        self._seen = {}
        for name in ("memory.events", "cgroup.events"):
            file = HeldFile.open(f"{directory}/{name}")
            if file is not None:
                # A descriptor that was never read is ready at once.
                self._seen.update(parse_keyed(file.read() or b""))
                self._files.append(file)
                self._watch(file)
        opened = psi.open_trigger(f"{directory}/memory.pressure", "some", STALL_US, WINDOW_US)
        if opened is not None:
            self._trigger = opened[0]
            self._reactor.watch(self._trigger, PRIORITY, self._stalled)

    def close(self) -> None:
        """Give the descriptors back."""
        for file in self._files:
            self._reactor.unwatch(file.fileno())
            file.close()
        self._files = []
        self._drop_trigger()
        self.directory, self._id = "", None

    def _watch(self, file: HeldFile) -> None:
        self._reactor.watch(file.fileno(), PRIORITY, lambda _mask: self._happened(file))

    def _happened(self, file: HeldFile) -> None:
        # After a change the kernel gives POLLPRI and POLLERR until the file is read; of a removed group it gives them
        # for ever, and only the read tells the two apart.
        data = file.read()
        if data is None:
            self._log.info(f"the worker's cgroup {self.directory} is gone")
            self.close()
        else:
            now = parse_keyed(data)
            before = {key: self._seen.get(key, 0) for key in now}
            self._seen.update(now)
            for key, words in _TOLD.items():
                if now.get(key, 0) > before.get(key, 0):
                    self._log.warning(f"the worker's cgroup: {words} ({key} {before[key]} -> {now[key]})")
            if now.get("frozen", 0) != before.get("frozen", 0):
                self._log.warning(f"the worker's cgroup is {'frozen' if now['frozen'] else 'running again'}")
        self._changed()

    def _stalled(self, mask: int) -> None:
        if mask & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            self._drop_trigger()
        self._changed()

    def _drop_trigger(self) -> None:
        if self._trigger >= 0:
            self._reactor.unwatch(self._trigger)
            os.close(self._trigger)
            self._trigger = -1
