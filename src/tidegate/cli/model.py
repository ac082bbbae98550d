"""``tidegate model``: get the demo model."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from tidegate.cli import demo_model
from tidegate.errors import Exit
from tidegate.units import format_size


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "model",
        help="get the demo model",
        description="Put the demo model (SmolLM2-135M-Instruct, Apache-2.0, 98 MB) into the cache. Offline afterwards.",
    )
    parser.add_argument("--json", action="store_true", help="print path, size and source as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fetch the model unless it is there, and print where it is."""
    path = demo_model.demo_model_path(os.environ)
    present = demo_model.is_present(path)
    if not present:
        demo_model.fetch(path)
    if arguments.json:
        print(json.dumps({"path": path, "bytes": demo_model.MODEL_BYTES, "fetched": not present}))
    else:
        print(f"{path} ({format_size(demo_model.MODEL_BYTES)}, {'already there' if present else 'fetched'})")
    return Exit.FINE
