"""What many prompts begin with, and when it is worth keeping over the worker's restart. Pure.

The beginning is the leading system and developer messages and the tools: the part that an application sends with every
request. After a restart its prefill is what the first answer waits for; a saved slot brings it back in milliseconds.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from dataclasses import dataclass

from tidegate.gateway.openai import Completion, encode
from tidegate.settings.model import Profile

#: A shorter beginning is prefilled as fast as it is read from a file.
LEAST_BYTES = 256
#: Beginnings that are remembered; an application has one, a prompt with the time in it has one a minute.
_MOST_KNOWN = 64
_MOST_FAILURES = 2
#: Seconds between two saves: each writes some 20 KB a token to what may be an SD card.
SAVE_EVERY_S = 60.0

_LEADING = ("system", "developer")
#: What else of a request the chat template may show before the first message.
_SHOWN = ("tools", "chat_template_kwargs")


@dataclass(frozen=True)
class Prefix:
    """``name`` is the same for the same beginning. ``opens``: the request begins a conversation, so the worker's slot
    goes back to the beginning anyway. ``with_user`` makes a request of it whose user says something."""

    name: str
    opens: bool
    completion: Completion

    def with_user(self, text: str) -> Completion:
        """The same beginning before a user who says ``text``."""
        body = self.completion.body
        kept = {key: body[key] for key in _SHOWN if key in body}
        head = self.completion.messages[: _leading(self.completion)]
        return Completion(True, {**kept, "messages": [*head, {"role": "user", "content": text}]}, False, None)


def prefix_of(completion: Completion) -> Prefix | None:
    """The beginning of a chat; None if it is short, or of more than text."""
    if not completion.chat:
        return None
    count = _leading(completion)
    weights = completion.weights[:count]
    size = sum(weight.size for weight in weights) + completion.fixed.size
    if size < LEAST_BYTES or any(weight.parts for weight in weights) or count == len(completion.messages):
        return None
    shown = [encode(message) for message in completion.messages[:count]]
    shown += [encode(completion.body.get(key)) for key in _SHOWN]
    return Prefix(
        name=hashlib.blake2b(b"\0".join(shown), digest_size=8).hexdigest(),
        opens="assistant" not in completion.roles,
        completion=completion,
    )


def _leading(completion: Completion) -> int:
    roles = completion.roles
    return next((place for place, role in enumerate(roles) if role not in _LEADING), len(roles))


def shape_key(profile: Profile, *, size: int, mtime_ns: int, build: str) -> str:
    """What a saved slot fits: the model's file, KV types and whatever else the profile tells the engine, its build.

    Not the context: a slot of 683 tokens that was saved at 4096 is restored at 1024 (``scripts/test -m long -k
    carry_over``); that it has room is checked for itself.
    """
    told = [profile.model, size, mtime_ns, profile.kv_type, *profile.extra, build]
    return hashlib.blake2b(encode([str(word) for word in told]), digest_size=8).hexdigest()


class Shelf:
    """What has been asked for, and whether it is to be saved now."""

    def __init__(self) -> None:
        #: Name -> the generations it was asked of, as far as that matters: the last.
        self._known: OrderedDict[str, int] = OrderedDict()
        self._failures: Counter[str] = Counter()
        self._not_before = 0.0

    @property
    def last(self) -> str:
        """The beginning that was asked for last; empty if none was."""
        return next(reversed(self._known), "")

    def asked(self, prefix: Prefix, generation: int, now: float) -> bool:
        """``prefix`` goes to ``generation``; whether it should be saved on the way.

        Only what is asked for a second time, and only when the worker's slot has to go back to it anyway: at the
        beginning of a conversation, or the first time that a new worker sees it.
        """
        before = self._known.pop(prefix.name, None)
        self._known[prefix.name] = generation
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return before is not None and (prefix.opens or before != generation) and now >= self._not_before

    def saved(self, now: float) -> None:
        """A save was tried."""
        self._not_before = now + SAVE_EVERY_S

    def useful(self, key: str) -> bool:
        """Saved slots have not failed with this shape, or once: that may have been the file's fault."""
        return self._failures[key] < _MOST_FAILURES

    def failed(self, key: str, *, for_good: bool = False) -> None:
        """One could not be restored or saved, or saved no work."""
        self._failures[key] += _MOST_FAILURES if for_good else 1
