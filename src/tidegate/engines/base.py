"""What the guard needs of an engine: a command line for a profile, and what its API can really do."""

from __future__ import annotations

from tidegate.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from tidegate.settings.model import Profile

    class Engine(Protocol):
        """One inference server that the guard can start."""

        name: str
        capabilities: EngineCapabilities

        def argv(self, profile: Profile, *, prompt_cache: int, endpoint: str) -> list[str]:
            """The command that serves ``profile`` on ``endpoint`` with at most ``prompt_cache`` bytes of cache."""
            ...


@frozen
class EngineCapabilities:
    """What a running engine can give back without a restart; used by the ladder and printed at start.

    ``frees_bytes``: an API call that lowers resident memory. llama.cpp has none: its KV cache is allocated whole at
    start, and erasing a slot frees 0 bytes (measured: 213 MiB before, 213 MiB after).
    """

    unix_socket: bool
    frees_bytes: bool


#: glibc settings for every child: few arenas, and freed blocks of 128 KiB and more go back to the kernel, so that a
#: dropped prompt cache is seen as free memory.
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_MMAP_THRESHOLD_": "131072",
}
#: llama-server takes flags from these too, and an API key would shut our own probe out.
_FOREIGN_SETTINGS = ("LLAMA_ARG_", "LLAMA_API_KEY")


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: ours, without what would change its flags behind our back."""
    return {name: value for name, value in environ.items() if not name.startswith(_FOREIGN_SETTINGS)}
