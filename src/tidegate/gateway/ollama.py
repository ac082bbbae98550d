"""The Ollama surface: /api/chat and /api/generate as OpenAI requests, the answers as lines of JSON, /api/tags. Pure.

Formats: docs/api.md of Ollama 0.12. What is Ollama's own to decide (num_ctx, keep_alive, ..) is left out: the board's
guard decides it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from tidegate.gateway.answer import choices, pieces
from tidegate.gateway.assemble import Json, Object
from tidegate.gateway.errors import Surface
from tidegate.gateway.openai import Completion, InvalidRequestError, check, decode

#: Options that the engine has under the same name.
_SAME = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop"),
    *("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty"),
)
#: Beginnings of base64 of what cameras and screens make; anything else is called a PNG and the engine looks itself.
_IMAGES = {"/9j/": "jpeg", "iVBOR": "png", "UklGR": "webp", "R0lGO": "gif"}
_REASONS = {"length": "length"}


def parse_chat(data: bytes) -> Completion:
    """A body of ``POST /api/chat``.

    Raises:
        InvalidRequestError: it is none.
    """
    body = decode(data)
    messages = body.get("messages")
    made = _common(body)
    made["messages"] = _messages(messages) if isinstance(messages, list) else messages
    if body.get("tools"):
        made["tools"] = body["tools"]
    return check(made, chat=True)


def parse_generate(data: bytes) -> Completion:
    """A body of ``POST /api/generate``: a chat of one message, or with ``raw`` the prompt as it is.

    Raises:
        InvalidRequestError: it is none.
    """
    body = decode(data)
    made, prompt = _common(body), body.get("prompt")
    if not isinstance(prompt, str):
        raise InvalidRequestError("cannot take 'prompt': it is not a string", "prompt")
    if body.get("raw") is True or body.get("suffix"):
        made["prompt"] = prompt
        if body.get("suffix"):
            made["suffix"] = body["suffix"]
        return check(made, chat=False)
    system = body.get("system")
    first: list[Json] = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    made["messages"] = _messages([*first, {"role": "user", "content": prompt, "images": body.get("images")}])
    return check(made, chat=True)


def asks_to_load(data: bytes) -> bool:
    """An empty request is Ollama's way of asking for a model to be loaded: ours is always."""
    body = decode(data)
    return not body.get("messages") and not body.get("prompt")


def _common(body: Object) -> Object:
    stream, options, form = body.get("stream"), body.get("options"), body.get("format")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequestError("cannot take 'stream': it is not true or false", "stream")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequestError("cannot take 'options': it is not an object", "options")
    made: Object = {"model": body.get("model"), "stream": stream is not False}
    made["stream_options"] = {"include_usage": True}
    for key in _SAME:
        if options and options.get(key) is not None:
            made[key] = options[key]
    most = options.get("num_predict") if options else None
    if most is not None:
        if isinstance(most, bool) or not isinstance(most, int):
            raise InvalidRequestError("cannot take 'num_predict': it is not a whole number", "options")
        made["max_tokens"] = most
    if form == "json":
        made["response_format"] = {"type": "json_object"}
    elif isinstance(form, dict):
        made["response_format"] = {"type": "json_schema", "json_schema": {"name": "format", "schema": form}}
    elif form:
        raise InvalidRequestError("cannot take 'format': it is neither \"json\" nor a schema", "format")
    if isinstance(think := body.get("think"), bool):
        made["chat_template_kwargs"] = {"enable_thinking": think}
    return made


def _messages(messages: list[Json]) -> list[Json]:
    made: list[Json] = []
    calls: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequestError(f"cannot take messages[{index}]: it is not an object", "messages")
        new: Object = {"role": message.get("role"), "content": message.get("content") or ""}
        images = message.get("images")
        if isinstance(images, list) and images:
            new["content"] = [{"type": "text", "text": new["content"]}, *(_image(image, index) for image in images)]
        asked = message.get("tool_calls")
        if isinstance(asked, list) and asked:
            new["tool_calls"] = [_call(call, f"call_{index}_{at}", index) for at, call in enumerate(asked)]
            calls += [f"call_{index}_{at}" for at in range(len(asked))]
        if message.get("role") == "tool":
            # Ollama's answers of tools come in the order of the calls.
            new["tool_call_id"] = calls.pop(0) if calls else f"call_{index}"
        made.append(new)
    return made


def _image(image: Json, index: int) -> Object:
    if not isinstance(image, str):
        raise InvalidRequestError(f"cannot take messages[{index}]: an image is no base64 text", "messages")
    kind = next((kind for begin, kind in _IMAGES.items() if image.startswith(begin)), "png")
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{image}"}}


