"""Every refusal of the gateway: status, body and headers, in the shape that the client's library understands. Pure.

Memory pressure is 503 and not 429: 429 tells a client that *it* was too fast. The texts never say "rate limit", which
proxies in front of us match on.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.gateway.assemble import Json, Object
from tidegate.gateway.sse import DONE, data_event

#: openai-python gives up at once on a longer Retry-After.
MOST_RETRY_AFTER_S = 120
#: Spread of Retry-After, so that clients refused together do not come back together.
_JITTER = 0.25

OVERLOADED = "server_is_overloaded"
UNAVAILABLE = "service_unavailable_error"


class Surface(StrEnum):
    """Which API the client speaks, so how an error looks to it."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"
    #: OpenAI's as well; its streams end otherwise.
    RESPONSES = "responses"


#: The names that Anthropic's API has for statuses.
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


@dataclass(frozen=True)
class Refusal:
    """An error for the client. ``retry_after`` is whole seconds, 0 for none; ``outcome`` is its name in the metrics."""

    status: int
    message: str
    type: str = UNAVAILABLE
    code: str | None = OVERLOADED
    param: str | None = None
    retry_after: int = 0
    outcome: str = "refused"
    more: Object = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def body(self, surface: Surface = Surface.OPENAI) -> bytes:
        """The JSON body."""
        return json.dumps(self._value(surface), ensure_ascii=False).encode("utf-8", "replace")

    def event(self, surface: Surface = Surface.OPENAI) -> bytes:
        """The end of a stream that had already begun."""
        if surface is Surface.ANTHROPIC:
            return b"event: error\n" + data_event(self._value(surface))
        if surface is Surface.OLLAMA:
            return self.body(surface) + b"\n"
        if surface is Surface.RESPONSES:
            # The package raises what has an "error"; the API's own event has the same words at the top.
            told: Object = {"code": self.code, "message": self.message, "param": self.param, "sequence_number": 0}
            return b"event: error\n" + data_event({"type": "error", **told, **self._value(surface)})
        return data_event(self._value(surface)) + DONE

    def http_status(self, surface: Surface) -> int:
        """Anthropic's clients know 529 as "overloaded"."""
        return 529 if surface is Surface.ANTHROPIC and self.status == 503 else self.status

    def all_headers(self) -> dict[str, str]:
        """The headers that belong to the refusal itself."""
        headers = dict(self.headers)
        if self.retry_after:
            headers["Retry-After"] = str(self.retry_after)
        return headers

    def _value(self, surface: Surface) -> Object:
        if surface is Surface.ANTHROPIC:
            kind = _ANTHROPIC_TYPES.get(self.status, "api_error")
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        if surface is Surface.OLLAMA:
            return {"error": self.message}
        error: Object = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**error, **self.more}}


def retry_after(seconds: float, default: float, chance: float) -> int:
    """Whole seconds for Retry-After, 1 to 120: ``seconds`` (or ``default`` if 0) and up to a quarter more.

    ``chance`` is the spread to use, 0 to 1.
    """
    base = seconds if seconds > 0 else default
    return max(1, min(MOST_RETRY_AFTER_S, math.ceil(base * (1 + _JITTER * chance))))


