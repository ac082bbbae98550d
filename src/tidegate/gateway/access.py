"""Who may ask for what: API keys, and what is open without one. Pure."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Mapping

from tidegate.gateway.errors import Refusal

#: Open to everybody: they say whether it lives, and nothing else.
_OPEN = frozenset({"/healthz", "/readyz"})
#: What steers or shows the board and not an answer; ``/slots``, ``/props`` and ``/lora-adapters`` are the engine's own.
_CONTROL = frozenset(
    {"/", "/metrics", "/slots", "/props", "/slots/action", "/tidegate/status", "/tidegate/events", "/lora-adapters"}
)
#: Headers that carry a key. It is for us: the engine behind has none, or one of its own.
CREDENTIALS = ("authorization", "x-api-key")
#: What a browser asks its user on: any name, and a key as the password.
_CHALLENGE = 'Basic realm="tidegate", charset="UTF-8"'


class Access:
    """``keys`` are the clients', ``control`` those for the control endpoints; empty: none are asked for.

    A control key opens everything. Without control keys a client's key opens the control endpoints too."""

    def __init__(self, keys: Iterable[str] = (), control: Iterable[str] = ()) -> None:
        self._keys = tuple(key.encode() for key in keys)
        self._control = tuple(key.encode() for key in control)

    @property
    def asks(self) -> bool:
        """Some requests need a key."""
        return bool(self._keys or self._control)

    def refusal(self, path: str, headers: Mapping[str, str], method: str = "GET") -> Refusal | None:
        """Why a request for ``path`` is not let in, or None."""
        if path in _OPEN:
            return None
        control = path in _CONTROL or path.startswith("/slots/")
        wanted = self._control or self._keys if control else self._keys
        if not wanted:
            return None
        # A browser sends a password by itself, also for a page of somebody else's: it may look, and nothing more.
        looks = control and method in ("GET", "HEAD")
        given = _given(headers, password=looks)
        if _among(given, wanted) or _among(given, self._control):
            return None
        what = "control endpoints" if control and self._control else "service"
        said = "no API key" if not given else "this API key is not valid"
        return Refusal(
            401,
            f"cannot answer: {said} for the {what}. Send it as 'Authorization: Bearer KEY'.",
            "authentication_error",
            "invalid_api_key",
            outcome="refused_key",
            headers={"WWW-Authenticate": _CHALLENGE if looks else "Bearer"},
        )


def _given(headers: Mapping[str, str], *, password: bool) -> bytes:
    scheme, _, key = headers.get("Authorization", "").strip().partition(" ")
    if password and scheme.lower() == "basic":
        try:
            return base64.b64decode(key.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    if scheme.lower() != "bearer":
        key = headers.get("x-api-key", "")
    return key.strip().encode("utf-8", "surrogateescape")


def _among(given: bytes, keys: tuple[bytes, ...]) -> bool:
    """In constant time for keys of one length: every one is compared, to its end."""
    found = False
    for key in keys:
        found |= hmac.compare_digest(given, key)
    return found
