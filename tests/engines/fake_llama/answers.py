"""What the fake engine says: the shapes of llama-server's answers (b11434), and the broken ones."""

import json
import re

from engines.fake_llama.engine import Slot
from engines.fake_llama.options import Options

WRONG = b"<html>busy</html>"


class Shape:
    """The chunks and the whole object of one answer, as the three routes shape them."""

    def __init__(self, path: str, options: Options, words: int, cached: int = 0) -> None:
        model = options.model
        self.path = path
        self.options = options
        self.words = words
        self.cached = cached
        self.sent = 0
        kind = "chat.completion" if path == "/chat/completions" else "text_completion"
        self.kind = kind
        self.base = {"id": "fake-1", "created": 1, "model": model, "system_fingerprint": "fake"}

    def usage(self) -> dict[str, int]:
        return {"prompt_tokens": self.words, "completion_tokens": self.sent, "total_tokens": self.words + self.sent}

    def timings(self) -> dict[str, object]:
        known = {"prompt_n": self.words - self.cached, "cache_n": self.cached, "predicted_n": self.sent}
        return known | {"prompt_ms": self.options.prefill_ms, "predicted_ms": self.options.token_ms * self.sent}

    def _chat(self, delta: object, reason: str | None) -> dict[str, object]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {**self.base, "object": "chat.completion.chunk", "choices": [choice]}

    def _text(self, text: str, reason: str | None) -> dict[str, object]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return {**self.base, "object": self.kind, "choices": [choice]}

    def opening(self) -> list[dict[str, object]]:
        if self.path != "/chat/completions":
            return []
        return [self._chat({"role": "assistant", "content": None}, None)]

    def piece(self, text: str) -> dict[str, object]:
        if self.path == "/completion":
            return {"content": text, "stop": False}
        return self._chat({"content": text}, None) if self.path == "/chat/completions" else self._text(text, None)

    def closing(self, reason: str, with_usage: bool) -> list[dict[str, object]]:
        if self.path == "/completion":
            kind = "limit" if reason == "length" else "eos"
            last = {"content": "", "stop": True, "stop_type": kind, "timings": self.timings()}
            return [{**last, "tokens_evaluated": self.words, "tokens_predicted": self.sent}]
        last = self._chat({}, reason) if self.path == "/chat/completions" else self._text("", reason)
        if not with_usage:
            return [{**last, "timings": self.timings()}]
        usage = {**last, "choices": [], "usage": self.usage(), "timings": self.timings()}
        return [last, usage]

    def whole(self, text: str, reason: str) -> dict[str, object]:
        if self.path == "/completion":
            return {
                "id_slot": 0,
                "content": text,
                "stop": True,
                "tokens_evaluated": self.words,
                "tokens_predicted": self.sent,
            }
        if self.path == "/chat/completions":
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        else:
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        tail = {"usage": self.usage(), "timings": self.timings()}
        return {**self.base, "object": self.kind, "choices": [choice], **tail}


#: A word's place is its token's number; it grows with what was said.
VOCABULARY: list[str] = []


def numbered(text: str) -> list[int]:
    """/tokenize: a number for each word."""
    for word in text.split():
        if word not in VOCABULARY:
            VOCABULARY.append(word)
    return [VOCABULARY.index(word) for word in text.split()]


#: Ends a rendered prompt, as a chat template does.
ASSISTANT = " <assistant> "


def rendered(request: dict[str, object]) -> str:
    """/apply-template: as many words as count_prompt counts tokens, the last of them :data:`ASSISTANT`."""
    words, text = count_prompt(request)
    return " ".join([text, *["<m>"] * (words - len(text.split()) - 1)]) + ASSISTANT


def answered(prompt: str) -> int:
    """How many tokens of an answer a raw completion's prompt ends with: it goes on from there."""
    begun = re.search(r"(?:^| )tok(\d+)$", prompt)
    return int(begun[1]) + 1 if begun else 0


def embeddings(request: dict[str, object]) -> dict[str, object]:
    """A vector of two for each text: its bytes, and its words."""
    given = request.get("input")
    texts = given if isinstance(given, list) else [given]
    data = [
        {"object": "embedding", "index": at, "embedding": [float(len(str(text))), float(len(str(text).split()))]}
        for at, text in enumerate(texts)
    ]
    words = sum(len(str(text).split()) for text in texts)
    return {"object": "list", "data": data, "usage": {"prompt_tokens": words, "total_tokens": words}}


def broken(value: object, number: int) -> bytes:
    """What generation ``number`` says instead of the JSON of ``value``: cut in the middle, or none at all, in turn."""
    data = json.dumps(value).encode()
    return WRONG if number % 2 else data[: len(data) // 2]


def slot_list(slots: list[Slot], context: int) -> list[dict[str, object]]:
    """/slots. A slot that never had a task shows the first four keys only."""
    shown: list[dict[str, object]] = []
    for slot in slots:
        entry: dict[str, object] = {"id": slot.number, "n_ctx": context, "speculative": False}
        entry["is_processing"] = slot.busy
        if slot.task >= 0:
            token = {
                "has_next_token": slot.busy,
                "has_new_line": False,
                "n_remain": slot.limit - slot.decoded,
                "n_decoded": slot.decoded,
            }
            entry |= {
                "id_task": slot.task,
                "n_prompt_tokens": slot.prompt,
                "n_prompt_tokens_processed": slot.prompt if slot.decoded else 0,
                "n_prompt_tokens_cache": 0,
                "params": {"n_predict": slot.limit, "max_tokens": slot.limit},
                "next_token": [token],
            }
        shown.append(entry)
    return shown


def props(options: Options) -> dict[str, object]:
    return {
        "default_generation_settings": {"params": {"n_predict": -1, "max_tokens": -1}, "n_ctx": options.slot_context},
        "total_slots": options.slots,
        "model_alias": options.model,
        "model_path": options.model,
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": not options.no_slots,
        "endpoint_props": False,
        "endpoint_metrics": False,
        "chat_template": "",
        "build_info": "fake",
        "is_sleeping": False,
    }


def model_list(options: Options) -> dict[str, object]:
    entry = {"id": options.model, "object": "model", "created": 1, "owned_by": "llamacpp"}
    return {"object": "list", "data": [entry]}


def count_prompt(request: dict[str, object]) -> tuple[int, str]:
    """Tokens of the prompt (words, plus one for each message) and its text."""
    if "messages" not in request:
        prompt = request.get("prompt", request.get("content", ""))
        if isinstance(prompt, list) and prompt and isinstance(prompt[-1], int):
            prompt = " ".join(VOCABULARY[token] if token < len(VOCABULARY) else "?" for token in prompt)
        text = " ".join(str(part) for part in prompt) if isinstance(prompt, list) else str(prompt)
        return len(text.split()), text
    messages = request["messages"]
    if not isinstance(messages, list):
        raise ValueError("'messages' must be an array")
    texts = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "image")) for part in content)
        texts.append(content or "")
    text = " ".join(texts)
    return len(text.split()) + len(messages), text
