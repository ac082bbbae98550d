"""One streamed answer, however many workers it takes: what the client has of it, and what a new worker adds.

The first worker's chunks pass as they are. After it is lost the next one is asked in one of two ways, and its chunks
are made to continue the same answer:

- *onward*: the engine's raw completion of the prompt and the text that is there already; exact at temperature 0;
- *over again*: the whole request once more, of which the part that is there already is left out if it is the same.

Nothing passes before something in it carries content, and calls of tools pass only once the answer is finished: half a
call could not be taken back. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tidegate.gateway.assemble import CHUNK_ONLY, Assembler, EngineError, Json, Object
from tidegate.gateway.sse import MOST_EVENT_BYTES, Splitter, data_event
from tidegate.gateway.voice import Voice

_DONE = b"[DONE]"
#: json.loads() of bytes guesses which UTF it is first.
_READER = json.JSONDecoder()
#: The engine's reasons to end a raw completion, other than having found an end.
_CUT_SHORT = "limit"


class DiffersError(Exception):
    """The second answer does not begin with what the client has of the first."""


class Sink(Protocol):
    """Where chunks go: a client's stream, or the assembler of a plain answer."""

    def chunk(self, chunk: Object, raw: bytes) -> bytes:
        """Bytes for the client."""


class Collected:
    """The sink of a plain answer."""

    def __init__(self, *, chat: bool) -> None:
        self.assembler = Assembler(chat=chat)

    def chunk(self, chunk: Object, raw: bytes) -> bytes:
        self.assembler.add(chunk)
        return b""


