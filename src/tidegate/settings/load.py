"""Read the settings: defaults, then the file, then the environment, then flags. Every fault names its place."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.errors import Exit, TidegateError
from tidegate.frozen import replace
from tidegate.settings import attachment
from tidegate.settings.model import (
    ATTACHED,
    MAX_OVER_BUDGET,
    FenceSettings,
    GatewaySettings,
    LogSettings,
    MemorySettings,
    Profile,
    ProtectSettings,
    Settings,
    WorkerSettings,
)
from tidegate.settings.table import PROFILE_SETTINGS, SETTINGS, Setting
from tidegate.units import format_size

SYSTEM_CONFIG = "/etc/tidegate/tidegate.toml"
#: A settings file is a page; a megabyte is a mistake (a log, a model).
_MOST_FILE_BYTES = 1 << 20

_SECTIONS = ("memory", "worker", "fence", "protect", "gateway", "log")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")
# What Kubernetes puts into every container for a service called tidegate or tidegate-gateway.
_SERVICE_LINK = re.compile(r"TIDEGATE_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_[0-9]+_\w+)?)")
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


@dataclass(frozen=True)
class Overrides:
    """Values from outside the file: ``flags`` by dotted name, ``model`` for a one-model start without a file."""

    flags: Mapping[str, str]
    model: str = ""


def find_config(explicit: str | None, environ: Mapping[str, str]) -> str | None:
    """The settings file to read: ``--config``, ``$TIDEGATE_CONFIG``, then the system's if it is there."""
    named = explicit or environ.get("TIDEGATE_CONFIG")
    if named:
        return os.path.abspath(named)
    return SYSTEM_CONFIG if os.path.exists(SYSTEM_CONFIG) else None


