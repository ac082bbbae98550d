"""A step does not cost the prefill of the common beginning, and a trimmed history not that of the rest."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.conftest import Door, Up, both_engines
from running import eventually

CONFIG = """
[memory]
budget = "450M"
[worker]
carry_over = "{carry_over}"
[[worker.profile]]
name = "full"
model = "{model}"
context = 4096
[[worker.profile]]
name = "lean"
model = "{model}"
context = 1024
"""
RULES = " ".join(f"Rule {number}: when sensor {number} reports, say so in one short sentence." for number in range(36))
SYSTEM = {"role": "system", "content": f"You are the voice of a small robot on wheels. {RULES}"}


@dataclass(frozen=True)
class First:
    """An answer's first token: after how many seconds, and how many of its prompt's tokens the engine had already."""

    seconds: float
    cached: int
    prompt: int


def ask(door: Door, messages: list[dict[str, str]]) -> First:
    body: dict[str, Any] = {"messages": messages, "max_tokens": 4, "temperature": 0, "stream": True}
    request = urllib.request.Request(
        f"{door.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    timings: dict[str, int] = {}
    begun, first = time.monotonic(), 0.0
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            timings = chunk.get("timings", timings)
            for choice in chunk["choices"]:
                if choice["delta"].get("content"):
                    first = first or time.monotonic() - begun
    return First(first, timings["cache_n"], timings["cache_n"] + timings["prompt_n"])


def opening(text: str) -> list[dict[str, str]]:
    return [SYSTEM, {"role": "user", "content": text}]


def carried(door: Door, event: str) -> float:
    with urllib.request.urlopen(f"{door.url}/metrics", timeout=10) as answer:
        wanted = f'tidegate_carry_over_total{{event="{event}"}} '
        return next(float(line.removeprefix(wanted)) for line in answer.read().decode().splitlines() if wanted in line)


def after_a_step(door: Door) -> Iterator[First]:
    """The first answers of a worker of less context, of one that follows a kill, and of one of more again."""
    door.wait_ready()
    for text in ("How are you?", "Where are you?"):
        ask(door, opening(text))
    assert door.cli("step", "lean").returncode == 0
    yield ask(door, opening("What do you see?"))
    generation = door.status()["worker"]["generation"]
    os.kill(door.status()["worker"]["pid"], 9)
    eventually(lambda: door.status()["worker"]["generation"] > generation)
    yield ask(door, opening("What do you hear?"))
    assert door.cli("step", "full").returncode == 0
    yield ask(door, opening("What do you feel?"))


@both_engines
def test_the_common_beginning_is_not_read_again(up: Up, model: str) -> None:
    door = up(CONFIG.format(model=model, carry_over="auto"))
    found = list(after_a_step(door))
    print("\nfirst tokens after a step, a kill and a step:", ", ".join(f"{first.seconds:.2f} s" for first in found))
    assert all(first.cached >= 600 for first in found)
    assert all(first.prompt - first.cached < 20 for first in found)
    assert (carried(door, "saved"), carried(door, "failed")) == (1, 0)
    assert (carried(door, "restored"), carried(door, "reused")) == (3, 3)


def test_without_it_every_restart_costs_the_whole_prefill(up: Up, model: str) -> None:
    found = list(after_a_step(up(CONFIG.format(model=model, carry_over="off"))))
    print("\nthe same without:", ", ".join(f"{first.seconds:.2f} s" for first in found))
    assert [first.cached for first in found] == [0, 0, 0]


@both_engines
def test_a_trimmed_history_keeps_what_it_shares(up: Up, model: str) -> None:
    door = up(CONFIG.format(model=model, carry_over="off"))
    door.wait_ready()
    history = opening("Good morning.")
    for number in range(5):
        history.append({"role": "assistant", "content": f"Answer {number}. " + "All is well here. " * 20})
        history.append({"role": "user", "content": f"Question {number}. " + "Tell me more of it. " * 20})
    whole = ask(door, history)
    trimmed = ask(door, [history[0], *history[5:]])
    print(f"\nwhole history {whole.seconds:.2f} s, without its oldest turns {trimmed.seconds:.2f} s")
    assert trimmed.prompt > whole.prompt // 2
    assert trimmed.prompt - trimmed.cached < 20


@pytest.mark.parametrize("directory", ["/proc/none", "/etc/hostname"])
def test_a_directory_that_cannot_be_used_is_told_and_done_without(up: Up, model: str, directory: str) -> None:
    door = up(CONFIG.format(model=model, carry_over=directory))
    door.wait_ready()
    assert f"warning: cannot carry prompts over a restart: {directory}" in door.log
    assert ask(door, opening("How are you?")).seconds > 0
