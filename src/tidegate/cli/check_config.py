"""``tidegate check-config``: read the settings, and say what is wrong or what they come to."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tidegate.cli.attach_check import find_attachment
from tidegate.cli.engine_check import check_engine
from tidegate.cli.launch import settings_document
from tidegate.cli.planning import plan_profiles
from tidegate.cli.settings_flags import add_settings_flags, settings_from
from tidegate.errors import Exit
from tidegate.units import format_size


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "check-config",
        help="check the settings and the model files",
        description="Check the settings and the model files, and print what each profile will need.",
    )
    add_settings_flags(parser)
    parser.add_argument("--json", action="store_true", help="print settings and planned bytes as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the profiles with their planned bytes."""
    settings = settings_from(arguments)
    planned = plan_profiles(settings)
    if settings.worker.attached:
        found = find_attachment(settings.worker, gateway=False)
    else:
        check_engine(settings.worker)
    if arguments.json:
        print(json.dumps(settings_document(settings)))
        return Exit.FINE
    budget = settings.memory.budget
    print(f"settings are fine; budget {format_size(budget) if budget is not None else 'none'}")
    if settings.worker.attached:
        print(f"  attached to {found.label}: {found.supervision}")
        return Exit.FINE
    for profile in settings.worker.profiles:
        each = planned[profile.name]
        print(
            f"  {profile.name:12} context {profile.context:6} x {profile.slots}, KV {profile.kv_type:5} "
            f"needs {format_size(each.known):>10}, maps {format_size(each.file):>10}, "
            f"prompt cache {format_size(profile.prompt_cache)}"
            + (", above the budget's warn line" if budget and each.known > budget * settings.memory.warn else "")
        )
    return Exit.FINE