class Told:
    """What has passed of one choice."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}
        #: Something besides text has passed: log probabilities, what we do not know.
        self.more = False
        self.reason: Json = None

    def text(self, key: str) -> str:
        """All of one text: ``content``, ``reasoning_content``, .."""
        return "".join(self.texts.get(key, ()))


class Answer:
    """Feed it what the engine sends; it returns what may go to the client now.

    ``voice`` is None for a client that wants a plain answer; :attr:`collected` has it then. ``choices`` is how many the
    whole answer has.
    """

    def __init__(self, *, chat: bool, voice: Voice | None, choices: int = 1) -> None:
        self.chat = chat
        self._choices = choices
        self.collected = Collected(chat=chat)
        self._sink: Sink = self.collected if voice is None else voice
        self._voice = voice
        #: Identity of the answer: id, created, model, ..
        self.top: Object = {}
        self.told: dict[int, Told] = {}
        self.usage: Object | None = None
        self.timings: Object | None = None
        #: The engine said that the stream is complete.
        self.done = False
        #: Something that matters has passed.
        self.content = False
        self._way: _Way = _AsItIs()
        self._splitter = Splitter()
        self._held: list[tuple[Object, bytes, list[_Said]]] = []
        self._held_bytes = 0
        #: Choices in the middle of their calls.
        self._calls: set[int] = set()
        self._error: Exception | None = None

    # -- attempts -----------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """The next worker answers the same request over again."""
        if self._voice is None:
            # Nobody has anything of it yet.
            self.collected.assembler = Assembler(chat=self.chat)
            self.top, self.told, self.content = {}, {}, False
        self._begin(_OverAgain(self) if self.content else _AsItIs())

    def go_on(self, *, prompt_tokens: int, told_tokens: int, usage: bool, full: bool = False) -> None:
        """The next worker completes the prompt of ``prompt_tokens`` and the text so far, of ``told_tokens``.

        ``usage`` asks for a chunk with the usage at the end. ``full``: the text is as long as it may be, and only its
        end is missing.
        """
        self._begin(_Onward(self, prompt_tokens=prompt_tokens, told_tokens=told_tokens, usage=usage, full=full))

    def _begin(self, way: _Way) -> None:
        self._way = way
        self._splitter = Splitter()
        self._held.clear()
        self._held_bytes = 0
        self._calls.clear()
        self._error = None
        self.done = False

    @property
    def finished(self) -> bool:
        """Every choice has come and ended."""
        return len(self.told) >= self._choices and all(told.reason is not None for told in self.told.values())

    @property
    def tokens(self) -> int:
        """About how many tokens have passed: the engine sends one in each chunk, now and then two."""
        return sum(len(pieces) for told in self.told.values() for pieces in told.texts.values())

    @property
    def plain_text(self) -> str | None:
        """The text so far, if it is the only thing that the client has; None if there is more than one text."""
        told = self.told.get(0)
        if self.finished:
            return None
        if len(self.told) > 1 or told is None or told.more or set(told.texts) - {"content"}:
            return None
        return told.text("content")

    # -- chunks -------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """Bytes for the client; empty while they are held back.

        Raises:
            ValueError: that is no stream of completion chunks.
            EngineError: the engine reports an error.
            DiffersError: see there.
        """
        self.check()
        out: list[bytes] = []
        try:
            for event in self._splitter.feed(data):
                if event.strip() == _DONE:
                    self.done = True
                    break
                chunk = read_chunk(event)
                if chunk is None:
                    continue
                lines = event.replace(b"\n", b"\ndata: ") if b"\n" in event else event
                for each, raw in self._way.take(chunk, b"data: %b\n\n" % lines):
                    out.append(self._offer(each, raw))
        except (ValueError, EngineError, DiffersError) as error:
            if not any(out):
                raise
            # What came before it comes first.
            self._error = error
        return b"".join(out)

    def check(self) -> None:
        """Raise the error that came behind what :meth:`feed` returned last."""
        if self._error is not None:
            raise self._error

    def closing(self) -> bytes:
        """The end of a complete answer."""
        return b"" if self._voice is None else self._voice.done()

    def reckon(self, prompt_tokens: int) -> bytes:
        """A usage in place of one that the engine did not come to tell; about right."""
        chunk: Object = {"choices": [], **self.top, "usage": _usage(prompt_tokens, self.tokens)}
        return self._pass(chunk, data_event(chunk), [])

    def whole(self) -> Object:
        """The plain answer."""
        return self.collected.assembler.whole()

    def _offer(self, chunk: Object, raw: bytes) -> bytes:
        if "prompt_progress" in chunk and not self.content:
            # It is for now, and repeating it after a restart does no harm.
            return self._release() + self._sink.chunk(chunk, raw)
        said = [_Said(choice_index(choice), choice.get("finish_reason"), pieces(choice)) for choice in choices(chunk)]
        # More than an opening: text, a tool call, a finish, or something unknown.
        carries = not isinstance(chunk.get("choices"), list)
        for each in said:
            carries = carries or bool(each.pieces) or each.reason is not None
            if each.reason is not None:
                self._calls.discard(each.index)
            elif any(key == "tool_calls" for key, _ in each.pieces):
                self._calls.add(each.index)
        if self._calls or not (self.content or carries):
            self._held.append((chunk, raw, said))
            self._held_bytes += len(raw)
            if self._held_bytes > MOST_EVENT_BYTES:
                raise ValueError("cannot read the engine's stream: 4 MiB of openings or of one tool call")
            return b""
        self.content = True
        return self._release() + self._pass(chunk, raw, said)

    def _release(self) -> bytes:
        if not self._held:
            return b""
        held, self._held, self._held_bytes = self._held, [], 0
        return b"".join([self._pass(*each) for each in held])

    def _pass(self, chunk: Object, raw: bytes, said: list[_Said]) -> bytes:
        for key, value in chunk.items():
            if key not in CHUNK_ONLY:
                self.top.setdefault(key, value)
        self.top.setdefault("object", chunk.get("object"))
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = usage
        if isinstance(timings := chunk.get("timings"), dict):
            self.timings = timings
        for each in said:
            told = self.told.get(each.index)
            if told is None:
                told = self.told[each.index] = Told()
            if each.reason is not None:
                told.reason = each.reason
            for key, value in each.pieces:
                if isinstance(value, str):
                    told.texts.setdefault(key, []).append(value)
                else:
                    told.more = True
        return self._sink.chunk(chunk, raw)


@dataclass(frozen=True, slots=True)
class _Said:
    """What one chunk says of one choice."""

    index: int
    reason: Json
    pieces: list[tuple[str, Json]]


class _Way(Protocol):
    """How one worker's chunks become the answer's."""

    def take(self, chunk: Object, raw: bytes) -> Iterable[tuple[Object, bytes]]:
        """The chunks that follow from one of the worker's."""


class _AsItIs:
    def take(self, chunk: Object, raw: bytes) -> Iterable[tuple[Object, bytes]]:
        return ((chunk, raw),)


