"""Small kernel files: read whole, or held open and read again from the start.

Every path is below an injectable root directory, so that a recorded tree can stand in for a machine.
"""

from __future__ import annotations

import os

# /proc/meminfo is about 1.6 kB, memory.stat about 2 kB on 6.18; the kernel gives no more than one page for most others.
_BUFFER = 8192


def rooted(root: str, path: str) -> str:
    """``path`` (absolute) below the directory ``root``; ``root`` "/" is the machine itself."""
    return root.rstrip("/") + path


def read_file(path: str, most: int = 1 << 20) -> bytes | None:
    """Up to ``most`` bytes of ``path``, or None if it cannot be opened or read. Never raises OSError, never blocks."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        chunks = []
        while most > 0:
            chunk = os.read(fd, min(most, 65536))
            if not chunk:
                break
            chunks.append(chunk)
            most -= len(chunk)
        return b"".join(chunks)
    except OSError:
        # EOPNOTSUPP (psi=0), ENODEV (cgroup removed), ESRCH (process gone), EISDIR: there is nothing to read.
        return None
    finally:
        os.close(fd)


def read_word(path: str) -> bytes | None:
    """The content of a one-value file without surrounding white space, or None if there is no such file."""
    data = read_file(path, 4096)
    return None if data is None else data.strip()


def read_number(path: str) -> int | None:
    """The non-negative decimal number in a one-value file, or None if the file or the number is missing."""
    return number(read_word(path))


def number(word: bytes | None) -> int | None:
    """``word`` as a non-negative number below 2**64, or None. Stricter than int(): no sign, underscore or space."""
    if word is None or not word.isdigit() or len(word) > 20:
        return None
    value = int(word)
    return value if value < 1 << 64 else None


class HeldFile:
    """One open kernel file that is read again and again from its start.

    Opening costs a path walk that can wait for disk when memory is short; a pread on a held descriptor does not.
    Not thread-safe against :meth:`close`.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def open(cls, path: str) -> HeldFile | None:
        """``path`` held open, or None if it cannot be opened."""
        try:
            return cls(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except (OSError, ValueError):
            return None

    def fileno(self) -> int:
        """The descriptor, for poll(); -1 after :meth:`close`."""
        return self._fd

    def read(self) -> bytes | None:
        """The content now (at most 8 KiB), or None: the process or cgroup behind it is gone, or it was closed."""
        if self._fd < 0:
            return None
        try:
            return os.pread(self._fd, _BUFFER, 0)
        except OSError:
            # ENODEV for a removed cgroup, ESRCH for a vanished process; both are final for this descriptor.
            return None

    def close(self) -> None:
        """Give the descriptor back. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
