"""The gateway's own endpoints: health, metrics, status, events, the dashboard, and clearing the context."""

from __future__ import annotations

import asyncio
import json
import os

from aiohttp import web

from tidegate.gateway import errors, openai
from tidegate.gateway.access import is_loopback
from tidegate.gateway.assemble import Json, Object, as_object
from tidegate.gateway.client import JSON_TYPE, stream_headers
from tidegate.gateway.errors import Refusal, Surface
from tidegate.gateway.front import Front
from tidegate.gateway.link import CommandError, NoGuardError
from tidegate.gateway.sse import comment, data_event
from tidegate.gateway.state import GuardState
from tidegate.policy.level import Level
from tidegate.record.metrics import CONTENT_TYPE, Family, Sample, render

#: Seconds that the guard gets for a status.
STATUS_S = 1.0
#: The same for one scrape of the metrics; the guard answers in a millisecond.
METRICS_S = 0.5
#: Clearing must be answered within 2 s; the guard gets a little less.
CLEAR_S = 1.8
KEEPALIVE_S = 15.0
#: Dashboards that may listen at once.
MOST_LISTENERS = 32

_CLEAR = "clear_oldest_context"
_WORKER_STATES = ("starting", "ready", "draining", "stopping", "backoff", "parked")

_LEVEL = Family("tidegate_level", "gauge", "1 for the present level, 0 for the others.")
_AXIS = Family("tidegate_axis_bytes", "gauge", "Every memory axis in bytes: its limit, and what is used of it.")
_MEMORY = Family("tidegate_worker_memory_bytes", "gauge", "The worker's memory by kind.")
_GUARD_RSS = Family("tidegate_guard_resident_bytes", "gauge", "Resident memory of the guard.")
_WORKER = Family("tidegate_worker_state", "gauge", "1 for the worker's present state, 0 for the others.")
_GENERATION = Family("tidegate_worker_generation", "gauge", "Number of the worker process.")
_CONTEXT = Family("tidegate_worker_context_tokens", "gauge", "The worker's context in tokens.")
_IN_FLIGHT = Family("tidegate_requests_in_flight", "gauge", "Requests at the worker.")
_QUEUED = Family("tidegate_requests_queued", "gauge", "Requests waiting for the worker.")
_GUARD = Family("tidegate_guard_connected", "gauge", "1 while the guard is connected.")


def refusal_response(refusal: Refusal, surface: Surface = Surface.OPENAI) -> web.Response:
    """A refusal outside any request for the worker."""
    return web.Response(
        status=refusal.http_status(surface),
        body=refusal.body(surface),
        headers={**refusal.all_headers(), "Content-Type": JSON_TYPE},
    )


def _json(value: Json, status: int = 200) -> web.Response:
    return web.Response(status=status, body=json.dumps(value).encode(), headers={"Content-Type": JSON_TYPE})


def memory_samples(status: Json) -> list[Sample]:
    """The memory figures of the guard's ``status`` document; what is missing or no number is left out."""
    found = []
    axes = as_object(status).get("axes")
    for axis in map(as_object, axes if isinstance(axes, list) else []):
        for kind in ("limit", "used"):
            found += _sample(_AXIS, axis.get(f"{kind}_bytes"), {"axis": str(axis.get("name", "")), "kind": kind})
    worker, guard = as_object(as_object(status).get("worker")), as_object(as_object(status).get("guard"))
    for kind in ("anon", "file", "shmem", "swap", "prompt_cache"):
        found += _sample(_MEMORY, worker.get(f"{kind}_bytes"), {"kind": kind})
    return found + _sample(_GUARD_RSS, guard.get("rss_bytes"), {})


def _sample(family: Family, value: Json, labels: dict[str, str]) -> list[Sample]:
    return [Sample(family, value, labels)] if isinstance(value, (int, float)) else []


