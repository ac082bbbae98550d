"""The models: the engine's list, or the last known one, or the profiles'. Never held."""

from __future__ import annotations

import asyncio
import json
import os
import time

import aiohttp
from aiohttp import web

from tidegate.gateway.assemble import Json
from tidegate.gateway.client import JSON_TYPE
from tidegate.gateway.front import Front
from tidegate.gateway.ollama import tags, version

#: Seconds that the worker gets. A user interface asks for the list before it shows anything.
MODELS_S = 1.0


class Models:
    """Handler of the model list."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._last = b""
        self._began = time.time()

    async def list(self, _: web.BaseRequest) -> web.Response:
        """``GET /v1/models`` and ``GET /models``."""
        return self._answer(await self._known())

    async def tags(self, _: web.BaseRequest) -> web.Response:
        """``GET /api/tags``."""
        try:
            data = json.loads(await self._known())["data"]
            names = [str(entry["id"]) for entry in data]
        except (ValueError, KeyError, TypeError):
            names = []
        return self._answer(json.dumps(tags(names, modified=self._began)).encode())

    async def version(self, _: web.BaseRequest) -> web.Response:
        """``GET /api/version``, which Ollama's clients ask first."""
        return self._answer(json.dumps(version()).encode())

    def _answer(self, body: bytes) -> web.Response:
        return web.Response(body=body, headers={**self._front.headers(), "Content-Type": JSON_TYPE})

    async def _known(self) -> bytes:
        front = self._front
        if front.station.state.board.usable:
            try:
                async with asyncio.timeout(MODELS_S):
                    response = await front.pool.current().request("GET", "/v1/models", {}, b"")
                    async with response:
                        data = await response.read()
                        if response.status == 200:
                            self._last = data
            except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError):
                pass
        return self._last or json.dumps(self._profiles()).encode()

    def _profiles(self) -> Json:
        names = dict.fromkeys(os.path.basename(profile.model) for profile in self._front.settings.worker.profiles)
        data: list[Json] = [{"id": name, "object": "model", "created": 0, "owned_by": "tidegate"} for name in names]
        return {"object": "list", "data": data}
