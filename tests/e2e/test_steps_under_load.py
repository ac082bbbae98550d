"""Steps while requests run: none may fail."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from e2e.conftest import Up, both_engines
from e2e.load import conversation, post
from running import eventually

CONFIG = """
[[worker.profile]]
name = "full"
context = 2048
[[worker.profile]]
name = "lean"
context = 1024
kv_type = "q8_0"
"""


@both_engines
@pytest.mark.long
@pytest.mark.timeout(300)
def test_twenty_steps_under_load_fail_no_request(up: Up) -> None:
    door = up(CONFIG)
    door.wait_ready()
    base = f"{door.url}/v1"
    over = threading.Event()

    def ask(worker: int) -> list[str]:
        client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=60)
        answers = []
        number = worker * 1000
        while not over.is_set():
            number += 1
            messages = cast("list[ChatCompletionMessageParam]", conversation(number, words=6))
            if number % 2:
                chunks = list(client.chat.completions.create(model="m", messages=messages, max_tokens=16, stream=True))
                answers.append("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
                assert any(c.choices and c.choices[0].finish_reason for c in chunks), "a stream without its end"
            else:
                whole = client.chat.completions.create(model="m", messages=messages, max_tokens=16)
                answers.append(whole.choices[0].message.content or "")
        return answers

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, worker) for worker in range(4)]
        took = []
        try:
            for turn in range(20):
                done = door.cli("step", "full" if turn % 2 else "lean", "--json")
                assert done.returncode == 0, done.stderr
                took.append(json.loads(done.stdout)["took_ms"])
        finally:
            over.set()
        answers = [answer for future in asking for answer in future.result()]
    assert len(answers) >= 20
    assert all(answers)
    took.sort()
    print(
        f"\n20 steps, {len(answers)} answers, none failed; a step took {took[10]} ms (median), {took[-1]} ms (longest)"
    )


def test_slots_action_answers_an_old_script_and_trims(up: Up) -> None:
    door = up(CONFIG)
    door.wait_ready()
    started = time.monotonic()
    request = urllib.request.Request(
        f"{door.url}/slots/action",
        data=json.dumps({"action": "clear_oldest_context", "keep_tokens": 512}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 200
        document = json.load(answer)
    assert time.monotonic() - started < 2.0
    assert document["success"] is True
    assert document["context"] == 512
    assert document["freed_bytes"] >= 0

    history = [
        {"role": "system", "content": "You are short."},
        *(
            {"role": role, "content": f"{role} {turn}: " + " ".join(f"word{turn}{place}" for place in range(30))}
            for turn in range(8)
            for role in ("user", "assistant")
        ),
        {"role": "user", "content": "And now?"},
    ]
    status, body, headers = post(f"{door.url}/v1/chat/completions", {"messages": history, "max_tokens": 4})
    assert status == 200, body
    assert body["usage"]["prompt_tokens"] <= 512
    assert "trimmed" in headers["x-tidegate-degraded"]
    assert int(headers["x-tidegate-dropped-messages"]) > 0
    # What is short enough is left alone.
    _, _, headers = post(f"{door.url}/v1/chat/completions", {"messages": history[-1:], "max_tokens": 4})
    assert "x-tidegate-degraded" not in headers
    eventually(lambda: door.status()["gateway"] == {"in_flight": 0, "queued": 0})
