"""The gateway's own endpoints."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from functools import partial
from typing import Any

import pytest

from gateway.harness import Background, Scene, chat, until
from tidegate.gateway.access import is_loopback
from tidegate.record.metrics import Counters, Family, Sample, render

CLEAR = {"action": "clear_oldest_context", "keep_tokens": 512}


def test_health_and_readiness(stage: Scene) -> None:
    assert stage.get("/healthz").json == {"status": "ok"}
    reply = stage.get("/readyz")
    assert (reply.status, reply.json["gate"]) == (503, "hold")
    assert 1 <= int(reply.headers["retry-after"]) <= 120
    stage.start()
    assert stage.get("/readyz").json == {"status": "ready", "level": "normal", "profile": "full"}


def test_a_head_request_needs_no_worker(stage: Scene) -> None:
    for path in ("/", "/healthz", "/metrics", "/tidegate/events"):
        reply = stage.request("HEAD", path)
        assert (reply.status, reply.body) == (200, b"")


def test_metrics_are_what_prometheus_reads(stage: Scene) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    stage.start()
    stage.chat(max_tokens=3)
    stage.chat(words=5000)
    reply = stage.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in parser.text_string_to_metric_families(reply.body.decode())}
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["tidegate_level", ("level", "normal")] == 1
    assert values["tidegate_level", ("level", "critical")] == 0
    assert values["tidegate_worker_state", ("state", "ready")] == 1
    assert values["tidegate_axis_bytes", ("axis", "budget"), ("kind", "used")] == 100
    assert values["tidegate_axis_bytes", ("axis", "system"), ("kind", "limit")] == 8000
    assert values["tidegate_worker_memory_bytes", ("kind", "swap")] == 10
    assert values["tidegate_guard_resident_bytes",] == 13
    assert values["tidegate_requests_total", ("outcome", "answered")] == 1
    assert values["tidegate_requests_total", ("outcome", "refused_length")] == 1
    assert values["tidegate_tokens_total", ("kind", "prompt")] == 4
    assert values["tidegate_tokens_total", ("kind", "completion")] == 3
    assert families["tidegate_requests"].type == "counter"
    assert all(family.documentation for family in families.values())


def test_memory_is_asked_of_the_guard_each_time(stage: Scene) -> None:
    used = iter((100, 200))
    stage.guard.answers["status"] = lambda _: {"axes": [{"name": "budget", "used_bytes": next(used)}]}
    assert b'tidegate_axis_bytes{axis="budget",kind="used"} 100' in stage.get("/metrics").body
    assert b'tidegate_axis_bytes{axis="budget",kind="used"} 200' in stage.get("/metrics").body
    documents: list[Any] = [None, [], {"axes": 5, "worker": [], "guard": "x"}, {"axes": [1, {"used_bytes": "x"}]}]
    for document in documents:
        stage.guard.answers["status"] = partial(lambda shown, _: shown, document)
        reply = stage.get("/metrics")
        assert reply.status == 200
        assert b"tidegate_axis_bytes{" not in reply.body
    del stage.guard.answers["status"]
    assert stage.get("/metrics").status == 200


def test_the_metrics_writer_escapes(stage: Scene) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    family = Family("x_total", "counter", "a\\b\nc")
    counters = Counters()
    counters.start(family, "name", ["zero"])
    counters.add(family, 2.5, name='q"u\\o\nte')
    gauge = Family("y", "gauge", "g")
    text = render([*counters.samples(), Sample(gauge, float("inf")), Sample(gauge, float("-inf"), {"a": "b"})])
    found = {f.name: f for f in parser.text_string_to_metric_families(text)}
    assert found["x"].documentation == "a\\b\nc"
    assert {s.labels["name"]: s.value for s in found["x"].samples} == {"zero": 0.0, 'q"u\\o\nte': 2.5}
    assert found["y"].samples[0].value == float("inf")
    with pytest.raises(ValueError, match="cannot count"):
        counters.add(family, -1)


def test_the_status_is_the_guards(stage: Scene) -> None:
    stage.guard.answers["status"] = lambda _: {"level": "normal", "worker": {"pid": 5}}
    reply = stage.get("/tidegate/status")
    assert (reply.status, reply.json) == (200, {"level": "normal", "worker": {"pid": 5}})


def test_a_silent_guard_is_told_of_within_a_second(stage: Scene) -> None:
    del stage.guard.answers["status"]
    begun = time.monotonic()
    reply = stage.get("/tidegate/status")
    assert reply.status == 503
    assert 0.9 < time.monotonic() - begun < 1.9
    assert "cannot tell the status" in reply.error["message"]
    stage.guard.die()
    until(lambda: stage.metric("tidegate_guard_connected") == 0)
    assert stage.get("/tidegate/status").status == 503


def test_events_tell_every_change(stage: Scene) -> None:
    connection = stage.connect()
    connection.request("GET", "/tidegate/events")
    response = connection.getresponse()
    assert response.getheader("content-type") == "text/event-stream"

    def event() -> Any:
        assert response.readline() == b"event: state\n"
        line = response.readline()
        assert response.readline() == b"\n"
        return json.loads(line[6:])

    assert event()["level"] == "normal"
    stage.tell(level="warn")
    assert event()["level"] == "warn"
    response.close()
    connection.close()


def test_the_dashboard_needs_nothing_from_elsewhere(stage: Scene) -> None:
    reply = stage.get("/")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    page = reply.body.decode()
    assert "tidegate/status" in page
    assert not re.search(r"(?:src|href)\s*=|https?://|@import|url\(", page)


# -- clearing the context -----------------------------------------------------------------------------------------


def test_clearing_the_context_with_plain_urllib(stage: Scene) -> None:
    stage.guard.answers["clear_context"] = lambda message: {
        "success": True,
        "freed_bytes": 1000,
        "context": message["keep_tokens"],
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{stage.port}/slots/action", data=json.dumps(CLEAR).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=5) as reply:
        assert json.load(reply) == {"success": True, "freed_bytes": 1000, "context": 512}
    message = stage.guard.wait_for(lambda message: message.get("command") == "clear_context")
    assert message["keep_tokens"] == 512
    assert 0 < message["within_s"] < 2


def test_clearing_is_answered_within_2_s_by_a_slow_guard(stage: Scene) -> None:
    begun = time.monotonic()
    reply = stage.post("/slots/action", CLEAR)
    assert time.monotonic() - begun < 2.0
    assert (reply.status, reply.json) == (200, {"success": True, "freed_bytes": 0, "context": 512})


def test_clearing_without_a_guard_is_not_claimed(stage: Scene) -> None:
    stage.guard.die()
    until(lambda: stage.metric("tidegate_guard_connected") == 0)
    assert stage.post("/slots/action", CLEAR).status == 503


def test_a_guard_that_cannot_says_so(stage: Scene) -> None:
    def refuse(_: dict[str, Any]) -> Any:
        raise ValueError("cannot clear the context: paused")

    stage.guard.answers["clear_context"] = refuse
    reply = stage.post("/slots/action", CLEAR)
    assert (reply.status, reply.error["message"]) == (503, "cannot clear the context: paused")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "not JSON"),
        ({}, "clear_oldest_context"),
        ({"action": "erase"}, "clear_oldest_context"),
        ({**CLEAR, "keep_tokens": "many"}, "keep_tokens"),
        ({**CLEAR, "keep_tokens": 0}, "keep_tokens"),
        ({**CLEAR, "keep_tokens": True}, "keep_tokens"),
    ],
)
def test_a_wrong_order_is_a_400(stage: Scene, body: Any, why: str) -> None:
    reply = stage.post("/slots/action", body)
    assert reply.status == 400
    assert why in reply.error["message"]


def test_a_web_page_of_another_origin_may_not_clear(stage: Scene) -> None:
    reply = stage.post("/slots/action", CLEAR, {"Origin": "http://evil.example"})
    assert reply.status == 403
    stage.guard.answers["clear_context"] = lambda _: {"success": True, "freed_bytes": 0, "context": 512}
    assert stage.post("/slots/action", CLEAR, {"Origin": f"http://127.0.0.1:{stage.port}"}).status == 200


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("192.168.1.2", False), ("fe80::1%eth0", False)],
)
def test_who_is_on_this_machine(address: str, local: bool) -> None:
    assert is_loopback(address) is local


def test_own_endpoints_answer_while_requests_are_held(stage: Scene) -> None:
    job = Background(lambda: stage.post("/v1/chat/completions", chat(max_tokens=1)))
    until(lambda: stage.queued() == 1)
    for path in ("/healthz", "/metrics", "/v1/models", "/"):
        assert stage.get(path).status == 200
    stage.start()
    assert job.result().status == 200
