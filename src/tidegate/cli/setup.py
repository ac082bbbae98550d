"""``tidegate setup``: install the service, and what protects the board, on this machine or in an image."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from typing import Any

import tidegate
from tidegate.cli.attach_check import check_door, find_attachment
from tidegate.cli.demo_model import demo_model_path
from tidegate.cli.engine_check import check_engine
from tidegate.cli.launch import compile_once
from tidegate.cli.planning import plan_profiles
from tidegate.cli.settings_flags import add_settings_flags, flags_again, settings_from
from tidegate.errors import Exit, TidegateError
from tidegate.settings.attachment import SUPERVISOR
from tidegate.settings.load import SYSTEM_CONFIG
from tidegate.settings.model import Settings
from tidegate.settings.paths import model_directory
from tidegate.settings.table import SETTINGS
from tidegate.setup import boot, drop_ins, execution, script, sysctls
from tidegate.setup.machine import Machine, look_around, read_machine
from tidegate.setup.planning import ENABLED, UNIT, Change, Plan, Wanted, plan_setup, plan_undo
from tidegate.setup.proposals import proposals
from tidegate.setup.unit import DEFAULT_PATH, Service, render
from tidegate.setup.unit_files import DROP_IN


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "setup",
        help="install the service and what protects the board",
        description="Write tidegate.service, drop-ins for protected units and their slices, and a sysctl.d file, and "
        "enable the service. The settings are those that tidegate up would use with the same flags.",
    )
    add_settings_flags(parser)
    parser.add_argument("--guard", action="store_true", help="the service runs tidegate guard, not tidegate up")
    parser.add_argument("--observe", action="store_true", help="the service logs what would be done, and does nothing")
    parser.add_argument("--now", action="store_true", help="start the service, or start it anew if its unit changed")
    parser.add_argument("--strict-overcommit", action="store_true", help="also set vm.overcommit_memory to 2, at 80 %%")
    parser.add_argument("--dry-run", action="store_true", help="print a shell script that does the same, do nothing")
    parser.add_argument("--undo", action="store_true", help="take everything back")
    parser.add_argument("--root", metavar="DIR", default="/", help="an image's directory, in place of this machine")
    parser.add_argument("--program", metavar="PATH", help="path of tidegate there (else this one's)")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plan, and print or do it; exit code 1 if a file of somebody else's making was left alone."""
    root = os.path.abspath(arguments.root)
    if root == "/" and not arguments.dry_run and os.geteuid() != 0:
        raise TidegateError(
            "cannot set up this machine: not root", hint="sudo tidegate setup, or --dry-run to see what it would do"
        )
    machine = read_machine(root)
    notes: tuple[str, ...] = ()
    if arguments.undo:
        plan = plan_undo(look_around(machine, ()))
        notes = _still_spared(plan) if machine.live else ()
    else:
        wanted, values, notes = _wanted(arguments, machine)
        plan = plan_setup(wanted, values, look_around(machine, wanted), start=arguments.now and machine.live)
    title = f"tidegate setup{' --undo' if arguments.undo else ''}"
    text = script.render(plan.operations, title=title, root=root, notes=notes) if arguments.dry_run else ""
    if not arguments.dry_run:
        troubles: list[str] = []
        execution.run(plan.operations, root, warn=troubles.append)
        notes = (*troubles, *notes)
        if machine.live and not arguments.undo:
            # The service may not write there, and a guard that compiles itself at each start keeps 1.5 MB of that.
            compile_once(os.path.dirname(os.path.abspath(tidegate.__file__)))
    if arguments.json:
        print(json.dumps({**_document(plan, notes), "dry_run": arguments.dry_run, "script": text}))
    elif arguments.dry_run:
        print(text, end="")
    else:
        _show(plan, notes)
    return Exit.FINDINGS if plan.kept else Exit.FINE


