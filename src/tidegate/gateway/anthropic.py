"""The Anthropic surface: /v1/messages as an OpenAI request, and the answer in its events. Pure.

Formats: Anthropic's Messages API, version 2023-06-01.
"""

from __future__ import annotations

import json

from tidegate.gateway.answer import choices, pieces
from tidegate.gateway.assemble import Json, Object, count
from tidegate.gateway.errors import Surface
from tidegate.gateway.openai import Completion, InvalidRequestError, check, decode

_SAME = ("model", "stream", "temperature", "top_p", "top_k")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
#: Blocks that only one of the two may say.
_ROLE_OF = {"tool_use": "assistant", "tool_result": "user"}


def parse(data: bytes) -> Completion:
    """A body of ``POST /v1/messages``.

    Raises:
        InvalidRequestError: it is none.
    """
    body = decode(data)
    most, messages = body.get("max_tokens"), body.get("messages")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InvalidRequestError("cannot take 'max_tokens': it is no whole number above 0", "max_tokens")
    if not isinstance(messages, list):
        raise InvalidRequestError("cannot take 'messages': it is not an array", "messages")
    if not messages:
        raise InvalidRequestError("cannot take 'messages': it is empty", "messages")
    made: Object = {key: body[key] for key in _SAME if body.get(key) is not None}
    made.update(max_tokens=most, stream_options={"include_usage": True})
    system = _system(body.get("system"))
    made["messages"] = [*system, *(new for at, message in enumerate(messages) for new in _message(message, at))]
    if body.get("stop_sequences") is not None:
        made["stop"] = body["stop_sequences"]
    if body.get("tools"):
        made["tools"] = _tools(body["tools"])
        made.update(_tool_choice(body.get("tool_choice")))
    thinking = body.get("thinking")
    if isinstance(thinking, dict):
        # Besides "enabled" the API has kinds that leave it to the model when to think ("adaptive").
        made["chat_template_kwargs"] = {"enable_thinking": thinking.get("type") != "disabled"}
    return check(made, chat=True)


def _system(system: Json) -> list[Json]:
    if system is None or system == "":
        return []
    text = system if isinstance(system, str) else "\n".join(_texts(system, "system"))
    return [{"role": "system", "content": text}]


def _texts(blocks: Json, where: str) -> list[str]:
    """The texts of a list of text blocks."""
    found = []
    for block in blocks if isinstance(blocks, list) else [None]:
        text = block.get("text") if isinstance(block, dict) else None
        if not isinstance(text, str):
            raise InvalidRequestError(f"cannot take {where}: it is no text and no list of text blocks", where)
        found.append(text)
    return found


def _message(message: Json, at: int) -> list[Json]:
    """One message; the results of tools are messages of their own in the OpenAI shape."""
    where = f"messages[{at}]"
    if not isinstance(message, dict):
        raise InvalidRequestError(f"cannot take {where}: it is not an object", "messages")
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise InvalidRequestError(f"cannot take {where}: its role is neither 'user' nor 'assistant'", "messages")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise InvalidRequestError(f"cannot take {where}: its content is no text and no array", "messages")
    parts: list[Json] = []
    calls: list[Json] = []
    results: list[Json] = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(block, dict) or not isinstance(kind, str):
            raise InvalidRequestError(f"cannot take {where}: a content block has no type", "messages")
        if role != _ROLE_OF.get(kind, role):
            raise InvalidRequestError(f"cannot take {where}: a message of role {role!r} has no {kind!r}", "messages")
        if kind == "text":
            parts.append({"type": "text", "text": _texts([block], where)[0]})
        elif kind == "image":
            parts.append(_image(block, where))
        elif kind == "tool_use":
            calls.append(_past_call(block, where))
        elif kind == "tool_result":
            result, images = _result(block, where)
            results.append(result)
            parts += images
        elif kind not in ("thinking", "redacted_thinking"):
            raise InvalidRequestError(f"cannot take {where}: there is no content block of type {kind!r}", "messages")
    if not parts and not calls:
        return results
    plain = all(isinstance(part, dict) and part["type"] == "text" for part in parts)
    text = "".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
    new: Object = {"role": role, "content": text if plain else parts}
    if calls:
        new["tool_calls"] = calls
    return [*results, new]


