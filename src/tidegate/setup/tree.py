"""What lies at a path below a root: read, never followed out of the root."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass

from tidegate.errors import TidegateError
from tidegate.host.files import rooted

_CHUNK = 1 << 20


@dataclass(frozen=True)
class RegularFile:
    """``mode`` are the permission bits; ``mtime_ns`` is nanoseconds since 1970."""

    sha256: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int

    @property
    def print(self) -> str:
        """What tells its content from others."""
        return f"sha256:{self.sha256}"


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str

    @property
    def print(self) -> str:
        """What tells it from others."""
        return f"link:{self.target}"


Found = RegularFile | Link | None


def print_of(found: Found) -> str:
    """The fingerprint of ``found``, "" of nothing."""
    return "" if found is None else found.print


def sha256(data: bytes) -> str:
    """The hash of ``data``, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def look(path: str, root: str = "/") -> Found:
    """What is at ``path`` below ``root``; None: nothing.

    Raises:
        TidegateError: it is neither a file nor a link, it cannot be read, or a link on the way leads out of ``root``.
    """
    full = rooted(root, path)
    check_inside(path, root)
    try:
        found = os.lstat(full)
        if stat.S_ISLNK(found.st_mode):
            return Link(os.readlink(full))
        if not stat.S_ISREG(found.st_mode):
            raise TidegateError(f"cannot set up: {full} is neither a file nor a link")
        digest = hashlib.sha256()
        with open(full, "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TidegateError(f"cannot read {full}: {error.strerror}") from None
    return RegularFile(digest.hexdigest(), stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns)


def check_inside(path: str, root: str) -> None:
    """That the directory of ``path`` is in ``root``: an image's absolute links would lead into this machine.

    Raises:
        TidegateError: it is not.
    """
    top = os.path.realpath(root)
    directory = os.path.realpath(os.path.dirname(rooted(root, path)))
    if top != "/" and directory != top and not directory.startswith(top + "/"):
        raise TidegateError(f"cannot set up below {root}: {os.path.dirname(path)} leads out of it, to {directory}")


def missing_directories(path: str, root: str = "/") -> tuple[str, ...]:
    """The directories above ``path`` that are not there, outermost first."""
    found = []
    directory = os.path.dirname(path)
    while directory != "/" and not os.path.isdir(rooted(root, directory)):
        found.append(directory)
        directory = os.path.dirname(directory)
    return tuple(reversed(found))
