"""Kernel settings below /proc/sys."""

from __future__ import annotations

from tidegate.host.files import number, read_word, rooted


def read_sysctl(name: str, root: str = "/") -> int | None:
    """The number in the setting ``name`` ("vm.swappiness"), which may be negative, or None: not there, or no number."""
    word = read_word(rooted(root, "/proc/sys/" + name.replace(".", "/")))
    if word is None:
        return None
    amount = number(word.removeprefix(b"-"))
    return -amount if amount is not None and word.startswith(b"-") else amount