def _past_call(block: Object, where: str) -> Object:
    identity, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(identity, str) or not isinstance(name, str) or not isinstance(given or {}, dict):
        raise InvalidRequestError(
            f"cannot take {where}: a tool_use has no id, no name or no object as input", "messages"
        )
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(given or {})}}


def _result(block: Object, where: str) -> tuple[Object, list[Json]]:
    """A tool's result, and its images: in the OpenAI shape only a user shows any."""
    identity, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(identity, str):
        raise InvalidRequestError(f"cannot take {where}: a tool_result has no tool_use_id", "messages")
    images: list[Json] = []
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        blocks = content if isinstance(content, list) else [content]
        rest: list[Json] = []
        for part in blocks:
            if isinstance(part, dict) and part.get("type") == "image":
                images.append(_image(part, where))
            else:
                rest.append(part)
        text = "\n".join(_texts(rest, where))
    said = f"Error: {text}" if block.get("is_error") is True else text
    return {"role": "tool", "tool_call_id": identity, "content": said}, images


def _image(block: Object, where: str) -> Object:
    source = block.get("source")
    if isinstance(source, dict):
        data, kind, url = source.get("data"), source.get("media_type"), source.get("url")
        if source.get("type") == "base64" and isinstance(data, str) and isinstance(kind, str):
            return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
        if source.get("type") == "url" and isinstance(url, str):
            return {"type": "image_url", "image_url": {"url": url}}
    raise InvalidRequestError(f"cannot take {where}: an image has no base64 data and no url", "messages")


def _tools(tools: Json) -> list[Json]:
    made: list[Json] = []
    for tool in tools if isinstance(tools, list) else [None]:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise InvalidRequestError("cannot take 'tools': it is no array of tools with a name", "tools")
        function: Object = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object"}}
        if isinstance(tool.get("description"), str):
            function["description"] = tool["description"]
        made.append({"type": "function", "function": function})
    return made


def _tool_choice(choice: Json) -> Object:
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(kind, str) or not (kind == "tool" or kind in _CHOICES):
        raise InvalidRequestError("cannot take 'tool_choice': its type is none of auto, any, tool, none", "tool_choice")
    made: Object = {"tool_choice": _CHOICES.get(kind, "auto")}
    if kind == "tool":
        if not isinstance(name := choice.get("name"), str):
            raise InvalidRequestError("cannot take 'tool_choice': it names no tool", "tool_choice")
        made["tool_choice"] = {"type": "function", "function": {"name": name}}
    if choice.get("disable_parallel_tool_use") is True:
        made["parallel_tool_calls"] = False
    return made


