"""One fault after the other under a running ``tidegate up``, each followed by a request: what was answered, and whether
it is still the same guard.

/payload/files/engines.tar is tests/engines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from board.scenarios import scene

ENGINE = [sys.executable, "-I", "-S", "/opt/engines/fake_engine.py"]
URL = "http://127.0.0.1:8080"
UNIT = Path("/sys/fs/cgroup/system.slice/tidegate.service")
LOG = Path("/out/tidegate.log")
RUN = Path("/run/tidegate")
CONFIG = """
[memory]
budget = "400M"
{memory}
[worker]
{worker}
[protect]
processes = ["robot"]
"""
OWN = f"""engine = "llama-server"
command = {json.dumps(ENGINE)}
load_timeout = "10s"
[[worker.profile]]
name = "full"
extra = {{extra}}
"""
DAY_S = 86400.0
found: dict[str, dict[str, Any]] = {}


def run(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stdout} {done.stderr}"
    return done.stdout.strip()


def start(worker: str, *, log: str = f"append:{LOG}", memory: str = "", more: tuple[str, ...] = ()) -> None:
    """tidegate in a unit, until it answers."""
    config = Path("/out/tidegate.toml")
    config.write_text(CONFIG.format(worker=worker, memory=memory))
    properties = ["Type=notify", "Delegate=yes", "KillMode=mixed", "RuntimeDirectory=tidegate", f"StandardError={log}"]
    environment = ["PATH=/opt/tidegate/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
    flags = [*(f"--property={each}" for each in (*properties, *more)), *(f"--setenv={each}" for each in environment)]
    command = ("tidegate", "up", "--config", str(config), "--log-level", "debug")
    run("systemd-run", "--unit=tidegate", *flags, *command)
    ready()


def stop() -> None:
    run("systemctl", "stop", "tidegate")
    subprocess.run(["systemctl", "reset-failed", "tidegate"], check=False, capture_output=True)


def ready(seconds: float = 60.0) -> None:
    def probe() -> bool:
        try:
            with urllib.request.urlopen(f"{URL}/readyz", timeout=5):
                return True
        except OSError:
            return False

    scene.eventually(probe, seconds=seconds, what=f"/readyz\n{LOG.read_text()[-3000:] if LOG.exists() else ''}")


def status() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(run("tidegate", "status", "--json"))
    return value


def chat() -> int:
    body = {"messages": [{"role": "user", "content": "go on"}], "max_tokens": 4}
    request = urllib.request.Request(f"{URL}/v1/chat/completions", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=90) as answer:
            return int(answer.status) if json.load(answer)["choices"][0]["message"]["content"] else 0
    except urllib.error.HTTPError as error:
        return error.code


def after(name: str, fault: Callable[[], object], *, heal: Callable[[], object] = lambda: None) -> None:
    """Do ``fault``, ask, undo it with ``heal``, and ask again."""
    seen = status()
    mark = LOG.stat().st_size if LOG.exists() else 0
    began = time.monotonic()
    told = fault()
    answered = chat()
    took = time.monotonic() - began
    heal()
    now = status()
    with LOG.open() as log:
        log.seek(mark)
        said = log.read()
    found[name] = {
        "told": told,
        "status": answered,
        "again": chat(),
        "took_s": took,
        "same_guard": now["guard"]["pid"] == seen["guard"]["pid"],
        "same_worker": now["worker"]["pid"] == seen["worker"]["pid"],
        "level": now["level"],
        "said": said[-3000:],
    }


def worker_group() -> Path:
    return next(UNIT.glob("tidegate-worker-*"))


def kill_worker() -> None:
    os.kill(status()["worker"]["pid"], signal.SIGKILL)


def freeze() -> None:
    (worker_group() / "cgroup.freeze").write_text("1")


def reset() -> str:
    done = subprocess.run(["tidegate", "reset", "--json"], check=False, capture_output=True, text=True)
    return done.stdout + done.stderr


def gateway_pid() -> int:
    pids = [int(word) for word in (UNIT / "guard" / "cgroup.procs").read_text().split()]
    return next(pid for pid in pids if b"tidegate.gateway" in Path(f"/proc/{pid}/cmdline").read_bytes())


def step_clock(seconds: float) -> None:
    time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)
    time.sleep(2)


def adj(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def robot() -> subprocess.Popen[bytes]:
    """The board's own job."""
    return subprocess.Popen(["sh", "-c", "printf robot > /proc/$$/comm; while :; do sleep 1; done"])