class Control:
    """Handlers of the gateway's own routes."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._listeners = 0
        with open(os.path.join(os.path.dirname(__file__), "dashboard.html"), "rb") as file:
            self._dashboard = file.read()

    async def dashboard(self, _: web.BaseRequest) -> web.Response:
        """``GET /``."""
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Security-Policy": "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'",
            "Cache-Control": "no-cache",
        }
        return web.Response(body=self._dashboard, headers=headers)

    async def healthz(self, _: web.BaseRequest) -> web.Response:
        """``GET /healthz``: the gateway itself lives."""
        return _json({"status": "ok"})

    async def readyz(self, _: web.BaseRequest) -> web.Response:
        """``GET /readyz``: a short request would be answered now."""
        front = self._front
        state = front.station.state
        if state.board.usable and not front.stopping:
            return _json({"status": "ready", "level": state.board.level.label, "profile": state.worker.profile})
        status: Object = {"status": "not ready", "gate": state.board.gate.value, "worker": state.worker.state or "none"}
        response = _json(status, 503)
        response.headers["Retry-After"] = str(front.retry_after())
        return response

    async def metrics(self, _: web.BaseRequest) -> web.Response:
        """``GET /metrics``. Memory is asked of the guard now; without its answer those lines are missing, for an old
        figure would draw a flat line."""
        try:
            status: Json = await self._front.link.command("status", deadline=METRICS_S)
        except (NoGuardError, CommandError):
            status = {}
        text = render([*self._gauges(), *memory_samples(status), *self._front.counters.samples()])
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    def _gauges(self) -> list[Sample]:
        front = self._front
        state = front.station.state
        worker = state.worker
        found = [Sample(_LEVEL, state.board.level is level, {"level": level.label}) for level in Level]
        found += [Sample(_WORKER, worker.state == name, {"state": name}) for name in _WORKER_STATES]
        found += [
            Sample(_GENERATION, worker.generation),
            Sample(_CONTEXT, worker.context),
            Sample(_IN_FLIGHT, front.pool.in_flight()),
            Sample(_QUEUED, front.line.waiting),
            Sample(_GUARD, front.link.connected),
        ]
        return found

    async def status(self, _: web.BaseRequest) -> web.Response:
        """``GET /tidegate/status``: the guard's status document, with what the gateway has learned of costs."""
        try:
            status = await self._front.link.command("status", deadline=STATUS_S)
            if isinstance(status, dict) and isinstance(gateway := status.get("gateway"), dict):
                gateway["costs"] = self._front.costs.to_json()
            return _json(status)
        except (NoGuardError, CommandError) as error:
            return refusal_response(self._no_guard(f"cannot tell the status: {error}"))

    async def events(self, request: web.BaseRequest) -> web.StreamResponse:
        """``GET /tidegate/events``: the state, now and on every change. A slow reader misses what is outdated."""
        if request.method == "HEAD":
            return web.Response(headers=stream_headers())
        if self._listeners >= MOST_LISTENERS:
            return refusal_response(self._no_guard(f"cannot send events: {MOST_LISTENERS} listen already"))
        station = self._front.station
        changed = asyncio.Event()
        changed.set()

        def listener(_: GuardState, __: GuardState) -> None:
            changed.set()

        response = web.StreamResponse(headers=stream_headers())
        self._listeners += 1
        station.listen(listener)
        try:
            await response.prepare(request)
            while not self._front.stopping:
                if changed.is_set():
                    changed.clear()
                    await response.write(b"event: state\n" + data_event(station.state.raw))
                try:
                    async with asyncio.timeout(KEEPALIVE_S):
                        await changed.wait()
                except TimeoutError:
                    await response.write(comment("tidegate"))
        except ConnectionError:
            pass
        finally:
            station.unlisten(listener)
            self._listeners -= 1
        return response

    async def slots_action(self, request: web.BaseRequest, body: bytes) -> web.Response:
        """``POST /slots/action``: give the oldest context back, within 2 s whatever the guard does."""
        refusal = _foreign(request)
        if refusal is not None:
            return refusal_response(refusal)
        try:
            keep = _keep_tokens(openai.decode(body))
        except openai.InvalidRequestError as error:
            return refusal_response(errors.invalid(error.message, error.param))
        freed, context, success = 0, keep, True
        try:
            # The guard's own limit is a little shorter, so that its answer arrives in ours.
            result = await self._front.link.command(
                "clear_context", deadline=CLEAR_S, keep_tokens=keep, within_s=CLEAR_S - 0.2
            )
        except NoGuardError as error:
            if not self._front.link.connected:
                return refusal_response(self._no_guard(f"cannot clear the context: {error}"))
            # It took the order and works on it: nothing is known to be freed yet.
        except CommandError as error:
            return refusal_response(self._no_guard(str(error)))
        else:
            if isinstance(result, dict):
                freed, context = _int(result.get("freed_bytes"), 0), _int(result.get("context"), keep)
                success = result.get("success") is not False
        return _json({"success": success, "freed_bytes": freed, "context": context})

    def _no_guard(self, message: str) -> Refusal:
        return Refusal(503, message, retry_after=self._front.retry_after(), more={"reason": "guard_unavailable"})


def _int(value: Json, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _keep_tokens(body: Object) -> int:
    action = body.get("action")
    if action != _CLEAR:
        raise openai.InvalidRequestError(f"cannot do {json.dumps(action)}: the known action is {_CLEAR!r}", "action")
    keep = body.get("keep_tokens", 512)
    if isinstance(keep, bool) or not isinstance(keep, int) or not 1 <= keep <= 1 << 20:
        raise openai.InvalidRequestError(
            "cannot take 'keep_tokens': it is not a whole number from 1 to 1048576", "keep_tokens"
        )
    return keep


def _foreign(request: web.BaseRequest) -> Refusal | None:
    """Why this peer may not control us: it is not on this machine."""
    # A Unix socket's peer has no address, and is on this machine.
    address = request.transport.get_extra_info("peername") if request.transport is not None else None
    host = address[0] if isinstance(address, tuple) and address else ""
    try:
        local = not host or is_loopback(host)
    except ValueError:
        local = False
    if not local:
        return Refusal(403, "cannot do this for another machine: it is open on loopback only", "permission_error", None)
    return None
