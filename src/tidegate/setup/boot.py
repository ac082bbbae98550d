"""What the boot command line of a Raspberry Pi lacks. Read only: the file is shown, and changed by a person."""

from __future__ import annotations

import os

from tidegate.host.files import read_file, read_word, rooted

#: Newer images first.
_FILES = ("/boot/firmware/cmdline.txt", "/boot/cmdline.txt")


def advice(root: str = "/") -> tuple[str, ...]:
    """Sentences for a person; () where nothing is to be done, or it is no Raspberry Pi."""
    path = next((path for path in _FILES if os.path.isfile(rooted(root, path))), "")
    model = read_word(rooted(root, "/proc/device-tree/model")) or b""
    if not path or (model and b"Raspberry Pi" not in model):
        return ()
    # What stands in the file wins over what the running kernel was booted with: it may be waiting for a reboot.
    written = (read_file(rooted(root, path), 65536) or b"").split()
    running = os.path.isdir(rooted(root, "/proc/self"))
    missing = []
    if b"cgroup_enable=memory" not in written and not (running and _has_memory_controller(root)):
        # The firmware puts cgroup_disable=memory before the file's words, and the last one wins.
        missing.append("cgroup_enable=memory")
    if b"psi=1" not in written and not (running and _has_pressure(root)):
        missing.append("psi=1")
    if not missing:
        return ()
    return (f"add to the one line of {path}, at its end, and reboot: {' '.join(missing)}",)


def _has_memory_controller(root: str) -> bool:
    data = read_file(rooted(root, "/sys/fs/cgroup/cgroup.controllers"), 4096) or b""
    return b"memory" in data.split() or os.path.isdir(rooted(root, "/sys/fs/cgroup/memory"))


def _has_pressure(root: str) -> bool:
    # With psi=0 the file is there, and its read fails.
    return bool(read_file(rooted(root, "/proc/pressure/memory"), 4096))
