"""Puts the kernel's limits on a cgroup, reads them back, and takes the brake off before a worker is stopped."""

from __future__ import annotations

import errno
import os

from tidegate.host.files import number, read_number, read_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.policy.fences import Fences

#: Limits are rounded down to whole pages; 64 KiB is the largest page of Linux's boards.
_LARGEST_PAGE = 64 << 10
_LIMITS = ("memory.max", "memory.high")


def write_fences(directory: str, fences: Fences, *, ours: bool = False) -> tuple[str, ...]:
    """Write ``fences`` to the v2 group at ``directory`` and read them back; what differs, in words. ``ours``: a limit
    that is not among them is taken off.

    Lowering a limit below what is used makes the kernel reclaim in the writer's thread until it fits, and memory.max
    even kills: with O_NONBLOCK the kernel (6.16) only sets it. Older ones ignore that flag, so a limit is written to a
    new group before anything lives in it, and never below what a group uses.
    """
    found = []
    written = dict(fences.files())
    for name in _LIMITS if ours else ():
        if name not in written and read_word(f"{directory}/{name}") not in (None, b"max"):
            write_value(f"{directory}/{name}", "max")
    used = read_number(f"{directory}/memory.current") or 0
    for name, value in written.items():
        if name in _LIMITS and int(value) < used:
            found.append(f"{name} is left as it is: {used} bytes are in use, more than {value}")
            continue
        trouble = write_value(f"{directory}/{name}", value)
        if trouble:
            found.append(f"cannot write {name}: {trouble}")
            continue
        now = read_word(f"{directory}/{name}")
        if now is None or not _same(value, now):
            shown = "nothing" if now is None else now.decode(errors="replace")
            found.append(f"{name} is {shown} where {value} was written")
    return tuple(found)


def write_value(path: str, value: str) -> str:
    """Write one of a cgroup's files; "" or why it cannot be."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return "no such file here, as its controller is not on"
    except OSError as error:
        return error.strerror or str(error)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        return "the cgroup is gone" if error.errno == errno.ENODEV else error.strerror or str(error)
    finally:
        os.close(fd)
    return ""


def lift_high(directory: str) -> str:
    """Take memory.high off the group: a throttled process handles SIGTERM only after its sleep of up to 2 s a charge.

    Returns what was there, "" if it was no limit or cannot be changed.
    """
    now = read_word(f"{directory}/memory.high")
    if now is None or now == b"max" or write_value(f"{directory}/memory.high", "max"):
        return ""
    return now.decode(errors="replace")


def thaw(directory: str) -> None:
    """Let a frozen group run: frozen tasks die on SIGKILL, but do not see SIGTERM."""
    if read_word(f"{directory}/cgroup.freeze") == b"1":
        write_value(f"{directory}/cgroup.freeze", "0")


def _same(written: str, read: bytes) -> bool:
    wanted, got = number(written.encode()), number(read)
    if wanted is None or got is None:
        return written.encode() == read
    return got == wanted or 0 <= wanted - got < _LARGEST_PAGE
