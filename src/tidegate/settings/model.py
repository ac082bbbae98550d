"""The settings as the rest of tidegate sees them: frozen, checked, in bytes and seconds.

This module is imported by the guard, so it needs nothing but :mod:`dataclasses`. Reading TOML, flags and the
environment is the launcher's work (:mod:`tidegate.settings.load`); the guard gets the result as JSON.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class MemorySettings:
    """Where the two lines are drawn. Ratios are of the nearest limit; times are seconds; ``budget`` is bytes."""

    warn: float = 0.82
    critical: float = 0.91
    release: float = 0.05
    hold: float = 10.0
    lead: float = 3.0
    interval: float = 3.0
    budget: int | None = None


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class WorkerSettings:
    """The engine and its profiles, best first. ``command`` is the engine's own program and leading arguments;
    ``engine`` "auto" is resolved by the launcher: xllamacpp if it is installed, else llama-server."""

    engine: str = "auto"
    command: tuple[str, ...] = ()
    oom_score_adj: int = 800
    step_up_after: float = 60.0
    load_timeout: float = 120.0
    profiles: tuple[Profile, ...] = ()


@dataclass(frozen=True)
class GatewaySettings:
    """The front door. Token counts are tokens; ``hold`` is how long a request may wait for a worker, in seconds."""

    listen: str = "127.0.0.1:8080"
    warn_context: int = 1024
    critical_prompt: int = 256
    hold: float = 60.0
    language: str = "en"


@dataclass(frozen=True)
class LogSettings:
    level: str = "info"
    format: str = "text"


@dataclass(frozen=True)
class Settings:
    """Everything that can be set, with the defaults of the settings table."""

    memory: MemorySettings = field(default_factory=MemorySettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    log: LogSettings = field(default_factory=LogSettings)

    def to_json(self) -> dict[str, Any]:
        """A JSON-able copy; :meth:`from_json` gives the same settings back."""
        return asdict(self)

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


def changes(old: Settings, new: Settings) -> list[str]:
    """``section.key: old -> new`` for every difference, for the log line of a reload."""
    found = []
    for section in fields(Settings):
        before, after = getattr(old, section.name), getattr(new, section.name)
        for item in fields(before):
            was, now = getattr(before, item.name), getattr(after, item.name)
            if was != now:
                found.append(f"{section.name}.{item.name}: {was!r} -> {now!r}")
    return found
