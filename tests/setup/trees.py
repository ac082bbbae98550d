"""Trees to set up in, and what is in them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

CONFIG = """
[worker]
engine = "llama-server"
[[worker.profile]]
name = "full"
model = "/models/model.gguf"
[protect]
units = ["camera.service"]
memory_min = "100M"
"""


def make_tree(root: Path, *, config: str = CONFIG, systemd: int = 257) -> Path:
    """A board's file system with what setup reads and replaces in it."""
    for directory in ("etc/systemd/system", "etc/tidegate", "usr/lib/systemd/system", "var/lib"):
        (root / directory).mkdir(parents=True)
    (root / "etc/tidegate/tidegate.toml").write_text(config)
    (root / f"usr/lib/systemd/libsystemd-shared-{systemd}.so").touch()
    (root / "usr/lib/systemd/system/camera.service").write_text(
        "[Service]\nExecStart=/bin/camera\nSlice=robot-eyes.slice\n"
    )
    # Of somebody's before us.
    mine = root / "etc/systemd/system/tidegate.service"
    mine.write_text("[Service]\nExecStart=/usr/bin/env mine\n")
    mine.chmod(0o640)
    for path in root.rglob("*"):
        os.utime(path, ns=(1_600_000_000_123_456_789,) * 2)
    return root


def contents(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything below ``root``: kind, permission bits, owner, and content and time of files."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        name, seen = str(path.relative_to(root)), path.lstat()
        owner = (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid)
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("directory", *owner)
        else:
            found[name] = ("file", *owner, path.read_bytes(), seen.st_mtime_ns)
    return found


def without_times(tree: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """``tree`` without the times of files that were just written."""
    return {name: each[:5] for name, each in tree.items()}
