"""The command line: parse, run one command, turn its error into one line and an exit code."""

from __future__ import annotations

import os
import sys

from tidegate import __version__
from tidegate.cli import check_config, control, doctor, model, reap, setup, status, up
from tidegate.cli.parser import Parser, parse
from tidegate.errors import Exit, TidegateError

_COMMANDS = (up, status, control, check_config, model, doctor, setup, reap)
#: What a shell shows for a program that SIGINT ended.
_INTERRUPTED = 130


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of the commands by name."""
    parser = Parser(
        prog="tidegate",
        description="Keeps a local LLM from taking its board down: shorter context, smaller model, fast restart, "
        "before the kernel's OOM killer.",
    )
    parser.add_argument("--version", action="version", version=f"tidegate {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add(commands)
    return parser, dict(commands.choices)


def run(argv: list[str]) -> int:
    """Run ``argv`` (without the program's name); the exit code.

    Raises:
        SystemExit: ``--help`` or ``--version`` has been printed.
    """
    try:
        arguments = parse(*build_parser(), argv)
        code = int(arguments.run(arguments))
        # Here, where a full disk or a reader that left can still be told from a fault of ours.
        sys.stdout.flush()
        return code
    except TidegateError as error:
        print(f"tidegate: {_one_line(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {_one_line(error.hint)}", file=sys.stderr)
        return int(error.exit_code)
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        _drop_output()
        return int(Exit.FINE)
    except OSError as error:
        _drop_output()
        print(f"tidegate: cannot go on: {error.strerror or error}", file=sys.stderr)
        return int(Exit.CANNOT_START)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _one_line(text: str) -> str:
    """``text`` with newlines and everything else that a terminal would act on written out."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _drop_output() -> None:
    """Let what stdout still holds go nowhere; the interpreter would fail on it once more at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
