"""Ollama's embeddings on their way: the engine's own route, and its answer translated."""

from __future__ import annotations

import json
import time

from aiohttp import web

from tidegate.gateway.carry import Carrier
from tidegate.gateway.client import JSON_TYPE
from tidegate.gateway.completion import engine_error
from tidegate.gateway.front import Front
from tidegate.gateway.job import EngineSaid, Finished, Result
from tidegate.gateway.ollama_embed import TARGET, Embedding
from tidegate.gateway.passthrough import PassJob
from tidegate.gateway.wire import Reply

#: A thousand vectors of 4096 numbers are 45 MB as JSON; the gateway must not be what fills the memory it guards.
_MOST_BYTES = 32 << 20


class EmbedJob(PassJob):
    """See :class:`tidegate.gateway.job.Job`."""

    def __init__(self, front: Front, headers: dict[str, str], embedding: Embedding) -> None:
        headers = {**headers, "Content-Type": "application/json"}
        super().__init__(front, "POST", TARGET, headers, embedding.body, counted=True)
        self._embedding = embedding

    async def take(self, response: Reply, carrier: Carrier) -> Result:
        if response.status != 200:
            return await engine_error(response)
        data = bytearray()
        async for piece in response.content.iter_any():
            data += piece
            if len(data) > _MOST_BYTES:
                return EngineSaid(502, f"cannot take the embeddings: they are larger than {_MOST_BYTES >> 20} MiB")
        try:
            answer = self._embedding.answer(bytes(data), time.time())
        except (ValueError, RecursionError) as error:
            return EngineSaid(502, f"cannot read the engine's embeddings: {error}")
        body = json.dumps(answer, separators=(",", ":")).encode()
        return Finished(web.Response(body=body, headers={**carrier.head(), "Content-Type": JSON_TYPE}))
