"""The settings of other memory killers: earlyoom, nohang, systemd-oomd."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tidegate.host.files import read_file, rooted

#: systemd's own settings that are read, and where each may be, with its drop-ins in NAME.d: the first main file counts,
#: drop-ins by name over all places, and what comes last (systemd-system.conf(5)).
SYSTEMD_FILES = ("oomd.conf", "system.conf")
SYSTEMD_PLACES = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "/lib/systemd")
_MOST_DROP_INS = 100


@dataclass(frozen=True)
class RivalFiles:
    """The text of each one's settings, "" where there are none."""

    earlyoom: str = ""
    nohang: str = ""
    oomd: str = ""
    system: str = ""


def read_rivals(root: str = "/") -> RivalFiles:
    """All of them, and systemd's system.conf, which has the watchdog. Never raises."""
    return RivalFiles(
        earlyoom=_text("/etc/default/earlyoom", root),
        nohang=_text("/etc/nohang/nohang.conf", root) or _text("/etc/nohang/nohang-desktop.conf", root),
        oomd=_systemd("oomd.conf", root),
        system=_systemd("system.conf", root),
    )


def _systemd(name: str, root: str) -> str:
    main = next((text for place in SYSTEMD_PLACES if (text := _text(f"{place}/{name}", root))), "")
    drop_ins: dict[str, str] = {}
    for directory in (f"{place}/{name}.d" for place in SYSTEMD_PLACES):
        try:
            entries = sorted(os.listdir(rooted(root, directory)))[:_MOST_DROP_INS]
        except OSError:
            continue
        for entry in entries:
            if entry.endswith(".conf"):
                drop_ins.setdefault(entry, f"{directory}/{entry}")
    return "\n".join([main, *(_text(drop_ins[entry], root) for entry in sorted(drop_ins))])


def _text(path: str, root: str) -> str:
    return (read_file(rooted(root, path), 1 << 18) or b"").decode("utf-8", "replace")
