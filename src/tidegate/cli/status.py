"""``tidegate status``: what the guard sees and did."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from tidegate.cli.guard_client import ask
from tidegate.errors import Exit
from tidegate.units import format_duration, format_size

_BAR = 30


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("status", help="show the guard's state", description="Show what the guard sees.")
    parser.add_argument("--json", action="store_true", help="print the status document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the status."""
    status = ask("status")
    print(json.dumps(status) if arguments.json else "\n".join(render(status, now=time.time())))
    return Exit.FINE


def render(status: dict[str, Any], *, now: float) -> list[str]:
    """The status as lines for people."""
    worker, gateway, guard = status["worker"], status["gateway"], status["guard"]
    flags = [name for name in ("paused", "observe") if status[name]]
    lines = [
        f"level    {status['level']} for {format_duration(max(0.0, now - status['since']))}"
        + (f", {status['diagnosis']}" if status["diagnosis"] != "none" else "")
        + (f"  [{', '.join(flags)}]" if flags else "")
    ]
    for axis in status["axes"]:
        share = min(1.0, axis["used_ratio"])
        bar = "#" * round(share * _BAR)
        mark = " <" if axis["name"] == status["nearest_axis"] else ""
        lines.append(
            f"memory   [{bar:.<{_BAR}}] {axis['used_ratio']:4.0%}  {format_size(axis['used_bytes'])} of "
            f"{format_size(axis['limit_bytes'])}  {axis['name']}{mark}"
        )
    anonymous = worker["anon_bytes"] + worker["shmem_bytes"] + worker["swap_bytes"]
    running = [
        worker["state"],
        f"profile {worker['profile']}" if worker["profile"] else "no profile",
        worker["engine"],
        f"pid {worker['pid']}" if worker["pid"] else "no process",
        f"{format_size(anonymous)} + {format_size(worker['file_bytes'])} mapped",
    ]
    lines.append(f"worker   {', '.join(running)}")
    if worker["message"]:
        lines.append(f"         {worker['message']}")
    lines.append(f"gateway  {gateway['in_flight']} in flight, {gateway['queued']} queued")
    lines.append(f"guard    pid {guard['pid']}, {format_size(guard['rss_bytes'])}, {guard['cpu_s']} s CPU")
    lines.append(f"sensors  {', '.join(status['sensors'])}")
    for action in status["last_actions"][-5:]:
        clock = time.strftime("%H:%M:%S", time.localtime(action["time"]))
        lines.append(
            f"{clock} {action['step']}: {action['reason']}; freed {format_size(action['freed_bytes'])} "
            f"in {format_duration(action['took_ms'] / 1000)}, {action['result']}"
        )
    return lines
