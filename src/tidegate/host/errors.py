"""The one failure a host reader may raise."""

from __future__ import annotations

from tidegate.errors import TidegateError


class HostReadError(TidegateError):
    """ "cannot read X: why": a kernel file without which nothing can be decided.

    Everything lesser is None or a note.
    """
