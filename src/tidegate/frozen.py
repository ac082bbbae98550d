"""Frozen records for what the guard imports: :mod:`dataclasses` without its price.

``dataclasses`` imports ``inspect``, ``ast``, ``dis`` and ``tokenize`` and compiles five methods a class: for the guard
2.1 MB of 15.1 on Python 3.13 and 1.8 of 14.1 on 3.11 (``python -I -S``, VmRSS after importing ``tidegate.guard.loop``),
of a budget of 16. Type checkers treat :func:`frozen` as ``dataclass(frozen=True)``; everything that the guard does not
import uses the real thing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar, dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_options):
        return lambda decorator: decorator


@dataclass_transform(frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Make ``cls`` a record of its annotated names, in order, with class attributes as defaults.

    Instances compare and hash by class and values, refuse assignment, and can be matched by position. Defaults are
    shared between instances, so they must be immutable. Unlike dataclasses, a subclass does not inherit fields.

    Raises:
        ValueError: a default that is a list, dict or set.
    """
    names = tuple(cls.__annotations__)
    places = frozenset(names)
    defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
    for name, default in defaults.items():
        if default.__class__.__hash__ is None:
            raise ValueError(f"default of {cls.__name__}.{name} can change, and would be shared")

    def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807
        given = dict(zip(names, values, strict=False))
        if len(values) > len(names) or not places.issuperset(named) or not given.keys().isdisjoint(named):
            raise TypeError(f"{cls.__name__} takes {', '.join(names)}")
        given.update(named)
        fields = self.__dict__
        for name in names:
            if name in given:
                fields[name] = given[name]
            elif name in defaults:
                fields[name] = defaults[name]
            else:
                raise TypeError(f"{cls.__name__} needs {name}")

    def __eq__(self: Any, other: object) -> bool:  # noqa: N807
        return self.__dict__ == other.__dict__ if other.__class__ is cls else NotImplemented

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash((cls, *self.__dict__.values()))

    def __repr__(self: Any) -> str:  # noqa: N807
        return f"{cls.__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def __setattr__(self: Any, name: str, value: object) -> None:  # noqa: N807
        raise AttributeError(f"cannot assign to {name}: {cls.__name__} is frozen")

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807
        raise AttributeError(f"cannot delete {name}: {cls.__name__} is frozen")

    for method in (__init__, __eq__, __hash__, __repr__, __setattr__, __delattr__):
        setattr(cls, method.__name__, method)
    type.__setattr__(cls, "__match_args__", names)
    return cls


def replace(record: T, **changes: Any) -> T:
    """A copy of the frozen ``record`` with ``changes``.

    Raises:
        TypeError: a name that the record does not have.
    """
    return type(record)(**{**vars(record), **changes})


def as_json(value: object) -> Any:
    """``value`` with every frozen record in it as a dict and every tuple as a list, for :mod:`json`."""
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if hasattr(type(value), "__match_args__") and hasattr(value, "__dict__"):
        return {name: as_json(item) for name, item in vars(value).items()}
    return value
