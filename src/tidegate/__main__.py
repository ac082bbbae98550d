"""``tidegate``, and ``python -m tidegate``."""

from __future__ import annotations

import os
import sys

from tidegate.cli.main import run


def main() -> int:
    """Run the command line; the exit code."""
    _open_standard_streams()
    # Paths may hold bytes that are no text.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return run(sys.argv[1:])


def _open_standard_streams() -> None:
    """Put /dev/null where a supervisor left nothing: else the next file opened, the lock or the port, would get the
    number of standard error, and the log."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number, so this one.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(fd, True)
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
