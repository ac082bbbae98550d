"""Asking a new worker for the rest of an answer: the engine's raw completion of the prompt and the text so far.

At temperature 0 the rest is to be exactly that of the uninterrupted answer. Flash attention on a CPU sums in another
order for 64 tokens and more at once than for one (llama.cpp b11434: of 120 cuts 21 went on in other words at some near
tie), so the text so far is given in pieces below that: 120 of 120 the same. In a context above 256 tokens single tokens
take a path of their own, which no batch takes: there the rest is as good, and mostly but not always the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.gateway import tokens
from tidegate.gateway.assemble import Object
from tidegate.gateway.openai import Completion, encode
from tidegate.gateway.upstream import Upstream

TARGET = "/completion"
#: Tokens of the text so far that are given at once.
_PIECE = 48

#: What makes an answer more than plain text, so that its rest cannot be had from the text alone.
_NO_PLAIN_TEXT = (
    "tools",
    "functions",
    "grammar",
    "json_schema",
    "logprobs",
    "top_logprobs",
    "n_probs",
    "echo",
    "suffix",
    "continue_final_message",
)
#: Keys that the raw completion does not have, has under another name, or that are set here.
_NOT_RAW = frozenset(
    {
        *_NO_PLAIN_TEXT,
        "messages",
        "prompt",
        "n",
        "best_of",
        "n_predict",
        "max_tokens",
        "max_completion_tokens",
        "stream",
        "stream_options",
        "stop",
        "tool_choice",
        "parallel_tool_calls",
        "function_call",
        "response_format",
        "chat_template_kwargs",
        "reasoning_format",
        "add_generation_prompt",
        "return_progress",
    }
)


@dataclass(frozen=True)
class Rest:
    """The request for the rest of an answer, and what is there already, in the engine's own count.

    ``before`` are requests that only bring the worker to where the answer is."""

    before: tuple[bytes, ...]
    body: bytes
    prompt_tokens: int
    told_tokens: int
    #: The text so far is as long as the answer may be.
    full: bool


def possible(completion: Completion) -> bool:
    """Whether an answer to this request is plain text, so that its rest can be asked for."""
    body = completion.body
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") != "text":
        return False
    if any(body.get(key) for key in _NO_PLAIN_TEXT) or any(body.get(key) not in (None, 1) for key in ("n", "best_of")):
        return False
    if not completion.chat:
        return isinstance(body.get("prompt"), str)
    if any(weight.parts for weight in completion.weights):
        return False
    # The engine continues a last message of the assistant itself.
    return completion.roles[-1] != "assistant"


async def ask(
    upstream: Upstream, completion: Completion, text: str, *, limit: int | None, seed: int, headers: dict[str, str]
) -> Rest | None:
    """What to send for the rest after ``text``; ``limit`` is tokens that the whole answer may have.

    None if the engine cannot say how it reads the prompt.
    """
    prompt = completion.body.get("prompt")
    if completion.chat:
        prompt = await tokens.render(upstream, completion, headers)
    if not isinstance(prompt, str):
        return None
    asked = await tokens.listed(upstream, prompt, headers)
    so_far = await tokens.listed(upstream, prompt + text, headers)
    if asked is None or so_far is None:
        return None
    told = max(0, len(so_far) - len(asked))
    body: Object = {key: value for key, value in completion.body.items() if key not in _NOT_RAW}
    stop = completion.body.get("stop")
    if stop:
        body["stop"] = [stop] if isinstance(stop, str) else stop
    body["seed"] = seed
    before = []
    if body.get("temperature") == 0:
        for end in range(len(asked), len(so_far), _PIECE):
            begin: Object = {} if end == len(asked) else {"cache_prompt": True}
            before.append(encode({**body, **begin, "prompt": [*so_far[:end]], "n_predict": 0, "stream": False}))
        body["cache_prompt"] = True
    body.update(prompt=[*so_far], stream=True)
    if limit is not None:
        body["n_predict"] = max(0, limit - told)
    return Rest(tuple(before), encode(body), len(asked), told, full=limit is not None and told >= limit)
