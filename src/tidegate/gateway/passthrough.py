"""Everything that is not ours: the engine's own API, passed on as it is, held while there is no worker."""

from __future__ import annotations

from tidegate.gateway import errors, openai
from tidegate.gateway.carry import Carrier
from tidegate.gateway.completion import engine_error
from tidegate.gateway.errors import Refusal
from tidegate.gateway.front import RETRY_LEVEL_S, Front
from tidegate.gateway.headers import response_headers
from tidegate.gateway.job import EngineSaid, Finished, Result
from tidegate.gateway.openai import Weight
from tidegate.gateway.prefix import Prefix
from tidegate.gateway.quarantine import fingerprint
from tidegate.gateway.upstream import Upstream
from tidegate.gateway.wire import Reply
from tidegate.policy.admission import Action, Ask, Why, admit

#: POST routes of llama-server that make the model work, without their optional ``/v1``.
_GENERATING = frozenset(
    {
        "/completion",
        "/completions",
        "/chat/completions",
        "/embedding",
        "/embeddings",
        "/infill",
        "/rerank",
        "/reranking",
        "/audio/transcriptions",
    }
)


def generates(method: str, path: str) -> bool:
    """A request like this takes one of the worker's places."""
    return method == "POST" and path.removeprefix("/v1") in _GENERATING


def keeps_slots(method: str, path: str, query: str) -> bool:
    """A request to do anything with a slot but erase it: a saved file that is not whole ends the worker that restores
    it, and each fills the disk."""
    return method == "POST" and path.startswith("/slots/") and query != "action=erase"


def wants_stream(body: bytes) -> bool:
    """The body asks for a stream, in the way that all surfaces of the engine have in common."""
    if b'"stream"' not in body:
        return False
    try:
        return openai.decode(body).get("stream") is True
    except openai.InvalidRequestError:
        # The engine's to say.
        return False


class PassJob:
    """See :class:`tidegate.gateway.job.Job`. Its cost is an estimate from bytes, so length never refuses it."""

    resumable = False
    prefix: Prefix | None = None
    cached: int | None = None
    before: tuple[bytes, ...] = ()
    dropped = 0
    capped = False

    def __init__(
        self, front: Front, method: str, target: str, headers: dict[str, str], body: bytes, *, counted: bool
    ) -> None:
        self.method = method
        self.target = target
        self.counted = counted
        self.body = body
        self._front = front
        self._headers = headers
        self._weight = Weight(len(body))
        self._rewrite = target.startswith("/v1/") and not target.startswith("/v1/messages")
        self.tokens = front.ratios.estimate(front.model_key(), self._weight) if counted else 0
        self.cost_s = front.costs.predict(self.tokens, None) if counted else 0.0

    def headers(self) -> dict[str, str]:
        return self._headers

    @property
    def fingerprint(self) -> bytes:
        return fingerprint(self.target.encode(), self.body)

    async def measure(self, upstream: Upstream) -> None:
        return

    def refusal(self, *, admitted: bool) -> Refusal | None:
        front = self._front
        state = front.station.state
        decision = admit(state.board, Ask(self.tokens, False, False, admitted=admitted))
        if decision.action is not Action.REFUSE:
            return None
        retry, language = front.retry_after(), front.settings.gateway.language
        if decision.why is Why.PRESSURE:
            most = state.board.critical_prompt
            return errors.pressure(tokens=self.tokens, most=most, retry_s=retry, language=language)
        return errors.closed(reason=state.reason, message=state.worker.message, retry_s=retry, language=language)

    async def shape(self, upstream: Upstream, *, admitted: bool) -> Refusal | None:
        return self.refusal(admitted=admitted)

    def reshape(self, said: EngineSaid) -> bool:
        return False

    def refused(self, said: EngineSaid) -> Refusal:
        best = self._front.station.state.board.best_context
        return errors.from_engine(said.status, said.error, best=best, retry_s=self._front.retry_after(RETRY_LEVEL_S))

    async def take(self, response: Reply, carrier: Carrier) -> Result:
        kind = response.headers.get("Content-Type", "")
        plain = "Content-Encoding" not in response.headers
        readable = response.status >= 400 and plain and kind.startswith("application/json")
        # Behind a head that was sent while waiting an error can only be an event.
        if readable and (self._rewrite or response.status == 503 or carrier.client.begun):
            return await engine_error(response)
        headers = response_headers(response.headers.items())
        if "Content-Length" in response.headers and self.method != "HEAD" and not carrier.client.stream:
            # Not for a stream: if it is cut, an event that says so takes the place of the rest.
            headers["Content-Length"] = response.headers["Content-Length"]
        async for data in response.content.iter_any():
            await carrier.pass_on(data, status=response.status, headers=headers)
        await carrier.pass_on(b"", status=response.status, headers=headers)
        return Finished()
