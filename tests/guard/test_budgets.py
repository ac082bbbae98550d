"""What the guard costs, asserted on the real process: resident memory, descriptors, threads, wake-ups."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from guard.conftest import Start
from running import Running, eventually, memory_of

MIB = 1 << 20
MOST_RSS = 16 * MIB
MOST_FDS = 16


def descriptors(running: Running) -> dict[str, str]:
    """Open descriptors of the guard, less those that it shares with the test's own shell."""
    found = {}
    for fd in Path(f"/proc/{running.process.pid}/fd").iterdir():
        try:
            found[fd.name] = os.readlink(fd)
        except FileNotFoundError:
            pass
    return found


def settled(running: Running) -> dict[str, str]:
    """The descriptors once only the listening socket is left: the connection of the last question is closed."""
    eventually(lambda: sum("socket:" in target for target in descriptors(running).values()) == 1)
    return descriptors(running)


def threads(running: Running) -> int:
    return len(os.listdir(f"/proc/{running.process.pid}/task"))


def limited_ancestors(running: Running) -> int:
    return sum(axis["name"].startswith("cgroup:") for axis in running.status()["axes"])


def steps(running: Running, count: int) -> None:
    for turn in range(count):
        answer = running.ask("step", profile="full" if turn % 2 else "lean")
        assert answer["ok"], answer


def check(running: Running, count: int) -> None:
    running.wait_ready()
    steps(running, 4)
    before, resident = settled(running), memory_of(running.process.pid)["VmRSS"]
    assert len(before) <= MOST_FDS + 3 * limited_ancestors(running), before
    assert resident <= MOST_RSS
    steps(running, count)
    after, later = settled(running), memory_of(running.process.pid)["VmRSS"]
    assert len(after) == len(before), (before, after)
    assert threads(running) == 2
    assert later <= MOST_RSS
    # 32 remembered actions are all that may have been added.
    assert later - resident <= MIB
    print(f"\nguard: {later / MIB:.1f} MiB, {len(after)} descriptors, 2 threads after {count} steps")


def test_memory_descriptors_and_threads(start: Start) -> None:
    check(start(), 40)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_same_after_a_thousand_steps(start: Start) -> None:
    check(start(), 1000)


def switches(running: Running) -> int:
    """How often the guard's two threads went to sleep by themselves."""
    total = 0
    for task in Path(f"/proc/{running.process.pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def test_at_rest_one_look_an_interval(start: Start) -> None:
    running = start()
    running.wait_ready()
    # The worker is ready, nothing is in flight: from the next look on the pace is that of the interval, 0.2 s here.
    first = running.status()["guard"]["looks"]
    eventually(lambda: running.status()["guard"]["looks"] > first + 1)
    before, slept, began = running.status()["guard"]["looks"], switches(running), time.monotonic()
    eventually(lambda: time.monotonic() - began >= 4.0)
    woken = switches(running) - slept
    span = time.monotonic() - began
    looks = running.status()["guard"]["looks"] - before
    assert looks <= span / 0.2 + 1
    # One wake-up a look; the question above and a pre-emption are the rest.
    assert woken <= looks + 4
    assert looks >= span / 0.2 * 0.5


def test_an_engine_that_floods_its_output_costs_next_to_nothing(start: Start) -> None:
    running = start(extra=("--fake-flood",))
    running.wait_ready()
    used, began = running.status()["guard"]["cpu_s"], time.monotonic()
    eventually(lambda: time.monotonic() - began >= 2.0)
    share = (running.status()["guard"]["cpu_s"] - used) / (time.monotonic() - began)
    # 40 % when it is read as fast as it comes.
    assert share < 0.05
    assert memory_of(running.process.pid)["VmRSS"] <= MOST_RSS
