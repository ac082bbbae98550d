"""From TERM to the next token of a short prompt, ten times each: a worker of ours, a server restarted by systemctl, and
the bare engine started again by hand. A request waits at the gateway from before the reset.

/payload/files/llama-server.tar is the directory of a built llama-server.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from board.scenarios import scene

RUNS = 10
SERVER = "http://127.0.0.1:8081"
ENGINE = ["/opt/llama/llama-server"]
UNIT = """
[Service]
ExecStart=/opt/llama/llama-server -m {model} -c 4096 -np 1 --cache-ram 0 --host 127.0.0.1 --port 8081
Restart=no
"""
OWN = """
[worker]
engine = "llama-server"
command = ["/opt/llama/llama-server"]
"""
ATTACHED = f"""
[worker]
unit = "llama.service"
url = "{SERVER}"
restart = ["systemctl", "restart", "llama.service"]
"""


def token(url: str) -> None:
    """One token of a short prompt."""
    body = {"messages": [{"role": "user", "content": "Is the pump on?"}], "max_tokens": 1, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["choices"]


def said(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def ask(tidegate: scene.Tidegate, before: int, times: list[float]) -> None:
    """A token, asked for once the gateway holds, so that the old worker cannot answer; ``times`` gets when it came."""
    scene.eventually(
        lambda: any(line["message"].startswith("stopping worker") for line in said(tidegate.log_path)[before:])
    )
    token(tidegate.url)
    times.append(time.time())


def resets(name: str, config: str) -> list[dict[str, float]]:
    """Seconds from TERM to the old worker gone, and to the token, of each run."""
    tidegate = scene.Tidegate("--log-format", "json", "--log-level", "debug", config=config)
    tidegate.wait_ready()
    token(tidegate.url)
    found = []
    for _ in range(RUNS):
        before = len(said(tidegate.log_path))
        answered: list[float] = []
        asking = threading.Thread(target=ask, args=(tidegate, before, answered))
        asking.start()
        subprocess.run(["tidegate", "reset"], check=True, capture_output=True)
        asking.join()
        lines = said(tidegate.log_path)[before:]
        term = next(line["time"] for line in lines if line["message"].startswith("stopping worker"))
        gone = next(line["time"] for line in lines if " freed " in line["message"])
        found.append({"stop_s": gone - term, "token_s": answered[0] - term})
    tidegate.stop()
    (scene.OUT / f"{name}.log").write_bytes(tidegate.log_path.read_bytes())
    tidegate.log_path.unlink()
    return found


def bare(model: str) -> list[float]:
    """Seconds from the start of the engine to a token, as a script would restart it."""
    found = []
    for _ in range(RUNS):
        began = time.monotonic()
        command = [*ENGINE, "-m", model, "-c", "4096", "-np", "1", "--cache-ram", "0", "--port", "8099"]
        engine = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def healthy() -> bool:
            try:
                with urllib.request.urlopen("http://127.0.0.1:8099/health", timeout=5):
                    return True
            except OSError:
                return False

        scene.eventually(healthy)
        token("http://127.0.0.1:8099")
        found.append(time.monotonic() - began)
        engine.kill()
        engine.wait()
    return found


Path("/opt/llama").mkdir()
subprocess.run(["tar", "-C", "/opt/llama", "-xf", str(scene.FILES / "llama-server.tar")], check=True)
model = str(next(Path("/root/.cache/tidegate").glob("*.gguf")))
own = resets("own", OWN)
Path("/etc/systemd/system/llama.service").write_text(UNIT.format(model=model))
subprocess.run(["systemctl", "daemon-reload"], check=True)
subprocess.run(["systemctl", "start", "llama.service"], check=True)
attached = resets("attached", ATTACHED)
subprocess.run(["systemctl", "stop", "llama.service"], check=True)
scene.leave("reset_time", {"own": own, "attached": attached, "bare": bare(model)})
