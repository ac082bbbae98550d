"""The few things that setup does to a machine. Plans are made of them; :mod:`~tidegate.setup.execution` carries them
out, and :mod:`~tidegate.setup.script` writes them down for a shell. Paths are as seen below the root."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.setup.tree import RegularFile

STATE = "/var/lib/tidegate/setup"
#: Where the service keeps the common beginning of prompts (``worker.carry_over = "auto"``).
SLOTS = "/var/lib/tidegate/slots"
#: What a file is called until it is whole.
SUFFIX = ".tidegate-new"


@dataclass(frozen=True)
class Expect:
    """Go on only if ``path`` has the fingerprint ``print`` ("": nothing is there)."""

    path: str
    print: str


@dataclass(frozen=True)
class MakeDirectory:
    """Make ``path`` with the permission bits ``mode``, if it is not there."""

    path: str
    mode: int = 0o755


@dataclass(frozen=True)
class Keep:
    """Copy the file ``path``, with all that belongs to it, to the state directory, by its content's hash."""

    path: str
    file: RegularFile


@dataclass(frozen=True)
class WriteFile:
    """Put ``text`` at ``path``, whole or not at all."""

    path: str
    text: str
    mode: int = 0o644


@dataclass(frozen=True)
class WriteLink:
    """Put a symbolic link to ``target`` at ``path``."""

    path: str
    target: str


@dataclass(frozen=True)
class Restore:
    """Put the kept copy of ``file`` at ``path``, with its mode, owner and time."""

    path: str
    file: RegularFile


@dataclass(frozen=True)
class Remove:
    """Remove the file or link ``path``, if it is there."""

    path: str


@dataclass(frozen=True)
class RemoveDirectory:
    """Remove ``path`` if it is empty."""

    path: str


@dataclass(frozen=True)
class RemoveSlots:
    """Remove the saved slots in ``path``, and ``path`` itself if nothing else is there: prompts are in them."""

    path: str


@dataclass(frozen=True)
class SetSysctl:
    """Give ``key`` the value ``value`` in the running kernel."""

    key: str
    value: int

    @property
    def path(self) -> str:
        """Its file."""
        return "/proc/sys/" + self.key.replace(".", "/")


@dataclass(frozen=True)
class Systemctl:
    """Run systemctl with ``words``."""

    words: tuple[str, ...]


#: systemd's properties and the kernel's files for them.
MEMORY_FILES = {"MemoryMin": "memory.min", "MemoryLow": "memory.low"}


@dataclass(frozen=True)
class ApplyMemory:
    """Give the cgroup of ``unit``, if it runs, the memory.min and memory.low that systemd has for it now: a
    daemon-reload does not take back what a file that is gone has said (systemd 257)."""

    unit: str


OnFiles = Expect | MakeDirectory | Keep | WriteFile | WriteLink | Restore | Remove | RemoveDirectory | RemoveSlots
Operation = OnFiles | SetSysctl | Systemctl | ApplyMemory


def kept(file: RegularFile) -> str:
    """Where the copy of ``file`` is kept."""
    return f"{STATE}/before-{file.sha256}"
