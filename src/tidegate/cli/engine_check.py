"""Find out before anything is resident what would make every start of the engine fail, and what flags it knows."""

from __future__ import annotations

import ctypes
import difflib
import importlib.util
import os
import shutil
import subprocess
import sys

from tidegate.engines.help_text import parse_flags
from tidegate.engines.llama_flags import NEEDED_FLAGS
from tidegate.engines.xllamacpp import Xllamacpp
from tidegate.errors import TidegateError
from tidegate.settings.model import WorkerSettings

#: llama-server prints its help in 0.1 s; on a board that reads it from an SD card for the first time in some seconds.
_HELP_TIMEOUT_S = 30.0


def check_engine(worker: WorkerSettings) -> tuple[str, ...]:
    """The flags that the engine's build knows, sorted.

    Raises:
        TidegateError: the engine is not installed, or a library it needs is not; it is no llama.cpp server; or a
            profile's ``extra`` has a flag that it does not know.
    """
    command = _llama_server(worker) if worker.engine == "llama-server" else _xllamacpp()
    flags = _read_flags(command)
    missing = [names[0] for names in NEEDED_FLAGS if not flags.intersection(names)]
    if missing:
        raise TidegateError(
            f"cannot use {command[0]} as the engine: its --help names no {missing[0]}",
            hint="worker.command must be a llama-server",
        )
    _check_extra(worker, flags)
    return tuple(sorted(flags))


def _llama_server(worker: WorkerSettings) -> list[str]:
    command = list(worker.command) or ["llama-server"]
    program = command[0]
    if shutil.which(program) is None:
        what = f"{program} is not executable" if os.path.exists(program) else f"no program {program}"
        raise TidegateError(
            f"cannot use engine llama-server: {what}",
            hint="set worker.command, or pip install 'tidegate[demo]' for the xllamacpp engine",
        )
    return command


def _xllamacpp() -> list[str]:
    if importlib.util.find_spec("xllamacpp") is None:
        raise TidegateError("cannot use engine xllamacpp: it is not installed", hint="pip install 'tidegate[demo]'")
    try:
        # xllamacpp's wheel links the system's OpenMP library.
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        raise TidegateError(
            "cannot use engine xllamacpp: libgomp.so.1 is not installed", hint="apt-get install libgomp1"
        ) from None
    return Xllamacpp(sys.executable).command()


def _read_flags(command: list[str]) -> frozenset[str]:
    try:
        done = subprocess.run(
            [*command, "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_HELP_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise TidegateError(f"cannot run {command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise TidegateError(f"cannot use {command[0]} as the engine: --help does not end") from None
    flags = parse_flags(done.stdout.decode(errors="replace"))
    if not flags:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise TidegateError(
            f"cannot use {' '.join(command)} as the engine: its --help names no flags (status {done.returncode})",
            hint=said[-1][:200] if said else "worker.command must be a llama-server",
        )
    return flags


def _check_extra(worker: WorkerSettings, flags: frozenset[str]) -> None:
    for profile in worker.profiles:
        for word in profile.extra:
            flag = word.partition("=")[0]
            if not flag.startswith("-") or flag.lstrip("-")[:1].isdigit() or flag in flags:
                continue
            near = difflib.get_close_matches(flag, sorted(flags), n=1, cutoff=0.6)
            raise TidegateError(
                f"cannot use extra flag {flag} of profile {profile.name!r}: the engine does not know it",
                hint=f"did you mean {near[0]!r}?" if near else "its --help names them all",
            )
