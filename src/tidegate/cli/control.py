"""``tidegate step``, ``reset``, ``pause`` and ``resume``: orders to the running guard."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from tidegate.cli.guard_client import ask
from tidegate.errors import Exit, TidegateError
from tidegate.units import format_duration, format_size, parse_duration

#: Above the 55 s within which the guard answers.
_STEP_TIMEOUT_S = 60.0


def add(commands: Any) -> None:
    """Add the commands."""
    step = commands.add_parser("step", help="change to another profile", description="Change to profile NAME now.")
    step.add_argument("name", metavar="NAME", help="name of the profile")
    step.set_defaults(run=_step)
    reset = commands.add_parser("reset", help="restart the worker", description="Restart the worker as it is.")
    reset.set_defaults(run=_reset)
    pause = commands.add_parser("pause", help="take no step for a while", description="Take no step until then.")
    pause.add_argument("duration", metavar="DURATION", help="such as 10m")
    pause.set_defaults(run=_pause)
    resume = commands.add_parser("resume", help="end a pause", description="End a pause.")
    resume.set_defaults(run=_resume)
    for parser in (step, reset, pause, resume):
        parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _step(arguments: argparse.Namespace) -> int:
    return _say_step(ask("step", profile=arguments.name, timeout=_STEP_TIMEOUT_S), arguments)


def _reset(arguments: argparse.Namespace) -> int:
    return _say_step(ask("reset", timeout=_STEP_TIMEOUT_S), arguments)


def _say_step(result: dict[str, Any], arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(result))
    else:
        took = format_duration(result["took_ms"] / 1000)
        print(f"profile {result['profile']} after {took}, {format_size(result['freed_bytes'])} freed")
    return Exit.FINE


def _pause(arguments: argparse.Namespace) -> int:
    try:
        seconds = parse_duration(arguments.duration)
    except ValueError as error:
        raise TidegateError(f"cannot pause: {arguments.duration!r} is {error}", exit_code=Exit.USAGE) from None
    result = ask("pause", seconds=seconds)
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"paused until {time.strftime('%H:%M:%S', time.localtime(result['until']))}")
    return Exit.FINE


def _resume(arguments: argparse.Namespace) -> int:
    result = ask("resume")
    print(json.dumps(result) if arguments.json else "resumed")
    return Exit.FINE
