"""Requests that workers died of, kept away from the next ones for a while. Pure."""

from __future__ import annotations

import hashlib

#: Seconds. A crash is a matter of the prompt and the engine's build; after this long the build may be another one.
KEPT_S = 600.0
#: Fingerprints that are kept, the oldest given up for new ones.
_MOST = 64


def fingerprint(*parts: bytes) -> bytes:
    """What makes a request the same when it comes again."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


class Quarantine:
    """Fingerprints by profile: another model, or another context, may well survive the request."""

    def __init__(self) -> None:
        self._until: dict[tuple[bytes, str], float] = {}

    def add(self, mark: bytes, profile: str, now: float) -> None:
        """Keep it away from now on; ``now`` in seconds of any one clock."""
        self._until.pop((mark, profile), None)
        while len(self._until) >= _MOST:
            del self._until[next(iter(self._until))]
        self._until[mark, profile] = now + KEPT_S

    def holds(self, mark: bytes, profile: str, now: float) -> float:
        """Seconds for which it is still kept away, 0 if it is not."""
        return max(0.0, self._until.get((mark, profile), 0.0) - now)

    def __len__(self) -> int:
        return len(self._until)
