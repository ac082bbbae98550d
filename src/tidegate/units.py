"""Bytes and durations as people write them in settings.

Sizes are binary: ``K``, ``M``, ``G`` and ``T`` are powers of 1024, as in systemd and llama.cpp.
Durations are seconds with the suffixes ``ms``, ``s``, ``m`` and ``h``; a bare number is seconds.
"""

from __future__ import annotations

import re

# Twenty digits are more than 2**60; without a bound a page of digits is a second of arithmetic and then an overflow.
_SIZE = re.compile(r"\s*([0-9]{1,20})(?:\.([0-9]{1,20}))?\s*([kKmMgGtT]?)(?:i?[bB])?\s*")
_SIZE_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(ms|s|m|h|)\s*")
_DURATION_DIVISOR = {"ms": 1000.0, "s": 1.0, "": 1.0}
_DURATION_FACTOR = {"m": 60.0, "h": 3600.0}

# No board has an exabyte; a number above this is a slip, and keeps every later sum inside 64 bits.
_MOST_BYTES = 1 << 60
_MOST_SECONDS = 30 * 86400.0

_NO_SIZE = "not a size such as 450M or 4.5G"
_NO_DURATION = "not a duration such as 10s or 500ms"


def parse_size(value: str | int) -> int:
    """Bytes in ``value``: ``4096``, ``"450M"``, ``"4.5G"``, ``"8GiB"``; a fraction of a byte is dropped.

    Raises:
        ValueError: not a size, negative, or above 2**60. The message says what is right, not what was given.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(_NO_SIZE)
    if isinstance(value, int):
        size = value
    else:
        match = _SIZE.fullmatch(value)
        if match is None:
            raise ValueError(_NO_SIZE)
        factor, decimals = _SIZE_FACTOR[match[3].lower()], match[2] or "0"
        # In whole numbers: a float would round every size above 8 PiB.
        size = int(match[1]) * factor + int(decimals) * factor // 10 ** len(decimals)
    if not 0 <= size <= _MOST_BYTES:
        raise ValueError("out of range (0 to 1024 PiB)")
    return size


def parse_duration(value: str | float) -> float:
    """Seconds in ``value``: ``3``, ``0.5``, ``"500ms"``, ``"10s"``, ``"2m"``, ``"1h"``.

    Raises:
        ValueError: not a duration, negative, or above 30 days. The message says what is right, not what was given.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(_NO_DURATION)
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise ValueError(_NO_DURATION)
        number, unit = float(match[1]), match[2]
        seconds = number / _DURATION_DIVISOR[unit] if unit in _DURATION_DIVISOR else number * _DURATION_FACTOR[unit]
    else:
        seconds = value
    # Compared before it is made a float, which a whole number of 400 digits cannot be.
    if not 0 <= seconds <= _MOST_SECONDS:
        raise ValueError("out of range (0 to 30 days)")
    return float(seconds)


def format_size(size: float) -> str:
    """``size`` bytes for people: ``"450.0 MiB"``, ``"4.5 GiB"``, ``"812 B"``. Nothing is above GiB."""
    value = float(size)
    if abs(value) < 1023.5:
        return f"{value:.0f} B"
    for suffix in ("KiB", "MiB", "GiB"):
        value /= 1024
        # 1023.96 would be shown as 1024.0, 1023.5 bytes as 1024.
        if abs(value) < 1023.95 or suffix == "GiB":
            break
    return f"{value:.1f} {suffix}"


def format_duration(seconds: float) -> str:
    """``seconds`` for people: ``"350 ms"``, ``"4.2 s"``, ``"3 min 20 s"``, ``"5 h 7 min"``."""
    # Each bound is where rounding would show the next unit's first value: 1000 ms, 60.0 s.
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
