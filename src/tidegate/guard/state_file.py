"""The state files: which worker and gateway run, for the guard after this one. It takes the worker over instead of
killing it, and asks the gateway for its place."""

from __future__ import annotations

import json
import os

from tidegate.frozen import as_json, frozen
from tidegate.host.files import read_file
from tidegate.host.process import ProcessId

#: File names in the run directory.
WORKER = "state.json"
GATEWAY = "gateway.json"


@frozen
class WorkerRecord:
    """A worker that was ready. ``argv`` is compared: one that was started differently is not ours any more."""

    pid: int
    start_time: int
    generation: int
    profile: str
    url: str
    group: str
    argv: tuple[str, ...]
    prompt_cache: int


def save(path: str, record: WorkerRecord | ProcessId | None) -> str:
    """Write ``record`` (None: nothing runs) whole or not at all. Returns why it could not be written, or ""."""
    temporary = f"{path}.new"
    try:
        with open(temporary, "w") as file:
            json.dump(None if record is None else as_json(record), file)
        os.replace(temporary, path)
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return ""


def load(path: str) -> WorkerRecord | None:
    """The record in ``path``, or None: no file, nothing ran, or it is not a record of ours."""
    data = read_file(path, 65536)
    try:
        document = json.loads(data) if data else None
        if document is None:
            return None
        numbers = [document[name] for name in ("pid", "start_time", "generation", "prompt_cache")]
        texts = [document[name] for name in ("profile", "url", "group")]
        if any(type(number) is not int or number < 0 for number in numbers) or 0 in numbers[:3]:
            return None
        if any(type(text) is not str for text in [*texts, *document["argv"]]):
            return None
        return WorkerRecord(**{**document, "argv": tuple(document["argv"])})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def load_gateway(path: str) -> ProcessId | None:
    """The gateway in ``path``, or None: no file, none ran, or it is not a record of ours."""
    data = read_file(path, 65536)
    try:
        document = json.loads(data) if data else None
        if document is None or any(type(document[name]) is not int or document[name] <= 0 for name in document):
            return None
        return ProcessId(**document)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
