"""llama-server flags for a profile: the edge profile, and everything dangerous set explicitly."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.settings.model import Profile

#: Flags that a profile's ``extra`` must not set, because the guard plans memory and finds the worker by them.
OWNED_FLAGS = frozenset(
    flag
    for names in (
        ("-m", "--model", "-c", "--ctx-size", "-np", "--parallel", "-b", "--batch-size", "-ub", "--ubatch-size"),
        ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "-cram", "--cache-ram", "-fit", "--fit"),
        ("--host", "--port", "-t", "--threads"),
    )
    for flag in names
)


def llama_flags(profile: Profile, *, prompt_cache: int, endpoint: str) -> list[str]:
    """The flags of llama-server (b11434) that serve ``profile`` on ``endpoint``.

    Left unset, these would each break a board: ``-c`` (sized to all RAM), ``-np`` (four slots), ``--cache-ram``
    (8 GiB of anonymous memory), ``--ctx-checkpoints`` (32 a slot), ``-fit`` (ignores cgroups). ``prompt_cache`` is
    bytes; the flag takes whole MiB.
    """
    flags = [
        *("-m", profile.model),
        *("-c", str(profile.context * profile.slots)),
        *("-np", str(profile.slots)),
        *("-b", str(profile.batch)),
        *("-ub", str(profile.ubatch)),
        *("-ctk", profile.kv_type),
        *("-ctv", profile.kv_type),
        *("-fa", "on"),
        *("--cache-ram", str(prompt_cache >> 20)),
        *("--ctx-checkpoints", "2"),
        *("-fit", "off"),
        "--no-warmup",
        "--metrics",
        "--no-webui",
        "--offline",
        *("--timeout", "3600"),
    ]
    if profile.threads:
        flags += ["-t", str(profile.threads)]
    if endpoint.startswith("unix:"):
        flags += ["--host", endpoint.removeprefix("unix:")]
    else:
        host, _, port = endpoint.removeprefix("http://").rpartition(":")
        flags += ["--host", host, "--port", port]
    return [*flags, *profile.extra]
