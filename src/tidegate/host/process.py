"""Processes: identity, memory by kind, children, oom_score_adj.

Sizes come from /proc/PID/status. smaps_rollup and cmdline take the process's mmap_lock, which a process in trouble may
hold for seconds, so they are never read here.
"""

from __future__ import annotations

import os

from tidegate.frozen import frozen
from tidegate.host.files import HeldFile, number, read_file, rooted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

OOM_SCORE_ADJ_MIN = -1000
OOM_SCORE_ADJ_MAX = 1000

# Fields of /proc/PID/stat after the command, which is field 2 (proc_pid_stat(5)): state is 3, ppid 4, starttime 22.
_STATE_FIELD = 3
_PPID_FIELD = 4
_GROUP_FIELD = 5
_UTIME_FIELD = 14
_STIME_FIELD = 15
_START_FIELD = 22


@frozen
class ProcessId:
    """A process for good: pids are used again, (pid, start time in clock ticks since boot) is not."""

    pid: int
    start_time: int


@frozen
class ProcessMemory:
    """Resident memory by kind and swap, in bytes >= 0; ``state`` is the letter of /proc (R, S, D, Z ..).

    A zombie has no memory lines: all sizes 0. ``rss_file`` contains mapped weights; ``rss_shmem`` shared anonymous
    memory (what Python's mmap(-1) gives).
    """

    rss_anon: int
    rss_file: int
    rss_shmem: int
    swap: int
    threads: int
    state: str

    @property
    def unreclaimable(self) -> int:
        """What counts on the budget: anonymous, shared and swapped bytes. File pages can be dropped."""
        return self.rss_anon + self.rss_shmem + self.swap


_STATUS_KEYS = {b"RssAnon": 0, b"RssFile": 1, b"RssShmem": 2, b"VmSwap": 3, b"Threads": 4}


def parse_status(data: bytes) -> ProcessMemory:
    """The content of /proc/PID/status; what is missing or no number is 0, a missing state "?". Never raises."""
    values = [0, 0, 0, 0, 0]
    state = "?"
    for line in data.split(b"\n"):
        # The kernel escapes a newline in the name, so no process can forge a line.
        key, _, rest = line.partition(b":")
        place = _STATUS_KEYS.get(key)
        if place is not None:
            words = rest.split()
            amount = number(words[0]) if words else None
            if amount is not None:
                values[place] = amount if place == 4 else amount << 10
        elif key == b"State" and rest[1:2].isalpha():
            state = chr(rest[1])
    anon, file, shmem, swap, threads = values
    return ProcessMemory(anon, file, shmem, swap, threads, state)


def parse_stat(data: bytes) -> tuple[str, int, int] | None:
    """State letter, parent pid and start time (clock ticks since boot) in /proc/PID/stat, or None if it is no such.

    The command is in parentheses and may itself contain ``) ``, spaces and newlines: the last parenthesis ends it.
    """
    fields = data[data.rfind(b")") + 1 :].split()
    if b")" not in data or len(fields) <= _START_FIELD - _STATE_FIELD:
        return None
    state, parent, start = (fields[place - _STATE_FIELD] for place in (_STATE_FIELD, _PPID_FIELD, _START_FIELD))
    ppid, start_time = number(parent), number(start)
    if ppid is None or start_time is None or len(state) != 1 or not state.isalpha():
        return None
    return state.decode("ascii"), ppid, start_time


def read_process_id(pid: int, root: str = "/") -> ProcessId | None:
    """The identity of ``pid`` now, or None: no such process."""
    parsed = parse_stat(read_file(rooted(root, f"/proc/{pid}/stat"), 4096) or b"")
    return None if parsed is None else ProcessId(pid, parsed[2])


def is_alive(process: ProcessId, root: str = "/") -> bool:
    """Whether exactly this process still runs. A zombie does not: only its exit status is left. But one whose first
    thread has ended shows as a zombie too while its other threads run on (earlyoom#309)."""
    parsed = parse_stat(read_file(rooted(root, f"/proc/{process.pid}/stat"), 4096) or b"")
    if parsed is None or parsed[2] != process.start_time:
        return False
    return parsed[0] not in "ZX" or find_live_thread(process.pid, root) is not None


def find_live_thread(pid: int, root: str = "/") -> int | None:
    """A thread of ``pid`` that runs although the first one has ended, or None."""
    for thread in sorted(_pids(rooted(root, f"/proc/{pid}/task"))):
        parsed = parse_stat(read_file(rooted(root, f"/proc/{pid}/task/{thread}/stat"), 4096) or b"")
        if parsed is not None and parsed[0] not in "ZX":
            return thread
    return None


def read_name(pid: int, root: str = "/") -> str | None:
    """The first 15 bytes of the command's name (/proc/PID/comm), or None: no such process."""
    data = read_file(rooted(root, f"/proc/{pid}/comm"), 64)
    return None if data is None else os.fsdecode(data.removesuffix(b"\n"))


def read_memory(pid: int, root: str = "/") -> ProcessMemory | None:
    """Memory of ``pid`` now, or None: no such process."""
    data = read_file(rooted(root, f"/proc/{pid}/status"), 65536)
    return None if data is None else _whole(parse_status(data), pid, root)


def _whole(memory: ProcessMemory, pid: int, root: str) -> ProcessMemory:
    """``memory``, or where its first thread has ended and shows none, that of a thread that runs on."""
    if memory.state not in "ZX":
        return memory
    thread = find_live_thread(pid, root)
    data = None if thread is None else read_file(rooted(root, f"/proc/{pid}/task/{thread}/status"), 65536)
    return memory if data is None else parse_status(data)


