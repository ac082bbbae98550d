"""All processes at one moment, with what the OOM killer thinks of them; and what single ones were told.

Walks /proc: about 60 us a process, for who looks once.
"""

from __future__ import annotations

import os

from tidegate.frozen import frozen
from tidegate.host.files import read_file, read_number, rooted
from tidegate.host.process import ProcessMemory, parse_status, read_oom_score_adj

# pid_max is 2**22 at most; a tree may hold anything.
_MOST_PROCESSES = 40000


@frozen
class ProcessRow:
    """``oom_score`` is the kernel's badness, 0 to 2000 (None: it does not tell); ``oom_score_adj`` -1000 to 1000."""

    pid: int
    name: str
    memory: ProcessMemory
    oom_score: int | None
    oom_score_adj: int


def read_processes(root: str = "/") -> tuple[ProcessRow, ...]:
    """Every process with memory of its own, by pid: kernel threads and zombies have none. Never raises."""
    try:
        pids = sorted(int(name) for name in os.listdir(rooted(root, "/proc")) if name.isascii() and name.isdigit())
    except (OSError, ValueError):
        return ()
    rows = []
    for pid in pids[:_MOST_PROCESSES]:
        data = read_file(rooted(root, f"/proc/{pid}/status"), 65536)
        if data is None:
            continue
        memory = parse_status(data)
        if memory.unreclaimable + memory.rss_file == 0:
            continue
        adj = read_oom_score_adj(pid, root)
        score = read_number(rooted(root, f"/proc/{pid}/oom_score"))
        rows.append(ProcessRow(pid, parse_name(data), memory, score, 0 if adj is None else adj))
    return tuple(rows)


def parse_name(status: bytes) -> str:
    """The command's name in /proc/PID/status, "?" without one; what a terminal would act on is written out."""
    for line in status.split(b"\n")[:4]:
        key, _, rest = line.partition(b":")
        if key == b"Name":
            text = rest.strip()[:64].decode("utf-8", "replace")
            return "".join(char if char.isprintable() else "?" for char in text) or "?"
    return "?"


def read_arguments(pid: int, root: str = "/") -> tuple[str, ...]:
    """The command line of ``pid``, () if it cannot be read.

    Takes the process's mmap_lock, which one in trouble may hold for seconds: call it where that may be waited for.
    """
    return _strings(f"/proc/{pid}/cmdline", root)


def read_environment(pid: int, root: str = "/") -> dict[str, str]:
    """The environment that ``pid`` was started with; {} for another user's. As :func:`read_arguments`."""
    pairs = (word.partition("=") for word in _strings(f"/proc/{pid}/environ", root))
    return {name: value for name, equals, value in pairs if equals}


def _strings(path: str, root: str) -> tuple[str, ...]:
    data = read_file(rooted(root, path), 1 << 18) or b""
    return tuple(os.fsdecode(word) for word in data.rstrip(b"\0").split(b"\0")) if data else ()
