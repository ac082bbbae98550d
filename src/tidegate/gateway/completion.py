"""A chat or text completion on its way: counted, admitted, trimmed, streamed upstream, whole or streamed back."""

from __future__ import annotations

import json
import math
import random

import aiohttp
from aiohttp import web

from tidegate.gateway import errors, onward, openai, tokens
from tidegate.gateway.answer import Answer, DiffersError
from tidegate.gateway.assemble import EngineError, Json, count
from tidegate.gateway.carry import Carrier
from tidegate.gateway.client import JSON_TYPE, stream_headers
from tidegate.gateway.errors import Refusal
from tidegate.gateway.flight import Loss
from tidegate.gateway.front import RETRY_LEVEL_S, TOKENS, Front
from tidegate.gateway.job import EngineSaid, Finished, Result
from tidegate.gateway.openai import PART_TOKENS, Completion, Weight
from tidegate.gateway.prefix import Prefix, prefix_of
from tidegate.gateway.quarantine import fingerprint
from tidegate.gateway.sse import STREAM_TYPE
from tidegate.gateway.tokens import START_RATIO
from tidegate.gateway.upstream import Upstream
from tidegate.gateway.voice import Voice
from tidegate.gateway.wire import Reply
from tidegate.policy.admission import Action, Ask, Decision, Why, admit, fits_surely
from tidegate.policy.trim import Piece, may_trim, trim

#: A chat template's own opening and the start of the answer: a default system prompt is 20 to 100 tokens.
_TEMPLATE_TOKENS = 200
#: Rounds of trimming and counting; the last drops everything that may go.
_TRIM_ROUNDS = 6
#: How often the engine may refuse a shape for its length before its word is final.
_MOST_RESHAPES = 2
#: An engine's error is a few hundred bytes.
_MOST_ERROR_BYTES = 1 << 20

_DIFFERS = (
    "cannot finish the answer: the worker was changed or died in the middle of it, and what the next one answers "
    "begins in another way. Send it again."
)


