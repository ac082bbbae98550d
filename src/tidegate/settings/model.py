"""The settings as the rest of tidegate sees them: frozen, checked, in bytes and seconds.

This module is imported by the guard, so it needs no module of the standard library. Reading TOML, flags and the
environment is the launcher's work (:mod:`tidegate.settings.load`); the guard gets the result as JSON.
"""

from __future__ import annotations

from tidegate.frozen import as_json, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@frozen
class MemorySettings:
    """Where the two lines are drawn. Ratios are of the nearest limit; times are seconds; ``budget`` is bytes."""

    warn: float = 0.82
    critical: float = 0.91
    release: float = 0.05
    hold: float = 10.0
    lead: float = 3.0
    interval: float = 3.0
    budget: int | None = None


@frozen
class Profile:
    """One shape the worker can run in.

    ``model`` is a GGUF path; ``context`` is tokens per slot; ``prompt_cache`` is bytes of host prompt cache (0 = off);
    ``batch`` and ``ubatch`` are tokens; ``threads`` 0 lets the engine choose; ``extra`` goes to the engine as it is.
    """

    name: str
    model: str
    context: int = 4096
    slots: int = 1
    kv_type: str = "f16"
    prompt_cache: int = 0
    batch: int = 256
    ubatch: int = 128
    threads: int = 0
    extra: tuple[str, ...] = ()


@frozen
class WorkerSettings:
    """The engine and its profiles, best first. ``command`` is the engine's own program and leading arguments;
    ``engine`` "auto" is resolved by the launcher: xllamacpp if it is installed, else llama-server."""

    engine: str = "auto"
    command: tuple[str, ...] = ()
    oom_score_adj: int = 800
    step_up_after: float = 60.0
    load_timeout: float = 120.0
    profiles: tuple[Profile, ...] = ()


@frozen
class GatewaySettings:
    """The front door. Token counts are tokens; ``hold`` is how long a request may wait for a worker, in seconds."""

    listen: str = "127.0.0.1:8080"
    warn_context: int = 1024
    critical_prompt: int = 256
    hold: float = 60.0
    language: str = "en"


@frozen
class LogSettings:
    level: str = "info"
    format: str = "text"


@frozen
class Settings:
    """Everything that can be set, with the defaults of the settings table."""

    memory: MemorySettings = MemorySettings()
    worker: WorkerSettings = WorkerSettings()
    gateway: GatewaySettings = GatewaySettings()
    log: LogSettings = LogSettings()

    def to_json(self) -> dict[str, Any]:
        """A JSON-able copy; :meth:`from_json` gives the same settings back."""
        return dict(as_json(self))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Settings:
        """The settings that :meth:`to_json` wrote. Trusts its input: it was checked before it was written."""
        worker = dict(data["worker"])
        worker["command"] = tuple(worker["command"])
        worker["profiles"] = tuple(Profile(**{**p, "extra": tuple(p["extra"])}) for p in worker["profiles"])
        return cls(
            memory=MemorySettings(**data["memory"]),
            worker=WorkerSettings(**worker),
            gateway=GatewaySettings(**data["gateway"]),
            log=LogSettings(**data["log"]),
        )


#: Settings that a running gateway does not take over.
_AFTER_RESTART = frozenset(("gateway.listen", "gateway.hold", "gateway.language"))


def changes(old: Settings, new: Settings) -> list[str]:
    """``section.key: old -> new`` for every difference, with when it takes effect, for the log lines of a reload."""
    found = []
    for section in Settings.__match_args__:
        before, after = getattr(old, section), getattr(new, section)
        for item in before.__match_args__:
            was, now = getattr(before, item), getattr(after, item)
            name = f"{section}.{item}"
            if was == now:
                continue
            if name == "worker.profiles":
                found += _profile_changes(was, now)
            else:
                found.append(f"{name}: {was!r} -> {now!r}{' (after a restart)' if name in _AFTER_RESTART else ''}")
    return found


def _profile_changes(old: tuple[Profile, ...], new: tuple[Profile, ...]) -> list[str]:
    names = [profile.name for profile in old], [profile.name for profile in new]
    found = [] if names[0] == names[1] else [f"worker.profile: {', '.join(names[0])} -> {', '.join(names[1])}"]
    before = {profile.name: profile for profile in old}
    for profile in new:
        was = before.get(profile.name, profile)
        for key in Profile.__match_args__:
            if getattr(was, key) != getattr(profile, key):
                change = f"{getattr(was, key)!r} -> {getattr(profile, key)!r}"
                found.append(f"worker.profile {profile.name}.{key}: {change} (from its next start on)")
    return found
