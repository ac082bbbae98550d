"""llama-server flags for a profile: the edge profile, and everything dangerous set explicitly."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.settings.model import Profile

#: Flags that a profile's ``extra`` must not set, because the guard plans memory and finds the worker by them.
OWNED_FLAGS = frozenset(
    flag
    for names in (
        ("-m", "--model", "-c", "--ctx-size", "-np", "--parallel", "-b", "--batch-size", "-ub", "--ubatch-size"),
        ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "-cram", "--cache-ram", "-fit", "--fit"),
        ("--host", "--port", "-t", "--threads", "--slot-save-path"),
    )
    for flag in names
)


#: Without these (any name of each) a program is no llama-server, or none that can be kept within bounds.
NEEDED_FLAGS = (("-m", "--model"), ("-c", "--ctx-size"), ("-np", "--parallel"), ("--host",), ("--port",))


def llama_flags(
    profile: Profile, known: frozenset[str], *, prompt_cache: int, endpoint: str, slots: str = ""
) -> list[str]:
    """The flags of llama-server (names of b11434) that serve ``profile`` on ``endpoint``.

    Left unset, these would each break a board: ``-c`` (sized to all RAM), ``-np`` (four slots), ``--cache-ram``
    (8 GiB of anonymous memory), ``--ctx-checkpoints`` (32 a slot), ``-fit`` (ignores cgroups). ``prompt_cache`` is
    bytes; the flag takes whole MiB. ``slots`` is the directory of saved slots (empty: none are saved). ``known`` are
    the flags of the build at hand (none: all): one that it does not know would end it at once, and what it would have
    bounded is not there in such a build.
    """
    wanted: list[tuple[tuple[str, ...], str | None]] = [
        (("-m", "--model"), profile.model),
        (("-c", "--ctx-size"), str(profile.context * profile.slots)),
        (("-np", "--parallel"), str(profile.slots)),
        (("-b", "--batch-size"), str(profile.batch)),
        (("-ub", "--ubatch-size"), str(profile.ubatch)),
        (("-ctk", "--cache-type-k"), profile.kv_type),
        (("-ctv", "--cache-type-v"), profile.kv_type),
        (("-fa", "--flash-attn"), "on"),
        (("--cache-ram", "-cram"), str(prompt_cache >> 20)),
        # A history that lost its oldest turns keeps what it shares: 0.2 s instead of 17 (docs/gateway.md, Carry-over).
        (("--cache-reuse",), "256"),
        (("--ctx-checkpoints", "--swa-checkpoints"), "2"),
        (("-fit", "--fit"), "off"),
        (("--no-warmup",), None),
        (("--metrics",), None),
        (("--no-webui", "--no-ui"), None),
        (("--offline",), None),
        (("--timeout", "-to"), "3600"),
    ]
    if slots:
        # The host program takes the directory as it is, and llama.cpp puts the name right behind it.
        wanted.append((("--slot-save-path",), f"{slots.rstrip('/')}/"))
    if profile.threads:
        wanted.append((("-t", "--threads"), str(profile.threads)))
    if endpoint.startswith("unix:"):
        wanted.append((("--host",), endpoint.removeprefix("unix:")))
    else:
        host, _, port = endpoint.removeprefix("http://").rpartition(":")
        wanted += [(("--host",), host), (("--port",), port)]
    flags: list[str] = []
    for names, value in wanted:
        name = next((name for name in names if not known or name in known), None)
        if name is not None:
            flags += [name] if value is None else [name, value]
    return [*flags, *profile.extra]


def usable_slots(directory: str) -> str:
    """``directory`` if it is there and can be written to, else "": the engine would end itself at once."""
    return directory if os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK) else ""
