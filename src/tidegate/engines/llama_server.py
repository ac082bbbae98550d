"""The llama-server engine: llama.cpp's own binary, started with our flags."""

from __future__ import annotations

from tidegate.engines.base import EngineCapabilities
from tidegate.engines.llama_flags import llama_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.settings.model import Profile


class LlamaServer:
    """``command`` is the program and its first arguments, ``flags`` what its build knows."""

    name = "llama-server"
    capabilities = EngineCapabilities(unix_socket=True, frees_bytes=False)

    def __init__(self, command: tuple[str, ...], flags: frozenset[str]) -> None:
        self._command = command or ("llama-server",)
        self._flags = flags

    def argv(self, profile: Profile, *, prompt_cache: int, endpoint: str) -> list[str]:
        return [*self._command, *llama_flags(profile, self._flags, prompt_cache=prompt_cache, endpoint=endpoint)]
