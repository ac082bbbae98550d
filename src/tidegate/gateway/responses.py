"""The OpenAI Responses surface: a body of /v1/responses as a chat request. Pure. The answer: :mod:`~.responses_voice`.

Nothing is stored between two requests, so what refers to an earlier response is refused and not guessed at.
"""

from __future__ import annotations

from tidegate.gateway.assemble import Json, Object
from tidegate.gateway.openai import Completion, InvalidRequestError, check, decode

_SAME = ("model", "stream", "temperature", "top_p", "parallel_tool_calls")
_STORED = ("previous_response_id", "conversation", "prompt")
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text")
_CHOICES = ("auto", "none", "required")
#: Efforts of reasoning at which a model that can do without does without.
_NO_THOUGHT = ("none", "minimal")


def parse(data: bytes) -> tuple[Completion, Object]:
    """A body of ``POST /v1/responses``: the chat request, and what the answer repeats of the body.

    Raises:
        InvalidRequestError: it is none, or it needs what is not here.
    """
    body = decode(data)
    for key in _STORED:
        if body.get(key):
            raise InvalidRequestError(f"cannot take {key!r}: nothing is stored here; send the whole input", key)
    if body.get("background") is True:
        raise InvalidRequestError("cannot take 'background': nothing is stored here", "background")
    made: Object = {key: body[key] for key in _SAME if body.get(key) is not None}
    made["stream_options"] = {"include_usage": True}
    most = body.get("max_output_tokens")
    if most is not None:
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise InvalidRequestError(
                "cannot take 'max_output_tokens': it is no whole number above 0", "max_output_tokens"
            )
        made["max_tokens"] = most
    made["messages"] = _joined([*_instructions(body.get("instructions")), *_input(body.get("input"))])
    if body.get("tools"):
        made["tools"] = _tools(body["tools"])
        made.update(_tool_choice(body.get("tool_choice")))
    made.update(_format(body.get("text")))
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    if isinstance(effort, str):
        made["chat_template_kwargs"] = {"enable_thinking": effort not in _NO_THOUGHT, "reasoning_effort": effort}
    return check(made, chat=True), _repeated(body)


