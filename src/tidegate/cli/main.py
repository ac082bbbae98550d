"""The command line: parse, run one command, turn its error into one line and an exit code."""

from __future__ import annotations

import argparse
import sys

from tidegate import __version__
from tidegate.cli import check_config, control, model, status, up
from tidegate.errors import Exit, TidegateError

_COMMANDS = (up, status, control, check_config, model)


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = argparse.ArgumentParser(
        prog="tidegate",
        description="Keeps a local LLM from taking its board down: shorter context, smaller model, fast restart, "
        "before the kernel's OOM killer.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tidegate {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add(commands)
    return parser


def run(argv: list[str]) -> int:
    """Run ``argv`` (without the program's name); the exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except TidegateError as error:
        print(f"tidegate: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {error.hint}", file=sys.stderr)
        return int(error.exit_code)
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        sys.stderr.close()
        return int(Exit.FINE)
    except KeyboardInterrupt:
        return 130