class _OverAgain:
    """Leaves out what has passed already."""

    def __init__(self, answer: Answer) -> None:
        self._top = dict(answer.top)
        self._left = {
            (index, key): told.text(key) for index, told in answer.told.items() for key in told.texts if told.text(key)
        }
        self._ended = {index for index, told in answer.told.items() if told.reason is not None}

    def take(self, chunk: Object, raw: bytes) -> Iterable[tuple[Object, bytes]]:
        if "prompt_progress" in chunk:
            return ()
        kept = [shown for choice in choices(chunk) if (shown := self._shown(choice)) is not None]
        if choices(chunk) and not kept:
            return ()
        changed: Object = {**chunk, **{key: value for key, value in self._top.items() if key != "object"}}
        if "choices" in chunk:
            changed["choices"] = [*kept]
        return ((changed, data_event(changed)),)

    def _shown(self, choice: Object) -> Object | None:
        """What is new in a choice's chunk; None if nothing is."""
        index = choice_index(choice)
        new: Object = {}
        for key, value in pieces(choice):
            if key == "logprobs":
                # It goes with its text.
                continue
            left = self._left.get((index, key), "")
            if left and isinstance(value, str):
                same = min(len(left), len(value))
                if left[:same] != value[:same]:
                    raise DiffersError
                self._left[index, key] = left[same:]
                if len(value) > same:
                    new[key] = value[same:]
            else:
                new[key] = value
        ends = choice.get("finish_reason") is not None
        if ends and any(left for (at, _), left in self._left.items() if at == index):
            raise DiffersError
        if index in self._ended or not (new or ends):
            return None
        return {**choice, "delta": new} if "delta" in choice else {**choice, "text": new.get("content", "")}


class _Onward:
    """Raw completion chunks as chunks of the answer."""

    def __init__(self, answer: Answer, *, prompt_tokens: int, told_tokens: int, usage: bool, full: bool) -> None:
        self._answer = answer
        self._full = full
        self._prompt_tokens = prompt_tokens
        self._told_tokens = told_tokens
        self._usage = usage

    def take(self, chunk: Object, raw: bytes) -> Iterable[tuple[Object, bytes]]:
        made = []
        text = chunk.get("content")
        if not isinstance(text, str):
            raise ValueError("cannot read the engine's stream: a completion's chunk has no content")
        # Asked for no token the engine still samples one.
        if text and not self._full:
            made.append(self._chunk({"content": text} if self._answer.chat else text, None))
        if chunk.get("stop") is True:
            # So that a raw completion ends as the others do.
            self._answer.done = True
            reason = "length" if self._full or chunk.get("stop_type") == _CUT_SHORT else "stop"
            last = self._chunk({} if self._answer.chat else "", reason)
            if isinstance(chunk.get("timings"), dict) and not self._usage:
                last["timings"] = chunk["timings"]
            made.append(last)
            if self._usage:
                made.append(self._usage_chunk(chunk))
        return [(each, data_event(each)) for each in made]

    def _chunk(self, said: Json, reason: str | None) -> Object:
        choice: Object = {"finish_reason": reason, "index": 0}
        if self._answer.chat:
            choice["delta"] = said
        else:
            choice.update(text=said, logprobs=None)
        return {"choices": [choice], **self._answer.top}

    def _usage_chunk(self, chunk: Object) -> Object:
        new = 0 if self._full else chunk.get("tokens_predicted")
        answer = self._told_tokens + (new if isinstance(new, int) else 0)
        usage = _usage(self._prompt_tokens, answer)
        timings: Object = {"timings": chunk["timings"]} if isinstance(chunk.get("timings"), dict) else {}
        return {"choices": [], **self._answer.top, "usage": usage, **timings}


def _usage(prompt: int, answer: int) -> Object:
    return {"completion_tokens": answer, "prompt_tokens": prompt, "total_tokens": prompt + answer}


# -- reading chunks ---------------------------------------------------------------------------------------------------


def read_chunk(data: bytes) -> Object | None:
    """One event's chunk; None for the ``null`` that b11434 puts between the answers to several prompts.

    Raises:
        ValueError: not a JSON object.
        EngineError: the engine reports an error in place of a chunk.
    """
    try:
        chunk = _READER.decode(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot read the engine's stream: {error}") from None
    if chunk is None:
        return None
    if not isinstance(chunk, dict):
        raise ValueError("cannot read the engine's stream: a chunk is no object")
    if "error" in chunk:
        raise EngineError(chunk["error"])
    return chunk


def choices(chunk: Object) -> list[Object]:
    """The chunk's choices, as far as they are objects."""
    found = chunk.get("choices")
    return [choice for choice in found if isinstance(choice, dict)] if isinstance(found, list) else []


def choice_index(choice: Object) -> int:
    """Which of the request's ``n`` answers it belongs to."""
    index = choice.get("index", 0)
    return index if isinstance(index, int) else 0


def pieces(choice: Object) -> list[tuple[str, Json]]:
    """What a choice's chunk adds, by name; a text completion's ``text`` is named ``content`` too."""
    delta, text, logprobs = choice.get("delta"), choice.get("text"), choice.get("logprobs")
    found: list[tuple[str, Json]] = []
    if isinstance(delta, dict):
        found += [(key, value) for key, value in delta.items() if value and key != "role"]
    if text:
        found.append(("content", text))
    if logprobs:
        found.append(("logprobs", logprobs))
    return found
