"""The llama-server engine: llama.cpp's own binary, started with our flags."""

from __future__ import annotations

import os

from tidegate.engines.base import EngineCapabilities
from tidegate.engines.llama_flags import llama_flags, usable_slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.settings.model import Profile

_ALIAS = ("--alias", "-a")


class LlamaServer:
    """``command`` is the program and its first arguments, ``flags`` what its build knows, ``slots`` the directory of
    saved slots (empty: none)."""

    name = "llama-server"
    capabilities = EngineCapabilities(unix_socket=True, frees_bytes=False)

    def __init__(self, command: tuple[str, ...], flags: frozenset[str], slots: str = "") -> None:
        self._command = command or ("llama-server",)
        self._flags = flags
        self._slots = slots

    def argv(self, profile: Profile, *, prompt_cache: int, endpoint: str) -> list[str]:
        slots = usable_slots(self._slots)
        flags = llama_flags(profile, self._flags, prompt_cache=prompt_cache, endpoint=endpoint, slots=slots)
        return [*self._command, *self._alias(profile), *flags]

    def _alias(self, profile: Profile) -> list[str]:
        """Without one every answer's "model" is the path on this machine, and a second one does not replace it."""
        name = next((name for name in _ALIAS if not self._flags or name in self._flags), None)
        if name is None or any(word.partition("=")[0] in _ALIAS for word in profile.extra):
            return []
        # Commas would make it several.
        return [name, os.path.basename(profile.model).removesuffix(".gguf").replace(",", "_")]
