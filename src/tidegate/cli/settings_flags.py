"""The flags that every command with settings shares, made from the settings table."""

from __future__ import annotations

import argparse
import importlib.util
import os
from typing import Any

from tidegate.cli.demo_model import demo_model_path
from tidegate.frozen import replace
from tidegate.settings.load import Overrides, find_config, load_settings, read_config
from tidegate.settings.model import Settings, WorkerSettings
from tidegate.settings.paths import slot_directory
from tidegate.settings.table import SETTINGS

#: Namespace prefix of flags that stand for a setting.
_PREFIX = "setting:"


def add_settings_flags(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--model`` and one flag for every setting that has one."""
    parser.add_argument("--config", metavar="FILE", help="settings file (else $TIDEGATE_CONFIG, else the system's)")
    parser.add_argument("--model", metavar="GGUF", default="", help="model of all profiles")
    for setting in SETTINGS:
        if setting.flag:
            parser.add_argument(
                setting.flag, dest=_PREFIX + setting.name, metavar=setting.key.upper(), help=setting.doc
            )


def settings_from(arguments: argparse.Namespace) -> Settings:
    """The settings that ``arguments``, the environment and the file make.

    Raises:
        TidegateError: a fault in any of them.
    """
    path = find_config(arguments.config, os.environ)
    document: dict[str, Any] = read_config(path) if path else {}
    flags = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_PREFIX) and value is not None
    }
    settings = load_settings(
        document, Overrides(flags, arguments.model), os.environ, default_model=demo_model_path(os.environ)
    )
    worker = settings.worker
    return replace(settings, worker=replace(worker, engine=_engine(worker), carry_over=_carry_over(worker)))


def _engine(worker: WorkerSettings) -> str:
    if worker.engine != "auto":
        return worker.engine
    has_package = not worker.command and importlib.util.find_spec("xllamacpp") is not None
    return "xllamacpp" if has_package else "llama-server"


def _carry_over(worker: WorkerSettings) -> str:
    if worker.attached:
        # Its slots are kept where whoever starts it says, if anywhere.
        return "off"
    return slot_directory(os.environ, uid=os.getuid()) if worker.carry_over == "auto" else worker.carry_over


def flags_again(arguments: argparse.Namespace) -> list[str]:
    """The flags that make the same settings again, for a reload."""
    path = find_config(arguments.config, os.environ)
    flags = ["--config", path] if path else []
    if arguments.model:
        flags += ["--model", os.path.abspath(arguments.model)]
    for setting in SETTINGS:
        value = getattr(arguments, _PREFIX + setting.name, None)
        if value is not None:
            flags += [setting.flag, value]
    return flags
