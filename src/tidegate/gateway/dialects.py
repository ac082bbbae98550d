"""Which API a path belongs to, and how its requests are read and answered. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.gateway import anthropic, ollama, openai, responses
from tidegate.gateway.assemble import Object
from tidegate.gateway.errors import Surface
from tidegate.gateway.openai import Completion
from tidegate.gateway.responses_voice import ResponsesVoice
from tidegate.gateway.voice import OpenAIVoice, Voice

_CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"


@dataclass(frozen=True)
class Asked:
    """A request as the engine will get it, and who speaks to its client. ``at_once`` is an answer that needs none."""

    completion: Completion
    voice: Voice
    at_once: Object | None = None

    @property
    def target(self) -> str:
        """The engine's path."""
        return _CHAT if self.completion.chat else _TEXT


#: Takes a body and a clock of Unix seconds; raises InvalidRequestError.
Dialect: TypeAlias = Callable[[bytes, Callable[[], float]], Asked]


def _chat(body: bytes, clock: Callable[[], float]) -> Asked:
    return Asked(openai.parse(body, chat=True), OpenAIVoice())


def _text(body: bytes, clock: Callable[[], float]) -> Asked:
    return Asked(openai.parse(body, chat=False), OpenAIVoice())


def _messages(body: bytes, clock: Callable[[], float]) -> Asked:
    completion = anthropic.parse(body)
    return Asked(completion, anthropic.AnthropicVoice(model=_model(completion.body)))


def _responses(body: bytes, clock: Callable[[], float]) -> Asked:
    completion, repeated = responses.parse(body)
    return Asked(completion, ResponsesVoice(model=_model(completion.body), repeated=repeated, clock=clock))


def _ollama_chat(body: bytes, clock: Callable[[], float]) -> Asked:
    return _ollama(body, clock, generate=False)


def _ollama_generate(body: bytes, clock: Callable[[], float]) -> Asked:
    return _ollama(body, clock, generate=True)


def _ollama(body: bytes, clock: Callable[[], float], *, generate: bool) -> Asked:
    if ollama.asks_to_load(body):
        asked = openai.decode(body)
        voice = ollama.OllamaVoice(generate=generate, model=_model(asked), clock=clock)
        return Asked(Completion(chat=True, body={}, stream=False, max_tokens=None), voice, voice.loaded())
    completion = ollama.parse_generate(body) if generate else ollama.parse_chat(body)
    return Asked(completion, ollama.OllamaVoice(generate=generate, model=_model(completion.body), clock=clock))


def _model(body: Object) -> str:
    model = body.get("model")
    return model if isinstance(model, str) else ""


_BY_PATH: dict[str, Dialect] = {
    "/v1/chat/completions": _chat,
    "/chat/completions": _chat,
    "/v1/completions": _text,
    "/completions": _text,
    "/v1/messages": _messages,
    "/v1/responses": _responses,
    "/responses": _responses,
    "/api/chat": _ollama_chat,
    "/api/generate": _ollama_generate,
}


def find(path: str) -> Dialect | None:
    """How a POST to ``path`` is read; None for what is passed on as it is."""
    return _BY_PATH.get(path)


def surface(path: str) -> Surface:
    """Whose error shapes a client of ``path`` understands."""
    if path.startswith("/v1/messages"):
        return Surface.ANTHROPIC
    if path in ("/v1/responses", "/responses"):
        return Surface.RESPONSES
    return Surface.OLLAMA if path.startswith("/api/") else Surface.OPENAI
