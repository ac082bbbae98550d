"""A stock llama-server under systemd, its prompt cache at its default, until the board is full: what happens with the
guard named by the first argument, or with none.

/payload/files/llama-server.tar is the directory of a built llama-server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from board.scenarios import scene

CONVERSATIONS = 24
#: 262 words of the form word+number below 97 are 798-801 tokens of SmolLM2.
WORDS = 262
#: What a client does after a failure: the next person asks half a second later.
AFTER_FAILURE_S = 0.5
HEARTBEAT_S = 0.05
JOB_MIB = 64

SERVER = "http://127.0.0.1:8081"
GATEWAY = "http://127.0.0.1:8080"
UNIT = """
[Service]
ExecStart=/opt/llama/llama-server -m {model} --host 127.0.0.1 --port 8081
Restart=always
RestartSec=1
{more}
"""
#: The same line, 91 % in use, as far as each of them can be told: its own documentation's flags.
RIVALS = {
    "none": "",
    "memory.max": "",
    "earlyoom": "earlyoom -m 9 -s 100 -r 0",
    "nohang": "nohang --monitor --config /out/nohang.conf",
    "systemd-oomd": "/usr/lib/systemd/systemd-oomd",
    "tidegate guard": "tidegate guard --unit llama.service --url " + SERVER,
    "tidegate up": "tidegate up --unit llama.service --url " + SERVER,
}

#: The board's own job: holds what a small controller holds, and when told to end prints the longest time that a beat
#: came late.
HEART = """
import signal, sys, time
late, over, held = 0.0, [], bytearray(b"x") * ({mib} << 20)
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
due = time.monotonic()
while not over:
    due += {every}
    time.sleep(max(0.0, due - time.monotonic()))
    late, due = max(late, time.monotonic() - due), max(due, time.monotonic())
print(late)
"""


def ask(url: str, number: int) -> tuple[int, str]:
    """One conversation: its status (0: no answer) and, of a failure, why."""
    text = " ".join(f"word{(number * 7919 + place * 31) % 97}" for place in range(WORDS))
    body = {"messages": [{"role": "user", "content": f"{number}: {text}. Answer shortly."}], "max_tokens": 8}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, "" if json.load(answer)["choices"] else "no choices"
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")[:300]
    except (OSError, ValueError) as error:
        return 0, f"{type(error).__name__}: {error}"


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def oom_kills() -> int:
    return scene.numbers(Path("/proc/vmstat"))["oom_kill"]


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


who = sys.argv[1]
Path("/opt/llama").mkdir()
subprocess.run(["tar", "-C", "/opt/llama", "-xf", str(scene.FILES / "llama-server.tar")], check=True)
model = next(Path("/root/.cache/tidegate").glob("*.gguf"))
more = "MemoryMax=480M" if who == "memory.max" else ""
if who == "systemd-oomd":
    more = "ManagedOOMMemoryPressure=kill\nManagedOOMMemoryPressureLimit=50%\nManagedOOMSwap=kill"
Path("/etc/systemd/system/llama.service").write_text(UNIT.format(model=model, more=more))
subprocess.run(["systemctl", "daemon-reload"], check=True)
subprocess.run(["systemctl", "start", "llama.service"], check=True)
scene.eventually(lambda: healthy(SERVER), what="llama-server")

heart = subprocess.Popen(
    [sys.executable, "-I", "-S", "-c", HEART.format(every=HEARTBEAT_S, mib=JOB_MIB)], stdout=subprocess.PIPE, text=True
)
# The board's job is there before any guard.
time.sleep(1)
url = SERVER
scene.nohang_config(Path("/out/nohang.conf"))
if who == "systemd-oomd":
    subprocess.run(["systemctl", "start", "systemd-oomd"], check=True)
elif RIVALS[who]:
    kind = "notify" if who.startswith("tidegate") else "exec"
    properties = [f"--property=Type={kind}", "--property=NotifyAccess=all", "--property=RuntimeDirectory=tidegate"]
    environment = ["--setenv=PATH=/opt/tidegate/bin:/usr/sbin:/usr/bin:/sbin:/bin", "--setenv=HOME=/root"]
    command = ["sh", "-c", f"exec {RIVALS[who]}"]
    subprocess.run(["systemd-run", "--unit=rival", *properties, *environment, *command], check=True)
if who == "tidegate up":
    url = GATEWAY
    scene.eventually(lambda: healthy(f"{GATEWAY}"), what="the gateway")

time.sleep(1)
assert not RIVALS[who] or who == "systemd-oomd" or output("systemctl", "is-active", "rival").strip() == "active"
kills, begun = oom_kills(), time.monotonic()
lowest = [1 << 40]
over = threading.Event()


def watch() -> None:
    while not over.wait(0.05):
        lowest[0] = min(lowest[0], scene.numbers(Path("/proc/meminfo"))["MemAvailable"])


watching = threading.Thread(target=watch)
watching.start()
failures = []
for number in range(CONVERSATIONS):
    status, why = ask(url, number)
    if status != 200 or why:
        failures.append({"number": number, "status": status, "why": why})
        time.sleep(AFTER_FAILURE_S)
over.set()
watching.join()
heart.terminate()
units = ["-u", "rival", "-u", "llama", "-u", "systemd-oomd"]
(scene.OUT / "journal.txt").write_text(output("journalctl", "-b", "-o", "short-monotonic", *units))
(scene.OUT / "dmesg.txt").write_text(output("dmesg"))
scene.leave(
    "stock_server",
    {
        "who": who,
        "failures": failures,
        "oom_kills": oom_kills() - kills,
        "restarts": int(output("systemctl", "show", "llama.service", "--property=NRestarts", "--value") or 0),
        "heartbeat_late_s": float(heart.communicate()[0]),
        "took_s": time.monotonic() - begun,
        "least_available_mib": lowest[0] / 1024,
    },
)
