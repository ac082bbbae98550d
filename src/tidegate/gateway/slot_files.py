"""The files of saved slots: named by what they fit, checked before use, few.

llama-server checks nothing but a magic number: a file that lacks its second half ended it (b11434). So a file's name
has the digest of its content, and one that is not what it was is thrown away.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass

#: As many as there are applications on a small board.
MOST_FILES = 4
MOST_BYTES = 512 << 20
#: The disk is not ours to fill.
LEAST_FREE_BYTES = 1 << 30

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9]{1,7})-([0-9a-f]{16})\.slot")
_PIECE = 1 << 20
_LEFT_BEHIND_S = 3600.0


@dataclass(frozen=True)
class SlotFile:
    """One saved slot: the shape it fits, the beginning it holds, and that in tokens."""

    name: str
    key: str
    prefix: str
    tokens: int
    digest: str
    size: int
    mtime_ns: int


class SlotFiles:
    """All methods may block on the disk for some 10 ms: call them in a thread."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        #: Where the engine writes a new one; another gateway may share the directory.
        self.fresh_name = f"new-{os.getpid()}.tmp"

    def find(self, key: str, prefix: str, *, most_tokens: int) -> SlotFile | None:
        """A whole file for the shape ``key`` of at most ``most_tokens``: of ``prefix``, else the one used last."""
        fitting = [file for file in self._listed() if file.key == key and file.tokens <= most_tokens]
        for file in sorted(fitting, key=lambda file: (file.prefix == prefix, file.mtime_ns), reverse=True):
            if self._digest(file.name) == file.digest:
                with contextlib.suppress(OSError):
                    os.utime(self._path(file.name))
                return file
            self.remove(file)
        return None

    def has(self, key: str, prefix: str) -> bool:
        """There is a file for them."""
        return any((file.key, file.prefix) == (key, prefix) for file in self._listed())

    def has_room(self) -> bool:
        """The disk has room for another one."""
        try:
            return shutil.disk_usage(self._directory).free >= LEAST_FREE_BYTES
        except OSError:
            return False

    def adopt(self, key: str, prefix: str, tokens: int) -> SlotFile | None:
        """Give the file that the engine has just written its name, and remove what is too much. None without one."""
        digest = self._digest(self.fresh_name)
        name = f"{key}-{prefix}-{tokens}-{digest}.slot"
        if not digest:
            return None
        try:
            os.rename(self._path(self.fresh_name), self._path(name))
        except OSError:
            return None
        self._sweep()
        count = size = 0
        for file in sorted(self._listed(), key=lambda file: file.mtime_ns, reverse=True):
            older = (file.key, file.prefix) == (key, prefix) and file.name != name
            if older or count >= MOST_FILES or size + file.size > MOST_BYTES:
                self.remove(file)
            else:
                count, size = count + 1, size + file.size
        return next((file for file in self._listed() if file.name == name), None)

    def _sweep(self) -> None:
        """Remove what gateways that died have left half-written."""
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._directory):
                fresh = entry.name.startswith("new-") and entry.name.endswith(".tmp")
                if fresh and entry.stat(follow_symlinks=False).st_mtime < time.time() - _LEFT_BEHIND_S:
                    os.unlink(entry.path)

    def discard_fresh(self) -> None:
        """Remove a half-written one."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(self.fresh_name))

    def remove(self, file: SlotFile) -> None:
        """Remove one; it may be gone already."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(file.name))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _listed(self) -> list[SlotFile]:
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):
                parts = _NAME.fullmatch(name)
                if parts is None:
                    continue
                with contextlib.suppress(OSError):
                    seen = os.lstat(self._path(name))
                    # In a directory that others may write to, theirs is no file of ours.
                    if stat.S_ISREG(seen.st_mode) and seen.st_uid == os.getuid():
                        key, prefix, tokens, digest = parts.groups()
                        found.append(SlotFile(name, key, prefix, int(tokens), digest, seen.st_size, seen.st_mtime_ns))
        return found

    def _digest(self, name: str) -> str:
        """Of the content; empty if it cannot be read."""
        made = hashlib.blake2b(digest_size=8)
        try:
            with open(self._path(name), "rb", buffering=0) as file:
                while piece := file.read(_PIECE):
                    made.update(piece)
        except OSError:
            return ""
        return made.hexdigest()