class AnthropicVoice:
    """One request's answer, ``model`` as the client named it."""

    surface = Surface.ANTHROPIC
    stream_type = "text/event-stream"

    def __init__(self, *, model: str) -> None:
        self._model = model
        self._begun = False
        #: The open block: its kind, and for a call of a tool its index among the calls.
        self._block: tuple[str, int] | None = None
        self._blocks = 0
        self._reason = "end_turn"
        self._usage: Object = {}

    def chunk(self, chunk: Object, raw: bytes) -> bytes:
        out = [] if self._begun else [self._start(chunk)]
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
        for choice in choices(chunk):
            for key, value in pieces(choice):
                if key == "content" and isinstance(value, str):
                    out += self._piece("text", {"type": "text_delta", "text": value})
                elif key == "reasoning_content" and isinstance(value, str):
                    out += self._piece("thinking", {"type": "thinking_delta", "thinking": value})
                elif key == "tool_calls" and isinstance(value, list):
                    out += [event for delta in value for event in self._call(delta)]
            if choice.get("finish_reason") is not None:
                self._reason = _REASONS.get(str(choice["finish_reason"]), "end_turn")
        return b"".join(out)

    def done(self) -> bytes:
        out = [] if self._begun else [self._start({})]
        out += self._close()
        delta: Object = {"stop_reason": self._reason, "stop_sequence": None}
        out.append(_event("message_delta", {"delta": delta, "usage": _usage(self._usage)}))
        return b"".join([*out, _event("message_stop", {})])

    def waiting(self) -> bytes:
        return _event("ping", {})

    def whole(self, answer: Object) -> Object:
        (choice, *_) = choices(answer) or [{}]
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        content: list[Json] = []
        if isinstance(thinking := message.get("reasoning_content"), str) and thinking:
            content.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if isinstance(text := message.get("content"), str) and text:
            content.append({"type": "text", "text": text})
        calls = message.get("tool_calls")
        content += [_tool_use(call) for call in (calls if isinstance(calls, list) else []) if isinstance(call, dict)]
        usage = answer.get("usage")
        return {
            **self._message(answer),
            "content": content,
            "stop_reason": _REASONS.get(str(choice.get("finish_reason")), "end_turn"),
            "usage": _usage(usage if isinstance(usage, dict) else {}),
        }

    def _message(self, top: Object) -> Object:
        identity = top.get("id")
        return {
            "id": f"msg_{identity}" if isinstance(identity, str) else "msg_0",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage({}),
        }

    def _start(self, top: Object) -> bytes:
        self._begun = True
        return _event("message_start", {"message": self._message(top)})

    def _piece(self, kind: str, delta: Object) -> list[bytes]:
        out = []
        if self._block != (kind, 0):
            # The package's type for it has a signature; nothing is signed here.
            more: Object = {"signature": ""} if kind == "thinking" else {}
            out = [*self._close(), self._open((kind, 0), {"type": kind, kind: "", **more})]
        return [*out, _event("content_block_delta", {"index": self._blocks - 1, "delta": delta})]

    def _call(self, delta: Json) -> list[bytes]:
        function = delta.get("function") if isinstance(delta, dict) else None
        if not isinstance(delta, dict) or not isinstance(function, dict):
            return []
        index = delta.get("index", 0)
        block = ("tool_use", index if isinstance(index, int) else 0)
        out = []
        if self._block != block:
            tool: Object = {"type": "tool_use", "id": delta.get("id"), "name": function.get("name"), "input": {}}
            out = [*self._close(), self._open(block, tool)]
        if isinstance(arguments := function.get("arguments"), str) and arguments:
            piece: Object = {"type": "input_json_delta", "partial_json": arguments}
            out.append(_event("content_block_delta", {"index": self._blocks - 1, "delta": piece}))
        return out

    def _open(self, block: tuple[str, int], content: Object) -> bytes:
        self._block = block
        self._blocks += 1
        return _event("content_block_start", {"index": self._blocks - 1, "content_block": content})

    def _close(self) -> list[bytes]:
        if self._block is None:
            return []
        self._block = None
        return [_event("content_block_stop", {"index": self._blocks - 1})]


def _event(name: str, value: Object) -> bytes:
    data = json.dumps({"type": name, **value}, separators=(",", ":"), ensure_ascii=False)
    return f"event: {name}\ndata: {data}\n\n".encode("utf-8", "replace")


def _usage(usage: Object) -> Object:
    """Anthropic's input_tokens are without those that a cache had; OpenAI's prompt_tokens are with them."""
    prompt, details = count(usage, "prompt_tokens"), usage.get("prompt_tokens_details")
    cached = min(count(details, "cached_tokens"), prompt) if isinstance(details, dict) else 0
    more: Object = {"cache_read_input_tokens": cached} if cached else {}
    return {"input_tokens": prompt - cached, **more, "output_tokens": count(usage, "completion_tokens")}


def _tool_use(call: Object) -> Object:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    try:
        given: Json = json.loads(str(function.get("arguments") or "{}"))
    except (ValueError, RecursionError):
        given = {}
    return {
        "type": "tool_use",
        "id": call.get("id"),
        "name": function.get("name"),
        "input": given if isinstance(given, dict) else {},
    }
