"""The OpenAI surface: what a chat or text completion request asks for, and the body that goes to the engine. Pure.

A body is checked only as far as the gateway needs it; everything else is the engine's to judge. Whatever comes in, a
wrong body is a 400 with a sentence, never an exception of another kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tidegate.gateway.assemble import Json, Object

#: Tokens counted for a part of a message that is no text (an image is 256 to 1024 in today's small models).
PART_TOKENS = 1024

#: Commas and opening brackets in a body. Python takes 200 bytes for what JSON says in four, so 16 MiB of "{}," would be
#: 450 MB here; and every one is at least a token, of which no board's model takes this many.
_MOST_MARKS = 1 << 18
#: Arrays and objects in each other. Python reads and writes about 900 (its limit of 1000 calls), and what it has read
#: here is written from elsewhere, under other calls.
_MOST_LEVELS = 500

_LIMIT_KEYS = {True: ("max_completion_tokens", "max_tokens", "n_predict"), False: ("max_tokens", "n_predict")}


class InvalidRequestError(Exception):
    """The request is wrong; ``param`` names the key, if one is to blame."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True)
class Weight:
    """How heavy text is before anyone counted it: ``size`` in UTF-8 bytes and ``parts`` that are no text."""

    size: int
    parts: int = 0

    def __add__(self, other: Weight) -> Weight:
        return Weight(self.size + other.size, self.parts + other.parts)


@dataclass(frozen=True)
class Completion:
    """A checked request; its ``body`` never changes. ``max_tokens`` is None when left open (unset, null, negative)."""

    chat: bool
    body: Object
    stream: bool
    max_tokens: int | None

    @cached_property
    def messages(self) -> list[Object]:
        """The messages of a chat, each an object."""
        found = self.body.get("messages")
        return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []

    @property
    def choices(self) -> int:
        """How many answers the engine is to give: ``n`` to each prompt, 1 where it is left open."""
        n, prompts = self.body.get("n"), self.body.get("prompt")
        each = n if isinstance(n, int) and not isinstance(n, bool) and n > 1 else 1
        several = not self.chat and isinstance(prompts, list) and not all(isinstance(item, int) for item in prompts)
        return each * len(prompts) if several and isinstance(prompts, list) else each

    @property
    def seed(self) -> int | None:
        """The client's seed; None where the engine would draw one."""
        seed = self.body.get("seed")
        return seed if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 else None

    @property
    def wants_usage(self) -> bool:
        """The client's stream is to end with the usage."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @cached_property
    def roles(self) -> list[str]:
        """The messages' roles, "" where there is none."""
        return [role if isinstance(role := message.get("role"), str) else "" for message in self.messages]

    @cached_property
    def weights(self) -> list[Weight]:
        """What each message weighs."""
        return [weigh(message) for message in self.messages]

    @cached_property
    def fixed(self) -> Weight:
        """What does not get lighter when messages are dropped: tools, or the prompt of a text completion."""
        return weigh(self.body.get("tools")) if self.chat else weigh(self.body.get("prompt"))

    def with_messages(self, keep: Sequence[int]) -> Completion:
        """The same request with only the messages at these indices."""
        messages = self.messages
        return Completion(
            self.chat, {**self.body, "messages": [messages[index] for index in keep]}, self.stream, self.max_tokens
        )

    def upstream(self, max_tokens: int | None, seed: int) -> bytes:
        """The body for the engine: always a stream, with the given bound of the answer (None: as the client had it).

        A client's own stream keeps its ``stream_options``; for a plain answer we need the usage.
        """
        body = dict(self.body)
        body["stream"] = True
        if self.seed is None:
            body["seed"] = seed
        if not self.stream:
            body["stream_options"] = {"include_usage": True}
        if max_tokens is not None and max_tokens != self.max_tokens:
            keys = [key for key in _LIMIT_KEYS[self.chat] if body.get(key) is not None] or ["max_tokens"]
            body.update(dict.fromkeys(keys, max_tokens))
        return encode(body)


def encode(body: Json) -> bytes:
    """JSON in ASCII, so that a lone surrogate that came in as an escape goes out as one."""
    return _WRITER.encode(body).encode()


