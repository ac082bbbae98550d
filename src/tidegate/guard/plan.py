"""What the launcher hands to the guard: checked settings, each profile's bytes, inherited descriptors."""

from __future__ import annotations

from tidegate.frozen import as_json, frozen
from tidegate.settings.model import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@frozen
class ProfileBytes:
    """Planned bytes of one profile, prompt cache apart.

    ``known`` counts on a budget (anonymous and shared); ``compute`` is the part of it that is touched only by the
    first long prefill; ``file`` is mapped weights; ``cold_file`` is the part of ``file`` that the engine repacks into
    anonymous memory and does not read again; ``entry`` is one whole context in the prompt cache.
    """

    known: int
    compute: int
    file: int
    cold_file: int
    entry: int


@frozen
class Plan:
    """Everything the guard is started with. ``supervised``: a service manager restarts us, so the worker may outlive
    the guard; otherwise it dies with it. ``reload`` is the command that prints a new plan's settings and profiles."""

    settings: Settings
    profiles: dict[str, ProfileBytes]
    engine_flags: tuple[str, ...]
    run_directory: str
    python: str
    source: str
    listen_fds: tuple[int, ...]
    lock_fd: int
    reload: tuple[str, ...]
    gateway: bool
    observe: bool
    supervised: bool

    def to_json(self) -> dict[str, Any]:
        return {**as_json(self), "settings": self.settings.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        return cls(
            **{
                **data,
                "settings": Settings.from_json(data["settings"]),
                "profiles": profiles_from_json(data["profiles"]),
                "engine_flags": tuple(data["engine_flags"]),
                "listen_fds": tuple(data["listen_fds"]),
                "reload": tuple(data["reload"]),
            }
        )


def profiles_from_json(data: dict[str, Any]) -> dict[str, ProfileBytes]:
    """The ``profiles`` part of a plan, as JSON has it."""
    return {name: ProfileBytes(**values) for name, values in data.items()}