def invalid(message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> Refusal:
    """The request itself is wrong."""
    return Refusal(status, message, "invalid_request_error", code, param, outcome="refused_invalid")


def too_long(*, tokens: int, context: int, best: int, retry_s: int, param: str = "messages") -> Refusal:
    """The one 400 body: code and words are meant to fire every client's matcher for an over-long prompt.

    ``context`` is what applies now and ``best`` what the best profile has (tokens); ``retry_s`` 0 means for ever.
    """
    reduced = context < best
    why = f" (reduced from {best} because memory is low)" if reduced else ""
    then = f"Shorten it, or retry in {retry_s} s." if reduced and retry_s else "Shorten it."
    noun = "messages" if param == "messages" else "prompt"
    message = (
        f"This model's maximum context length is {context} tokens{why}. However, your {noun} resulted in {tokens} "
        f"tokens: the request exceeds the available context size and exceeds the context window. {then}"
    )
    return Refusal(
        400,
        message,
        "invalid_request_error",
        "context_length_exceeded",
        param,
        outcome="refused_length",
        more={"n_prompt_tokens": tokens, "n_ctx": context},
        headers={"x-should-retry": "false"},
    )


def pressure(*, tokens: int, most: int, retry_s: int, language: str) -> Refusal:
    """A long prompt at critical: refused at once, with what the client can do instead."""
    if language == "zh":
        message = (
            f"设备内存紧张，服务已降级：暂不接受超过 {most} 个 token 的提示词（本次约 {tokens} 个）。"
            f"请缩短提示词，或在 {retry_s} 秒后重试。"
        )
    else:
        message = (
            f"cannot take a prompt of {tokens} tokens now: memory on this device is low and service is degraded to "
            f"prompts of at most {most} tokens. Shorten it, or retry in {retry_s} s."
        )
    return _unavailable(message, "memory_pressure", retry_s, "refused_pressure")


def closed(*, reason: str, message: str, retry_s: int, language: str) -> Refusal:
    """The guard said refuse. ``reason`` is its word or sentence for why, ``message`` the worker's own."""
    why = "; ".join(part for part in (reason, message) if part)
    if language == "zh":
        text = f"模型服务已暂停（{why or '内存不足'}）。请在 {retry_s} 秒后重试。"
    else:
        why = why or "memory on this device is low"
        text = f"cannot answer now: the model is stopped ({why}). Retry in {retry_s} s."
    word = reason if reason.isidentifier() else "memory_pressure"
    return _unavailable(text, word, retry_s, "refused_pressure")


def expired(*, waited_s: float, message: str, retry_s: int, language: str) -> Refusal:
    """No worker came within the hold time."""
    if language == "zh":
        why = f"（{message}）" if message else ""
        text = f"无法回答：{waited_s:.0f} 秒内没有可用的模型进程{why}。请在 {retry_s} 秒后重试。"
    else:
        why = f": {message}" if message else ""
        text = f"cannot answer: no worker was ready within {waited_s:.0f} s{why}. Retry in {retry_s} s."
    return _unavailable(text, "worker_unavailable", retry_s, "expired")


def late(*, waited_s: float, waiting: int, level: str, retry_s: int, language: str) -> Refusal:
    """Its turn did not come within the deadline."""
    if language == "zh":
        text = (
            f"无法回答：请求已排队 {waited_s:.0f} 秒，达到等待上限，同时还有 {waiting} 个请求在等待"
            f"（内存级别 {level}）。请在 {retry_s} 秒后重试。"
        )
    else:
        text = (
            f"cannot answer: the request waited {waited_s:.0f} s for its turn, its deadline, and {waiting} wait with "
            f"it (memory level {level}). Retry in {retry_s} s."
        )
    return _unavailable(text, "deadline", retry_s, "expired")


def full(*, waiting: int, wait_s: float, retry_s: int, language: str) -> Refusal:
    """The queue has no place left; ``wait_s`` is the expected wait in seconds, 0 where none is known."""
    if language == "zh":
        need = f"，预计还需 {wait_s:.0f} 秒" if wait_s else ""
        text = f"无法排队：已有 {waiting} 个请求在等待{need}。请在 {retry_s} 秒后重试。"
    else:
        need = f" and need about {wait_s:.0f} s" if wait_s else ""
        text = f"cannot queue the request: {waiting} are waiting already{need}. Retry in {retry_s} s."
    return _unavailable(text, "queue_full", retry_s, "refused_full")


def stopping(retry_s: int, *, language: str) -> Refusal:
    """The gateway itself is on its way out."""
    if language == "zh":
        text = f"无法回答：服务正在停止。请在 {retry_s} 秒后重试。"
    else:
        text = f"cannot answer: the service is stopping. Retry in {retry_s} s."
    return _unavailable(text, "stopping", retry_s, "refused_stopping")


def crashed(*, times: int, message: str) -> Refusal:
    """The request was in flight in several deaths of the worker: it is not sent again."""
    why = f" ({message})" if message else ""
    return Refusal(
        503,
        f"cannot answer: the worker died {times} times while it worked on this request{why}; it is not sent again.",
        "server_error",
        "worker_crashed",
        outcome="crashed",
        headers={"x-should-retry": "false"},
    )


def quarantined(*, profile: str, seconds: float) -> Refusal:
    """The request ended workers before, and is not tried again for a while."""
    return Refusal(
        503,
        f"cannot answer: this request ended the worker several times, alone at last, so it is not tried again with the "
        f"profile {profile!r} for {seconds / 60:.0f} min. Change it, or report a bug of the engine.",
        "server_error",
        "worker_crashed",
        outcome="refused_quarantine",
        headers={"x-should-retry": "false"},
    )


def cut(message: str) -> Refusal:
    """The worker went away in the middle of an answer that the client has part of."""
    why = f" ({message})" if message else ""
    text = f"cannot finish the answer: the worker was changed or died in the middle of it{why}. Send it again."
    return Refusal(503, text, "server_error", "worker_lost", outcome="cut")


def _unavailable(message: str, reason: str, retry_s: int, outcome: str) -> Refusal:
    return Refusal(503, message, retry_after=retry_s, outcome=outcome, more={"reason": reason})


def from_engine(status: int, error: Json, *, best: int, retry_s: int, param: str = "messages") -> Refusal:
    """The engine's ``error`` object in the OpenAI shape (its integer ``code`` breaks strict clients).

    ``best`` is the best profile's context in tokens, for the words of an over-long prompt.
    """
    if not isinstance(error, dict):
        text = error if isinstance(error, str) else json.dumps(error)
        return Refusal(status, text or "the engine gave no reason", "server_error", None)
    tokens, context = error.get("n_prompt_tokens"), error.get("n_ctx")
    kind = error.get("type") if isinstance(error.get("type"), str) else "server_error"
    if kind == "exceed_context_size_error" and isinstance(tokens, int) and isinstance(context, int):
        return too_long(tokens=tokens, context=context, best=max(best, context), retry_s=retry_s, param=param)
    message = error.get("message")
    code = error.get("code")
    return Refusal(
        status,
        message if isinstance(message, str) else json.dumps(error),
        str(kind),
        code if isinstance(code, str) else None,
        outcome="engine_error",
        retry_after=retry_s if status in (429, 503) else 0,
    )