def decode(data: bytes) -> Object:
    """The request body as an object.

    Raises:
        InvalidRequestError: not UTF-8, not JSON, nested too deeply, of too many values, or no object.
    """
    brackets = data.count(b"[") + data.count(b"{")
    if brackets + data.count(b",") > _MOST_MARKS:
        raise InvalidRequestError(f"cannot read the body: it has more than {_MOST_MARKS} commas and brackets")
    try:
        # NaN, Infinity and numbers that are too large for a double are what the engine would answer 500 to.
        value: Json = _READER.decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"cannot read the body: it is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise InvalidRequestError("cannot read the body: it is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequestError(f"cannot read the body: it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("cannot read the body: it is not a JSON object")
    if brackets > _MOST_LEVELS and _levels(value) > _MOST_LEVELS:
        raise InvalidRequestError("cannot read the body: it is nested too deeply")
    return value


def _levels(value: Json) -> int:
    """How deep arrays and objects lie in each other."""
    level, found = [value], 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        found += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return found


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is too large")
    return number


def _whole(text: str) -> int:
    # The largest double has 309 digits.
    if len(text) > 308:
        raise ValueError("a number is too large")
    return int(text)


# json.loads() and json.dumps() with options make a new one of these for each call.
_READER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, parse_int=_whole)
_WRITER = json.JSONEncoder(separators=(",", ":"))
_WEIGHED = json.JSONEncoder(ensure_ascii=False)


def parse(data: bytes, *, chat: bool) -> Completion:
    """Check a request body.

    Raises:
        InvalidRequestError: as :func:`decode`, or a key that the gateway needs has the wrong type.
    """
    return check(decode(data), chat=chat)


def check(body: Object, *, chat: bool) -> Completion:
    """The same for a body that was read already.

    Raises:
        InvalidRequestError: a key that the gateway needs has the wrong type.
    """
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequestError("cannot take 'stream': it is not true or false", "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequestError("cannot take 'stream_options': it is not an object", "stream_options")
    _check_messages(body) if chat else _check_prompt(body)
    return Completion(chat, body, bool(stream), _limit(body, chat=chat))


def _check_messages(body: Object) -> None:
    messages = body.get("messages")
    if messages is None:
        raise InvalidRequestError("cannot answer: 'messages' is required", "messages")
    if not isinstance(messages, list):
        raise InvalidRequestError("cannot take 'messages': it is not an array", "messages")
    if not messages:
        raise InvalidRequestError("cannot take 'messages': it is empty", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequestError(f"cannot take messages[{index}]: it is not an object", "messages")
        if not isinstance(message.get("role"), str):
            raise InvalidRequestError(f"cannot take messages[{index}]: 'role' is not a string", "messages")
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            raise InvalidRequestError(f"cannot take messages[{index}]: 'content' is no string or array", "messages")
        for part in content if isinstance(content, list) else []:
            if not isinstance(part, dict):
                raise InvalidRequestError(f"cannot take messages[{index}]: a content part is no object", "messages")
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            raise InvalidRequestError(f"cannot take messages[{index}]: 'tool_calls' is not an array", "messages")


def _check_prompt(body: Object) -> None:
    prompt = body.get("prompt")
    if prompt is None:
        raise InvalidRequestError("cannot answer: 'prompt' is required", "prompt")
    if not isinstance(prompt, (str, list)):
        raise InvalidRequestError("cannot take 'prompt': it is no string or array", "prompt")


def _limit(body: Object, *, chat: bool) -> int | None:
    for key in _LIMIT_KEYS[chat]:
        value = body.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidRequestError(f"cannot take {key!r}: it is not a whole number", key)
        return value if value >= 0 else None
    return None


def weigh(value: Json) -> Weight:
    """The weight of a message, a prompt or the tools: bytes of text, with non-text parts counted apart."""
    if value is None:
        return Weight(0)
    if isinstance(value, str):
        return Weight(len(value.encode("utf-8", "replace")))
    if isinstance(value, dict) and isinstance(content := value.get("content"), list):
        rest = {key: item for key, item in value.items() if key != "content"}
        total = weigh(rest)
        for part in content:
            total += _weigh_part(part)
        return total
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        # A prompt of token numbers: one each, and no byte-to-token ratio is below 1 byte a token.
        return Weight(len(value))
    return Weight(len(_WEIGHED.encode(value).encode("utf-8", "replace")))


def _weigh_part(part: Json) -> Weight:
    if isinstance(part, dict) and isinstance(text := part.get("text"), str):
        return weigh(text)
    if isinstance(part, dict) and isinstance(text := part.get("refusal"), str):
        return weigh(text)
    return Weight(0, 1)
