"""How one client is spoken to: the engine's OpenAI chunks and answers in the words of the client's own API. Pure.

One voice serves one request. Everything behind it speaks OpenAI, so that holding, trimming and continuing are written
once.
"""

from __future__ import annotations

from typing import Protocol

from tidegate.gateway.assemble import Object
from tidegate.gateway.errors import Surface
from tidegate.gateway.sse import DONE, WAITING


class Voice(Protocol):
    """See the module's text. The methods of a stream are called in order: ``chunk`` any number of times, ``done``."""

    #: Whose error shapes to use.
    surface: Surface
    #: Content-Type of a stream.
    stream_type: str

    def chunk(self, chunk: Object, raw: bytes) -> bytes:
        """What the client gets for one chunk of the engine's stream; may be empty.

        ``raw`` is the event that ``chunk`` was read from, as it came, blank line and all. The last chunks carry the
        finish reason and, where asked for, ``usage``.
        """

    def done(self) -> bytes:
        """The end of a stream that is complete."""

    def waiting(self) -> bytes:
        """A sign of life that clients ignore, for a stream whose answer has not begun; empty if the API has none."""

    def whole(self, answer: Object) -> Object:
        """A complete answer (``chat.completion`` or ``text_completion``) in the API's shape."""


class OpenAIVoice:
    """The engine's own: everything passes as it is."""

    surface = Surface.OPENAI
    stream_type = "text/event-stream"

    def chunk(self, chunk: Object, raw: bytes) -> bytes:
        return raw

    def done(self) -> bytes:
        return DONE

    def waiting(self) -> bytes:
        return WAITING

    def whole(self, answer: Object) -> Object:
        return answer
