"""``tidegate up`` and ``tidegate guard``: become the guard, with or without the gateway."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.launch import launch
from tidegate.cli.settings_flags import add_settings_flags


def add(commands: Any) -> None:
    """Add the commands."""
    up = commands.add_parser(
        "up", help="run the model, guarded, behind the gateway", description="Run guard, worker and gateway."
    )
    guard = commands.add_parser(
        "guard", help="run the model, guarded, without the gateway", description="Run guard and worker."
    )
    for parser, gateway in ((up, True), (guard, False)):
        add_settings_flags(parser)
        parser.add_argument("--observe", action="store_true", help="log what would be done, and do nothing")
        parser.set_defaults(run=_runner(gateway=gateway))


def _runner(*, gateway: bool) -> Any:
    def run(arguments: argparse.Namespace) -> int:
        return launch(arguments, gateway=gateway)

    return run
