"""A worker whose mapped weights no longer fit once a hot neighbour has grown beside it.

``thrash.py WARN CRITICAL NEIGHBOUR_MIB SLOW_FROM_MIB``

A stream of tokens, each of which reads all the weights, goes on the whole time; how many come in each half second is
the throughput. /payload/files/engines.tar is tests/engines, gguf_builder.py the writer of model files.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

from board.scenarios import scene

sys.path.insert(0, str(scene.FILES))
import gguf_builder

WEIGHTS_MIB = {"full": 220, "small": 50}
NEIGHBOUR_MIB, SLOW_FROM_MIB = int(sys.argv[3]), int(sys.argv[4])
#: The last of it comes so slowly that no forecast sees the line.
FAST_MIB_S, SLOW_MIB_S = 10, 2
#: From when the neighbour begins: until it is full, then a while beside it.
WATCHED_S = SLOW_FROM_MIB / FAST_MIB_S + (NEIGHBOUR_MIB - SLOW_FROM_MIB) / SLOW_MIB_S + 14.0
TOKEN_MS = 5
ENGINE = [sys.executable, "-I", "-S", "/opt/engines/fake_engine.py"]
CONFIG = """
[memory]
warn = {warn}
critical = {critical}
[worker]
engine = "llama-server"
command = {command}
step_up_after = "1h"
[[worker.profile]]
name = "full"
model = "/var/tmp/full.gguf"
extra = {extra}
[[worker.profile]]
name = "small"
model = "/var/tmp/small.gguf"
context = 1024
"""
#: Takes argv[1] MiB, at argv[3] MiB/s up to argv[2] and at argv[4] from there; then touches all of it again and again.
HOT = """
import sys, time
size, slow_from = int(sys.argv[1]), int(sys.argv[2])
fast, slow = float(sys.argv[3]), float(sys.argv[4])
held, due = [], time.monotonic()
for number in range(size):
    held.append(bytearray(b"x") * (1 << 20))
    due += 1 / (fast if number < slow_from else slow)
    time.sleep(max(0.0, due - time.monotonic()))
print("full", flush=True)
while True:
    for block in held:
        block[::4096] = block[::4096]
    time.sleep(0.05)
"""
WINDOW_S = 0.5

subprocess.run(["tar", "-C", "/opt", "-xf", str(scene.FILES / "engines.tar")], check=True)
# Not in /out, which comes back whole and has 256 MiB.
for name, size in WEIGHTS_MIB.items():
    with open(f"/var/tmp/{name}.gguf", "wb") as file:
        file.write(gguf_builder.gguf(gguf_builder.llama()))
        file.truncate(size * scene.MIB)
        # Holes would be mapped from one page of zeros.
        file.seek(1 << 20)
        for _ in range(size - 1):
            file.write(b"w" * scene.MIB)
extra = json.dumps(["--fake-read-model", "--fake-token-ms", str(TOKEN_MS)])
config = CONFIG.format(warn=sys.argv[1], critical=sys.argv[2], command=json.dumps(ENGINE), extra=extra)
tokens: list[float] = []
failures: list[str] = []
over = threading.Event()


def stream() -> None:
    """Tokens, request after request; when each came."""
    body = {"messages": [{"role": "user", "content": "go on"}], "max_tokens": 100, "stream": True}
    while not over.is_set():
        request = urllib.request.Request(
            f"{tidegate.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                tokens.extend(time.time() for line in answer if b'"tok' in line or b'" tok' in line)
        except OSError as error:
            failures.append(str(error))
            time.sleep(0.1)


def said() -> list[dict[str, Any]]:
    return [json.loads(line) for line in tidegate.log_path.read_text().splitlines() if line.startswith("{")]


# In a unit with Delegate=yes the worker has a group, whose stalls a busy neighbour does not hide.
tidegate = scene.Tidegate("--log-format", "json", "--log-level", "debug", config=config, delegated=True)
tidegate.wait_ready()
client = threading.Thread(target=stream)
client.start()
time.sleep(5)
neighbour_at = time.time()
arguments = map(str, (NEIGHBOUR_MIB, SLOW_FROM_MIB, FAST_MIB_S, SLOW_MIB_S))
neighbour = subprocess.Popen([sys.executable, "-I", "-S", "-c", HOT, *arguments])
time.sleep(WATCHED_S)
over.set()
client.join()
neighbour.send_signal(signal.SIGKILL)
neighbour.wait()


def throughput(begin: float, end: float) -> list[float]:
    """Tokens a second in each window from ``begin`` to ``end``."""
    counts = [0] * int((end - begin) / WINDOW_S)
    for at in tokens:
        place = int((at - begin) / WINDOW_S)
        if at >= begin and place < len(counts):
            counts[place] += 1
    return [count / WINDOW_S for count in counts]


before = sorted(throughput(neighbour_at - 3, neighbour_at))
usual = before[len(before) // 2]
after = throughput(neighbour_at, neighbour_at + WATCHED_S)
step = next((line for line in said() if line["message"].startswith("step down to small: ")), None)
slow = "".join("x" if each < usual / 2 else " " for each in after)
scene.leave(
    "thrash",
    {
        "usual": usual,
        "after": after,
        "halved_for_s": max(map(len, slow.split())) * WINDOW_S if slow.strip() else 0.0,
        "step_s": None if step is None else step["time"] - neighbour_at,
        "step": step and step["message"],
        "last": sorted(after[-10:])[5],
        "failures": failures,
        "levels": [[line["message"], line.get("diagnosis")] for line in said() if line["message"].startswith("level ")],
        "said": [line["message"] for line in said()][-60:],
    },
)
tidegate.stop()