def protected_again() -> dict[str, int]:
    """The board's job, ended and started again."""
    first = robot()
    scene.eventually(lambda: adj(first.pid) == -1000, seconds=20, what="protection")
    first.kill()
    first.wait()
    second = robot()
    began = time.monotonic()
    scene.eventually(lambda: adj(second.pid) == -1000, seconds=20, what="protection of the next one")
    seen = status()
    result = {
        "after_s": round(time.monotonic() - began),
        "worker": adj(seen["worker"]["pid"]),
        "guard": adj(seen["guard"]["pid"]),
        "gateway": adj(gateway_pid()),
    }
    second.kill()
    second.wait()
    return result


run("tar", "-C", "/opt", "-xf", str(scene.FILES / "engines.tar"))

start(OWN.format(extra="[]"))
after("worker killed", kill_worker)
after("gateway killed", lambda: os.kill(gateway_pid(), signal.SIGKILL), heal=ready)
after("worker frozen", freeze)
after("clock a day ahead", lambda: step_clock(DAY_S))
after("clock a day back", lambda: step_clock(-DAY_S))
after("board's job started again", protected_again)
stop()

start(OWN.format(extra=json.dumps(["--fake-ignore-term"])))
after("TERM ignored", reset)
stop()

start(OWN.format(extra=json.dumps(["--fake-leader-ends", "--fake-anon-mib", "60"])))
bytes_of_zombie = status()["worker"]["anon_bytes"]
after("zombie leader", reset)
found["zombie leader"]["anon_mib"] = bytes_of_zombie / scene.MIB
stop()

run("mkdir", "-p", str(RUN))
run("mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(RUN))
start(OWN.format(extra="[]"), more=("RuntimeDirectoryPreserve=yes",))


def fill() -> str:
    subprocess.run(["dd", "if=/dev/zero", f"of={RUN}/full"], check=False, capture_output=True)
    return reset()


after("run directory full", fill)
stop()
run("umount", str(RUN))

start(OWN.format(extra="[]"), log="journal")


def stop_journal() -> str:
    sockets = ["systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-journald-audit.socket"]
    subprocess.run(["systemctl", "stop", *sockets, "systemd-journald.service"], check=False, capture_output=True)
    return reset()


after("journald stopped", stop_journal, heal=lambda: run("systemctl", "start", "systemd-journald"))
stop()

# A server of somebody else's in a cgroup that is removed and made again.
group = Path("/sys/fs/cgroup/ai_inference")


def serve() -> subprocess.Popen[bytes]:
    group.mkdir(exist_ok=True)
    inside = ["sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', str(group), *ENGINE, "--port", "8081"]
    return subprocess.Popen(inside)


servers = [serve()]
attached = f'cgroup = "{"/ai_inference"}"\nurl = "http://127.0.0.1:8081"\nrestart = "supervisor"'
start(attached)


def remove_group() -> None:
    servers[0].kill()
    servers[0].wait()
    scene.eventually(lambda: not scene.numbers(group / "cgroup.events")["populated"])
    group.rmdir()
    time.sleep(1)
    servers.append(serve())


after("cgroup removed and made again", remove_group)
servers[1].kill()
servers[1].wait()
stop()

# Another user's server may not be signalled.
servers.append(serve())
LOG.write_text("")
properties = ["User=nobody", "Type=notify", "RuntimeDirectory=tidegate", f"StandardError=append:{LOG}"]
LOG.chmod(0o666)
run(
    *("systemd-run", "--unit=tidegate", *(f"--property={each}" for each in properties)),
    *("--setenv=PATH=/opt/tidegate/bin:/usr/bin:/bin", "--setenv=HOME=/tmp"),
    *("tidegate", "guard", "--cgroup", "/ai_inference", "--url", "http://127.0.0.1:8081", "--restart", "supervisor"),
)
scene.eventually(lambda: " ready, profile attached" in LOG.read_text(), what="the nobody's guard")
seen = run(
    "setpriv",
    "--reuid=nobody",
    "env",
    "RUNTIME_DIRECTORY=/run/tidegate",
    "/opt/tidegate/bin/tidegate",
    "status",
    "--json",
)
found["another user's worker"] = {
    "state": json.loads(seen)["worker"]["state"],
    "alive": servers[2].poll() is None,
    "said": LOG.read_text(),
}
stop()
servers[2].kill()
scene.leave("faults", found)
