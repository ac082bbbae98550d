"""``python -m tidegate.cli.inspect_server PID``: what a running llama-server was told, and the bytes that it plans.

Run by the guard, which has neither a GGUF reader nor a reason to read another process's command line itself: that takes
the process's mmap_lock, which one in trouble may hold for seconds.
"""

from __future__ import annotations

import json
import os
import re
import sys

from tidegate.cli.planning import profile_bytes
from tidegate.engines import foreign_flags
from tidegate.errors import TidegateError
from tidegate.gguf import read_gguf
from tidegate.guard.plan import ProfileBytes
from tidegate.host.meminfo import read_meminfo

#: How the parts of a split model end; only the first has the metadata.
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


def main(pid: int) -> int:
    """Print ``{"prompt_cache", "bytes", "findings"}`` as JSON, or one line of why not."""
    try:
        told = foreign_flags.read(_strings(pid, "cmdline"), _environ(pid))
    except OSError as error:
        print(f"cannot read the command line of {pid}: {error.strerror}")
        return 1
    found = foreign_flags.findings(told, memory=read_meminfo().total)
    planned = ProfileBytes(known=0, compute=0, file=0, cold_file=0, entry=0)
    path = _model(pid, told.model)
    if path:
        try:
            planned = _plan(path, told)
        except TidegateError as error:
            found.append(str(error))
    print(json.dumps({"prompt_cache": told.prompt_cache, "bytes": vars(planned), "findings": found}))
    return 0


def _plan(path: str, told: foreign_flags.Told) -> ProfileBytes:
    model = read_gguf(path)
    profile = told.profile(path, trained=model.context_length or 4096)
    return profile_bytes(model, profile)


def _strings(pid: int, name: str) -> list[str]:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return [os.fsdecode(word) for word in file.read(1 << 20).split(b"\0")[:-1]]


def _environ(pid: int) -> dict[str, str]:
    try:
        return dict(line.split("=", 1) for line in _strings(pid, "environ") if "=" in line)
    except OSError:
        # Another user's, or a process that made itself undumpable: the flags have to do.
        return {}


def _model(pid: int, named: str) -> str:
    """The model file as seen from here: the one that was named, else (``-hf``) the largest that is mapped. "" if there
    is none."""
    try:
        path = _seen_from_here(pid, os.path.join(os.readlink(f"/proc/{pid}/cwd"), named)) if named else ""
        return path or _largest_mapped(pid)
    except OSError:
        return ""


def _largest_mapped(pid: int) -> str:
    # Not the first in the list: that is the last that was mapped, such as a draft model or a part of a split one.
    mapped = set()
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            path = os.fsdecode(line.rstrip(b"\n").partition(b"/")[2])
            if path.endswith(".gguf"):
                mapped.add(_seen_from_here(pid, _PART.sub(r"-00001-of-\1.gguf", "/" + path)))
    return max(mapped - {""}, key=os.path.getsize, default="")


def _seen_from_here(pid: int, path: str) -> str:
    inside = f"/proc/{pid}/root{path}"
    return inside if os.path.exists(inside) else path if os.path.exists(path) else ""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