def read_cpu_time(pid: int, root: str = "/") -> float | None:
    """Seconds of CPU time that ``pid`` has used, user and system, or None: no such process."""
    data = read_file(rooted(root, f"/proc/{pid}/stat"), 4096) or b""
    fields = data[data.rfind(b")") + 1 :].split()
    if len(fields) <= _STIME_FIELD - _STATE_FIELD:
        return None
    ticks = [number(fields[place - _STATE_FIELD]) for place in (_UTIME_FIELD, _STIME_FIELD)]
    return sum(tick or 0 for tick in ticks) / os.sysconf("SC_CLK_TCK")


class ProcessFiles:
    """/proc/PID/status held open: one descriptor, bound to this process and not to a later one with its pid."""

    __slots__ = ("_root", "_status", "id")

    def __init__(self, identity: ProcessId, status: HeldFile, root: str) -> None:
        self.id = identity
        self._status = status
        self._root = root

    @classmethod
    def open(cls, pid: int, root: str = "/") -> ProcessFiles | None:
        """Hold process ``pid``, or None: it is gone."""
        before = read_process_id(pid, root)
        status = HeldFile.open(rooted(root, f"/proc/{pid}/status"))
        if status is None:
            return None
        # The pid may have been used again between the two opens; then the identity is not that of the descriptor.
        if before is None or read_process_id(pid, root) != before:
            status.close()
            return None
        return cls(before, status, root)

    def read(self) -> ProcessMemory | None:
        """Its memory now, or None: it is gone for good. Never raises."""
        data = self._status.read()
        return None if data is None else _whole(parse_status(data), self.id.pid, self._root)

    def close(self) -> None:
        """Give the descriptor back. May be called twice."""
        self._status.close()


def find_children(pid: int, root: str = "/") -> tuple[int, ...]:
    """The pids of the children of ``pid``, ascending; () if it is gone. Walks directories: not for the hot path.

    /proc/PID/task/*/children is there only with CONFIG_PROC_CHILDREN; without it every process's parent is asked.
    """
    base = rooted(root, f"/proc/{pid}/task")
    children: set[int] = set()
    answered = False
    for thread in _pids(base):
        data = read_file(f"{base}/{thread}/children")
        if data is not None:
            answered = True
            children.update(child for child in map(number, data.split()) if child is not None)
    if not answered:
        for other in _pids(rooted(root, "/proc")):
            parsed = parse_stat(read_file(rooted(root, f"/proc/{other}/stat"), 4096) or b"")
            if parsed is not None and parsed[1] == pid:
                children.add(other)
    return tuple(sorted(children))


def find_ancestors(pid: int, root: str = "/") -> tuple[int, ...]:
    """``pid``, its parent, and so on to the first process that can be seen."""
    found = [pid]
    while True:
        parsed = parse_stat(read_file(rooted(root, f"/proc/{found[-1]}/stat"), 4096) or b"")
        # Parent 0 is outside of this pid namespace; a pid that was used again meanwhile may close a circle.
        if parsed is None or parsed[1] == 0 or parsed[1] in found:
            return tuple(found)
        found.append(parsed[1])


def group_lives(group: int, root: str = "/") -> bool:
    """Whether a process of this process group runs: zombies whose parent never reaps them do not count. Walks /proc."""
    for pid in _pids(rooted(root, "/proc")):
        data = read_file(rooted(root, f"/proc/{pid}/stat"), 4096) or b""
        parsed, fields = parse_stat(data), data[data.rfind(b")") + 1 :].split()
        if parsed is not None and number(fields[_GROUP_FIELD - _STATE_FIELD]) == group and parsed[0] not in "ZX":
            return True
    return False


def find_by_name(name: str, root: str = "/") -> tuple[int, ...]:
    """The pids whose command name is the first 15 bytes of ``name``, ascending. Walks /proc: not for the hot path."""
    return tuple(find_by_names((name,), root))


def find_by_names(names: Iterable[str], root: str = "/") -> dict[int, str]:
    """As :func:`find_by_name` for several names in one walk: the name of each pid that has one of them, by pid."""
    wanted = {os.fsdecode(os.fsencode(name)[:15]) for name in names}
    found = ((pid, read_name(pid, root)) for pid in sorted(_pids(rooted(root, "/proc"))))
    return {pid: name for pid, name in found if name is not None and name in wanted}


def _pids(directory: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(directory) if name.isascii() and name.isdigit()]
    except OSError:
        return []


def read_oom_score_adj(pid: int | None = None, root: str = "/") -> int | None:
    """oom_score_adj of ``pid`` (None: the caller), -1000 to 1000, or None: no such process."""
    data = read_file(_oom_path(pid, root), 64)
    if data is None:
        return None
    word = data.strip()
    amount = number(word.removeprefix(b"-"))
    if amount is None or amount > OOM_SCORE_ADJ_MAX:
        return None
    return -amount if word.startswith(b"-") else amount


def write_oom_score_adj(value: int, pid: int | None = None, root: str = "/") -> bool:
    """Set oom_score_adj of ``pid`` (None: the caller). False: refused (lowering needs CAP_SYS_RESOURCE) or gone.

    Raises:
        ValueError: not between -1000 and 1000.
    """
    if not OOM_SCORE_ADJ_MIN <= value <= OOM_SCORE_ADJ_MAX:
        raise ValueError(f"{value} is out of range (-1000 to 1000)")
    try:
        fd = os.open(_oom_path(pid, root), os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, b"%d" % value)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _oom_path(pid: int | None, root: str) -> str:
    return rooted(root, f"/proc/{'self' if pid is None else pid}/oom_score_adj")
