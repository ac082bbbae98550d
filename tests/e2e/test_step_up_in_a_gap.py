"""A client that asks one thing after another leaves gaps of milliseconds; the better profile comes back in one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from e2e.conftest import Up
from e2e.load import post
from running import eventually

CONFIG = """
[memory]
hold = "1s"
[worker]
step_up_after = "2s"
[[worker.profile]]
name = "full"
context = 2048
[[worker.profile]]
name = "lean"
context = 1024
"""


def test_a_busy_client_does_not_keep_the_worse_profile(up: Up) -> None:
    door = up(CONFIG)
    door.wait_ready()
    assert door.cli("step", "lean").returncode == 0
    url, until = f"{door.url}/v1/chat/completions", time.monotonic() + 40
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12}

    def ask() -> list[int]:
        statuses = []
        while door.worker()["profile"] != "full" and time.monotonic() < until:
            statuses += [post(url, body)[0] for _ in range(5)]
        return statuses

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        eventually(lambda: door.worker()["profile"] == "full", seconds=40, what="a step up between two requests")
        assert set(asking.result()) == {200}
