"""Words in unit files, as systemd.syntax(7) and systemd.service(5) want them. Pure."""

from __future__ import annotations

import re

#: What means nothing to systemd wherever it stands.
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@+-]+")


def unit_word(text: str, *, command: bool = False) -> str:
    """``text`` as one word of a unit file. ``command``: of a command line, where "$" stands for a variable too.

    Bytes that are no text (surrogates of os.fsdecode) and control characters are written as ``\\xNN``.
    """
    shown = text.replace("%", "%%")
    if command:
        shown = shown.replace("$", "$$")
    if _PLAIN.fullmatch(text):
        return shown
    return '"' + "".join(_escaped(char) for char in shown) + '"'


def unit_words(words: tuple[str, ...]) -> str:
    """A command line of ``words``."""
    return " ".join(unit_word(word, command=True) for word in words)


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
