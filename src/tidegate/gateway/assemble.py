"""One whole answer out of the chunks of a stream, in the engine's own shape. Pure.

Upstream is always streamed (a closed stream is cancelled within 0.05 s, a closed plain request not in 6 s), so a client
that asked for a plain answer gets it from here. Key by key it equals what llama-server sends for ``stream: false``.
"""

from __future__ import annotations

from typing import TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Object: TypeAlias = dict[str, Json]

#: No figure of an engine or a guard is larger; a double holds whole numbers up to here.
MOST = 1 << 53
#: Keys of a chunk that describe the stream and not the answer.
CHUNK_ONLY = frozenset({"choices", "object", "usage", "timings", "prompt_progress"})
#: Message texts that arrive in pieces. ``content`` is always there in an answer, the others only when they came.
_TEXTS = ("reasoning_content", "content", "refusal")


def as_object(value: Json) -> Object:
    """``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def count(figures: Object, key: str) -> int:
    """The count of this name; 0 if there is none, or no count."""
    value = figures.get(key)
    return value if isinstance(value, int) and 0 < value <= MOST else 0


class EngineError(Exception):
    """The engine sent an error event in the stream; ``body`` is its ``error`` object."""

    def __init__(self, body: Json) -> None:
        super().__init__("the engine sent an error")
        self.body = body


class Assembler:
    """Takes a stream's chunks; :meth:`whole` is the answer once they have all come."""

    def __init__(self, *, chat: bool) -> None:
        self.chat = chat
        self.usage: Object | None = None
        self.timings: Object | None = None
        self._top: Object = {}
        self._choices: dict[int, _Choice] = {}

    def add(self, chunk: Object) -> None:
        """Take one chunk."""
        for key, value in chunk.items():
            if key not in CHUNK_ONLY:
                self._top.setdefault(key, value)
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = usage
        if isinstance(timings := chunk.get("timings"), dict):
            self.timings = timings
        choices = chunk.get("choices")
        for part in choices if isinstance(choices, list) else []:
            if isinstance(part, dict) and isinstance(index := part.get("index", 0), int):
                self._choices.setdefault(index, _Choice(index)).add(part, chat=self.chat)

    def whole(self) -> Object:
        """The answer as one object."""
        shape = _Choice.message if self.chat else _Choice.text
        answer: Object = {"choices": [shape(self._choices[index]) for index in sorted(self._choices)]}
        answer.update(self._top)
        answer["object"] = "chat.completion" if self.chat else "text_completion"
        if self.usage is not None:
            answer["usage"] = self.usage
        if self.timings is not None:
            answer["timings"] = self.timings
        return answer


class _Choice:
    """One choice as it grows."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.role = "assistant"
        self.reason: Json = None
        self._pieces: dict[str, list[str]] = {}
        self._calls: dict[int, Object] = {}
        self._logprobs: Object | None = None
        self._more: Object = {}

    def add(self, part: Object, *, chat: bool) -> None:
        if (reason := part.get("finish_reason")) is not None:
            self.reason = reason
        if isinstance(logprobs := part.get("logprobs"), dict):
            self._add_logprobs(logprobs)
        if not chat:
            self._add_text("content", part.get("text"))
            return
        delta = part.get("delta")
        for key, value in delta.items() if isinstance(delta, dict) else ():
            if key == "role":
                self.role = value if isinstance(value, str) else self.role
            elif key in _TEXTS:
                self._add_text(key, value)
            elif key == "tool_calls":
                self._add_calls(value)
            elif value is not None:
                self._more[key] = value

    def _add_text(self, key: str, value: Json) -> None:
        if isinstance(value, str):
            self._pieces.setdefault(key, []).append(value)

    def _add_logprobs(self, logprobs: Object) -> None:
        if self._logprobs is None:
            self._logprobs = {}
        for key, value in logprobs.items():
            known = self._logprobs.get(key)
            if isinstance(known, list) and isinstance(value, list):
                known.extend(value)
            else:
                self._logprobs[key] = list(value) if isinstance(value, list) else value

    def _add_calls(self, deltas: Json) -> None:
        for position, delta in enumerate(deltas if isinstance(deltas, list) else []):
            if not isinstance(delta, dict):
                continue
            index = delta.get("index", position)
            call = self._calls.setdefault(index if isinstance(index, int) else position, {"type": "function"})
            for key, value in delta.items():
                if key == "function" and isinstance(value, dict):
                    _join(call, value)
                elif key != "index" and value is not None:
                    call[key] = value

    def _joined(self, key: str) -> str:
        return "".join(self._pieces.get(key, []))

    def message(self) -> Object:
        message: Object = {"role": self.role}
        if reasoning := self._joined("reasoning_content"):
            message["reasoning_content"] = reasoning
        content = self._joined("content")
        # As the engine: an answer that only calls tools has no content at all.
        message["content"] = None if self._calls and not content else content
        if refusal := self._joined("refusal"):
            message["refusal"] = refusal
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        message.update(self._more)
        choice: Object = {"finish_reason": self.reason, "index": self.index, "message": message}
        if self._logprobs is not None:
            choice["logprobs"] = self._logprobs
        return choice

    def text(self) -> Object:
        return {
            "text": self._joined("content"),
            "index": self.index,
            "logprobs": self._logprobs,
            "finish_reason": self.reason,
        }


def _join(call: Object, delta: Object) -> None:
    """Add a function delta: the name comes once, the arguments in pieces."""
    function = call.setdefault("function", {})
    if not isinstance(function, dict):
        return
    for key, value in delta.items():
        known = function.get(key)
        if isinstance(known, str) and isinstance(value, str):
            function[key] = known + value
        elif value is not None:
            function[key] = value
