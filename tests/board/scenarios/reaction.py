"""How long from crossing the critical line to the first signal: ``reaction.py WHO MIB_PER_S RUNS`` (0: at full speed).

A process named ``filler`` takes anonymous memory and writes down, in a file that it shares with this one, when and how
much is available. What it wrote last before it died was written before the signal, and the signal came before the next
4 MiB: that is how exact the figures are, and they are the same for TERM and KILL.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from board.scenarios import scene

#: Available share at the critical line, 91 % in use.
CRITICAL = 0.09
RECORDS = 1 << 14
RECORD = struct.Struct("dq")
FILLER = """
import mmap, os, signal, struct, sys, time
path, rate, records = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
file = open(path, "r+b")
shared = mmap.mmap(file.fileno(), 0)
meminfo = os.open("/proc/meminfo", os.O_RDONLY)
ended = signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print("ready", flush=True)
sys.stdin.readline()
held, record, begun = [], struct.Struct("dq"), time.monotonic()
for number in range(records):
    text = os.pread(meminfo, 200, 0)
    available = int(text[text.index(b"MemAvailable:") + 13 :].split(None, 1)[0]) << 10
    record.pack_into(shared, number * record.size, time.monotonic(), available)
    # Populated in the kernel: page faults one by one would be the benchmark of the emulator.
    held.append(mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
    if rate:
        time.sleep(max(0.0, begun + (number + 1) * 4 / rate - time.monotonic()))
time.sleep(1e6)
"""
RIVALS = {
    "none": (),
    "earlyoom": ("earlyoom", "-m", "9,8.9", "-s", "100,100", "-r", "0"),
    "nohang": ("nohang", "--monitor", "--config", "/out/nohang.conf"),
    "systemd-oomd": ("systemctl", "start", "systemd-oomd"),
    "tidegate": ("tidegate", "guard", "--process", "filler", "--restart", "supervisor"),
}


def total() -> int:
    return scene.numbers(Path("/proc/meminfo"))["MemTotal"] << 10


def oom_kills() -> int:
    return scene.numbers(Path("/proc/vmstat"))["oom_kill"]


def run_filler(rate: float, ready: Any) -> dict[str, Any]:
    """One run: fill until somebody ends it."""
    path = Path("/dev/shm/filler")
    path.write_bytes(b"\0" * (RECORDS * RECORD.size))
    filling = ["/opt/filler/filler", "-I", "-S", "-c", FILLER, str(path), str(rate), str(RECORDS)]
    command = ["sh", "-c", 'echo 0 >/proc/self/oom_score_adj; exec "$@"', "sh", *filling]
    kills = oom_kills()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as filler:
        assert filler.stdout is not None
        assert filler.stdin is not None
        filler.stdout.readline()
        ready(filler.pid)
        filler.stdin.write(b"\n")
        filler.stdin.close()
        status = filler.wait(120)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as shared:
        records = [record for record in RECORD.iter_unpack(shared[:]) if record[0]]
    line = total() * CRITICAL
    crossed = next((time_ for time_, available in records if available <= line), None)
    last, before = records[-1], records[max(0, len(records) - 33)]
    rate_seen = (before[1] - last[1]) / max(1e-9, last[0] - before[0])
    # The signal came after the last record and before the next one would have been written.
    step = (last[0] - before[0]) / max(1, min(32, len(records) - 1))
    return {
        "reaction_s": None if crossed is None else last[0] + step - crossed,
        "rate_mib_s": rate_seen / scene.MIB,
        "left_mib": last[1] / scene.MIB,
        "ended_by": "kernel" if oom_kills() > kills else signal.Signals(-status).name if status < 0 else "SIGTERM",
    }


OOMD = """
[OOM]
SwapUsedLimit=91%
"""

who, rate, runs = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
# The one to be ended is the filler.
Path("/proc/self/oom_score_adj").write_text("-900")
Path("/opt/filler").mkdir()
os.symlink(os.path.realpath(sys.executable), "/opt/filler/filler")
scene.nohang_config(Path("/out/nohang.conf"))
if who == "systemd-oomd":
    Path("/etc/systemd/oomd.conf.d").mkdir()
    Path("/etc/systemd/oomd.conf.d/line.conf").write_text(OOMD)
    properties = ["ManagedOOMSwap=kill", "ManagedOOMMemoryPressure=kill"]
    subprocess.run(["systemctl", "set-property", "--runtime", "--", "system.slice", *properties], check=True)
if RIVALS[who]:
    log = open("/out/rival.log", "wb")  # noqa: SIM115
    rival = subprocess.Popen(RIVALS[who], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    time.sleep(3)
    assert who == "systemd-oomd" or rival.poll() is None, Path("/out/rival.log").read_text()


def wait_for_guard(pid: int) -> None:
    """Until the guard has found this filler; the others look at every process anyway."""
    if who == "tidegate":
        scene.eventually(lambda: f"worker {pid} ready" in Path("/out/rival.log").read_text(), what="the guard")
    time.sleep(0.5)


scene.leave("reaction", {"who": who, "runs": [run_filler(rate, wait_for_guard) for _ in range(runs)]})
