"""The Ollama surface: /api/chat and /api/generate as OpenAI requests, the answers as lines of JSON. Pure.

Formats: docs/api.md of Ollama 0.12. What is Ollama's own to decide (num_ctx, keep_alive, ..) is left out: the board's
guard decides it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

from tidegate.gateway.answer import choices, pieces
from tidegate.gateway.assemble import Json, Object
from tidegate.gateway.errors import Surface
from tidegate.gateway.openai import Completion, InvalidRequestError, check, decode

#: Options that the engine has under the same name.
_SAME = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop"),
    *("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty"),
    *("mirostat", "mirostat_tau", "mirostat_eta"),
)
#: Beginnings of base64 of what cameras and screens make; anything else is called a PNG and the engine looks itself.
_IMAGES = {"/9j/": "jpeg", "iVBOR": "png", "UklGR": "webp", "R0lGO": "gif"}
_REASONS = {"length": "length"}
_EFFORTS = ("low", "medium", "high", "max")
#: Counts and milliseconds above are no measurement; an engine's JSON may even say infinity.
_MOST = 1e15
#: Calls of tools that may wait for their results; models make a handful at once.
_MOST_OPEN_CALLS = 128


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
        if not isinstance(body["tools"], list):
            raise InvalidRequestError("cannot take 'tools': it is not an array", "tools")
        made["tools"] = body["tools"]
    return check(made, chat=True)


def parse_generate(data: bytes) -> Completion:
    """A body of ``POST /api/generate``: a chat of one message, or with ``raw`` the prompt as it is.

    Raises:
        InvalidRequestError: it is none.
    """
    body = decode(data)
    made, prompt, system = _common(body), body.get("prompt"), body.get("system")
    if not isinstance(prompt, str):
        raise InvalidRequestError("cannot take 'prompt': it is not a string", "prompt")
    if body.get("suffix"):
        # The engine's text completion refuses the key.
        raise InvalidRequestError("cannot take 'suffix': the engine writes on, it does not fill in", "suffix")
    if body.get("raw") is True:
        return check(_raw(made, prompt, body.get("images")), chat=False)
    if body.get("template"):
        why = "the model's own is used; send the finished prompt with 'raw'"
        raise InvalidRequestError(f"cannot take 'template': {why}", "template")
    if system is not None and not isinstance(system, str):
        raise InvalidRequestError("cannot take 'system': it is not a string", "system")
    first: list[Json] = [{"role": "system", "content": system}] if system else []
    made["messages"] = _messages([*first, {"role": "user", "content": prompt, "images": body.get("images")}])
    return check(made, chat=True)


def _raw(made: Object, prompt: str, images: Json) -> Object:
    if images:
        raise InvalidRequestError("cannot take 'images': a raw prompt has none", "images")
    made["prompt"] = prompt
    made.pop("chat_template_kwargs", None)
    form = made.pop("response_format", None)
    if isinstance(form, dict):
        # The engine reads response_format of a chat only.
        held = form.get("json_schema")
        made["json_schema"] = held["schema"] if isinstance(held, dict) else {"type": "object"}
    return made


def asks_to_load(data: bytes) -> bool:
    """An empty request is Ollama's way of asking for a model to be loaded: ours is always.

    Raises:
        InvalidRequestError: as :func:`openai.decode`.
    """
    body = decode(data)
    return body.get("messages") in (None, []) and body.get("prompt") in (None, "")


def _common(body: Object) -> Object:
    stream, options, form = body.get("stream"), body.get("options"), body.get("format")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequestError("cannot take 'stream': it is not true or false", "stream")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequestError("cannot take 'options': it is not an object", "options")
    made: Object = {"stream": stream is not False, "stream_options": {"include_usage": True}}
    if body.get("model") is not None:
        made["model"] = body["model"]
    for key in _SAME:
        if options and options.get(key) is not None:
            made[key] = options[key]
    if options and options.get("num_keep") is not None:
        made["n_keep"] = options["num_keep"]
    most = options.get("num_predict") if options else None
    if most is not None:
        if isinstance(most, bool) or not isinstance(most, int):
            raise InvalidRequestError("cannot take 'num_predict': it is not a whole number", "options")
        if most >= 0:
            made["max_tokens"] = most
    if form == "json":
        made["response_format"] = {"type": "json_object"}
    elif isinstance(form, dict):
        made["response_format"] = {"type": "json_schema", "json_schema": {"name": "format", "schema": form}}
    elif form:
        raise InvalidRequestError("cannot take 'format': it is neither \"json\" nor a schema", "format")
    made.update(_thinking(body.get("think")))
    return made


def _thinking(think: Json) -> Object:
    if think is None:
        return {}
    if isinstance(think, bool):
        return {"chat_template_kwargs": {"enable_thinking": think}}
    if think in _EFFORTS:
        return {"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": think}}
    raise InvalidRequestError(f"cannot take 'think': it is none of true, false, {', '.join(_EFFORTS)}", "think")


def _messages(messages: list[Json]) -> list[Json]:
    made: list[Json] = []
    #: Calls without a result so far: id and function.
    open_calls: list[tuple[str, str]] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequestError(f"cannot take messages[{index}]: it is not an object", "messages")
        text, images, asked = (message.get(key) or None for key in ("content", "images", "tool_calls"))
        if text is not None and not isinstance(text, str):
            raise InvalidRequestError(f"cannot take messages[{index}]: its content is not a string", "messages")
        new: Object = {"role": message.get("role"), "content": text or ""}
        if images is not None:
            shown = [_image(image, index) for image in (images if isinstance(images, list) else [None])]
            new["content"] = [{"type": "text", "text": text or ""}, *shown]
        if asked is not None:
            calls = asked if isinstance(asked, list) else [None]
            read = [_call(call, f"call_{index}_{at}", index) for at, call in enumerate(calls)]
            new["tool_calls"] = [call for call, _, _ in read]
            open_calls += [(identity, name) for _, identity, name in read]
            # A result looks through all of them: 43,000 of each, which a body has room for, took a minute.
            del open_calls[:-_MOST_OPEN_CALLS]
        if message.get("role") == "tool":
            new["tool_call_id"] = _answered(message, open_calls) or f"call_{index}"
        made.append(new)
    return made


def _answered(message: Object, open_calls: list[tuple[str, str]]) -> str | None:
    """Which call a tool's result belongs to: by its id, else by the tool's name, else the oldest. Takes it away."""
    identity, name = message.get("tool_call_id"), message.get("tool_name")
    if isinstance(identity, str) and identity:
        open_calls[:] = [call for call in open_calls if call[0] != identity]
        return identity
    at = next((at for at, call in enumerate(open_calls) if call[1] == name), 0)
    return open_calls.pop(at)[0] if open_calls else None


def _image(image: Json, index: int) -> Object:
    if not isinstance(image, str):
        raise InvalidRequestError(f"cannot take messages[{index}]: an image is no base64 text", "messages")
    kind = next((kind for begin, kind in _IMAGES.items() if image.startswith(begin)), "png")
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{image}"}}


def _call(call: Json, default: str, index: int) -> tuple[Object, str, str]:
    """A call in the OpenAI shape, its id (``default`` where it has none: older clients send none) and its function."""
    call = call if isinstance(call, dict) else {}
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        raise InvalidRequestError(f"cannot take messages[{index}]: a tool call has no function", "messages")
    given = function.get("arguments") or {}
    if not isinstance(given, dict):
        raise InvalidRequestError(f"cannot take messages[{index}]: a call's arguments are no object", "messages")
    identity = known if isinstance(known := call.get("id"), str) and known else default
    said: Object = {"name": name, "arguments": json.dumps(given)}
    return {"id": identity, "type": "function", "function": said}, identity, name


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
                lines.append(self._collected())
        return b"".join(lines)

    def done(self) -> bytes:
        return self._collected() + self._line({**self._said(""), **self._end()})

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
        usage, timings = self._usage, self._timings
        prompt, read, cached = usage.get("prompt_tokens"), timings.get("prompt_n"), timings.get("cache_n")
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": max(0, int((self._clock() - self._began) * 1e9)),
            "load_duration": 0,
            "prompt_eval_count": int(_number(prompt) or _number(read) + _number(cached)),
            "prompt_eval_duration": int(_number(timings.get("prompt_ms")) * 1e6),
            "eval_count": int(_number(usage.get("completion_tokens")) or _number(timings.get("predicted_n"))),
            "eval_duration": int(_number(timings.get("predicted_ms")) * 1e6),
        }

    def _collected(self) -> bytes:
        """The line of all calls so far, once."""
        if not self._calls:
            return b""
        calls = self._all_calls()
        self._calls.clear()
        return self._line(self._said("", calls=calls))

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


def _number(value: Json) -> float:
    """A count or a time; 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    return float(value) if 0 < value < _MOST else 0.0


def _parsed(call: Object) -> Object:
    """Ollama has the arguments as an object."""
    try:
        arguments: Json = json.loads(str(call["arguments"]) or "{}")
    except (ValueError, RecursionError):
        arguments = {}
    return {"name": call["name"], "arguments": arguments if isinstance(arguments, dict) else {}}
