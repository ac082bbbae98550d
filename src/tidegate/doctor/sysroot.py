"""A foreign tree, made safe to read: a private copy of what the checks look at, of plain files alone.

The readers of :mod:`tidegate.host` open paths as they are, and a link in a tree may point anywhere, or at itself; a
file may be a pipe that nobody writes to. So each path is resolved here, as if the tree were "/", and only regular files
are copied, each up to 1 MiB. In the copy nothing can lead out. The tree must not change meanwhile.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.doctor.board import SYSCTLS
from tidegate.doctor.rival_files import SYSTEMD_FILES, SYSTEMD_PLACES
from tidegate.errors import Exit, TidegateError
from tidegate.host.unit_files import DIRECTORIES

_MOST_FILE = 1 << 20
#: A board with 500 processes and 300 units comes to 5,000 files and 10 MB; a hostile tree has no end.
_MOST_FILES = 60_000
_MOST_BYTES = 64 << 20
_MOST_ENTRIES = 40_000
#: Names that are looked at: 500 groups of 70 files and 500 processes come to 40,000.
_MOST_LOOKS = 200_000
#: As the kernel (MAXSYMLINKS, include/linux/namei.h).
_MOST_LINKS = 40
_MOST_DEPTH = 24

_FILES = (
    *("/proc/meminfo", "/proc/swaps", "/proc/cmdline", "/proc/version", "/proc/vmstat", "/proc/buddyinfo"),
    *("/proc/self/cgroup", "/proc/config.gz", "/proc/pressure/memory", "/proc/device-tree/model"),
    *("/sys/firmware/devicetree/base/model", "/sys/class/dmi/id/product_name"),
    *("/sys/kernel/debug/dma_buf/bufinfo", "/sys/kernel/debug/nvmap/iovmm/clients"),
    *("/etc/os-release", "/etc/default/earlyoom"),
    *("/etc/nohang/nohang.conf", "/etc/nohang/nohang-desktop.conf"),
    *(f"{place}/{name}" for place in SYSTEMD_PLACES for name in SYSTEMD_FILES),
    *(f"/proc/sys/{name.replace('.', '/')}" for name in SYSCTLS),
)
#: Only that they are there counts.
_MARKS = (
    "/sys/firmware/devicetree/base",
    *("/.dockerenv", "/run/.containerenv", "/run/systemd/container", "/sys/class/drm/card0", "/dev/dri"),
    *("/sys/class/watchdog/watchdog0", "/dev/watchdog0", "/boot/cmdline.txt", "/boot/firmware/cmdline.txt"),
)
_MOUNTS = ("/proc/mounts", "/proc/self/mounts", "/proc/self/mountinfo")
_OF_PROCESS = ("status", "comm", "oom_score", "oom_score_adj", "cmdline", "environ")


class Tree:
    """Paths below the directory ``root``, resolved as if it were "/"."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)

    def real(self, path: str) -> str | None:
        """Where ``path`` is, without a link in it, or None: there is none, or its links go in a circle."""
        done: list[str] = []
        waiting = deque(path.split("/"))
        links = 0
        while waiting:
            part = waiting.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                done = done[:-1]
                continue
            here = "/".join((self._root, *done, part))
            try:
                if not stat.S_ISLNK(os.lstat(here).st_mode):
                    done.append(part)
                    continue
                target = os.readlink(here)
            except (OSError, ValueError):
                return None
            links += 1
            if links > _MOST_LINKS:
                return None
            if target.startswith("/"):
                done = []
            waiting.extendleft(reversed(target.split("/")))
        return "/".join((self._root, *done))

    def read(self, path: str) -> bytes | None:
        """Up to 1 MiB of the regular file ``path``, or None: no such file, or something else."""
        real = self.real(path)
        if real is None:
            return None
        try:
            # Before it is opened: opening a device may do something.
            if not stat.S_ISREG(os.lstat(real).st_mode):
                return None
            fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError):
            return None
        try:
            with os.fdopen(fd, "rb") as file:
                return file.read(_MOST_FILE)
        except OSError:
            return None

    def entries(self, path: str) -> list[str]:
        """The names in the directory ``path``, ascending; [] if it is none."""
        real = self.real(path)
        try:
            return sorted(os.listdir(real))[:_MOST_ENTRIES] if real else []
        except OSError:
            return []

    def is_directory(self, path: str) -> bool:
        """Whether ``path`` is a directory itself, and no link to one."""
        real = self.real(path.rpartition("/")[0])
        try:
            return real is not None and stat.S_ISDIR(os.lstat(f"{real}/{path.rpartition('/')[2]}").st_mode)
        except (OSError, ValueError):
            return False


