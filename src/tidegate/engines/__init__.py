"""One adapter per inference engine, behind one Protocol."""

from __future__ import annotations

from tidegate.engines.llama_server import LlamaServer
from tidegate.engines.xllamacpp import Xllamacpp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.engines.base import Engine
    from tidegate.settings.model import WorkerSettings


def create(settings: WorkerSettings, python: str, flags: tuple[str, ...]) -> Engine:
    """The adapter that ``settings`` name; ``python`` is the interpreter that has the engine's package, ``flags`` are
    those that the engine's build knows."""
    slots = settings.carry_over if settings.carry_over.startswith("/") else ""
    if settings.engine == "llama-server":
        return LlamaServer(settings.command, frozenset(flags), slots)
    return Xllamacpp(python, frozenset(flags), slots)
