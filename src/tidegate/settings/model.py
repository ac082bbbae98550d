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


#: Name of the one profile of a server that somebody else starts.
ATTACHED = "attached"


@frozen
class WorkerSettings:
    """The engine and its profiles, best first. ``command`` is the engine's own program and leading arguments;
    ``engine`` "auto" is resolved by the launcher: xllamacpp if it is installed, else llama-server.

    ``carry_over`` is the directory where the prompts' common beginnings are kept over a restart, or "off"; "auto" is
    resolved by the launcher.

    With one of ``unit``, ``process`` and ``cgroup`` the worker is a server that somebody else starts: it is reached at
    ``url`` and started anew by ``restart``, or by its supervisor."""

    engine: str = "auto"
    command: tuple[str, ...] = ()
    oom_score_adj: int = 800
    step_up_after: float = 60.0
    load_timeout: float = 120.0
    carry_over: str = "auto"
    unit: str = ""
    process: str = ""
    cgroup: str = ""
    url: str = ""
    restart: tuple[str, ...] = ()
    profiles: tuple[Profile, ...] = ()

    @property
    def attached(self) -> bool:
        """Whether somebody else starts the worker."""
        return bool(self.unit or self.process or self.cgroup)


#: The default memory.max is the budget and one part in this many: at 60 MB/s the kernel needs 0.6 s from the critical
#: line to its kill, and a budget counts neither page tables nor socket buffers nor the file pages of the program.
MAX_OVER_BUDGET = 15


@frozen
class FenceSettings:
    """The kernel's own limits on the worker's cgroup. None is the default that :mod:`tidegate.policy.fences` makes of
    the budget; for a server that somebody else starts, None leaves the file alone. Sizes are bytes."""

    high: int | None = None
    max: int | None = None
    swap_max: int | None = None
    oom_group: bool | None = None
    cpu_weight: int | None = None


@frozen
class ProtectSettings:
    """Who the OOM killer is to spare: commands (first 15 bytes) and systemd units. ``memory_min`` is bytes for each
    unit."""

    processes: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    memory_min: int | None = None
    memory_low: int | None = None


@frozen
class GatewaySettings:
    """The front door. Token counts are tokens; ``hold`` is how long a request may wait for a worker, ``deadline`` how
    long for its turn behind others, in seconds."""

    listen: str = "127.0.0.1:8080"
    warn_context: int = 1024
    critical_prompt: int = 256
    hold: float = 60.0
    deadline: float = 240.0
    language: str = "en"
    on_pressure: str = "error"
    keys: str | None = None
    control_keys: str | None = None
    without_keys: bool = False
    log_prompts: bool = False


@frozen
class LogSettings:
    level: str = "info"
    format: str = "text"


@frozen
class Settings:
    """Everything that can be set, with the defaults of the settings table."""

    memory: MemorySettings = MemorySettings()
    worker: WorkerSettings = WorkerSettings()
    fence: FenceSettings = FenceSettings()
    protect: ProtectSettings = ProtectSettings()
    gateway: GatewaySettings = GatewaySettings()
    log: LogSettings = LogSettings()

    def to_json(self) -> dict[str, Any]:
        """A JSON-able copy; :meth:`from_json` gives the same settings back."""
        return dict(as_json(self))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Settings:
        """The settings that :meth:`to_json` wrote. Trusts its input: it was checked before it was written."""
        worker = dict(data["worker"])
        worker["command"], worker["restart"] = tuple(worker["command"]), tuple(worker["restart"])
        worker["profiles"] = tuple(Profile(**{**p, "extra": tuple(p["extra"])}) for p in worker["profiles"])
        protect = dict(data["protect"])
        protect["processes"], protect["units"] = tuple(protect["processes"]), tuple(protect["units"])
        return cls(
            memory=MemorySettings(**data["memory"]),
            worker=WorkerSettings(**worker),
            fence=FenceSettings(**data["fence"]),
            protect=ProtectSettings(**protect),
            gateway=GatewaySettings(**data["gateway"]),
            log=LogSettings(**data["log"]),
        )


#: Settings that a running guard or gateway does not take over.
_AFTER_RESTART = frozenset(
    (
        *("gateway.listen", "gateway.hold", "gateway.deadline", "gateway.language", "gateway.log_prompts"),
        *("protect.processes", "protect.units", "protect.memory_min", "protect.memory_low"),
        *("worker.unit", "worker.process", "worker.cgroup", "worker.url", "worker.restart", "worker.carry_over"),
    )
)


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
