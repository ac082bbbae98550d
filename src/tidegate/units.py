"""Bytes and durations as people write them in settings.

Sizes are binary: ``K``, ``M``, ``G`` and ``T`` are powers of 1024, as in systemd and llama.cpp.
Durations are seconds with the suffixes ``ms``, ``s``, ``m`` and ``h``; a bare number is seconds.
"""

from __future__ import annotations

import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(?:i?[bB])?\s*")
_SIZE_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|)\s*")
_DURATION_FACTOR = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}

# No board has an exabyte; a number above this is a slip, and keeps every later sum inside 64 bits.
_MOST_BYTES = 1 << 60
_MOST_SECONDS = 30 * 86400.0


def parse_size(value: str | int) -> int:
    """Bytes in ``value``: ``4096``, ``"450M"``, ``"4.5G"``, ``"8GiB"``.

    Raises:
        ValueError: not a size, negative, or above 2**60.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a size such as 450M or 4.5G")
    if isinstance(value, int):
        size = value
    else:
        match = _SIZE.fullmatch(value)
        if match is None:
            raise ValueError(f"{value!r} is not a size such as 450M or 4.5G")
        size = int(float(match[1]) * _SIZE_FACTOR[match[2].lower()])
    if not 0 <= size <= _MOST_BYTES:
        raise ValueError(f"{value!r} is out of range (0 to 1024 PiB)")
    return size


def parse_duration(value: str | float) -> float:
    """Seconds in ``value``: ``3``, ``0.5``, ``"500ms"``, ``"10s"``, ``"2m"``, ``"1h"``.

    Raises:
        ValueError: not a duration, negative, or above 30 days.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a duration such as 10s or 500ms")
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise ValueError(f"{value!r} is not a duration such as 10s or 500ms")
        seconds = float(match[1]) * _DURATION_FACTOR[match[2]]
    else:
        seconds = float(value)
    if not 0.0 <= seconds <= _MOST_SECONDS:
        raise ValueError(f"{value!r} is out of range (0 to 30 days)")
    return seconds


def format_size(size: float) -> str:
    """``size`` bytes for people: ``"450.0 MiB"``, ``"4.5 GiB"``, ``"812 B"``."""
    value = float(size)
    for suffix in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or suffix == "GiB":
            return f"{value:.0f} {suffix}" if suffix == "B" else f"{value:.1f} {suffix}"
        value /= 1024
    raise AssertionError("unreachable")


def format_duration(seconds: float) -> str:
    """``seconds`` for people: ``"350 ms"``, ``"4.2 s"``, ``"3 min 20 s"``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
