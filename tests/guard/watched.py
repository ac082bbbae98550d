"""``tidegate`` as always, but its guard writes the names of its modules to $TIDEGATE_MODULES on SIGRTMIN."""

from __future__ import annotations

import os
import sys

PRELUDE = """
import os, signal, sys
def dump(*_):
    fd = os.open(os.environ["WATCHED_MODULES"], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(fd, "\\n".join(sys.modules).encode())
    os.close(fd)
signal.signal(signal.SIGRTMIN, dump)
sys.argv = sys.argv[1:]
exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"), {"__name__": "__main__", "__file__": sys.argv[0]})
"""

real_execv = os.execv


def execv(path: str, argv: list[str]) -> None:
    """The launcher's exec, with the prelude in front of the guard's program."""
    python, isolated, no_site, *rest = argv
    assert (isolated, no_site) == ("-I", "-S")
    real_execv(path, [python, isolated, no_site, "-c", PRELUDE, *rest])


if __name__ == "__main__":
    os.execv = execv  # type: ignore[assignment]
    from tidegate.cli.main import run

    sys.exit(run(sys.argv[1:]))
