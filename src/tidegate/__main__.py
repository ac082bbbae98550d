"""``tidegate``, and ``python -m tidegate``."""

from __future__ import annotations

import sys

from tidegate.cli.main import run


def main() -> int:
    """Run the command line; the exit code."""
    # Paths may hold bytes that are no text.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
