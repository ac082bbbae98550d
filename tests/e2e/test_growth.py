"""The scenario tidegate exists for: a prompt cache that grows until the board is full."""

from __future__ import annotations

import pytest

from e2e.conftest import Up, both_engines_slowly
from e2e.load import Sampler, conversation, post
from running import eventually

MIB = 1 << 20
BUDGET = 450 * MIB

CONFIG = """
[memory]
hold = "5s"
[worker]
step_up_after = "8s"
[[worker.profile]]
name = "full"
context = 4096
prompt_cache = "8G"
[[worker.profile]]
name = "lean"
context = 1024
kv_type = "q8_0"
prompt_cache = 0
"""


@both_engines_slowly
@pytest.mark.long
@pytest.mark.timeout(900)
def test_forty_conversations_within_the_budget(up: Up) -> None:
    door = up(CONFIG, "--budget", "450M")
    door.wait_ready()
    url = f"{door.url}/v1/chat/completions"
    with Sampler(door) as sampler:
        for number in range(40):
            status, answer, _ = post(url, {"messages": conversation(number), "max_tokens": 4})
            assert status == 200, answer
            assert answer["choices"][0]["message"]["content"]
        downs = [a for a in door.status()["last_actions"] if a["step"] == "down to lean"]
        assert downs, door.log
        first = downs[0]
        assert first["result"] == "effective"
        # Really freed: the old worker held what the step says, by our own samples, and it is gone.
        held = max(counted for when, _, counted in sampler.samples if first["time"] - 1 < when <= first["time"] + 6)
        assert first["freed_bytes"] == pytest.approx(held, rel=0.1)

        eventually(
            lambda: door.worker()["profile"] == "full" and door.worker()["state"] == "ready",
            seconds=120,
            what="a step up after quiet",
        )
        clamped = door.worker()["prompt_cache_bytes"]
        assert 0 < clamped < 200 * MIB
        steps = len(door.status()["last_actions"])
        for number in range(100, 114):
            status, answer, _ = post(url, {"messages": conversation(number), "max_tokens": 4})
            assert status == 200, answer
        held_status = door.status()
        assert len(held_status["last_actions"]) == steps, "the clamped prompt cache did not hold"
        assert held_status["level"] == "normal"
    assert sampler.most <= BUDGET
    shown = [
        f"most {sampler.most / MIB:.0f} MiB of {BUDGET / MIB:.0f}",
        f"step down freed {first['freed_bytes'] / MIB:.0f} MiB in {first['took_ms']} ms",
        f"prompt cache clamped to {clamped / MIB:.0f} MiB",
        f"after 14 more conversations {held_status['worker']['anon_bytes'] / MIB:.0f} MiB",
    ]
    print("\n" + "; ".join(shown))
