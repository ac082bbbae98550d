"""An answer in place of a refusal, for clients that show errors badly or not at all. Pure.

It says in the configured language what happened and when to come back, in the shape of an ordinary complete answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.gateway.assemble import Object
from tidegate.gateway.errors import Refusal
from tidegate.gateway.openai import Completion

#: Refusals that are the device's matter and pass by themselves. A wrong or over-long request stays an error: its client
#: has to change it.
_PASSING = frozenset({"refused_pressure", "refused_full", "refused_stopping", "expired"})
HEADER = "x-tidegate-on-pressure"


def stands_for(refusal: Refusal) -> bool:
    """Whether an answer may take the place of ``refusal``."""
    return refusal.outcome in _PASSING


@dataclass(frozen=True)
class Instead:
    """What the answer to one request has to look like; ``time`` is Unix seconds."""

    chat: bool
    model: str
    usage: bool
    time: float

    @classmethod
    def of(cls, completion: Completion, time: float) -> Instead:
        """For this request."""
        model = completion.body.get("model")
        return cls(completion.chat, model if isinstance(model, str) else "", completion.wants_usage, time)

    def whole(self, refusal: Refusal) -> Object:
        """The plain answer."""
        choice: Object = {"finish_reason": "stop", "index": 0}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": refusal.message}
        else:
            choice.update(text=refusal.message, logprobs=None)
        return {"choices": [choice], **self._top("chat.completion"), "usage": _no_usage()}

    def chunks(self, refusal: Refusal) -> list[Object]:
        """The stream's chunks."""
        texts = [{"role": "assistant", "content": refusal.message}, {}] if self.chat else [refusal.message, ""]
        found: list[Object] = []
        for text, reason in zip(texts, (None, "stop"), strict=True):
            choice: Object = {"finish_reason": reason, "index": 0, "delta" if self.chat else "text": text}  # type: ignore[dict-item]
            found.append({"choices": [choice], **self._top("chat.completion.chunk")})
        if self.usage:
            found.append({"choices": [], **self._top("chat.completion.chunk"), "usage": _no_usage()})
        return found

    def _top(self, kind: str) -> Object:
        identity: Object = {"id": f"tidegate-{self.time:.6f}", "created": int(self.time), "model": self.model}
        return {**identity, "object": kind if self.chat else "text_completion"}


def _no_usage() -> Object:
    return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
