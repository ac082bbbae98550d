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
class Attachment:
    """A server that somebody else starts.

    ``kind`` is "unit", "process" or "cgroup", ``name`` what it is called; ``group`` is its cgroup's path (empty for a
    process). ``restart`` is the command that starts it again (empty: its supervisor does). ``armed``: it may be ended,
    because somebody will start it again. ``by_kill``: only by SIGKILL, since its supervisor takes an exit on SIGTERM
    for a wish. ``supervision`` says all that in words.
    """

    kind: str
    name: str
    group: str
    restart: tuple[str, ...]
    armed: bool
    by_kill: bool
    supervision: str

    @property
    def label(self) -> str:
        """``unit llama.service``."""
        return f"{self.kind} {self.name}"


@frozen
class Plan:
    """Everything the guard is started with. ``supervised``: a service manager restarts us, so the worker may outlive
    the guard; otherwise it dies with it. ``reload`` is the command that prints a new plan's settings and profiles;
    ``leaving_fd`` is the pidfd of an earlier guard's gateway that is leaving, or -1; ``protected`` are (unit, its
    cgroup's path) of the board's own services."""

    settings: Settings
    profiles: dict[str, ProfileBytes]
    engine_flags: tuple[str, ...]
    run_directory: str
    python: str
    source: str
    listen_fds: tuple[int, ...]
    lock_fd: int
    leaving_fd: int
    reload: tuple[str, ...]
    attachment: Attachment | None
    protected: tuple[tuple[str, str], ...]
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
                "attachment": _attachment(data["attachment"]),
                "protected": tuple((unit, group) for unit, group in data["protected"]),
            }
        )


def profiles_from_json(data: dict[str, Any]) -> dict[str, ProfileBytes]:
    """The ``profiles`` part of a plan, as JSON has it."""
    return {name: ProfileBytes(**values) for name, values in data.items()}


def _attachment(data: dict[str, Any] | None) -> Attachment | None:
    return None if data is None else Attachment(**{**data, "restart": tuple(data["restart"])})