def _wanted(
    arguments: argparse.Namespace, machine: Machine
) -> tuple[tuple[Wanted, ...], tuple[tuple[str, int], ...], tuple[str, ...]]:
    """Files, kernel settings and notes that the settings make.

    Raises:
        TidegateError: a fault in the settings, or the service would not start with them.
    """
    root = machine.root
    if not machine.live and not arguments.config and os.path.exists(f"{root}{SYSTEM_CONFIG}"):
        arguments.config = f"{root}{SYSTEM_CONFIG}"
    settings = settings_from(arguments)
    gateway = not arguments.guard
    if machine.live:
        _check(settings, gateway=gateway)
    flags = flags_again(arguments)
    if "--config" in flags and not machine.live:
        flags[1] = _inside(flags[1], root)
    service = Service(
        program=(arguments.program,) if arguments.program else _program(),
        arguments=("up" if gateway else "guard", *flags, *(("--observe",) if arguments.observe else ())),
        environment=_environment(settings),
        settings=settings,
        systemd=machine.systemd,
    )
    if not service.program[0].startswith("/"):
        raise TidegateError("cannot use --program: not an absolute path", exit_code=Exit.USAGE)
    drops = drop_ins.render(settings.protect, root)
    values = sysctls.wanted(machine.original_sysctls, zram=machine.zram, strict=arguments.strict_overcommit)
    wanted = [
        Wanted(UNIT, render(service)),
        *(Wanted(path, text) for path, text in drops.files),
        Wanted(sysctls.PATH, sysctls.render(values)),
        Wanted(ENABLED, target=UNIT),
    ]
    notes = (*drops.notes, *boot.advice(root), *proposals(settings.protect, root))
    return tuple(wanted), values, notes


def _check(settings: Settings, *, gateway: bool) -> None:
    """What tidegate up would refuse at its start.

    Raises:
        TidegateError: just that.
    """
    plan_profiles(settings)
    if settings.worker.attached:
        find_attachment(settings.worker, gateway=gateway)
        if gateway:
            check_door(settings.worker.url, settings.gateway.listen)
        return
    for profile in settings.worker.profiles:
        if not profile.model.startswith("/"):
            raise TidegateError(
                f"cannot set up: the model of profile {profile.name!r}, {profile.model}, is no absolute path",
                hint="a service starts in /",
            )
    check_engine(settings.worker)


def _inside(path: str, root: str) -> str:
    """``path``, of a file below ``root`` or not, as it will be called there."""
    return path[len(root) :] if path.startswith(f"{root}/") else path


def _program() -> tuple[str, ...]:
    beside = os.path.join(os.path.dirname(sys.executable), "tidegate")
    return (beside,) if os.access(beside, os.X_OK) else (sys.executable, "-P", "-m", "tidegate")


def _environment(settings: Settings) -> tuple[tuple[str, str], ...]:
    """What the settings come from beside flags and file, and what a service would not have."""
    names = {setting.env for setting in SETTINGS}
    found = [(name, value) for name, value in sorted(os.environ.items()) if name in names]
    worker = settings.worker
    if any(profile.model == demo_model_path(os.environ) for profile in worker.profiles):
        found.append(("XDG_CACHE_HOME", os.path.dirname(model_directory(os.environ))))
    programs = [worker.restart[0]] if worker.restart and worker.restart != (SUPERVISOR,) else []
    if not worker.attached and worker.engine == "llama-server":
        programs.append((*worker.command, "llama-server")[0])
    places = [shutil.which(program) for program in programs if "/" not in program]
    extra = {os.path.dirname(os.path.abspath(place)) for place in places if place} - set(DEFAULT_PATH)
    if extra:
        found.append(("PATH", ":".join([*sorted(extra), *DEFAULT_PATH])))
    return tuple(found)


def _still_spared(plan: Plan) -> tuple[str, ...]:
    units = [path.split("/")[-2].removesuffix(".d") for path, _ in plan.changes if path.endswith(f"/{DROP_IN}")]
    return tuple(
        f"{unit}: its processes keep their oom_score_adj until it is started again"
        for unit in units
        if unit.endswith(".service")
    )


def _document(plan: Plan, notes: tuple[str, ...]) -> dict[str, object]:
    return {
        "changes": [{"path": path, "change": change.value} for path, change in plan.changes],
        "sysctls": [{"key": entry.key, "before": entry.before, "after": entry.after} for entry in plan.sysctls],
        "notes": list(notes),
    }


def _show(plan: Plan, notes: tuple[str, ...]) -> None:
    for path, change in plan.changes:
        why = " as it is: somebody changed it since" if change is Change.KEPT else ""
        print(f"{change.value:9} {shlex.quote(path)}{why}")
    for entry in plan.sysctls:
        print(f"{'set':9} {entry.key} = {entry.after} (was {entry.before})")
    if not plan.operations and not plan.changes:
        print("nothing to do: all of it is in place")
    for note in notes:
        print(f"note: {note}")