def _call(call: Json, name: str, index: int) -> Object:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(f"cannot take messages[{index}]: a tool call has no function", "messages")
    arguments = json.dumps(function.get("arguments") or {})
    return {"id": name, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


class OllamaVoice:
    """One request's answer; ``clock`` gives Unix seconds. ``generate``: of /api/generate, else of /api/chat."""

    surface = Surface.OLLAMA
    stream_type = "application/x-ndjson"

    def __init__(self, *, generate: bool, model: str, clock: Callable[[], float]) -> None:
        self._generate = generate
        self._model = model
        self._clock = clock
        self._began = clock()
        self._reason = "stop"
        self._usage: Object = {}
        self._timings: Object = {}
        self._calls: dict[int, Object] = {}

    def chunk(self, chunk: Object, raw: bytes) -> bytes:
        for name, known in (("usage", self._usage), ("timings", self._timings)):
            if isinstance(value := chunk.get(name), dict):
                known.update(value)
        lines = []
        for choice in choices(chunk):
            for key, value in pieces(choice):
                if key == "content" and isinstance(value, str):
                    lines.append(self._line(self._said(value)))
                elif key == "reasoning_content" and isinstance(value, str):
                    lines.append(self._line(self._said("", thinking=value)))
                elif key == "tool_calls":
                    self._collect(value)
            if choice.get("finish_reason") is not None:
                self._reason = _REASONS.get(str(choice["finish_reason"]), "stop")
                if self._calls:
                    lines.append(self._line(self._said("", calls=self._all_calls())))
        return b"".join(lines)

    def done(self) -> bytes:
        return self._line({**self._said(""), **self._end()})

    def waiting(self) -> bytes:
        # The format has no line that means nothing.
        return b""

    def whole(self, answer: Object) -> Object:
        (choice, *_) = choices(answer) or [{}]
        message = choice.get("message")
        message = message if isinstance(message, dict) else {"content": choice.get("text")}
        self._usage = usage if isinstance(usage := answer.get("usage"), dict) else {}
        self._timings = timings if isinstance(timings := answer.get("timings"), dict) else {}
        self._reason = _REASONS.get(str(choice.get("finish_reason")), "stop")
        self._collect(message.get("tool_calls"))
        thinking = message.get("reasoning_content")
        content = message.get("content")
        said = self._said(
            content if isinstance(content, str) else "",
            thinking=thinking if isinstance(thinking, str) else "",
            calls=self._all_calls(),
        )
        return {**self._head(), **said, **self._end()}

    def loaded(self) -> Object:
        """The answer to a request that only asks for the model to be there."""
        return {**self._head(), **self._said(""), "done": True, "done_reason": "load"}

    def _line(self, value: Object) -> bytes:
        return (
            json.dumps({**self._head(), "done": False, **value}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        )

    def _head(self) -> Object:
        now = datetime.fromtimestamp(self._clock(), UTC).isoformat().replace("+00:00", "Z")
        return {"model": self._model, "created_at": now}

    def _said(self, text: str, *, thinking: str = "", calls: list[Json] | None = None) -> Object:
        more: Object = {"thinking": thinking} if thinking else {}
        if self._generate:
            return {"response": text, **more}
        if calls:
            more["tool_calls"] = calls
        return {"message": {"role": "assistant", "content": text, **more}}

    def _end(self) -> Object:
        def nanoseconds(key: str) -> int:
            value = self._timings.get(key)
            return int(value * 1e6) if isinstance(value, (int, float)) else 0

        prompt, answer = self._usage.get("prompt_tokens"), self._usage.get("completion_tokens")
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": max(0, int((self._clock() - self._began) * 1e9)),
            "load_duration": 0,
            "prompt_eval_count": prompt if isinstance(prompt, int) else 0,
            "prompt_eval_duration": nanoseconds("prompt_ms"),
            "eval_count": answer if isinstance(answer, int) else 0,
            "eval_duration": nanoseconds("predicted_ms"),
        }

    def _collect(self, deltas: Json) -> None:
        for position, delta in enumerate(deltas if isinstance(deltas, list) else []):
            function = delta.get("function") if isinstance(delta, dict) else None
            if not isinstance(delta, dict) or not isinstance(function, dict):
                continue
            index = delta.get("index", position)
            call = self._calls.setdefault(index if isinstance(index, int) else position, {"name": "", "arguments": ""})
            for key in ("name", "arguments"):
                if isinstance(value := function.get(key), str):
                    call[key] = f"{call[key]}{value}"

    def _all_calls(self) -> list[Json]:
        return [{"function": _parsed(self._calls[index])} for index in sorted(self._calls)]


def _parsed(call: Object) -> Object:
    """Ollama has the arguments as an object."""
    try:
        arguments: Json = json.loads(str(call["arguments"]) or "{}")
    except (ValueError, RecursionError):
        arguments = {}
    return {"name": call["name"], "arguments": arguments if isinstance(arguments, dict) else {}}


def tags(names: Sequence[str], *, modified: float) -> Object:
    """``GET /api/tags``: the models by name; ``modified`` is Unix seconds."""
    at = datetime.fromtimestamp(modified, UTC).isoformat().replace("+00:00", "Z")
    details: Object = {"format": "gguf", "family": "", "families": None, "parameter_size": "", "quantization_level": ""}
    return {
        "models": [
            {"name": name, "model": name, "modified_at": at, "size": 0, "digest": "", "details": {**details}}
            for name in names
        ]
    }
