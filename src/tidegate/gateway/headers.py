"""Which headers and paths go through, in either direction. Pure."""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterable
from urllib.parse import unquote

#: RFC 9110, 7.6.1, and what describes a message as it was framed on one connection.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        "host",
        "content-length",
    }
)
#: The body was decoded when it was read, so what it was encoded as is not true any more.
_REQUEST_ONLY = frozenset({"content-encoding"})
#: Ours to write.
_RESPONSE_ONLY = frozenset({"server", "date"})

#: What curl calls every body. cpp-httplib takes one of this type for parameters of the query too, which were not seen
#: here; every route of llama-server that is not multipart reads JSON.
_FORM = "x-www-form-urlencoded"
JSON = "application/json"

#: Control characters but the tab, and what stands for bytes that were no UTF-8.
_UNSENDABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_NO_PATH = re.compile(r"[\x00-\x1f\x7f\\]")
#: No escape by RFC 3986. cpp-httplib, llama-server's HTTP server, reads ``%u0070`` as "p".
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPED_WORD = re.compile(r"%(?:3[0-9]|4[1-9A-Fa-f]|5[0-9Aa]|6[1-9A-Fa-f]|7[0-9Aa]|2[DdEeFf]|5[Ff])")


def request_headers(headers: Iterable[tuple[str, str]], *, readable: bool) -> dict[str, str]:
    """The client's headers for the worker; repeated ones are joined as RFC 9110 says.

    ``readable`` drops ``Accept-Encoding``, for answers that we have to read ourselves.
    """
    dropped = _HOP_BY_HOP | _REQUEST_ONLY
    if readable:
        dropped = dropped | {"accept-encoding", "accept", "content-type"}
    return {name: JSON if _FORM in value.lower() else value for name, value in _passed(headers, dropped).items()}


def response_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The worker's headers for the client. llama-server lets the pages of every origin read its answers; we do not."""
    own = ((name, value) for name, value in headers if not name.lower().startswith("access-control-"))
    return _passed(own, _HOP_BY_HOP | _RESPONSE_ONLY)


def _passed(headers: Iterable[tuple[str, str]], dropped: frozenset[str]) -> dict[str, str]:
    found = [(name.lower(), name, value) for name, value in headers]
    named = {
        option.strip().lower() for lower, _, value in found if lower == "connection" for option in value.split(",")
    }
    passed: dict[str, str] = {}
    names: dict[str, str] = {}
    for lower, name, value in found:
        # Ours are ours to say; and bytes that are no UTF-8, or control characters, cannot be sent again.
        if lower in dropped or lower in named or lower.startswith("x-tidegate-") or not _sendable(value):
            continue
        first = names.setdefault(lower, name)
        passed[first] = f"{passed[first]}, {value}" if first in passed else value
    return passed


# Clients ask for the same few paths; a target has 8 KB at most.
@functools.lru_cache(maxsize=64)
def plain_path(raw_path: str) -> str | None:
    """The path of a request target without its query, if it means to us what it means to the worker.

    None for a target that is no path (``*``, ``http://elsewhere/``), or that hides another path behind dots, doubled
    slashes, backslashes, control characters or escapes of letters: what is admitted must be what is served. No ``%``
    may stand alone, in the query neither.
    """
    path = raw_path.partition("?")[0]
    if not path.startswith("/") or "#" in raw_path or not raw_path.isascii():
        return None
    plain = unquote(path, errors="replace")
    if _NO_PATH.search(plain):
        return None
    tidy = posixpath.normpath(plain)
    if tidy.startswith("//") or tidy + ("/" if plain.endswith("/") and tidy != "/" else "") != plain:
        return None
    # An escaped letter, digit, dash, dot, slash or underscore has no use but to disguise; a space or umlaut is fine.
    if _ESCAPED_WORD.search(path) or _NO_ESCAPE.search(raw_path):
        return None
    return plain


def _sendable(value: str) -> bool:
    return _UNSENDABLE.search(value) is None
