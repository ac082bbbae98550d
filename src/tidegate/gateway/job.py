"""One kind of request: its shape on the way to the engine and back, and how an attempt at it can end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from aiohttp import web

from tidegate.gateway.assemble import Json
from tidegate.gateway.errors import Refusal
from tidegate.gateway.flight import Loss
from tidegate.gateway.prefix import Prefix
from tidegate.gateway.upstream import Upstream
from tidegate.gateway.wire import Reply

if TYPE_CHECKING:
    from tidegate.gateway.carry import Carrier


@dataclass(frozen=True)
class Finished:
    """The answer is complete: ``response`` is the whole of it, or ``last`` the end of a stream."""

    response: web.Response | None = None
    last: bytes = b""


@dataclass(frozen=True)
class EngineSaid:
    """The engine answered with an error; ``fault`` if no healthy one would (from 500 on)."""

    status: int
    error: Json
    fault: bool = True


Result: TypeAlias = Finished | EngineSaid | Loss


class Job(Protocol):
    """One kind of request: its shape on the way to the engine and back."""

    method: str
    target: str
    #: It generates, so it takes one of the worker's places.
    counted: bool
    #: Prompt tokens, as well as they are known.
    tokens: int
    #: Predicted seconds of the worker's time.
    cost_s: float
    body: bytes
    #: Bodies to send first, whose answers nobody needs.
    before: tuple[bytes, ...]
    #: What the prompt shares with others, where that is worth keeping.
    prefix: Prefix | None
    #: Prompt tokens that the engine had already, by its own figure; None where it gave none.
    cached: int | None
    #: An answer that has begun can go on with another worker.
    resumable: bool
    #: How many messages were left out, and whether the answer's length was cut.
    dropped: int
    capped: bool

    @property
    def fingerprint(self) -> bytes:
        """What makes it the same request when it comes again."""

    def headers(self) -> dict[str, str]:
        """The headers for the engine."""

    def refusal(self, *, admitted: bool) -> Refusal | None:
        """The refusal that the present state asks for, if it is certain already."""

    async def measure(self, upstream: Upstream) -> None:
        """Count what the request costs, if that is not known."""

    async def shape(self, upstream: Upstream, *, admitted: bool) -> Refusal | None:
        """Make ``body`` for the worker as it is now, or refuse."""

    def reshape(self, said: EngineSaid) -> bool:
        """The engine refused the shape; True if another one is worth sending."""

    def refused(self, said: EngineSaid) -> Refusal:
        """The engine's error in the client's words."""

    async def take(self, response: Reply, carrier: Carrier) -> Result:
        """Take the engine's answer and pass it on through ``carrier``."""
