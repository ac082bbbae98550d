"""Counters, and the text that Prometheus reads. Written by hand: the client library would cost 14 MB of memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: The media type of :func:`render`'s text.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Family:
    """A metric: its name, ``counter`` or ``gauge``, and one line of help that gives the unit."""

    name: str
    kind: str
    help: str


@dataclass(frozen=True)
class Sample:
    """One value of a family."""

    family: Family
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


class Counters:
    """Values that only rise. A counter declared with ``start`` is there, at 0, before anything happened."""

    def __init__(self) -> None:
        self._values: dict[Family, dict[tuple[tuple[str, str], ...], float]] = {}

    def start(self, family: Family, label: str, values: Iterable[str]) -> None:
        """Make ``family`` known with these values of one label, each at 0."""
        known = self._values.setdefault(family, {})
        for value in values:
            known.setdefault(((label, value),), 0.0)

    def add(self, family: Family, value: float = 1.0, **labels: str) -> None:
        """Count; ``value`` must not be negative.

        Raises:
            ValueError: a negative value.
        """
        if value < 0:
            raise ValueError(f"cannot count {family.name} down by {-value}")
        known = self._values.setdefault(family, {})
        key = tuple(sorted(labels.items()))
        known[key] = known.get(key, 0.0) + value

    def samples(self) -> list[Sample]:
        """All values now."""
        return [
            Sample(family, value, dict(key)) for family, known in self._values.items() for key, value in known.items()
        ]


def render(samples: Iterable[Sample]) -> str:
    """The exposition text; samples of one family come out together, families by name."""
    families: dict[Family, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.family, []).append(sample)
    lines: list[str] = []
    for family in sorted(families, key=lambda family: family.name):
        lines.append(f"# HELP {family.name} {_escape_help(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines.extend(_line(sample) for sample in families[family])
    return "\n".join(lines) + "\n"


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escape(value)}"' for name, value in sample.labels.items())
    braces = f"{{{labels}}}" if labels else ""
    return f"{sample.family.name}{braces} {_number(sample.value)}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) else repr(float(value))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
