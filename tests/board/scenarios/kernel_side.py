"""The kernel's side of what tidegate relies on: adj below zero, a PSI trigger of under 2 s that fires."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

from board.scenarios import scene


def lowest_adj() -> int:
    """What a child's oom_score_adj is after it wrote -900."""
    code = "f = open('/proc/self/oom_score_adj', 'r+'); f.write('-900'); f.flush(); f.seek(0); print(f.read())"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def trigger(path: str, text: str) -> int:
    """A descriptor with a PSI trigger on it. The kernel overwrites the last byte, so there must be a NUL."""
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(fd, text.encode() + b"\0")
    return fd


def seconds_to_event(small: scene.Cgroup) -> float:
    """From a process that grows over memory.high to the event of a 50 ms in 1 s trigger; -1 without one in 20 s."""
    fd = trigger(str(small.path / "memory.pressure"), "some 50000 1000000")
    began = time.monotonic()
    process = small.start(*scene.hog(256, rate=100))
    poll = select.poll()
    poll.register(fd, select.POLLPRI)
    events = poll.poll(20_000)
    took = time.monotonic() - began
    process.kill()
    process.wait()
    os.close(fd)
    return took if events and events[0][1] & select.POLLPRI and not events[0][1] & select.POLLERR else -1.0


os.close(trigger("/proc/pressure/memory", "some 50000 500000"))
throttled = scene.Cgroup("throttled", memory_high="64M", memory_swap_max="0")
scene.leave(
    "kernel_side",
    {
        "lowest_adj": lowest_adj(),
        "psi": Path("/proc/pressure/memory").read_text(),
        "event_after_s": seconds_to_event(throttled),
        "high_events": throttled.numbers("memory.events")["high"],
    },
)
