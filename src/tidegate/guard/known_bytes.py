"""Bytes of each profile: planned from the model file, then learned from the running worker."""

from __future__ import annotations

from tidegate.policy.ladder import Rung

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.guard.plan import ProfileBytes
    from tidegate.settings.model import Profile

#: Below this an excess of anonymous memory is the plan's own error and not repacked weights.
_NOISE = 16 << 20


class KnownBytes:
    """Known bytes are what a profile needs when ready and after one full prefill, prompt cache apart."""

    def __init__(self, planned: dict[str, ProfileBytes]) -> None:
        self._planned = planned
        self._learned: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def replan(self, planned: dict[str, ProfileBytes]) -> None:
        """New plans after a reload; what was learned of a profile that changed is forgotten."""
        for name in list(self._learned):
            if planned.get(name) != self._planned.get(name):
                del self._learned[name]
        self._planned = planned

    def inspected(self, name: str, planned: ProfileBytes) -> None:
        """A running worker's plan came after it was ready: what was learned of it holds, and lacks the compute buffers
        that were not known then."""
        before = self.planned(name)
        if name in self._learned and before is not None:
            self._learned[name] += max(0, planned.compute - before.compute)
        self._planned = {**self._planned, name: planned}

    def seen(self, name: str | None, measured: int) -> None:
        """A worker that was ready before anybody looked holds ``measured`` bytes: its need is no more than that and its
        compute buffers, whatever its command line would allow."""
        self._seen[name or ""] = measured

    def ready(self, name: str | None, measured: int) -> None:
        """A worker in profile ``name`` is ready with ``measured`` bytes; its compute buffers are not touched yet."""
        if name in self._planned:
            assert name is not None
            self._learned[name] = max(measured + self._planned[name].compute, self._learned.get(name, 0))

    def planned(self, name: str | None) -> ProfileBytes | None:
        """What was planned for the profile ``name``."""
        return self._planned.get(name or "")

    def cold_file(self, name: str | None, ready_bytes: int | None) -> int:
        """Bytes of mapped weights that the engine does not read again, from its ``ready_bytes`` (anonymous, shared);
        None, where nobody saw it become ready: as planned.

        What is there above the planned KV and buffers is the engine's repacked copy of its weights; the mapped
        originals of that many bytes are cold.
        """
        planned = self._planned.get(name or "")
        if planned is None:
            return 0
        if ready_bytes is None:
            return planned.cold_file
        excess = ready_bytes - (planned.known - planned.compute - planned.cold_file)
        return min(excess, planned.file) if excess >= _NOISE else 0

    def observe(self, name: str | None, measured: int, *, cached: bool) -> None:
        """A look at a running worker. Only without a prompt cache is all of ``measured`` the profile's own."""
        if name in self._learned and not cached and measured > self._learned[name]:
            self._learned[name] = measured

    def of(self, name: str | None) -> int:
        """Known bytes of the profile ``name``; 0 for one that is not planned."""
        if name in self._learned:
            return self._learned[name]
        planned = self._planned.get(name or "")
        if planned is None:
            return 0
        seen = self._seen.get(name or "")
        return planned.known if seen is None else min(planned.known, seen + planned.compute)

    def rungs(self, profiles: tuple[Profile, ...]) -> tuple[Rung, ...]:
        """The ladder's rungs, best first."""
        return tuple(Rung(profile.name, self.of(profile.name), self._hot(profile.name)) for profile in profiles)

    def _hot(self, name: str) -> int:
        planned = self._planned.get(name)
        return max(0, planned.file - planned.cold_file) if planned is not None else 0