def read_config(path: str) -> dict[str, Any]:
    """The TOML document at ``path``.

    Raises:
        TidegateError: unreadable, too large, not UTF-8, not TOML.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise TidegateError(f"cannot read settings {path}: {error.strerror}") from None
    if len(data) > _MOST_FILE_BYTES:
        raise TidegateError(f"cannot read settings {path}: larger than 1 MiB")
    try:
        # Editors of other systems write a byte order mark, which TOML does not know.
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise TidegateError(f"cannot read settings {path}: not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise TidegateError(f"cannot read settings {path}: nested too deeply") from None
    except ValueError as error:
        # Not TOMLDecodeError alone: a number of 5000 digits is a bare ValueError.
        raise TidegateError(f"cannot read settings {path}: {error}") from None


def load_settings(
    document: Mapping[str, Any], overrides: Overrides, environ: Mapping[str, str], *, default_model: str = ""
) -> Settings:
    """Checked settings from a TOML ``document``, the environment and flags.

    ``default_model`` is the GGUF used where no profile names one.

    Raises:
        TidegateError: "cannot use KEY = VALUE: why", with the nearest right name for an unknown key.
            Exit code 2 for a flag, 3 for the file and the environment.
    """
    by_section: dict[str, dict[str, object]] = {section: {} for section in _SECTIONS}
    for key in document:
        if key not in by_section:
            raise _unknown("", key, _SECTIONS)
    for section, values in by_section.items():
        _take_section(section, document.get(section, {}), values)
    for setting in SETTINGS:
        if setting.env in environ:
            by_section[setting.section][setting.key] = _parse(setting, environ[setting.env], f"${setting.env}")
    _reject_unknown_environment(environ)
    for setting in SETTINGS:
        if setting.name in overrides.flags:
            raw = overrides.flags[setting.name]
            by_section[setting.section][setting.key] = _parse(setting, raw, setting.flag, exit_code=Exit.USAGE)
    worker = WorkerSettings(**by_section["worker"])  # type: ignore[arg-type]
    if worker.attached or worker.url or worker.restart:
        worker = attachment.check(worker, document, overrides.flags, model=overrides.model)
        profiles: tuple[Profile, ...] = (Profile(name=ATTACHED, model="", context=0),)
    else:
        profiles = _profiles(document, overrides.model or default_model, replace_all=bool(overrides.model))
    worker = replace(worker, profiles=profiles)
    memory = MemorySettings(**by_section["memory"])  # type: ignore[arg-type]
    fence = FenceSettings(**by_section["fence"])  # type: ignore[arg-type]
    if fence.max is not None and memory.budget is None and not worker.attached:
        # A fence with no line of ours before it would be the first to act.
        memory = replace(memory, budget=fence.max - fence.max // (MAX_OVER_BUDGET + 1))
    settings = Settings(
        memory=memory,
        worker=worker,
        fence=fence,
        protect=_protect(by_section["protect"]),
        gateway=GatewaySettings(**by_section["gateway"]),  # type: ignore[arg-type]
        log=LogSettings(**by_section["log"]),  # type: ignore[arg-type]
    )
    _check_together(settings, overrides.flags)
    return settings


def default_profiles(model: str) -> tuple[Profile, ...]:
    """The ladder used when no profile is configured: the whole context, then a quarter of it in 8-bit KV."""
    return (
        Profile(name="full", model=model, context=4096),
        Profile(name="lean", model=model, context=1024, kv_type="q8_0"),
    )


def parse_listen(listen: str) -> tuple[str, int] | str:
    """``HOST:PORT`` as a pair, ``unix:PATH`` as the path.

    Raises:
        TidegateError: neither; or a port outside 0 to 65535.
    """
    if listen.startswith("unix:"):
        path = listen.removeprefix("unix:")
        # sun_path of unix(7) is 108 bytes with its NUL.
        if not path or len(os.fsencode(path)) > 107:
            raise TidegateError(f"cannot use gateway.listen = {_show(listen)}: a socket path has 1 to 107 bytes")
        return path
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    digits = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not digits or int(port) > 65535:
        raise TidegateError(
            f"cannot use gateway.listen = {_show(listen)}: not HOST:PORT or unix:PATH", hint="such as 127.0.0.1:8080"
        )
    return host, int(port)


def _take_section(section: str, given: object, values: dict[str, object]) -> None:
    if not isinstance(given, dict):
        raise TidegateError(f"cannot use {section} = {_show(given)}: not a table", hint=f"write [{section}]")
    known = {setting.key: setting for setting in SETTINGS if setting.section == section}
    for key, value in given.items():
        if section == "worker" and key == "profile":
            continue
        if key not in known:
            raise _unknown(section, key, [*known, "profile"] if section == "worker" else list(known))
        values[key] = _parse(known[key], value, f"{section}.{key}")


def _profiles(document: Mapping[str, Any], model: str, *, replace_all: bool) -> tuple[Profile, ...]:
    tables = document.get("worker", {}).get("profile", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise TidegateError("cannot use worker.profile: not a list of tables", hint="write [[worker.profile]]")
    if not tables:
        return default_profiles(model)
    known = {setting.key: setting for setting in PROFILE_SETTINGS}
    profiles: list[Profile] = []
    for number, table in enumerate(tables, start=1):
        place = f"worker.profile[{number}]"
        given: dict[str, Any] = {}
        for key, value in table.items():
            if key not in known:
                raise _unknown(place, key, list(known))
            given[key] = _parse(known[key], value, f"{place}.{key}")
        if "name" not in given:
            raise TidegateError(f"cannot use {place}: it has no name", hint='write name = "..." in it')
        name = given["name"]
        if _PROFILE_NAME.fullmatch(name) is None:
            raise TidegateError(
                f"cannot use {place}.name = {_show(name)}: not 1 to 32 letters, digits, '.', '_' and '-'"
            )
        if name in [profile.name for profile in profiles]:
            raise TidegateError(f"cannot use {place}.name = {_show(name)}: a profile above has that name")
        if replace_all:
            given["model"] = model
        inherited = profiles[-1] if profiles else Profile(name="", model=model)
        profiles.append(replace(inherited, **given))
    return tuple(profiles)


def _protect(values: dict[str, object]) -> ProtectSettings:
    protect = ProtectSettings(**values)  # type: ignore[arg-type]
    for unit in protect.units:
        if attachment.UNIT.fullmatch(unit) is None or unit.startswith((".", "-")):
            raise TidegateError(
                f"cannot use protect.units with {_show(unit)}: not the name of a systemd unit",
                hint="such as camera.service",
            )
    for process in protect.processes:
        if "/" in process or process.isspace():
            raise TidegateError(
                f"cannot use protect.processes with {_show(process)}: not the name of a command",
                hint="as /proc/PID/comm has it",
            )
    return replace(
        protect,
        processes=tuple(attachment.comm(process) for process in protect.processes),
        units=tuple(unit if unit.endswith(attachment.UNIT_TYPES) else f"{unit}.service" for unit in protect.units),
    )


def _check_together(settings: Settings, flags: Mapping[str, str]) -> None:
    memory, worker = settings.memory, settings.worker

    def exit_code(*names: str) -> Exit:
        return Exit.USAGE if flags.keys() & set(names) else Exit.CANNOT_START

    if memory.warn >= memory.critical:
        raise TidegateError(
            f"cannot use memory.warn = {memory.warn:g}: it is not below memory.critical = {memory.critical:g}",
            exit_code=exit_code("memory.warn", "memory.critical"),
        )
    if memory.release >= memory.warn:
        raise TidegateError(
            f"cannot use memory.release = {memory.release:g}: it is not below memory.warn = {memory.warn:g}",
            exit_code=exit_code("memory.release", "memory.warn"),
        )
    _check_fence(settings)
    for key, named in (("units", worker.unit), ("processes", worker.process)):
        if named and named in getattr(settings.protect, key):
            raise TidegateError(
                f"cannot use protect.{key} with {_show(named)}: that is the worker",
                hint="a worker that the OOM killer may not take would have it take everything else",
            )
    for number, profile in enumerate(worker.profiles, start=1):
        if profile.ubatch > profile.batch:
            raise TidegateError(
                f"cannot use worker.profile[{number}].ubatch = {profile.ubatch}: "
                f"it is above its batch = {profile.batch}"
            )
    try:
        parse_listen(settings.gateway.listen)
    except TidegateError as error:
        raise TidegateError(error.message, hint=error.hint, exit_code=exit_code("gateway.listen")) from None
    if worker.carry_over not in ("auto", "off") and not worker.carry_over.startswith("/"):
        raise TidegateError(
            f"cannot use worker.carry_over = {_show(worker.carry_over)}: it is neither auto, off nor an absolute path",
            exit_code=exit_code("worker.carry_over"),
        )
    if worker.command and worker.engine == "xllamacpp":
        raise TidegateError(
            "cannot use worker.command: only the llama-server engine has a command",
            exit_code=exit_code("worker.engine"),
        )


def _check_fence(settings: Settings) -> None:
    fence, budget = settings.fence, settings.memory.budget
    if fence.high is not None and fence.max is not None and fence.high > fence.max:
        raise TidegateError(
            f"cannot use fence.high = {format_size(fence.high)}: it is above fence.max = {format_size(fence.max)}"
        )
    if fence.high is not None and budget is None and not settings.worker.attached:
        raise TidegateError(
            f"cannot use fence.high = {format_size(fence.high)}: there is no memory.budget before it",
            hint="memory.high is a brake that can hold a worker still for ever; it stands behind the critical line",
        )
    for key, limit in (("high", fence.high), ("max", fence.max)):
        least = 0 if budget is None else budget * (settings.memory.critical if key == "high" else 1)
        if limit is not None and limit < least:
            line = "the critical line" if key == "high" else "memory.budget"
            raise TidegateError(
                f"cannot use fence.{key} = {format_size(limit)}: it is below {line}, {format_size(least)}",
                hint="the kernel's fence stands behind tidegate's own lines, or it would act first",
            )


def _parse(setting: Setting, value: object, place: str, *, exit_code: Exit = Exit.CANNOT_START) -> object:
    try:
        return setting.parse(value)
    except ValueError as error:
        raise TidegateError(f"cannot use {place} = {_show(value)}: {error}", exit_code=exit_code) from None


def _unknown(section: str, key: str, names: Sequence[str]) -> TidegateError:
    """The error for ``key`` in ``section`` ("": the top of the file), where only ``names`` are."""
    shown = key if _BARE_KEY.fullmatch(key) else _show(key)
    homes = [f"[{setting.section}]" for setting in SETTINGS if setting.key == key]
    homes += ["[[worker.profile]]" for setting in PROFILE_SETTINGS if setting.key == key]
    if section == "" and key == "profile":
        homes = ["[[worker.profile]]"]
    near = nearest(key, names)
    if homes:
        hint = f"it belongs into {homes[0]}"
    else:
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(names)}"
    what = "setting" if section else "section"
    return TidegateError(f"cannot use {section}{'.' if section else ''}{shown}: no such {what}", hint=hint)


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The one of ``names`` that ``name`` most likely stands for, or "". ``cutoff`` is a ratio, 1 is equal."""
    # Bounded: difflib takes time with the square of the length.
    found = difflib.get_close_matches(name[:60], list(names), n=1, cutoff=cutoff)
    return found[0] if found else ""


def _reject_unknown_environment(environ: Mapping[str, str]) -> None:
    known = {setting.env for setting in SETTINGS} | {"TIDEGATE_CONFIG"}
    ours = tuple(f"TIDEGATE_{section}_".upper() for section in _SECTIONS)
    for name in environ:
        if not name.startswith("TIDEGATE_") or name in known or _SERVICE_LINK.fullmatch(name):
            continue
        # A name with none of our sections may be anybody's, unless it is a slip of the hand.
        near = nearest(name, sorted(known), cutoff=0.9)
        if near or name.startswith(ours):
            hint = f"did you mean ${near}?" if near else "docs/configuration.md has the names"
            raise TidegateError(f"cannot use ${name}: no such setting", hint=hint)


def _show(value: object) -> str:
    """``value`` as TOML would have it, on one line, at most 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else str(value)
    except (ValueError, RecursionError):
        # str() of a whole number of more than 4300 digits.
        return "..."
    return text if len(text) <= 60 else text[:57] + "..."
