"""argparse with errors as tidegate's: one line "cannot X: why", the nearest right name, exit code 2."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from tidegate.errors import Exit, TidegateError
from tidegate.settings.load import nearest


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises :class:`TidegateError` and takes no abbreviated flags."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        # An abbreviation that is unique today breaks a script with the next flag; and sub-parsers do not inherit this.
        super().__init__(*arguments, **{**named, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Called by argparse for every fault but unknown flags and commands, which :func:`parse` finds."""
        name, colon, why = message.partition(": ")
        if why.startswith("ignored explicit argument"):
            why = "it takes no value"
        if colon and name.startswith("argument "):
            # Options may have several names, "-h/--help": the last is the long one.
            message = f"cannot use {name.removeprefix('argument ').rpartition('/')[2]}: {why}"
        elif colon and name.startswith("the following arguments are required"):
            message = f"cannot run {self.prog}: {why} is missing"
        else:
            message = f"cannot run {self.prog}: {message}"
        raise TidegateError(message, hint=f"{self.prog} --help", exit_code=Exit.USAGE)

    def flags(self) -> list[str]:
        """Every flag of this parser."""
        return [name for action in self._actions for name in action.option_strings]


def parse(parser: Parser, commands: dict[str, Parser], argv: list[str]) -> argparse.Namespace:
    """The namespace of ``argv``. ``commands`` are the sub-parsers of ``parser`` by name.

    Raises:
        TidegateError: an unknown command or flag, a missing or superfluous value; exit code 2.
        SystemExit: ``--help`` and ``--version`` have been printed.
    """
    if argv and argv[0].startswith("-") and argv[0] not in parser.flags():
        flag = argv[0].partition("=")[0]
        theirs = any(flag in command.flags() for command in commands.values())
        raise _no_flag(parser, flag, hint="it comes after the command" if theirs else "")
    word = next((word for word in argv if not word.startswith("-")), "")
    if word and word not in commands:
        near = nearest(word, commands)
        hint = f"did you mean tidegate {near}?" if near else f"commands: {', '.join(commands)}"
        raise TidegateError(f"cannot run tidegate {word}: no such command", hint=hint, exit_code=Exit.USAGE)
    arguments, rest = parser.parse_known_args(argv)
    if not rest:
        return arguments
    command = commands[word] if word else parser
    flag = rest[0].partition("=")[0]
    if not flag.startswith("-"):
        raise TidegateError(
            f"cannot run {command.prog}: {rest[0]} is one argument too many",
            hint=f"{command.prog} --help",
            exit_code=Exit.USAGE,
        )
    raise _no_flag(command, flag)


def _no_flag(command: Parser, flag: str, *, hint: str = "") -> TidegateError:
    near = nearest(flag, command.flags())
    hint = hint or (f"did you mean {near}?" if near else f"{command.prog} --help")
    return TidegateError(f"cannot use {flag}: {command.prog} has no such flag", hint=hint, exit_code=Exit.USAGE)
