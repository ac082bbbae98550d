"""``tidegate up`` in front of a server that somebody else starts: nothing is lost over its supervisor's restart."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from typing import Any

from guard.conftest import Foreign, Start
from guard.foreign_server import ForeignServer
from guard.test_attached import config, lines
from running import Running, eventually


def up(start: Start, server: ForeignServer, **keys: str) -> Running:
    running = start("--listen", "127.0.0.1:0", kind="up", config=config(server, **keys))
    running.wait_log(r"listening on http://")
    return running


def ask(running: Running, text: str, *, max_tokens: int = 4) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of one chat completion through the gateway."""
    url = running.log.partition("listening on ")[2].split()[0]
    body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body), timeout=90) as answer:
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), dict(error.headers)


def test_its_shape_is_its_own(start: Start, foreign: Foreign) -> None:
    server = foreign("-c", "2048", "-np", "2").wait_up()
    running = up(start, server)
    running.wait_ready()
    status, _, headers = ask(running, "hi")
    assert (status, headers["x-tidegate-profile"]) == (200, "attached")
    status, body, _ = ask(running, "word " * 1100)
    assert (status, body["error"]["code"], body["error"]["n_ctx"]) == (400, "context_length_exceeded", 1024)


def test_requests_are_held_over_a_death_and_its_restart(start: Start, foreign: Foreign) -> None:
    server = foreign("--fake-token-ms", "50", "-np", "1", delay=1.0).wait_up()
    running = up(start, server)
    worker = running.wait_ready()
    answers: list[tuple[int, str]] = []

    def one(number: int) -> None:
        status, body, _ = ask(running, f"request {number}", max_tokens=20)
        answers.append((status, body["choices"][0]["message"]["content"]))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: running.status()["gateway"] == {"in_flight": 1, "queued": 7})
    os.kill(worker["pid"], signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert answers == [(200, " ".join(f"tok{place}" for place in range(20)))] * 8
    assert running.worker()["pid"] == server.pid() != worker["pid"]


def test_growth_resets_it_between_requests_and_nobody_notices(start: Start, foreign: Foreign) -> None:
    server = foreign("--fake-leak-kib", "10240", "--fake-prefill-ms", "50").wait_up()
    running = up(start, server, memory='budget = "250M"')
    running.wait_ready()
    statuses = [ask(running, f"conversation {number}")[0] for number in range(60)]
    assert statuses == [200] * 60
    done = running.status()["last_actions"]
    assert done, running.log
    assert {action["step"] for action in done} == {"reset to attached"}
    assert {action["result"] for action in done} == {"effective"}


def test_one_that_answers_but_generates_nothing_is_replaced(start: Start, foreign: Foreign) -> None:
    server = foreign("--fake-wedge-at", "3", "-np", "1").wait_up()
    running = up(start, server)
    running.wait_ready()
    assert [ask(running, f"request {number}")[0] for number in range(3)] == [200] * 3
    assert running.status()["last_actions"][-1]["reason"] == "its health is fine, but it generates nothing"


def test_one_that_fails_every_request_is_replaced(start: Start, foreign: Foreign) -> None:
    server = foreign("--fake-fail-from", "3", "-np", "1").wait_up()
    running = up(start, server)
    worker = running.wait_ready()
    assert [ask(running, f"request {number}")[0] for number in range(3)] == [200, 200, 500]
    assert running.wait_ready(generation=2)["pid"] != worker["pid"]
    assert ask(running, "again")[0] == 200


def test_a_server_with_a_key_of_its_own(start: Start, foreign: Foreign) -> None:
    server = foreign("--fake-api-key", "secret").wait_up()
    running = up(start, server)
    worker = running.wait_ready()
    assert ask(running, "hi")[0] == 401
    os.kill(worker["pid"], signal.SIGKILL)
    assert running.wait_ready(generation=2)["state"] == "ready"
    assert len(lines(running, "does not answer")) == 0
