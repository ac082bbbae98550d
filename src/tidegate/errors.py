"""How tidegate fails: one exit-code table and one exception that people can read."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command. A supervisor must not restart after ``CANNOT_START``."""

    FINE = 0
    FINDINGS = 1
    USAGE = 2
    CANNOT_START = 3


class TidegateError(Exception):
    """ "cannot X: why", with an optional hint on what to do about it.

    ``exit_code`` is what a command ends with when this reaches its top.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: Exit = Exit.CANNOT_START) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message
