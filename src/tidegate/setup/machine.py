"""What setup has to know of a machine, or of an image of one, before it plans."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

from tidegate.errors import TidegateError
from tidegate.host.files import rooted
from tidegate.host.swap import read_swaps
from tidegate.host.sysctl import read_sysctl
from tidegate.setup import execution, manifest, sysctls, tree
from tidegate.setup.manifest import Manifest
from tidegate.setup.operations import STATE
from tidegate.setup.planning import Scene, Wanted, interesting_paths
from tidegate.setup.tree import RegularFile

_LIBRARY = re.compile(r"libsystemd-shared-([0-9]{2,4})\b.*\.so")
#: Where distributions put it: Debian and Fedora, before and after /usr was merged.
_LIBRARY_DIRECTORIES = ("/usr/lib/systemd", "/lib/systemd", "/usr/lib64/systemd")
_SYSTEMCTL_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Machine:
    """``live``: it is the one that this runs on, and not a tree. ``systemd`` is its version, 0 if unknown; ``zram``:
    its swap is compressed RAM, and nothing else; ``sysctls`` are its values, None for a tree."""

    root: str
    live: bool
    systemd: int
    zram: bool
    sysctls: dict[str, int] | None
    manifest: Manifest | None

    @property
    def original_sysctls(self) -> dict[str, int] | None:
        """The values before tidegate."""
        if self.sysctls is None:
            return None
        known = self.manifest or Manifest()
        originals = {key: known.original(key) for key in self.sysctls}
        return {key: now if (was := originals[key]) is None else was for key, now in self.sysctls.items()}


def read_machine(root: str = "/") -> Machine:
    """The machine at ``root``; "/" is the one that this runs on.

    Raises:
        TidegateError: ``root`` is no directory; no systemd runs here; what setup noted cannot be read.
    """
    live = root == "/"
    if not os.path.isdir(root):
        raise TidegateError(f"cannot set up below {root}: it is not a directory")
    if live and not os.path.isdir("/run/systemd/system"):
        raise TidegateError(
            "cannot set up: systemd does not run this machine",
            hint="start tidegate up by whatever starts services here",
        )
    tree.check_inside(manifest.PATH, root)
    state = rooted(root, STATE)
    if os.path.isdir(state) and not os.access(state, os.R_OK | os.X_OK):
        raise TidegateError(f"cannot read {state}: not root", hint="sudo tidegate setup")
    data = execution.read_manifest(manifest.PATH, root)
    areas = read_swaps(root)
    values = {key: read_sysctl(key) for key in sysctls.KEYS} if live else None
    return Machine(
        root=root,
        live=live,
        systemd=_running_version() if live else _installed_version(root),
        # With a card beside it what swaps readily goes there as soon as the zram is full.
        zram=bool(areas) and all(area.is_zram for area in areas),
        sysctls=None if values is None else {key: value for key, value in values.items() if value is not None},
        manifest=None if data is None else manifest.from_text(data),
    )


def look_around(machine: Machine, wanted: tuple[Wanted, ...]) -> Scene:
    """What is where ``wanted``, or an earlier run, has files.

    Raises:
        TidegateError: something other than a file or a link is there.
    """
    paths = interesting_paths(wanted, machine.manifest)
    entries = machine.manifest.entries if machine.manifest is not None else ()
    files = tuple(entry.before for entry in entries if isinstance(entry.before, RegularFile))
    return Scene(
        found={path: tree.look(path, machine.root) for path in paths},
        missing={path: tree.missing_directories(path, machine.root) for path in (*paths, manifest.PATH)},
        kept=execution.whole_copies(files, machine.root),
        sysctls=machine.sysctls,
        manifest=machine.manifest,
        live=machine.live,
    )


def _running_version() -> int:
    try:
        done = subprocess.run(
            ["systemctl", "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SYSTEMCTL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return parse_version(done.stdout)


def parse_version(text: str) -> int:
    """The number in ``systemd 257 (257.9-1~deb13u1)``, 0 if there is none."""
    match = re.match(r"systemd ([0-9]{1,4})\b", text)
    return int(match[1]) if match else 0


def _installed_version(root: str) -> int:
    """The newest version whose library is in the tree: it cannot be asked, being of another architecture perhaps."""
    versions = [0]
    for directory in _LIBRARY_DIRECTORIES:
        try:
            names = os.listdir(rooted(root, directory))
        except OSError:
            continue
        versions += [int(match[1]) for match in map(_LIBRARY.fullmatch, names) if match]
    return max(versions)
