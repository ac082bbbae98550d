"""The models: the engine's list, or the last known one, or the profiles'. Never held."""

from __future__ import annotations

import asyncio
import json
import os
import time

import aiohttp
from aiohttp import web

from tidegate.gateway import ollama_models
from tidegate.gateway.assemble import Json, Object
from tidegate.gateway.client import JSON_TYPE
from tidegate.gateway.front import Front
from tidegate.gateway.link import CommandError, NoGuardError
from tidegate.gguf_reader import GgufError, read_header

#: Seconds that the worker gets. A user interface asks for the list before it shows anything.
MODELS_S = 1.0
#: The same for the guard.
STATUS_S = 0.5


class Models:
    """Handlers of what is told of models."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._last = b""
        self._began = time.time()

    async def list(self, _: web.BaseRequest) -> web.Response:
        """``GET /v1/models`` and ``GET /models``."""
        return self._answer(await self._known())

    async def tags(self, _: web.BaseRequest) -> web.Response:
        """``GET /api/tags``."""
        return self._json(ollama_models.tags(ollama_models.listed(await self._known()), modified=self._began))

    async def version(self, _: web.BaseRequest) -> web.Response:
        """``GET /api/version``, which Ollama's clients ask first."""
        return self._json(ollama_models.version())

    async def ps(self, _: web.BaseRequest) -> web.Response:
        """``GET /api/ps``: what runs, with the memory that the guard sees it use."""
        worker = self._front.station.state.worker
        running = self._front.station.state.board.usable
        models = ollama_models.listed(await self._known()) if running else []
        resident = await self._resident() if models else 0
        return self._json(ollama_models.ps(models, context=worker.context, resident=resident))

    async def show(self, body: bytes) -> web.Response:
        """``POST /api/show``.

        Raises:
            InvalidRequestError: the body names no model.
        """
        name = ollama_models.asked_for(body)
        model = ollama_models.find(ollama_models.listed(await self._known()), name)
        if model is None:
            return self._json({"error": f"model '{name}' not found"}, 404)
        profiles = self._front.settings.worker.profiles
        paths = [profile.model for profile in profiles if model.name in _names(profile.model)]
        family = await asyncio.to_thread(_family, paths[0]) if paths else ""
        template = await self._template()
        return self._json(ollama_models.show(model, family=family, template=template, modified=self._began))

    async def _resident(self) -> int:
        """Bytes of the worker; 0 if the guard does not say."""
        try:
            status = await self._front.link.command("status", deadline=STATUS_S)
        except (NoGuardError, CommandError):
            return 0
        worker = status.get("worker") if isinstance(status, dict) else None
        kinds = [worker.get(f"{kind}_bytes") for kind in ("anon", "file", "shmem")] if isinstance(worker, dict) else []
        return sum(size for size in kinds if isinstance(size, int))

    async def _template(self) -> str:
        try:
            told: Json = json.loads(await self._ask("/props") or b"{}")
        except (ValueError, RecursionError):
            return ""
        template = told.get("chat_template") if isinstance(told, dict) else None
        return template if isinstance(template, str) else ""

    def _json(self, value: Object, status: int = 200) -> web.Response:
        response = self._answer(json.dumps(value).encode())
        response.set_status(status)
        return response

    def _answer(self, body: bytes) -> web.Response:
        return web.Response(body=body, headers={**self._front.headers(), "Content-Type": JSON_TYPE})

    async def _known(self) -> bytes:
        self._last = await self._ask("/v1/models") or self._last
        return self._last or json.dumps(self._profiles()).encode()

    async def _ask(self, path: str) -> bytes:
        """What the worker says within :data:`MODELS_S`; empty if it does not."""
        if not self._front.station.state.board.usable:
            return b""
        try:
            async with asyncio.timeout(MODELS_S):
                async with await self._front.pool.current().request("GET", path, {}, b"") as reply:
                    data = await reply.read()
                    return data if reply.status == 200 else b""
        except (aiohttp.ClientError, OSError, TimeoutError):
            return b""

    def _profiles(self) -> Json:
        names = dict.fromkeys(os.path.basename(profile.model) for profile in self._front.settings.worker.profiles)
        data: list[Json] = [{"id": name, "object": "model", "created": 0, "owned_by": "tidegate"} for name in names]
        return {"object": "list", "data": data}


def _names(path: str) -> tuple[str, str]:
    """What the engine may call the model in this file."""
    name = os.path.basename(path)
    return name, name.removesuffix(".gguf")


def _family(path: str) -> str:
    """The architecture in the model's file; empty if it cannot be read."""
    try:
        family = read_header(path, frozenset(("architecture",))).values.get("general.architecture")
    except (OSError, GgufError):
        return ""
    return family if isinstance(family, str) else ""
