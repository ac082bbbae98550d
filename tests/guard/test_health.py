"""A worker that lives but does not answer, with a request in flight."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable

import pytest

from guard.conftest import Start
from running import Running, eventually
from tidegate.engines.llama_api import VitalSigns, WireError
from tidegate.guard.health import EVERY_S, SILENT, WEDGED, Health
from tidegate.policy.pulse import MOST_SILENCES, STUCK_S

#: Answered, but /slots is not served.
ALIVE = VitalSigns(None, None)


class Desk:
    """Stands in for reactor and helper: timers and jobs run when the test says so."""

    def __init__(self) -> None:
        self.timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self.jobs: list[Callable[[object], None]] = []
        self.now = 0.0
        self.cpu = 0.0
        self.waited_for: bool | None = True
        self.failed: list[tuple[int, str]] = []
        self.health = Health(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            lambda generation, why: self.failed.append((generation, why)),
            cpu=lambda: self.cpu,
            waited_for=lambda: self.waited_for,
        )

    def clock(self) -> float:
        return self.now

    def after(self, name: str, seconds: float, callback: Callable[[], None]) -> None:
        self.timers[name] = (seconds, callback)

    def cancel(self, name: str) -> None:
        self.timers.pop(name, None)

    def submit(self, _job: object, then: Callable[[object], None]) -> None:
        self.jobs.append(then)

    def round(self, answer: object) -> None:
        """The timer fires, the question is asked and answered."""
        seconds, callback = self.timers.pop("health")
        assert seconds == EVERY_S
        self.now += seconds
        callback()
        self.jobs.pop()(answer)


def test_silence_running_is_told_and_told_again() -> None:
    """While paused or observing the telling has no consequence: without a second one the worker would hang for ever."""
    desk = Desk()
    desk.health.watch("unix:/w.sock", 3)
    for times in (0, 1):
        for _ in range(MOST_SILENCES - 1):
            desk.round(WireError("refused"))
            assert desk.failed == [(3, SILENT)] * times
        desk.round(WireError("refused"))
        assert desk.failed == [(3, SILENT)] * (times + 1)


def test_an_unanswered_token_of_an_older_worker_stops_no_watch() -> None:
    desk = Desk()
    stuck(desk)
    token = desk.jobs.pop()
    desk.health.watch("unix:/w.sock", 6)
    token(WireError("timed out"))
    assert desk.failed == []
    desk.round(ALIVE)
    assert desk.timers["health"][0] == EVERY_S


def test_an_answer_is_no_silence() -> None:
    desk = Desk()
    desk.health.watch("unix:/w.sock", 3)
    for answer in [WireError("refused"), ALIVE, WireError("refused"), ALIVE, WireError("refused")]:
        desk.cpu += 1.0
        desk.round(answer)
    assert desk.failed == []


def test_an_answer_for_an_older_worker_counts_for_nobody() -> None:
    desk = Desk()
    desk.health.watch("unix:/1.sock", 1)
    _, ask = desk.timers.pop("health")
    ask()
    desk.health.rest()
    desk.health.watch("unix:/2.sock", 2)
    desk.health.watch("unix:/2.sock", 2)
    desk.jobs.pop()(WireError("gone"))
    desk.round(WireError("refused"))
    assert desk.failed == []


def test_at_rest_nothing_is_asked() -> None:
    desk = Desk()
    desk.health.watch("unix:/w.sock", 1)
    desk.health.rest()
    desk.round(ALIVE)
    _, ask = desk.timers.pop("health")
    ask()
    assert (desk.jobs, desk.timers) == ([], {})
    desk.health.watch("unix:/w.sock", 1)
    desk.round(WireError("refused"))
    assert "health" in desk.timers


def test_moments_of_quiet_neither_hide_the_worker_nor_start_the_count_anew() -> None:
    desk = Desk()
    for _ in range(MOST_SILENCES):
        desk.health.watch("unix:/w.sock", 1)
        desk.health.rest()
        desk.round(WireError("refused"))
    assert desk.failed == [(1, SILENT)]


def stuck(desk: Desk) -> None:
    """Rounds in which slots and CPU stand still, until the worker is asked for a token."""
    desk.health.watch("unix:/w.sock", 5)
    for _ in range(int(STUCK_S / EVERY_S) + 1):
        desk.health.watch("unix:/w.sock", 5)
        desk.round(VitalSigns(1, 17))


def test_a_worker_that_answers_but_does_nothing_is_asked_for_a_token() -> None:
    desk = Desk()
    stuck(desk)
    assert desk.failed == []
    desk.jobs.pop()(WireError("timed out"))
    assert desk.failed == [(5, WEDGED)]
    assert desk.timers["health"][0] == EVERY_S


def test_one_that_gives_the_token_lives() -> None:
    desk = Desk()
    stuck(desk)
    desk.jobs.pop()(True)
    assert desk.failed == []
    desk.health.watch("unix:/w.sock", 5)
    desk.round(VitalSigns(1, 17))
    assert (desk.failed, desk.jobs) == ([], [])


def test_without_a_gateway_the_slots_say_whether_it_works() -> None:
    desk = Desk()
    desk.waited_for = None
    for _ in range(10):
        desk.health.watch("unix:/w.sock", 5)
        desk.round(VitalSigns(0, 17))
    assert (desk.failed, desk.jobs) == ([], [])


def test_faults_of_the_engine_are_looked_into_one_at_a_time_and_seldom() -> None:
    desk = Desk()
    desk.health.fault("unix:/w.sock", 5)
    desk.health.fault("unix:/w.sock", 5)
    desk.jobs.pop()(True)
    desk.health.fault("unix:/w.sock", 5)
    assert (desk.failed, desk.jobs) == ([], [])
    desk.now += 60
    desk.health.fault("unix:/w.sock", 5)
    desk.jobs.pop()(False)
    assert desk.failed == [(5, WEDGED)]


def url_of(running: Running) -> str:
    running.wait_log(r"listening on http://")
    return running.log.partition("listening on ")[2].split()[0]


@pytest.mark.parametrize("how", ["stopped", "deaf"])
def test_a_worker_that_does_not_answer_is_replaced_and_the_request_answered(start: Start, how: str) -> None:
    running = start("--listen", "127.0.0.1:0", kind="up", extra=("--fake-prefill-ms", "100"))
    worker = running.wait_ready()
    if how == "stopped":
        os.kill(worker["pid"], signal.SIGSTOP)
    else:
        os.unlink(worker["url"].removeprefix("unix:"))
    answers: list[int] = []

    def ask() -> None:
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}).encode()
        request = urllib.request.Request(f"{url_of(running)}/v1/chat/completions", body)
        with urllib.request.urlopen(request, timeout=60) as answer:
            answers.append(answer.status)

    asking = threading.Thread(target=ask)
    asking.start()
    after = running.wait_ready(generation=2)
    asking.join()
    assert answers == [200]
    assert after["pid"] != worker["pid"]
    assert running.status()["last_actions"][-1]["reason"] == "it does not answer"
    eventually(lambda: running.status()["gateway"] == {"in_flight": 0, "queued": 0})


def test_whoever_only_observes_says_it(start: Start) -> None:
    running = start("--listen", "127.0.0.1:0", "--observe", kind="up")
    worker = running.wait_ready()
    os.unlink(worker["url"].removeprefix("unix:"))
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
    host, _, port = url_of(running).removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        running.wait_log("would step reset to full: it does not answer")
    assert running.worker()["generation"] == 1
    assert running.status()["last_actions"] == []