class _Copier:
    def __init__(self, tree: Tree, target: str) -> None:
        self._tree = tree
        self._target = target
        self._files = 0
        self._bytes = 0
        self._looks = 0

    @property
    def is_full(self) -> bool:
        return self._files >= _MOST_FILES or self._bytes >= _MOST_BYTES or self._looks >= _MOST_LOOKS

    def put(self, path: str, data: bytes) -> None:
        if self.is_full:
            return
        # Before it is tried: what finds no place has been read all the same.
        self._files += 1
        self._bytes += len(data)
        place = self._target + path
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                file.write(data)
        except (FileExistsError, IsADirectoryError, NotADirectoryError, FileNotFoundError):
            # Two names that cannot both be: a mount point below a file, say.
            return
        except OSError as error:
            if error.filename is None or error.errno in _NO_ROOM:
                raise

    def copy(self, path: str) -> None:
        if self.is_full:
            return
        self._looks += 1
        data = self._tree.read(path)
        if data is not None:
            self.put(path, data)

    def everything(self) -> None:
        for path in _FILES:
            self.copy(path)
        for point in ("/sys/fs/cgroup", *self._mounts()):
            self._groups(point, 0)
        for name in self._tree.entries("/boot"):
            if name.startswith("config-"):
                self.copy(f"/boot/{name}")
        for name in self._tree.entries("/sys/block"):
            if name.startswith("zram"):
                self.copy(f"/sys/block/{name}/disksize")
                self.copy(f"/sys/block/{name}/mm_stat")
        for name in self._tree.entries("/sys/class/drm"):
            self.copy(f"/sys/class/drm/{name}/device/mem_info_gtt_used")
        for name in self._tree.entries("/sys/kernel/dmabuf/buffers"):
            self.copy(f"/sys/kernel/dmabuf/buffers/{name}/size")
        for directory in DIRECTORIES:
            self._units(directory)
        for directory in (f"{place}/{name}.d" for place in SYSTEMD_PLACES for name in SYSTEMD_FILES):
            for name in self._tree.entries(directory):
                self.copy(f"{directory}/{name}")
        for name in self._tree.entries("/proc"):
            if name.isascii() and name.isdigit():
                for file in _OF_PROCESS:
                    self.copy(f"/proc/{name}/{file}")
        # Last: a mark is an empty file, in which nothing else would find room.
        for path in _MARKS:
            if self._tree.real(path) is not None:
                self.put(path, b"")

    def _mounts(self) -> list[str]:
        """Copy the mount tables, without what leads out of a tree; the cgroup mount points."""
        points: dict[str, None] = {}
        for path in _MOUNTS:
            data = self._tree.read(path)
            if data is None:
                continue
            kept = [line for line in data.split(b"\n") if _is_inside(line, mountinfo=path.endswith("info"))]
            self.put(path, b"\n".join(kept))
            for line in kept:
                if b"cgroup" in line:
                    field = line.split(b" ")[4 if path.endswith("info") else 1]
                    points.setdefault(os.fsdecode(field.replace(b"\\040", b" ")))
        return list(points)

    def _groups(self, directory: str, depth: int) -> None:
        if depth > _MOST_DEPTH:
            return
        self._looks += 1
        for name in self._tree.entries(directory):
            if self.is_full:
                return
            self._looks += 1
            path = f"{directory}/{name}"
            if name.startswith(("memory.", "cgroup.")):
                self.copy(path)
            elif self._tree.is_directory(path):
                self._make_directory(path)
                self._groups(path, depth + 1)

    def _make_directory(self, path: str) -> None:
        try:
            os.makedirs(self._target + path, exist_ok=True)
        except OSError as error:
            # The rest, a name that is too long below the copy's own, is of the tree's making.
            if error.errno in _NO_ROOM:
                raise

    def _units(self, directory: str) -> None:
        for name in self._tree.entries(directory):
            path = f"{directory}/{name}"
            inside = [f"{path}/{entry}" for entry in self._tree.entries(path)] if "." in name else []
            for each in inside or [path]:
                if self.is_full:
                    return
                self._looks += 1
                # A link to nowhere: wanted, but not installed; and one to /dev/null masks, as an empty file does.
                data = self._tree.read(each)
                self.put(each, data or b"")


#: ENOSPC, EDQUOT, EROFS, EMFILE: nothing that the tree did.
_NO_ROOM = (28, 122, 30, 24)


def _is_inside(line: bytes, *, mountinfo: bool) -> bool:
    fields = line.split(b" ")
    if len(fields) < (6 if mountinfo else 4):
        return False
    point = fields[4 if mountinfo else 1]
    return point.startswith(b"/") and not re.search(rb"(^|/)\.\.(/|$)", point) and b"\0" not in point


@contextmanager
def safe_copy(root: str) -> Iterator[str]:
    """A directory with what the checks read of the tree ``root``; it is removed at the end.

    Raises:
        TidegateError: ``root`` is no directory (exit code 2), or there is no room for a copy.
    """
    if not os.path.isdir(root):
        why = "not a directory" if os.path.exists(root) else "no such directory"
        raise TidegateError(
            f"cannot read the tree {root}: {why}",
            hint="--sysroot takes the directory that has proc/ and sys/",
            exit_code=Exit.USAGE,
        )
    try:
        target = tempfile.mkdtemp(prefix="tidegate-doctor-")
    except OSError as error:
        raise TidegateError(f"cannot copy the tree {root}: {error.strerror}", hint="set TMPDIR") from None
    try:
        try:
            _Copier(Tree(root), target).everything()
        except OSError as error:
            raise TidegateError(f"cannot copy the tree {root}: {error.strerror}", hint="set TMPDIR") from None
        yield target
    finally:
        shutil.rmtree(target, ignore_errors=True)
