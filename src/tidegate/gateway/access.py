"""Who may ask for what: API keys, what is open without one, and web pages, which ask in a browser's name. Pure.

A browser on the board, or anywhere if the gateway listens beyond it, is made to send requests by every page that it
shows. What asks for a key is safe from that: the page has none. What does not is closed to pages of other origins, and
on loopback to names that somebody's DNS gives: a page whose own name is pointed at 127.0.0.1 is of the same origin (DNS
rebinding, CVE-2024-28224 in Ollama). The engine's CORS headers never pass.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import ipaddress
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


#: Ends of names that no public DNS gives: RFC 6761, RFC 6762, ICANN's of 2024, RFC 8375, and what routers use.
_PRIVATE_NAMES = (".localhost", ".local", ".internal", ".home.arpa", ".lan")
#: Characters of a stranger's name in an error.
_SHOWN = 80


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

    def who(self, headers: Mapping[str, str], address: str) -> str:
        """Who a request is from, for a fair share: its key, else its ``address``.

        Where keys are asked for only a valid one counts, however it is written: nobody becomes many by inventing some.
        Where none is, any tells the programs of one board apart."""
        given = _given(headers, password=False)
        known = _among(given, self._keys) or _among(given, self._control) if self.asks else bool(given)
        return f"key {hash(given)}" if known else address

    def refusal(
        self, path: str, headers: Mapping[str, str], method: str = "GET", *, loopback: bool = False
    ) -> Refusal | None:
        """Why a request for ``path`` is not let in, or None. ``loopback``: it came to a loopback address of ours."""
        if path in _OPEN:
            return None
        control = path in _CONTROL or path.startswith("/slots/")
        wanted = self._control or self._keys if control else self._keys
        if not wanted:
            return _foreign(headers, loopback=loopback)
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


def _foreign(headers: Mapping[str, str], *, loopback: bool) -> Refusal | None:
    """Why a request without a key is not let in: a web page that is not ours has made it."""
    host, origin = headers.get("Host", ""), headers.get("Origin")
    if loopback and not is_private_name(host):
        whom = f"for the host name {host[:_SHOWN]!r}, which is not this machine's"
        return _of_a_page(whom, "Ask for localhost (a proxy in front sets Host)")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return _of_a_page(f"a web page of {origin[:_SHOWN]!r}", "Ask from this machine's own pages")
    return None


def _of_a_page(whom: str, instead: str) -> Refusal:
    return Refusal(
        403,
        f"cannot answer {whom}: no key is asked for. {instead}, or set gateway.keys and send one.",
        "permission_error",
        "foreign_origin",
        outcome="refused_origin",
    )


@functools.lru_cache(maxsize=64)
def is_private_name(host: str) -> bool:
    """Whether a Host header names a machine by what no stranger's DNS can point here: an address, a name without a
    dot, or one under a private end; with or without a port. A missing one does, too: browsers always send it."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = name.lower().removesuffix(".")
    if not host or (name and "." not in name and ":" not in name):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.endswith(_PRIVATE_NAMES)
    return True


@functools.lru_cache(maxsize=64)
def is_loopback(address: str) -> bool:
    """Whether an IP address is this machine's own.

    Raises:
        ValueError: it is no IP address.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback
