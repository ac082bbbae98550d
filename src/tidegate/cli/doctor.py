"""``tidegate doctor``: what is wrong with this board for a memory guard, and the exact fix."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from typing import Any

from tidegate.doctor.finding import Finding
from tidegate.doctor.live import prove
from tidegate.doctor.runner import Report, examine_tree
from tidegate.errors import Exit, TidegateError
from tidegate.units import format_size

_COLOURS = {"critical": "\x1b[1;31m", "warning": "\x1b[1;33m", "info": "\x1b[1;36m"}
_PLAIN = "\x1b[0m"
_WIDEST = 110


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="say what is wrong with this board, and the fix",
        description="Look at kernel, boot command line, cgroups, swap, devices, processes, units and other guards. "
        "Exit code 0: nothing of warning or above; 1: findings.",
    )
    parser.add_argument("--sysroot", metavar="DIR", help="look at the tree DIR (with proc/, sys/, etc/) in place of /")
    parser.add_argument(
        "--live",
        action="store_true",
        help="prove in a throw-away cgroup of 64 MB that limits, events and signals work, in the unit's sandbox",
    )
    parser.add_argument("--json", action="store_true", help="print readings and findings as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    if arguments.live and arguments.sysroot is not None:
        raise TidegateError(
            "cannot prove anything in a tree: --live and --sysroot exclude each other",
            hint="tidegate doctor --live on the board itself",
            exit_code=Exit.USAGE,
        )
    report = examine_tree(arguments.sysroot)
    if arguments.live:
        report = report.with_findings(prove())
    if arguments.json:
        print(json.dumps(report.to_json(), ensure_ascii=True))
    else:
        width = min(_WIDEST, max(40, shutil.get_terminal_size().columns))
        print("\n".join(render(report, width=width, colour=sys.stdout.isatty())))
    return Exit.FINE if report.is_fine else Exit.FINDINGS


def render(report: Report, *, width: int, colour: bool) -> list[str]:
    """The report as lines of at most ``width`` columns, worst finding first."""
    memory = report.memory
    swap = f"{_size(memory.swap_free_kb)} of {_size(memory.swap_total_kb)} free" if memory.swap_total_kb else "none"
    controller, psi = ("on" if works else "off" for works in (memory.memory_controller, memory.psi))
    available = f"{_size(memory.mem_available_kb)} available ({memory.mem_available_source})"
    lines = [
        f"memory    {_size(memory.mem_total_kb)}, {available}, headroom {_size(memory.headroom_kb)}",
        f"swap      {swap}",
        f"cgroup    {memory.cgroup}, memory controller {controller}, PSI {psi}",
    ]
    for finding in report.findings:
        lines += ["", *_block(finding, width=width, colour=colour)]
    counts = {name: sum(finding.severity == name for finding in report.findings) for name in _COLOURS}
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return [*lines, "", said or "nothing found"]


def _block(finding: Finding, *, width: int, colour: bool) -> list[str]:
    severity = finding.severity.value
    mark = f"{_COLOURS[severity]}{severity}{_PLAIN}" if colour else severity
    summary = textwrap.wrap(_visible(finding.summary), width - 10) or [""]
    lines = [f"{mark}{' ' * (10 - len(severity))}{summary[0]}", *(" " * 10 + line for line in summary[1:])]
    for name, text in (("seen", finding.evidence), ("why", finding.why), ("fix", finding.fix)):
        # A command must not be broken at its hyphens and slashes.
        wrapped = textwrap.wrap(_visible(text), width - 17, break_on_hyphens=False, break_long_words=False) or [""]
        lines.append(f"{' ' * 10}{name:<7}{wrapped[0]}")
        lines += [" " * 17 + line for line in wrapped[1:]]
    return [*lines, f"{' ' * 10}{'id':<7}{finding.id}"]


def _visible(text: str) -> str:
    """``text`` with everything that a terminal would act on written out: names come from the tree."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _size(kilobytes: int | None) -> str:
    return "?" if kilobytes is None else format_size(kilobytes << 10)
