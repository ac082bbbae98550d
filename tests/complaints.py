"""How every command of tidegate complains: checked in one place."""

from __future__ import annotations


def check_lines(said: str, why: str, hint: str) -> None:
    """``said`` is one line that begins with ``why``, and one with ``hint`` if there is one."""
    lines = said.splitlines()
    assert lines[0].startswith(f"tidegate: {why}"), said
    assert [line[:8] for line in lines[1:]] == (["  hint: "] if hint else []), said
    assert not hint or lines[1].startswith(f"  hint: {hint}"), said
    assert len(said) < 700
    assert all(line.isprintable() for line in lines)
