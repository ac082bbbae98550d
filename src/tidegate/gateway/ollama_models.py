"""Ollama's view of the models: /api/tags, /api/show, /api/ps and /api/version. Pure.

Formats: docs/api.md of Ollama 0.12. What is known of a model is what llama-server's /v1/models says of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tidegate.gateway.assemble import Json, Object, as_object, count
from tidegate.gateway.openai import InvalidRequestError, decode

#: What clients are told that look for a release with the formats above.
_RELEASE = "0.12.0"
#: It is not unloaded for being idle: a time that clients can read, and far away.
_NEVER = "2318-01-01T00:00:00Z"
_NO_DETAILS: Object = {"parent_model": "", "format": "gguf", "family": "", "families": None}


@dataclass(frozen=True)
class Model:
    """One model; 0 and "" where the engine does not say. ``size`` is bytes, ``context`` tokens it was trained for."""

    name: str
    parameters: int = 0
    quantization: str = ""
    size: int = 0
    context: int = 0
    embedding: int = 0
    capabilities: tuple[str, ...] = ("completion",)


def listed(body: bytes) -> list[Model]:
    """The models in an answer to ``GET /v1/models``; none if it is no such answer."""
    try:
        value: Json = json.loads(body)
    except (ValueError, RecursionError):
        return []
    answer = as_object(value)
    said = {str(each.get("name")): each for each in _objects(answer.get("models"))}
    found = []
    for entry in _objects(answer.get("data")):
        if not isinstance(name := entry.get("id"), str):
            continue
        meta = as_object(entry.get("meta"))
        able = said.get(name, {}).get("capabilities")
        known = [str(word) for word in able] if isinstance(able, list) else []
        kind = meta.get("ftype")
        found.append(
            Model(
                name,
                parameters=count(meta, "n_params"),
                quantization=kind if isinstance(kind, str) else "",
                size=count(meta, "size"),
                context=count(meta, "n_ctx_train"),
                embedding=count(meta, "n_embd"),
                capabilities=tuple(known) or ("completion",),
            )
        )
    return found


def tags(models: Iterable[Model], *, modified: float) -> Object:
    """``GET /api/tags``; ``modified`` is Unix seconds."""
    return {"models": [{**_entry(model), "modified_at": _time(modified)} for model in models]}


def ps(models: Iterable[Model], *, context: int, resident: int) -> Object:
    """``GET /api/ps``: the models that run with ``context`` tokens; ``resident`` bytes, 0 if nobody knows."""
    more: Object = {"expires_at": _NEVER, "size_vram": 0, "context_length": context}
    return {"models": [{**_entry(model), **more, "size": resident or model.size} for model in models]}


def show(model: Model, *, family: str, template: str, modified: float) -> Object:
    """``POST /api/show``; ``family`` is the architecture in the model's file, ``template`` the engine's."""
    info: Object = {"general.architecture": family, "general.parameter_count": model.parameters}
    if family:
        info |= {f"{family}.context_length": model.context, f"{family}.embedding_length": model.embedding}
    return {
        "modelfile": f"FROM {model.name}\n",
        "parameters": "",
        "template": template,
        "details": {**_details(model), "family": family, "families": [family] if family else None},
        "model_info": info,
        "capabilities": [*model.capabilities],
        "modified_at": _time(modified),
    }


def asked_for(data: bytes) -> str:
    """The model that a body of ``POST /api/show`` names.

    Raises:
        InvalidRequestError: none, or it is no body.
    """
    body = decode(data)
    name = body.get("model") or body.get("name")
    if not isinstance(name, str):
        raise InvalidRequestError("cannot take 'model': it is not a name", "model")
    return name


def find(models: Sequence[Model], name: str) -> Model | None:
    """The model of this name; Ollama's clients may say ``:latest`` after it."""
    return next((model for model in models if model.name in (name, name.removesuffix(":latest"))), None)


def version() -> Object:
    """``GET /api/version``: of the API whose formats these are."""
    return {"version": _RELEASE}


def _entry(model: Model) -> Object:
    return {"name": model.name, "model": model.name, "size": model.size, "digest": "", "details": _details(model)}


def _details(model: Model) -> Object:
    return {
        **_NO_DETAILS,
        "parameter_size": _short(model.parameters),
        "quantization_level": model.quantization,
    }


def _short(parameters: int) -> str:
    """As Ollama writes it: ``134.52M``, ``8.0B``."""
    if parameters >= 10**9:
        return f"{parameters / 10**9:.1f}B"
    return f"{parameters / 10**6:.2f}M" if parameters else ""


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _objects(value: Json) -> list[Object]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
