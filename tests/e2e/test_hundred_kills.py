"""Kill -9 of the worker at any moment of any answer: nobody loses, misses or doubles a word."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.conftest import Door, Up, both_engines, both_engines_slowly
from e2e.load import worker_pids
from real_engine import RealEngine

CONFIG = """
[gateway]
hold = "60s"
[[worker.profile]]
name = "full"
model = "{model}"
context = 2048
slots = {slots}
"""
CLIENTS = 8
#: Some 2 s of generating, so that most kills hit the middle of an answer.
TOKENS = 48


@dataclass(frozen=True)
class Answer:
    """``stream``: how it was asked for; ``usage``: prompt and answer in tokens."""

    text: str
    reason: str
    usage: tuple[int, int]


def body(number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Tell me a story about a fox and {number} geese."}]
    return {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "cache_prompt": False}


def _open(url: str, asked: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", data=json.dumps(asked).encode(), headers={"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=300)


def plain(url: str, number: int) -> Answer:
    with _open(url, body(number)) as answer:
        value = json.load(answer)
    (choice,) = value["choices"]
    usage = value["usage"]
    return Answer(
        choice["message"]["content"], choice["finish_reason"], (usage["prompt_tokens"], usage["completion_tokens"])
    )


def streamed(url: str, number: int) -> Answer:
    text, done, ids, usage = "", 0, set(), dict[str, int]()
    reasons: list[str] = []
    with _open(url, {**body(number), "stream": True, "stream_options": {"include_usage": True}}) as answer:
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            assert not done, "something came after [DONE]"
            if line.strip() == b"data: [DONE]":
                done += 1
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            ids.add(chunk["id"])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert done == 1
    assert len(ids) == 1
    (reason,) = reasons
    return Answer(text, reason, (usage["prompt_tokens"], usage["completion_tokens"]))


def kill_at_random(door: Door, kills: int, *, seed: int) -> tuple[list[tuple[int, Answer]], list[str]]:
    """Every client asks one thing after the other, until the worker was killed ``kills`` times and all have an answer.

    (number, answer) of each, and what failed."""
    url, over = door.url, threading.Event()
    answers: list[tuple[int, Answer]] = []
    failed: list[str] = []

    def client(number: int) -> None:
        while not over.is_set():
            try:
                answers.append((number, (streamed if number % 2 else plain)(url, number)))
            except Exception as error:
                failed.append(f"client {number}: {error!r}")

    clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    chance = random.Random(seed)
    for each in clients:
        each.start()
    killed, victim = 0, -1
    while killed < kills:
        # The moment is what is random: before the first token, in an answer, or between two.
        time.sleep(chance.uniform(0.1, 1.5))
        pids = [pid for pid in worker_pids(door.process.pid) if pid != victim]
        if pids:
            victim = pids[0]
            os.kill(victim, signal.SIGKILL)
            killed += 1
    over.set()
    for each in clients:
        each.join()
    return answers, failed


def check(up: Up, model: str, *, kills: int, slots: int) -> None:
    door = up(CONFIG.format(model=model, slots=slots))
    door.wait_ready()
    expected = [plain(door.url, number) for number in range(CLIENTS)]
    assert [streamed(door.url, number) for number in range(CLIENTS)] == expected
    began = time.monotonic()
    answers, failed = kill_at_random(door, kills, seed=kills)
    took = time.monotonic() - began
    wrong = [(number, answer) for number, answer in answers if answer != expected[number]]
    print(
        f"\n{kills} kills in {took:.0f} s, {slots} slots: {len(answers)} answers, {len(failed)} failed, "
        f"{len(wrong)} other than without a kill"
    )
    assert failed == []
    assert wrong == []
    assert len(answers) >= CLIENTS


@both_engines
@pytest.mark.timeout(180)
def test_ten_kills(up: Up, engine: RealEngine, model: str) -> None:
    check(up, model, kills=10, slots=1)


@both_engines_slowly
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_kills(up: Up, engine: RealEngine, model: str) -> None:
    check(up, model, kills=100, slots=1)
