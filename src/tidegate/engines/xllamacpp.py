"""The xllamacpp engine: llama.cpp's server from a wheel, in a small Python host process of its own."""

from __future__ import annotations

import os

from tidegate.engines.base import EngineCapabilities
from tidegate.engines.llama_flags import llama_flags, usable_slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.settings.model import Profile


class Xllamacpp:
    """``python`` is the interpreter that can import xllamacpp, ``flags`` what the host program knows (none: all),
    ``slots`` the directory of saved slots (empty: none)."""

    name = "xllamacpp"
    capabilities = EngineCapabilities(unix_socket=True, frees_bytes=False)

    def __init__(self, python: str, flags: frozenset[str] = frozenset(), slots: str = "") -> None:
        self._python = python
        self._flags = flags
        self._slots = slots

    def command(self) -> list[str]:
        """The host program; with ``--help`` it names the flags that it knows."""
        # -P: the host's own directory must not shadow the xllamacpp package.
        host = os.path.join(os.path.dirname(os.path.abspath(__file__)), "xllamacpp_host.py")
        return [self._python, "-P", host]

    def argv(self, profile: Profile, *, prompt_cache: int, endpoint: str) -> list[str]:
        slots = usable_slots(self._slots)
        flags = llama_flags(profile, self._flags, prompt_cache=prompt_cache, endpoint=endpoint, slots=slots)
        return [*self.command(), *flags]
