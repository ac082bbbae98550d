"""Carries operations out on a machine or a tree. Everything is flushed to disk before the next thing is begun."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable

from tidegate.errors import TidegateError
from tidegate.host.files import read_file, rooted
from tidegate.setup import tree
from tidegate.setup.operations import (
    MEMORY_FILES,
    SUFFIX,
    ApplyMemory,
    Expect,
    Keep,
    MakeDirectory,
    Operation,
    Remove,
    RemoveDirectory,
    RemoveSlots,
    Restore,
    SetSysctl,
    Systemctl,
    WriteFile,
    WriteLink,
    kept,
)
from tidegate.setup.tree import RegularFile

#: A stop takes 20 s at most, a start 60 (tidegate.service).
_SYSTEMCTL_TIMEOUT_S = 120.0


def run(operations: tuple[Operation, ...], root: str, *, warn: Callable[[str], None]) -> None:
    """Carry ``operations`` out below ``root``; ``warn`` gets what went wrong and is no reason to stop.

    Raises:
        TidegateError: something else is there than was planned for, or something could not be done. What has been
            done until then is in the manifest.
    """
    for operation in operations:
        try:
            _run(operation, root, warn)
        except OSError as error:
            where = getattr(operation, "path", "")
            raise TidegateError(
                f"cannot set up {where}: {error.strerror or error}",
                hint="tidegate setup goes on from here, tidegate setup --undo takes back what was done",
            ) from None


def _run(operation: Operation, root: str, warn: Callable[[str], None]) -> None:
    match operation:
        case Expect(path, fingerprint):
            if tree.print_of(tree.look(path, root)) != fingerprint:
                raise TidegateError(f"cannot set up: {path} was changed just now", hint="run it again")
        case MakeDirectory(path, mode):
            _make_directory(rooted(root, path), mode)
        case Keep(path, file):
            _copy(rooted(root, path), rooted(root, kept(file)), file)
        case WriteFile(path, text, mode):
            _write(rooted(root, path), text.encode(), mode)
        case WriteLink(path, target):
            new = rooted(root, path) + SUFFIX
            _remove(new)
            os.symlink(target, new)
            _put(new, rooted(root, path))
        case Restore(path, file):
            _copy(rooted(root, kept(file)), rooted(root, path), file)
        case Remove(path):
            _remove(rooted(root, path))
        case RemoveDirectory(path):
            try:
                os.rmdir(rooted(root, path))
            except OSError:
                # Somebody else has put something into it, or it is gone.
                pass
        case RemoveSlots(path):
            _remove_slots(rooted(root, path))
        case SetSysctl(key, value):
            _set_sysctl(rooted(root, operation.path), key, value, warn)
        case Systemctl(words):
            _systemctl(words, warn)
        case ApplyMemory(unit):
            _apply_memory(unit, root, warn)


def _remove_slots(path: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            if name.endswith((".slot", ".tmp")):
                _remove(os.path.join(path, name))
        os.rmdir(path)


def _make_directory(path: str, mode: int) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    # Whatever the umask is.
    os.chmod(path, mode)
    _flush_directory(os.path.dirname(path))


def _write(path: str, data: bytes, mode: int) -> None:
    new = path + SUFFIX
    _remove(new)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)
        file.flush()
        os.fsync(fd)
    _put(new, path)


def _copy(source: str, path: str, file: RegularFile) -> None:
    """Put the content of ``source`` at ``path`` with everything else as ``file`` says."""
    new = path + SUFFIX
    _remove(new)
    shutil.copyfile(source, new, follow_symlinks=False)
    fd = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The owner first: changing it takes set-user-ID bits away.
        os.fchown(fd, file.uid, file.gid)
        os.fchmod(fd, file.mode)
        os.utime(fd, ns=(file.mtime_ns, file.mtime_ns))
        os.fsync(fd)
    finally:
        os.close(fd)
    _put(new, path)


def _put(new: str, path: str) -> None:
    os.rename(new, path)
    _flush_directory(os.path.dirname(path))


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    _flush_directory(os.path.dirname(path))


def _flush_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _set_sysctl(path: str, key: str, value: int, warn: Callable[[str], None]) -> None:
    try:
        with open(path, "w") as file:
            file.write(f"{value}\n")
    except OSError as error:
        # A container's /proc/sys is read-only; the file in sysctl.d is there all the same.
        warn(f"cannot set {key} = {value}: {error.strerror}")


def _apply_memory(unit: str, root: str, warn: Callable[[str], None]) -> None:
    properties = [f"--property={name}" for name in ("ControlGroup", *MEMORY_FILES)]
    shown = _systemctl(("show", *properties, "--", unit), warn)
    values = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    group = values.get("ControlGroup", "")
    for name, file_name in MEMORY_FILES.items():
        value = values.get(name, "")
        path = rooted(root, f"/sys/fs/cgroup{group}/{file_name}")
        if not group or not value or not os.path.exists(path):
            continue
        try:
            with open(path, "w") as file:
                file.write("max" if value == "infinity" else value)
        except OSError as error:
            warn(f"cannot write {path}: {error.strerror}")


def _systemctl(words: tuple[str, ...], warn: Callable[[str], None]) -> str:
    """What it said."""
    command = f"systemctl {' '.join(words)}"
    try:
        done = subprocess.run(
            ["systemctl", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SYSTEMCTL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TidegateError(f"cannot finish {command}: it takes longer than {_SYSTEMCTL_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        if words[0] == "daemon-reload":
            raise TidegateError(f"cannot run {command}: {why}")
        warn(f"{command}: {why}")
    return done.stdout


def whole_copies(files: tuple[RegularFile, ...], root: str) -> frozenset[str]:
    """The hashes of those ``files`` of which there is a whole copy in the state directory."""
    found = set()
    for file in files:
        copy = tree.look(kept(file), root)
        if isinstance(copy, RegularFile) and copy.sha256 == file.sha256:
            found.add(file.sha256)
    return frozenset(found)


def read_manifest(path: str, root: str) -> bytes | None:
    """The bytes of the manifest, or None.

    Raises:
        TidegateError: it is there and cannot be read.
    """
    full = rooted(root, path)
    data = read_file(full)
    if data is None and os.path.lexists(full):
        raise TidegateError(f"cannot read {full}")
    return data