class CompletionJob:
    """See :class:`tidegate.gateway.job.Job`. ``passed`` are the client's headers that go to the engine."""

    method = "POST"
    counted = True
    resumable = True

    def __init__(self, front: Front, completion: Completion, target: str, passed: dict[str, str], voice: Voice) -> None:
        self.target = self._target = target
        self.before: tuple[bytes, ...] = ()
        self.body = b""
        self.dropped = 0
        self.capped = False
        self._front = front
        self._completion = completion
        self.prefix: Prefix | None = None
        self.cached: int | None = None
        self._headers = {**passed, "Content-Type": "application/json"}
        self._weights = completion.weights
        self._weight = sum(self._weights, completion.fixed)
        self._roles = completion.roles
        self._can_trim = may_trim(self._roles)
        self._counted: dict[str, int] = {}
        self._reshapes = 0
        self._voice = voice
        shown = voice if completion.stream else None
        self._answer = Answer(chat=completion.chat, voice=shown, choices=completion.choices)
        #: Where the client set none: so that an answer that is begun again has a chance to be the same.
        self._seed = completion.seed if completion.seed is not None else random.getrandbits(31)
        #: Tokens that the whole answer may have, from when it was first sent; None: as the engine has it.
        self._limit: int | None = None
        self.tokens = front.ratios.estimate(front.model_key(), self._weight)
        self.cost_s = front.costs.predict(self.tokens, completion.max_tokens)

    def headers(self) -> dict[str, str]:
        return self._headers

    @property
    def fingerprint(self) -> bytes:
        body = self._completion.body
        return fingerprint(*(openai.encode(body[key]) for key in ("messages", "prompt", "tools") if key in body))

    @property
    def _param(self) -> str:
        return "messages" if self._completion.chat else "prompt"

    # -- what it costs, and whether it may go -------------------------------------------------------------------

    async def measure(self, upstream: Upstream) -> None:
        front = self._front
        # One after the other: side by side on the cores that also generate, twenty counts took a second each. And the
        # first of them teaches how heavy the others are at most, so that they need none before their turn.
        async with front.counting:
            board = front.station.state.board
            long = self._ask(admitted=True).prompt_tokens >= max(board.best_context, board.context)
            if long and self._uncounted():
                await self._measure(upstream, tokens.PATIENT_COUNT_S)

    def _uncounted(self) -> bool:
        """The engine has not counted it, could, and has to: its bytes leave open whether it fits."""
        known = self._front.model_key() in self._counted or self._weight.parts
        return not (known or self._fits_surely())

    async def _measure(self, upstream: Upstream, patience: float) -> None:
        model = self._front.model_key()
        counted = await tokens.count(upstream, self._completion, self._headers, patience=patience)
        if counted is not None:
            self._counted[model] = counted
            self._front.ratios.learn(model, self._weight, counted)

    def _fits_surely(self) -> bool:
        """No tokenizer makes more tokens than bytes, and a message's own tokens are fewer than its JSON's bytes."""
        if self._completion.body.get("tools"):
            # Templates wrap tools into pages of instructions of their own.
            return False
        most = self._weight.size + _TEMPLATE_TOKENS
        return fits_surely(self._front.station.state.board, most, self._completion.max_tokens)

    def refusal(self, *, admitted: bool) -> Refusal | None:
        decision = admit(self._front.station.state.board, self._ask(admitted=admitted))
        return self._refusal(decision) if decision.action is Action.REFUSE else None

    async def shape(self, upstream: Upstream, *, admitted: bool) -> Refusal | None:
        if self._uncounted():
            board, cost = self._front.station.state.board, self._ask(admitted=admitted).prompt_tokens
            fits = fits_surely(board, cost, self._completion.max_tokens)
            await self._measure(upstream, tokens.COUNT_S if fits else tokens.PATIENT_COUNT_S)
        self.dropped, completion = 0, self._completion
        ask = self._ask(admitted=admitted)
        decision = admit(self._front.station.state.board, ask)
        if decision.action is Action.TRIM:
            completion, kept, exact = await self._trimmed(upstream, ask.prompt_tokens, decision.limit)
            self.dropped = len(self._roles) - len(completion.messages)
            ask = Ask(kept, exact, False, ask.max_tokens, admitted)
            decision = admit(self._front.station.state.board, ask)
        if decision.action is Action.REFUSE:
            return self._refusal(decision)
        self.tokens = ask.prompt_tokens
        text = self._answer.plain_text if self._answer.content and onward.possible(self._completion) else None
        if text is not None and await self._go_on(upstream, completion, text, decision.max_tokens):
            self.prefix = None
            return None
        if self._front.carry_over.enabled:
            self.prefix = prefix_of(completion)
        self._answer.restart()
        self.target, self.before = self._target, ()
        self.capped, self._limit = decision.capped, decision.max_tokens
        self.body = completion.upstream(decision.max_tokens, self._seed)
        return None

    async def _go_on(self, upstream: Upstream, completion: Completion, text: str, room: int | None) -> bool:
        """Ask for what follows ``text``, in ``room`` tokens at most; whether the engine can be asked so."""
        told = self._answer.tokens
        most = [told + room] if room is not None else []
        most += [self._limit] if self._limit is not None else []
        limit = min(most, default=None)
        rest = await onward.ask(upstream, completion, text, limit=limit, seed=self._seed, headers=self._headers)
        if rest is None:
            return False
        usage = not self._completion.stream or self._completion.wants_usage
        self._answer.go_on(prompt_tokens=rest.prompt_tokens, told_tokens=rest.told_tokens, usage=usage, full=rest.full)
        self.target, self.before, self.body = onward.TARGET, rest.before, rest.body
        return True

    def _ask(self, *, admitted: bool) -> Ask:
        model = self._front.model_key()
        counted = self._counted.get(model)
        cost = counted
        if cost is None:
            cost = self._front.ratios.estimate(model, self._weight)
            if not self._weight.parts:
                cost = min(cost, self._weight.size + _TEMPLATE_TOKENS)
        cost += self._answer.tokens
        return Ask(cost, counted is not None, self._can_trim, self._completion.max_tokens, admitted)

    async def _trimmed(self, upstream: Upstream, cost: int, limit: int) -> tuple[Completion, int, bool]:
        """Drop old messages until the engine's own count fits: (request, tokens, whether the engine counted them)."""
        keep = list(range(len(self._roles)))
        completion, exact = self._completion, False
        for left in reversed(range(_TRIM_ROUNDS)):
            sizes = [_size(self._weights[index]) for index in keep]
            fixed = _size(self._completion.fixed)
            scale = cost / max(1.0, fixed + sum(sizes))
            pieces = [
                Piece(self._roles[index], math.ceil(size * scale)) for index, size in zip(keep, sizes, strict=True)
            ]
            result = trim(pieces, limit if left else 0, fixed=math.ceil(fixed * scale))
            if not result.dropped:
                break
            keep = [keep[index] for index in result.keep]
            completion = self._completion.with_messages(keep)
            counted = None
            if not self._weight.parts:
                counted = await tokens.count(upstream, completion, self._headers)
            cost, exact = (result.cost, False) if counted is None else (counted, True)
            if cost <= limit:
                break
        return completion, cost, exact

    def _refusal(self, decision: Decision) -> Refusal:
        front = self._front
        state = front.station.state
        cost = self._ask(admitted=True).prompt_tokens
        retry, language = front.retry_after(), front.settings.gateway.language
        if decision.why is Why.TOO_LONG:
            best = max(state.board.best_context, state.board.context)
            return errors.too_long(tokens=cost, context=best, best=best, retry_s=0, param=self._param)
        if decision.why is Why.TOO_LONG_NOW:
            board, later = state.board, front.retry_after(RETRY_LEVEL_S)
            return errors.too_long(
                tokens=cost, context=board.context, best=board.best_context, retry_s=later, param=self._param
            )
        if decision.why is Why.PRESSURE:
            return errors.pressure(tokens=cost, most=state.board.critical_prompt, retry_s=retry, language=language)
        return errors.closed(reason=state.reason, message=state.worker.message, retry_s=retry, language=language)

    # -- the engine's errors ------------------------------------------------------------------------------------

    def reshape(self, said: EngineSaid) -> bool:
        error = said.error
        if self._reshapes >= _MOST_RESHAPES or not isinstance(error, dict) or not self._can_trim:
            return False
        counted = count(error, "n_prompt_tokens")
        if error.get("type") != "exceed_context_size_error" or counted <= self.tokens:
            return False
        # We had only an estimate, and the engine has just counted what we sent: scale the whole by that.
        self._reshapes += 1
        whole = self._ask(admitted=True).prompt_tokens
        self._counted[self._front.model_key()] = math.ceil(whole * counted / max(1, self.tokens))
        return True

    def refused(self, said: EngineSaid) -> Refusal:
        front = self._front
        best = front.station.state.board.best_context
        retry = front.retry_after(RETRY_LEVEL_S)
        return errors.from_engine(said.status, said.error, best=best, retry_s=retry, param=self._param)

    # -- the answer ---------------------------------------------------------------------------------------------

    async def take(self, response: Reply, carrier: Carrier) -> Result:
        if response.status != 200:
            return await engine_error(response)
        if response.content_type != STREAM_TYPE:
            return EngineSaid(502, f"cannot read the engine's answer: it is {response.content_type}, not {STREAM_TYPE}")
        try:
            return await self._take(response, carrier)
        except EngineError as error:
            return EngineSaid(_status_of(error.body), error.body)
        except DiffersError:
            return EngineSaid(503, {"message": _DIFFERS, "type": "server_error", "code": "worker_lost"}, fault=False)
        except ValueError as error:
            return EngineSaid(502, {"message": str(error), "type": "server_error"})

    async def _take(self, response: Reply, carrier: Carrier) -> Result:
        answer = self._answer
        headers = stream_headers(self._voice.stream_type)
        try:
            async for data in response.content.iter_any():
                out = answer.feed(data)
                if out:
                    await carrier.pass_on(out, status=200, headers=headers, content=answer.content)
                answer.check()
                if answer.done:
                    break
        except (aiohttp.ClientError, OSError):
            if not self._whole():
                raise
        if not answer.done and not self._whole():
            raise aiohttp.ClientPayloadError("the stream ended early")
        if not answer.told:
            raise ValueError("cannot read the engine's stream: it ends without an answer")
        self._learn(answer.usage, answer.timings)
        if self._completion.stream:
            await carrier.pass_on(b"", status=200, headers=headers)
            last = b""
            if self._completion.wants_usage and answer.usage is None and not answer.done:
                # The worker died between the last word and its count: ours takes its place.
                last = answer.reckon(self._ask(admitted=True).prompt_tokens - answer.tokens)
            return Finished(last=last + answer.closing())
        whole = self._voice.whole(answer.whole())
        body = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        return Finished(web.Response(body=body, headers={**carrier.head(), "Content-Type": JSON_TYPE}))

    def _whole(self) -> bool:
        """What has come of a stream that broke off is all of the answer; a plain one has its usage, too, or it is had
        once more: nobody has seen any of it."""
        return self._answer.finished and (self._completion.stream or self._answer.usage is not None)

    def _learn(self, usage: Json, timings: Json) -> None:
        """Take the engine's own figures from the end of an answer."""
        prompt, answer = _figures(usage, timings)
        if isinstance(timings, dict) and isinstance(cached := timings.get("cache_n"), int):
            self.cached = cached
        counters, model = self._front.counters, self._front.model_key()
        self._front.costs.learn(timings, predicted=self.cost_s)
        counters.add(TOKENS, prompt, kind="prompt")
        counters.add(TOKENS, answer, kind="completion")
        if not self.dropped and model not in self._counted:
            self._front.ratios.learn(model, self._weight, prompt)