def _repeated(body: Object) -> Object:
    """What a response says of its request; the clients' types want most of it."""
    tools, text, metadata = body.get("tools"), body.get("text"), body.get("metadata")
    return {
        "background": False,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": metadata if isinstance(metadata, dict) else {},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "reasoning": body.get("reasoning"),
        "store": False,
        "temperature": body.get("temperature"),
        "text": text if isinstance(text, dict) else {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": tools if isinstance(tools, list) else [],
        "top_p": body.get("top_p"),
        "truncation": "disabled",
    }


def _instructions(text: Json) -> list[Json]:
    if text is None or text == "":
        return []
    if not isinstance(text, str):
        raise InvalidRequestError("cannot take 'instructions': it is not a string", "instructions")
    return [{"role": "system", "content": text}]


def _joined(messages: list[Json]) -> list[Json]:
    """Leading instructions as one message: more than one is an error to many templates."""
    texts = []
    for message in messages:
        text = message.get("content") if isinstance(message, dict) and message.get("role") == "system" else None
        if not isinstance(text, str):
            break
        texts.append(text)
    return [{"role": "system", "content": "\n\n".join(texts)}, *messages[len(texts) :]] if texts else messages


def _input(given: Json) -> list[Json]:
    """The messages; calls of tools that follow one another are one message of the assistant's."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise InvalidRequestError("cannot take 'input': it is no string and no array", "input")
    if not given:
        raise InvalidRequestError("cannot take 'input': it is empty", "input")
    made: list[Json] = []
    for at, item in enumerate(given):
        where = f"input[{at}]"
        if not isinstance(item, dict):
            raise InvalidRequestError(f"cannot take {where}: it is not an object", "input")
        kind = item.get("type", "message")
        if kind == "message":
            made.append(_message(item, where))
        elif kind == "function_call":
            _add_call(made, item, where)
        elif kind == "function_call_output":
            made.append(_result(item, where))
        elif kind == "item_reference":
            raise InvalidRequestError(f"cannot take {where}: nothing is stored here; send the item itself", "input")
        elif kind != "reasoning":
            raise InvalidRequestError(f"cannot take {where}: there is no item of type {kind!r}", "input")
    return made


def _message(item: Object, where: str) -> Object:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise InvalidRequestError(f"cannot take {where}: its role is none of {', '.join(_ROLES)}", "input")
    # The templates of local models know one kind of instructions.
    role = "system" if role == "developer" else role
    if isinstance(content, str):
        return {"role": role, "content": content}
    if not isinstance(content, list):
        raise InvalidRequestError(f"cannot take {where}: its content is no string and no array", "input")
    parts = [_part(part, where) for part in content]
    texts = [text for part in parts if isinstance(text := part.get("text"), str)]
    return {"role": role, "content": "".join(texts) if len(texts) == len(parts) else [*parts]}


def _part(part: Json, where: str) -> Object:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind in _TEXTS and isinstance(text := part.get("text"), str):
        return {"type": "text", "text": text}
    if isinstance(part, dict) and kind == "refusal" and isinstance(text := part.get("refusal"), str):
        return {"type": "text", "text": text}
    if isinstance(part, dict) and kind == "input_image" and isinstance(url := part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": url}}
    if isinstance(part, dict) and kind == "input_audio" and isinstance(audio := part.get("input_audio"), dict):
        return {"type": "input_audio", "input_audio": audio}
    if kind in ("input_image", "input_file"):
        raise InvalidRequestError(f"cannot take {where}: of files only images with an 'image_url' are read", "input")
    raise InvalidRequestError(f"cannot take {where}: it has a content part of type {kind!r}", "input")


def _add_call(made: list[Json], item: Object, where: str) -> None:
    identity, name, given = item.get("call_id"), item.get("name"), item.get("arguments")
    if not isinstance(identity, str) or not isinstance(name, str) or not isinstance(given, str):
        raise InvalidRequestError(
            f"cannot take {where}: a function_call has no call_id, no name or no arguments", "input"
        )
    call: Object = {"id": identity, "type": "function", "function": {"name": name, "arguments": given}}
    last = made[-1] if made else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        last = {"role": "assistant", "content": None}
        made.append(last)
    calls = last.setdefault("tool_calls", [])
    if isinstance(calls, list):
        calls.append(call)


def _result(item: Object, where: str) -> Object:
    identity, output = item.get("call_id"), item.get("output")
    if not isinstance(identity, str):
        raise InvalidRequestError(f"cannot take {where}: a function_call_output has no call_id", "input")
    if isinstance(output, list):
        parts = [_part(part, where).get("text") for part in output]
        if not all(isinstance(text, str) for text in parts):
            raise InvalidRequestError(f"cannot take {where}: the output of a function is text here", "input")
        output = "".join(str(text) for text in parts)
    if not isinstance(output, str):
        raise InvalidRequestError(f"cannot take {where}: its output is no string and no array", "input")
    return {"role": "tool", "tool_call_id": identity, "content": output}


def _tools(tools: Json) -> list[Json]:
    made: list[Json] = []
    for tool in tools if isinstance(tools, list) else [None]:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or not isinstance(kind, str):
            raise InvalidRequestError("cannot take 'tools': it is no array of tools with a type", "tools")
        if kind != "function":
            raise InvalidRequestError(f"cannot take 'tools': there is no tool {kind!r} here, only functions", "tools")
        if not isinstance(tool.get("name"), str):
            raise InvalidRequestError("cannot take 'tools': a function has no name", "tools")
        function: Object = {"name": tool["name"], "parameters": tool.get("parameters") or {"type": "object"}}
        for key in ("description", "strict"):
            if tool.get(key) is not None:
                function[key] = tool[key]
        made.append({"type": "function", "function": function})
    return made


def _tool_choice(choice: Json) -> Object:
    if choice is None:
        return {}
    if choice in _CHOICES:
        return {"tool_choice": choice}
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(name := choice.get("name"), str):
        return {"tool_choice": {"type": "function", "function": {"name": name}}}
    raise InvalidRequestError(
        f"cannot take 'tool_choice': it is none of {', '.join(_CHOICES)} and names no function", "tool_choice"
    )


def _format(text: Json) -> Object:
    if text is None:
        return {}
    form = text.get("format") if isinstance(text, dict) else None
    if not isinstance(text, dict) or not (form is None or isinstance(form, dict)):
        raise InvalidRequestError("cannot take 'text': it is no object with a 'format'", "text")
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return {}
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if kind == "json_schema" and isinstance(form.get("schema"), dict):
        held: Object = {key: form[key] for key in ("name", "schema", "strict", "description") if key in form}
        return {"response_format": {"type": "json_schema", "json_schema": held}}
    raise InvalidRequestError("cannot take 'text': its format is none of text, json_object, json_schema", "text")
