"""A server that somebody else starts: found by its unit's or its own cgroup, or by its command's name; ended, but
never reaped, by us."""

from __future__ import annotations

import os
import select
import signal

from tidegate.frozen import frozen
from tidegate.host import cgroup, process
from tidegate.host.process import ProcessId
from tidegate.worker.fence import lift_high, thaw, write_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate.guard.plan import Attachment

#: Names that are said when several processes match.
_MOST_OTHERS = 5


@frozen
class Match:
    """A process that the attachment's name fits; ``anon`` is its anonymous, shared and swapped bytes."""

    id: ProcessId
    name: str
    anon: int

    @property
    def pid(self) -> int:
        return self.id.pid


def find(attachment: Attachment, root: str = "/") -> tuple[Match, ...]:
    """The processes that ``attachment`` means, largest first; () while there is none. Walks /proc or a cgroup's tree:
    not for the hot path. This process and its ancestors are never meant: to end one of them would end it."""
    if attachment.kind == "process":
        pids: Iterable[int] = process.find_by_name(attachment.name, root)
    else:
        pids = cgroup.members(attachment.group, root)
    spared = process.find_ancestors(os.getpid(), root)
    found = [match for match in (_match(pid, root) for pid in pids if pid not in spared) if match is not None]
    return tuple(sorted(found, key=lambda match: (-match.anon, match.pid)))


def others(matches: tuple[Match, ...]) -> str:
    """The matches that are not guarded, in words; "" if there is only one."""
    if len(matches) < 2:
        return ""
    shown = ", ".join(f"{match.pid} ({match.name})" for match in matches[1 : 1 + _MOST_OTHERS])
    more = len(matches) - 1 - _MOST_OTHERS
    return f"{shown} and {more} more" if more > 0 else shown


def _match(pid: int, root: str) -> Match | None:
    identity, name = process.read_process_id(pid, root), process.read_name(pid, root)
    memory = process.read_memory(pid, root)
    if identity is None or name is None or memory is None or memory.state in "ZX":
        return None
    return Match(identity, name, memory.unreclaimable)


class Foreign:
    """The same face as :class:`tidegate.worker.process.Child`. ``group`` is the directory of the cgroup that is the
    worker's, or empty: then it is the process and its descendants. The caller's own process is never part of it.

    Raises:
        OSError: the process is gone (ESRCH), or another has its pid by now.
    """

    output = -1
    status: int | None = None
    lines: tuple[str, ...] = ()

    def __init__(self, match: Match, *, group: str) -> None:
        self.id = match.id
        self.pid = match.pid
        self.pidfd = os.pidfd_open(match.pid)
        if process.read_process_id(match.pid) != match.id:
            os.close(self.pidfd)
            raise ProcessLookupError(match.pid)
        self.group = group
        self._members: frozenset[ProcessId] = frozenset((match.id,))
        #: memory.high as it was before the worker was told to end.
        self._high = ""

    def may_be_ended(self) -> bool:
        """Whether a signal of ours reaches it. Signal 0 proves the right without doing anything."""
        try:
            signal.pidfd_send_signal(self.pidfd, 0)
        except PermissionError:
            return False
        except OSError:
            # It has just ended, which is no matter of rights.
            pass
        return True

    def read_output(self) -> list[str]:
        """Nothing: its output is its supervisor's."""
        return []

    def reap(self) -> bool:
        """Whether the leader has ended."""
        ended = select.poll()
        ended.register(self.pidfd, select.POLLIN)
        return bool(ended.poll(0))

    def is_empty(self) -> bool:
        """Whether the processes that were there when it was ended are gone. Newer ones are the supervisor's new server,
        which may be in the same cgroup already."""
        return self.reap() and not any(process.is_alive(member) for member in self._members)

    def terminate(self) -> None:
        """SIGTERM to all of it: a shell around the engine would keep it for itself."""
        self._note_members()
        if self.group:
            thaw(self.group)
            self._high = lift_high(self.group) or self._high
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to all of it; by cgroup.kill, which no fork escapes, while its leader lives and we are not inside."""
        self._note_members()
        if self.group and not self.reap() and os.getpid() not in cgroup.members_of(self.group):
            try:
                with open(f"{self.group}/cgroup.kill", "wb", buffering=0) as file:
                    file.write(b"1")
            except OSError:
                pass
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptor, and give the group the brake back that stopping took off."""
        os.close(self.pidfd)
        if self._high:
            write_value(f"{self.group}/memory.high", self._high)

    def _note_members(self) -> None:
        # Once the leader is gone the group may hold the next server.
        if self.reap():
            return
        pids = cgroup.members_of(self.group) if self.group else _descendants(self.pid)
        found = (process.read_process_id(pid) for pid in pids if pid != os.getpid())
        self._members |= frozenset(identity for identity in found if identity is not None)

    def _signal(self, number: int) -> None:
        for member in self._members:
            try:
                pidfd = os.pidfd_open(member.pid)
            except OSError:
                continue
            try:
                # Asked after the open: from there on the pid cannot become another process's unnoticed.
                if process.is_alive(member):
                    signal.pidfd_send_signal(pidfd, number)
            except OSError:
                pass
            finally:
                os.close(pidfd)


def _descendants(pid: int) -> list[int]:
    found, at = [pid], 0
    while at < len(found) and len(found) < 64:
        found += [child for child in process.find_children(found[at]) if child not in found]
        at += 1
    return found