def _size(weight: Weight) -> float:
    """One number for a weight: bytes, with a part as the bytes that would cost as many tokens."""
    return weight.size + weight.parts * PART_TOKENS / START_RATIO


def _figures(usage: Json, timings: Json) -> tuple[int, int]:
    """(prompt, answer) in tokens, 0 where unknown."""
    if isinstance(usage, dict):
        return count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    if isinstance(timings, dict):
        return count(timings, "prompt_n") + count(timings, "cache_n"), count(timings, "predicted_n")
    return 0, 0


def _status_of(error: Json) -> int:
    """The HTTP status in an engine's error object; 500 if there is none."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else 500


async def engine_error(response: Reply) -> EngineSaid | Loss:
    """The engine's error answer; a worker that is still loading is none, but a reason to wait."""
    if response.status < 400:
        return EngineSaid(502, f"cannot read the engine's answer: status {response.status} where 200 was expected")
    data = b""
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > _MOST_ERROR_BYTES:
            break
    try:
        value: Json = json.loads(data)
    except (ValueError, RecursionError):
        value = data[:500].decode("utf-8", "replace")
    error = value.get("error", value) if isinstance(value, dict) else value
    if response.status == 503 and isinstance(error, dict) and error.get("type") == "unavailable_error":
        return Loss.LOADING
    return EngineSaid(response.status, error)
