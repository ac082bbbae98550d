"""What the real process costs: memory at rest, memory of held streams, wake-ups, file descriptors, latency."""

from __future__ import annotations

import json
import os
import resource
import socket
import statistics
import time

from gateway.harness import Scene, chat, until
from tidegate.gateway.main import DESCRIPTORS

#: The standard streams, epoll, the event loop's own pair, the listener, the guard's socket.
OWN_DESCRIPTORS = 8


def rss(stage: Scene) -> int:
    """Resident kilobytes of the gateway."""
    with open(f"/proc/{stage.process.pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def switches(stage: Scene) -> int:
    """How often the gateway went to sleep by itself so far."""
    with open(f"/proc/{stage.process.pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt"))


def descriptors(stage: Scene) -> int:
    return len(os.listdir(f"/proc/{stage.process.pid}/fd"))


def test_idle_memory_and_wakeups(stage: Scene) -> None:
    stage.start()
    for _ in range(20):
        assert stage.chat(max_tokens=2).status == 200
    assert rss(stage) <= 45 * 1024
    # What the last answer left ends: its ledger goes out after 0.1 s, the engine's connection is let go after 1 s.
    until(lambda: descriptors(stage) == OWN_DESCRIPTORS)
    before = switches(stage)
    time.sleep(2.0)  # the measurement itself: nothing may happen in this time
    assert switches(stage) - before <= 1


def test_it_may_have_more_descriptors_than_a_shell_gives(stage: Scene) -> None:
    soft, hard = resource.prlimit(stage.process.pid, resource.RLIMIT_NOFILE)
    assert soft == min(hard, DESCRIPTORS)


def test_memory_of_held_streams(stage: Scene) -> None:
    stage.start(1, "--fake-token-ms", "200", "-np", "64", "-c", "262144", slots=64)
    for _ in range(20):
        stage.chat(max_tokens=2)
    before = rss(stage)
    socks = []
    body = json.dumps(chat(stream=True, max_tokens=300)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    # 64 that are being answered and 136 that wait; then all 200 wait for a new worker.
    for _ in range(200):
        sock = socket.create_connection(("127.0.0.1", stage.port))
        sock.sendall(head + body)
        socks.append(sock)
    until(lambda: stage.metric("tidegate_requests_in_flight") == 64 and stage.queued() == 136)
    answering = rss(stage) - before
    assert answering / 200 <= 40
    stage.tell(gate="hold")
    until(lambda: stage.metric("tidegate_requests_in_flight") == 0 and stage.queued() > 0)
    grown = rss(stage) - before
    print(f"\n{answering / 200:.0f} KB a stream in flight or waiting, {grown / 200:.0f} KB held")
    for sock in socks:
        sock.close()
    assert grown / 200 <= 40
    until(lambda: stage.metric("tidegate_requests_in_flight") == 0 and stage.queued() == 0)


def test_no_descriptor_is_lost(stage: Scene) -> None:
    stage.start()
    stage.chat(max_tokens=1)
    before = descriptors(stage)
    for generation in range(2, 12):
        stage.engine(generation)
        stage.announce(generation)
        assert stage.chat(max_tokens=2).status == 200
        stage.engines[generation - 1].kill()
        connection = stage.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True, max_tokens=4000)))
        connection.getresponse().close()
        connection.close()
    until(lambda: stage.metric("tidegate_requests_in_flight") == 0)
    until(lambda: descriptors(stage) <= before + 1)


def test_added_latency(stage: Scene) -> None:
    engine = stage.start()
    body = json.dumps(chat(max_tokens=1))
    through = []
    connection = stage.connect()
    for _ in range(60):
        begun = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body)
        connection.getresponse().read()
        through.append(time.perf_counter() - begun)
    connection.close()
    assert len(engine.bodies()) == 60
    # 3 ms on an idle machine, of which the engine's two answers are half.
    assert statistics.median(through) < 0.03
