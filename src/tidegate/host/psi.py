"""Pressure stall information: /proc/pressure/memory and a cgroup's memory.pressure, and triggers on them."""

from __future__ import annotations

import errno
import os

from tidegate.frozen import frozen
from tidegate.host.files import HeldFile, number, read_file, rooted

# Without CAP_SYS_RESOURCE a trigger's window must be a multiple of 2 s (psi_trigger_create, kernel/sched/psi.c, 6.4+).
UNPRIVILEGED_WINDOW_US = 2_000_000


@frozen
class Pressure:
    """Stall shares in percent (0 to 100, 10 s average) and total stall times in microseconds since boot.

    ``some``: at least one task waited for memory. ``full``: all of them did. A line that is not there reads as 0.
    """

    some_avg10: float
    some_total_us: int
    full_avg10: float
    full_total_us: int


def parse_pressure(data: bytes) -> Pressure | None:
    """The content of a memory.pressure file, or None if it has no readable ``some`` line. Never raises."""
    some: tuple[float, int] | None = None
    full: tuple[float, int] | None = None
    for line in data.split(b"\n"):
        kind, _, rest = line.partition(b" ")
        if kind == b"some":
            some = _line(rest)
        elif kind == b"full":
            full = _line(rest)
    if some is None:
        return None
    return Pressure(*some, *(full or (0.0, 0)))


def _line(rest: bytes) -> tuple[float, int] | None:
    avg10: float | None = None
    total: int | None = None
    for word in rest.split():
        key, _, value = word.partition(b"=")
        if key == b"avg10":
            whole, _, part = value.partition(b".")
            # Digits only: float() would also take nan, inf and 1e999.
            if whole.isdigit() and len(whole) <= 3 and (part.isdigit() or not part) and len(part) <= 6:
                avg10 = min(float(value), 100.0)
        elif key == b"total":
            total = number(value)
    return None if avg10 is None or total is None else (avg10, total)


def pressure_path(root: str = "/") -> str:
    """The system's memory pressure file below ``root``."""
    return rooted(root, "/proc/pressure/memory")


def read_pressure(path: str) -> Pressure | None:
    """The pressure in ``path``; None if there is no such file or psi is off (its read gives EOPNOTSUPP)."""
    data = read_file(path, 4096)
    return None if data is None else parse_pressure(data)


def open_trigger(path: str, kind: str, stall_us: int, window_us: int) -> tuple[int, int] | None:
    """A descriptor that gets POLLPRI when tasks stalled for ``stall_us`` within ``window_us`` (microseconds).

    ``kind`` is "some" or "full". If the kernel refuses the window for want of privilege, the same share of a 2 s
    window is tried. Returns (descriptor, window in force), or None if no trigger can be had; the caller closes the
    descriptor. POLLERR on it means that the cgroup is gone.
    """
    windows = [(stall_us, window_us)]
    if window_us != UNPRIVILEGED_WINDOW_US:
        windows.append((max(1, stall_us * UNPRIVILEGED_WINDOW_US // window_us), UNPRIVILEGED_WINDOW_US))
    for stall, window in windows:
        try:
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            # With the NUL: the kernel overwrites the last byte, and "2000000" becomes 200 ms without it (bun#39654).
            os.write(fd, f"{kind} {stall} {window}\0".encode())
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.EINVAL, errno.EPERM, errno.EACCES):
                return None
        else:
            return fd, window
    return None


class HeldPressure:
    """A pressure file held open and read again; None from :meth:`open` and :meth:`read` where psi is off."""

    __slots__ = ("_file",)

    def __init__(self, file: HeldFile) -> None:
        self._file = file

    @classmethod
    def open(cls, path: str) -> HeldPressure | None:
        """Hold ``path`` open if it can really be read (with psi=0 it opens, but its read fails)."""
        file = HeldFile.open(path)
        if file is None:
            return None
        data = file.read()
        if data is None or parse_pressure(data) is None:
            file.close()
            return None
        return cls(file)

    def read(self) -> Pressure | None:
        """The pressure now, or None: the cgroup is gone. Never raises."""
        data = self._file.read()
        return None if data is None else parse_pressure(data)

    def close(self) -> None:
        """Give the descriptor back. May be called twice."""
        self._file.close()
