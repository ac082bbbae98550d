"""What setup proposes and leaves to a person."""

from __future__ import annotations

from tidegate.settings.model import ProtectSettings
from tidegate.setup import unit_files

#: (units, any of which it may be called; lines of its drop-in; why)
_PROPOSED = (
    (
        ("ssh.service", "sshd.service"),
        "MemoryMin=16M",
        "keeps a way in when memory is short (sshd itself is spared by the OOM killer already)",
    ),
    (
        ("systemd-journald.service",),
        "OOMScoreAdjust=-900\\nMemoryMin=16M",
        "keeps the log of what happened",
    ),
)


def proposals(protect: ProtectSettings, root: str = "/") -> tuple[str, ...]:
    """Commands that a person may want to run, each with its reason; not for units that are protected already."""
    found = []
    for names, lines, why in _PROPOSED:
        unit = next((name for name in names if unit_files.exists(name, root)), "")
        if not unit or set(names) & set(protect.units):
            continue
        directory = f"/etc/systemd/system/{unit}.d"
        found.append(
            f"proposed, not done: {why}:\n"
            f"  mkdir -p {directory} && printf '[Service]\\n{lines}\\n' >{directory}/90-memory.conf"
        )
    return tuple(found)
