"""Answers in the words of OpenAI's Responses API: one object, or its events in their order. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.gateway.answer import choices, pieces
from tidegate.gateway.assemble import Json, Object, count
from tidegate.gateway.errors import Surface
from tidegate.gateway.sse import WAITING


@dataclass
class _Item:
    """One item of the output as it grows. ``kind`` is "message", "reasoning" or "function_call"; ``place`` its index
    among the calls."""

    kind: str
    place: int
    identity: str
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self, text: str) -> Object:
        """Its one content part."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def value(self, status: str) -> Object:
        """The item; while it is in progress there is nothing in it."""
        top: Object = {"id": self.identity, "type": self.kind, "status": status}
        text = "" if status == "in_progress" else self.text
        if self.kind == "function_call":
            return {**top, "call_id": self.call_id, "name": self.name, "arguments": text}
        content: list[Json] = [] if status == "in_progress" else [self.part(text)]
        more: Object = {"summary": []} if self.kind == "reasoning" else {"role": "assistant"}
        return {**top, **more, "content": content}


class ResponsesVoice:
    """One request's answer: ``model`` as the client named it, ``repeated`` what a response says of its request."""

    surface = Surface.RESPONSES
    stream_type = "text/event-stream"

    def __init__(self, *, model: str, repeated: Object, clock: Callable[[], float]) -> None:
        self._model = model
        self._repeated = repeated
        self._clock = clock
        self._sequence = 0
        self._top: Object | None = None
        self._items: list[_Item] = []
        self._is_open = False
        self._cut = False
        self._usage: Object = {}

    def chunk(self, chunk: Object, raw: bytes) -> bytes:
        out = self._start(chunk) if self._top is None else []
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
        for choice in choices(chunk):
            for key, value in pieces(choice):
                if key == "content" and isinstance(value, str):
                    out += self._piece("message", value)
                elif key == "reasoning_content" and isinstance(value, str):
                    out += self._piece("reasoning", value)
                elif key == "tool_calls" and isinstance(value, list):
                    out += [event for delta in value for event in self._call(delta)]
            if choice.get("finish_reason") is not None:
                self._cut = choice["finish_reason"] == "length"
        return b"".join(out)

    def done(self) -> bytes:
        out = self._start({}) if self._top is None else []
        out += self._close("incomplete" if self._cut else "completed")
        status = "incomplete" if self._cut else "completed"
        out.append(self._event(f"response.{status}", {"response": self._response(status)}))
        return b"".join(out)

    def waiting(self) -> bytes:
        return WAITING

    def whole(self, answer: Object) -> Object:
        (choice, *_) = choices(answer) or [{}]
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        self._top, self._cut = answer, choice.get("finish_reason") == "length"
        for kind, key in (("reasoning", "reasoning_content"), ("message", "content")):
            if isinstance(text := message.get(key), str) and text:
                self._add(_Item(kind, 0, "", pieces=[text]))
        calls = message.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else []):
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(call, dict) and isinstance(function, dict):
                item = _Item("function_call", place, "", str(call.get("id")), str(function.get("name")))
                item.pieces.append(str(function.get("arguments") or ""))
                self._add(item)
        usage = answer.get("usage")
        self._usage = usage if isinstance(usage, dict) else {}
        return self._response("incomplete" if self._cut else "completed")

    # -- the response as one object -----------------------------------------------------------------------------

    @property
    def _identity(self) -> str:
        identity = (self._top or {}).get("id")
        return str(identity).removeprefix("chatcmpl-") if isinstance(identity, str) else "0"

    def _response(self, status: str) -> Object:
        created = (self._top or {}).get("created")
        running = status == "in_progress"
        cut = self._cut and not running
        output: list[Json] = [] if running else [item.value("completed") for item in self._items]
        if output and cut:
            output[-1] = self._items[-1].value("incomplete")
        return {
            "id": f"resp_{self._identity}",
            "object": "response",
            "created_at": created if isinstance(created, (int, float)) else int(self._clock()),
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self._model,
            "output": output,
            **self._repeated,
            "usage": None if running else _usage(self._usage),
        }

    def _add(self, item: _Item) -> None:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[item.kind]
        item.identity = f"{prefix}_{self._identity}_{len(self._items)}"
        self._items.append(item)

    # -- the events -------------------------------------------------------------------------------------------------

    def _event(self, name: str, value: Object) -> bytes:
        told: Object = {"type": name, "sequence_number": self._sequence, **value}
        self._sequence += 1
        data = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
        return f"event: {name}\ndata: {data}\n\n".encode("utf-8", "replace")

    def _start(self, top: Object) -> list[bytes]:
        self._top = top
        began = self._response("in_progress")
        return [self._event(f"response.{name}", {"response": began}) for name in ("created", "in_progress")]

    def _piece(self, kind: str, text: str) -> list[bytes]:
        out = [] if self._is_open and self._items[-1].kind == kind else self._open(_Item(kind, 0, ""))
        self._items[-1].pieces.append(text)
        if kind == "reasoning":
            return [*out, self._of_part("response.reasoning_text.delta", {"delta": text})]
        return [*out, self._of_part("response.output_text.delta", {"delta": text, "logprobs": []})]

    def _call(self, delta: Json) -> list[bytes]:
        function = delta.get("function") if isinstance(delta, dict) else None
        if not isinstance(delta, dict) or not isinstance(function, dict):
            return []
        index = delta.get("index", 0)
        place = index if isinstance(index, int) else 0
        last = self._items[-1] if self._is_open else None
        out = []
        if last is None or (last.kind, last.place) != ("function_call", place):
            item = _Item("function_call", place, "", str(delta.get("id")), str(function.get("name")))
            out = self._open(item)
        if isinstance(arguments := function.get("arguments"), str) and arguments:
            self._items[-1].pieces.append(arguments)
            out.append(self._of_item("response.function_call_arguments.delta", {"delta": arguments}))
        return out

    def _open(self, item: _Item) -> list[bytes]:
        out = self._close("completed")
        self._add(item)
        self._is_open = True
        added: Object = {"output_index": len(self._items) - 1, "item": item.value("in_progress")}
        out.append(self._event("response.output_item.added", added))
        if item.kind != "function_call":
            out.append(self._of_part("response.content_part.added", {"part": item.part("")}))
        return out

    def _close(self, status: str) -> list[bytes]:
        if not self._is_open:
            return []
        self._is_open = False
        item = self._items[-1]
        if item.kind == "function_call":
            said: Object = {"name": item.name, "arguments": item.text}
            out = [self._of_item("response.function_call_arguments.done", said)]
        else:
            name = "reasoning_text" if item.kind == "reasoning" else "output_text"
            more: Object = {} if item.kind == "reasoning" else {"logprobs": []}
            out = [
                self._of_part(f"response.{name}.done", {"text": item.text, **more}),
                self._of_part("response.content_part.done", {"part": item.part(item.text)}),
            ]
        ended: Object = {"output_index": len(self._items) - 1, "item": item.value(status)}
        return [*out, self._event("response.output_item.done", ended)]

    def _of_item(self, name: str, value: Object) -> bytes:
        place: Object = {"item_id": self._items[-1].identity, "output_index": len(self._items) - 1}
        return self._event(name, {**place, **value})

    def _of_part(self, name: str, value: Object) -> bytes:
        return self._of_item(name, {"content_index": 0, **value})


def _usage(usage: Object) -> Object:
    details, thought = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    prompt, answer = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": count(details, "cached_tokens") if isinstance(details, dict) else 0,
            "cache_write_tokens": 0,
        },
        "output_tokens": answer,
        "output_tokens_details": {
            "reasoning_tokens": count(thought, "reasoning_tokens") if isinstance(thought, dict) else 0
        },
        "total_tokens": prompt + answer,
    }
