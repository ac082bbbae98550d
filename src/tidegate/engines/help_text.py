"""Which flags an engine's build knows, from its own ``--help``: names move between builds of llama.cpp."""

from __future__ import annotations


def parse_flags(text: str) -> frozenset[str]:
    """Every flag that the help ``text`` describes.

    A description begins with a line that starts with a flag; further names follow after commas. Flags that are only
    mentioned inside a description do not count.
    """
    found: set[str] = set()
    for line in text.splitlines():
        rest = line.strip()
        while rest.startswith("-"):
            name, comma, after = rest.partition(",")
            word = name.split(None, 1)[0]
            if not _is_flag(word):
                break
            found.add(word)
            # A name with a value or a description behind it is the last one of its line.
            if not comma or word != name.strip():
                break
            rest = after.strip()
    return frozenset(found)


def _is_flag(word: str) -> bool:
    body = word.lstrip("-")
    letters = body.replace("-", "").replace("_", "")
    return 1 <= len(word) - len(body) <= 2 and body[:1].isalpha() and letters.isalnum()
