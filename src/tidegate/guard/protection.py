"""Keeps the board's own jobs out of the OOM killer's reach, across their restarts: oom_score_adj -1000."""

from __future__ import annotations

from tidegate.frozen import frozen
from tidegate.host import cgroup, process
from tidegate.host.files import read_file, read_word, rooted
from tidegate.units import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.guard.log import Log
    from tidegate.guard.reactor import Reactor
    from tidegate.settings.model import ProtectSettings

#: A job that was started again goes unprotected for at most this long. A round that finds no new process costs one
#: small read, and one over 150 processes 3 ms; under swap a walk of /proc was measured at 5 s, so none is made while
#: memory is short.
_EVERY_S = 5.0
#: A process may also take a protected name without being new, by exec.
_WHOLE_EVERY_S = 60.0
#: Of these only the listener: everything that a login starts would inherit it. sshd gives its children back what it
#: had itself when it started.
_LISTENERS = ("ssh.service", "sshd.service")
#: systemd's "infinity" and the kernel's "max".
_NO_BOUND = 1 << 63


@frozen
class Outcome:
    """What one round did. ``done`` are pids that were raised to safety now, by what names them; ``refused`` are those
    that are the worker's; ``failed`` those that may not be changed."""

    done: tuple[tuple[int, str], ...] = ()
    refused: tuple[tuple[int, str], ...] = ()
    failed: tuple[tuple[int, str], ...] = ()


class Scan:
    """Finds and protects; stateful only in what it has seen."""

    def __init__(self, settings: ProtectSettings, groups: tuple[tuple[str, str], ...], root: str = "/") -> None:
        self._names = settings.processes
        self._groups = groups
        self._root = root
        self._last_pid = b""
        self._whole_at = float("-inf")

    def run(self, now: float, worker: frozenset[int]) -> Outcome:
        """One round at ``now`` (monotonic seconds); ``worker`` are pids that stay what the OOM killer takes first."""
        # The last field of /proc/loadavg is the pid that was given out last.
        last_pid = (read_file(rooted(self._root, "/proc/loadavg"), 128) or b"").rpartition(b" ")[2]
        if last_pid == self._last_pid and now - self._whole_at < _WHOLE_EVERY_S:
            return Outcome()
        self._last_pid, self._whole_at = last_pid, now
        found = process.find_by_names(self._names, self._root) if self._names else {}
        for unit, group in self._groups:
            members = cgroup.members(group, self._root)
            found.update((pid, unit) for pid in (members[:1] if unit in _LISTENERS else members))
        done, refused, failed = [], [], []
        for pid, name in sorted(found.items()):
            if pid in worker:
                refused.append((pid, name))
            elif process.read_oom_score_adj(pid, self._root) not in (None, process.OOM_SCORE_ADJ_MIN):
                written = process.write_oom_score_adj(process.OOM_SCORE_ADJ_MIN, pid, self._root)
                # One that has ended meanwhile has no score to read either.
                if written:
                    done.append((pid, name))
                elif process.read_oom_score_adj(pid, self._root) is not None:
                    failed.append((pid, name))
        return Outcome(tuple(done), tuple(refused), tuple(failed))


class Protection:
    """Rounds of :class:`Scan` while ``calm`` says that memory is not short; ``worker`` gives the worker's pids."""

    def __init__(
        self,
        settings: ProtectSettings,
        groups: tuple[tuple[str, str], ...],
        *,
        reactor: Reactor,
        log: Log,
        calm: Callable[[], bool],
        worker: Callable[[], tuple[int, ...]],
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._scan = Scan(settings, groups)
        self._reactor = reactor
        self._log = log
        self._calm = calm
        self._worker = worker
        self._said: set[str] = set()

    def begin(self) -> None:
        """Start the rounds, if there is anything to protect."""
        if not self._settings.processes and not self._groups:
            return
        promised = (("min", self._settings.memory_min), ("low", self._settings.memory_low))
        for unit, group in self._groups:
            for kind, size in promised:
                trouble = unprotected_memory(group, size, kind) if size else ""
                if trouble:
                    name = f"Memory{kind.capitalize()}="
                    self._say(f"protect: {unit}: {trouble}; tidegate setup writes {name} where it is needed")
        self._round()

    def _round(self) -> None:
        self._reactor.after("protect", _EVERY_S, self._round)
        if not self._calm():
            return
        outcome = self._scan.run(self._reactor.clock(), frozenset(self._worker()))
        for pid, name in outcome.done:
            self._log.info(f"protect: oom_score_adj -1000 for {pid} ({name})")
        for pid, name in outcome.refused:
            self._say(f"protect: {name} is the worker ({pid}): it stays what the OOM killer takes first")
        for _, name in outcome.failed:
            self._say(
                f"protect: cannot lower oom_score_adj of {name}: that needs CAP_SYS_RESOURCE and its user's rights"
            )

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._log.warning(message)


def unprotected_memory(group: str, wanted: int, kind: str = "min", root: str = "/") -> str:
    """Why the v2 group at the path ``group`` has not ``wanted`` bytes of memory.min (``kind`` "low": memory.low) in
    effect, or "".

    Every ancestor bounds it: a slice with memory.min 0 makes its services' own worth nothing.
    """
    file = f"memory.{kind}"
    hierarchy = cgroup.find_hierarchy(None, root)
    if not hierarchy.memory or hierarchy.is_v1:
        return f"{file} is not to be had without the memory controller of cgroup v2"
    path = group
    while path and path != "/":
        word = read_word(f"{hierarchy.directory_of(path)}/{file}")
        if word is None:
            return f"{path} has no {file} now"
        held = _NO_BOUND if word == b"max" else int(word) if word.isdigit() else 0
        if held < wanted:
            return f"{file} of {path} is {format_size(held)}, below {format_size(wanted)}"
        path = path.rpartition("/")[0]
    return ""
