"""Ollama's /api/embed and /api/embeddings: as the engine's /v1/embeddings, and the answer back. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.gateway.assemble import Json, Object
from tidegate.gateway.openai import InvalidRequestError, decode, encode

PATHS = ("/api/embed", "/api/embeddings")
TARGET = "/v1/embeddings"


@dataclass(frozen=True)
class Embedding:
    """A request: the engine's ``body``, empty if there is nothing to ask it; ``single`` is the older route's shape.

    ``begun`` is Unix seconds."""

    body: bytes
    model: str
    single: bool
    begun: float

    def answer(self, data: bytes, now: float) -> Object:
        """The engine's answer in Ollama's words.

        Raises:
            ValueError: it is none.
        """
        value: Json = json.loads(data) if data else {"data": []}
        found = value.get("data") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(found, list):
            raise ValueError("it has no data")
        vectors: list[Json] = [entry.get("embedding") if isinstance(entry, dict) else None for entry in found]
        if not all(isinstance(vector, list) for vector in vectors):
            raise ValueError("it has an entry without an embedding")
        if self.single:
            first: Json = vectors[0] if vectors else []
            return {"embedding": first}
        usage = value.get("usage")
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return {
            "model": self.model,
            "embeddings": vectors,
            "total_duration": max(0, int((now - self.begun) * 1e9)),
            "load_duration": 0,
            "prompt_eval_count": count if isinstance(count, int) else 0,
        }


def parse(path: str, data: bytes, clock: Callable[[], float]) -> Embedding:
    """A body of ``POST`` to one of :data:`PATHS`; ``truncate``, ``options`` and ``keep_alive`` are the board's to say.

    Raises:
        InvalidRequestError: it is none.
    """
    body, single = decode(data), path == "/api/embeddings"
    key = "prompt" if single else "input"
    given = body.get(key)
    texts: list[Json] = given if isinstance(given, list) and not single else [given or ""]
    if not all(isinstance(text, str) for text in texts):
        kind = "a string" if single else "a string or a list of strings"
        raise InvalidRequestError(f"cannot take {key!r}: it is not {kind}", key)
    model = body.get("model")
    made: Object = {"input": texts, "encoding_format": "float"}
    for name in ("model", "dimensions"):
        if body.get(name) is not None:
            made[name] = body[name]
    # Without a text it is Ollama's way of asking for a model to be loaded: ours is always.
    nothing = texts in ([], [""])
    return Embedding(b"" if nothing else encode(made), model if isinstance(model, str) else "", single, clock())
