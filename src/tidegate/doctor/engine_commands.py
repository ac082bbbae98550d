"""Inference servers that are running, and what they were told."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.host.process_table import ProcessRow, read_arguments, read_environment

#: Command names (the kernel keeps 15 bytes), and what in the arguments of an interpreter tells one.
_SERVERS = (
    *("llama-server", "llama_main", "llama-cli", "ollama", "ollama_llama_se", "koboldcpp", "llamafile", "local-ai"),
    *("rkllm_server", "rkllama", "mlc_llm", "vllm", "tabbyapi", "whisper-server", "sd-server"),
)
_MODULES = ("llama_cpp.server", "llama_cpp", "vllm", "rkllama", "mlc_llm", "xllamacpp", "sglang", "koboldcpp")
_MOST = 64
#: Reading a command line takes the process's mmap_lock, which one in trouble may hold for seconds.
_WAIT_S = 0.5


@dataclass(frozen=True)
class EngineProcess:
    """A server: its row, and what it was told. Both are empty where they could not be read, or not in time."""

    row: ProcessRow
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """ "llama-server", "ollama" or "other"."""
        program = self.arguments[0].rpartition("/")[2] if self.arguments else self.row.name
        if "llama-server" in (program, self.row.name) or "ollama_llama_se" in self.row.name:
            return "llama-server"
        return "ollama" if "ollama" in (program, self.row.name) else "other"


def names_engine(words: Iterable[str]) -> str:
    """The inference server that a command line starts, or ""."""
    for word in words:
        base = word.rpartition("/")[2]
        if base in _SERVERS or base in _MODULES:
            return base
    return ""


def read_engines(processes: Iterable[ProcessRow], root: str = "/") -> tuple[EngineProcess, ...]:
    """The servers among ``processes``. Returns after a second at the latest."""
    likely = [row for row in processes if row.name in _SERVERS or row.name.startswith("python")][:_MOST]
    found: dict[int, EngineProcess] = {row.pid: EngineProcess(row) for row in likely if row.name in _SERVERS}

    def ask() -> None:
        for row in likely:
            arguments = read_arguments(row.pid, root)
            if row.name in _SERVERS or names_engine(arguments[1:]):
                found[row.pid] = EngineProcess(row, arguments, read_environment(row.pid, root))

    # A thread that nobody waits for: the read can be interrupted only by a signal that kills.
    reader = threading.Thread(target=ask, daemon=True)
    reader.start()
    reader.join(_WAIT_S)
    return tuple(found[pid] for pid in sorted(dict(found)))
