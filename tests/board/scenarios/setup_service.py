"""`tidegate setup` on a booted board: the shipped unit at work, its guard killed, stopped, hung; then undone.

/payload/files: engines.tar is tests/engines, for the fake llama-server; model.gguf a header that can be planned with.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from board.scenarios import scene

UNIT = Path("/etc/systemd/system/tidegate.service")
GROUP = Path("/sys/fs/cgroup/system.slice/tidegate.service")
CONFIG = Path("/etc/tidegate/tidegate.toml")
URL = "http://127.0.0.1:8080"
SYSCTLS = ("vm/panic_on_oom", "vm/swappiness", "kernel/sysrq", "vm/overcommit_memory", "vm/overcommit_ratio")
#: What a fresh machine changes by itself.
_BUSY = ("/var/lib/systemd", "/var/log", "/var/cache", "/var/tmp", "/var/lib/private")
#: Run in the service's own sandbox: what the guard needs, tried.
PROBE = "import tidegate.host.capabilities as c; print('probe', vars(c.probe()))"


def run(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0 or not check, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def setup(*flags: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("tidegate", "setup", "--json", *flags))
    return found


def snapshot() -> dict[str, list[Any]]:
    """Every file, link and directory that setup could have touched."""
    found: dict[str, list[Any]] = {}
    for top in ("/etc", "/opt", "/root", "/usr/lib/systemd", "/var"):
        for directory, names, files in os.walk(top):
            names[:] = [name for name in names if f"{directory}/{name}" not in _BUSY and name != "__pycache__"]
            for name in (*names, *files):
                path = f"{directory}/{name}"
                seen = os.lstat(path)
                entry: list[Any] = [seen.st_mode, seen.st_uid, seen.st_gid]
                if stat.S_ISLNK(seen.st_mode):
                    entry = [os.readlink(path)]
                elif stat.S_ISREG(seen.st_mode):
                    entry += [hashlib.sha256(Path(path).read_bytes()).hexdigest(), seen.st_mtime_ns]
                found[path] = entry
    return found


def sysctls() -> dict[str, str]:
    return {key: Path("/proc/sys", key).read_text().strip() for key in SYSCTLS}


def protection() -> dict[str, str]:
    """memory.min of what is protected, and above it."""
    own = ("system.slice/tidegate.service", "system.slice/tidegate.service/guard")
    tops = ("system.slice", "system.slice/camera.service", *own)
    files = {name: Path("/sys/fs/cgroup", name, "memory.min") for name in tops}
    return {name: file.read_text().strip() for name, file in files.items() if file.exists()}


def show(key: str) -> str:
    return run("systemctl", "show", "tidegate.service", f"--property={key}", "--value")


def status() -> dict[str, Any]:
    done = subprocess.run(["tidegate", "status", "--json"], check=False, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def wait_ready(*, other_guard_than: int = 0) -> dict[str, Any]:
    def probe() -> bool:
        seen = status()
        ready = bool(seen) and seen["worker"]["state"] == "ready" and seen["guard"]["pid"] != other_guard_than
        try:
            with urllib.request.urlopen(f"{URL}/readyz", timeout=5):
                return ready
        except OSError:
            return False

    scene.eventually(probe, seconds=60, what=f"ready: {run('journalctl', '-o', 'cat', '-n', '40', check=False)}")
    return status()


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def of_process(pid: int) -> dict[str, Any]:
    text = Path(f"/proc/{pid}/status").read_text()
    fields = dict(re.findall(r"^(\w+):\s+(.*)$", text, re.MULTILINE))
    return {
        "oom_score_adj": int(Path(f"/proc/{pid}/oom_score_adj").read_text()),
        "group": Path(f"/proc/{pid}/cgroup").read_text().strip().removeprefix("0::"),
        "seccomp": fields["Seccomp"],
        "cap_bnd": int(fields["CapBnd"], 16),
        "locked_kb": int(fields["VmLck"].split()[0]),
    }


class Clients:
    """Requests one after the other, each of which must be answered."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while not self._stop.is_set():
            body = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 8}
            request = urllib.request.Request(
                f"{URL}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    self.codes.append(str(answer.status))
            except OSError as error:
                self.codes.append(repr(error))

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join()
        return self.codes


def crash() -> dict[str, Any]:
    """The guard killed by -9 under load, and what became of worker and requests."""
    before = wait_ready()
    clients = Clients()
    scene.eventually(lambda: len(clients.codes) > 3)
    began = time.monotonic()
    os.kill(before["guard"]["pid"], signal.SIGKILL)
    after = wait_ready(other_guard_than=before["guard"]["pid"])
    took = time.monotonic() - began
    count = len(clients.codes)
    scene.eventually(lambda: len(clients.codes) > count + 3)
    codes = clients.stop()
    return {
        "guards": [before["guard"]["pid"], after["guard"]["pid"]],
        "workers": [before["worker"]["pid"], after["worker"]["pid"]],
        "generations": [before["worker"]["generation"], after["worker"]["generation"]],
        "codes": sorted(set(codes)),
        "requests": len(codes),
        "took_s": took,
        "subtree_control": (GROUP / "cgroup.subtree_control").read_text().split(),
    }


def left() -> list[str]:
    """What runs in the unit's cgroup."""
    pids = [pid for path in GROUP.rglob("cgroup.procs") for pid in path.read_text().split()]
    return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]


def prepare() -> None:
    run("tar", "-C", "/opt", "-xf", str(scene.FILES / "engines.tar"))
    Path("/models").mkdir()
    shutil.copy(scene.FILES / "model.gguf", "/models/model.gguf")
    command = json.dumps([sys.executable, "-I", "-S", "/opt/engines/fake_engine.py"])
    CONFIG.parent.mkdir()
    CONFIG.write_text(
        f'[memory]\nbudget = "200M"\ninterval = "500ms"\n[worker]\nengine = "llama-server"\ncommand = {command}\n'
        '[[worker.profile]]\nname = "full"\nmodel = "/models/model.gguf"\ncontext = 4096\n'
        'extra = ["--fake-token-ms", "5", "--fake-ignore-term"]\n'
        '[protect]\nunits = ["camera.service"]\nmemory_min = "32M"\n'
    )
    Path("/etc/systemd/system/camera.service").write_text("[Service]\nExecStart=/bin/sleep infinity\n")
    # Somebody's own, for undo to bring back.
    Path("/etc/sysctl.d").mkdir(exist_ok=True)
    Path("/etc/sysctl.d/60-tidegate.conf").write_text("vm.swappiness = 61\n")
    Path("/etc/sysctl.d/60-tidegate.conf").chmod(0o600)
    run("systemctl", "daemon-reload")
    run("systemctl", "start", "camera.service")


prepare()
found: dict[str, Any] = {}
tree, values, mins = snapshot(), sysctls(), protection()
found["dry_run"] = setup("--dry-run")["script"]
found["dry_run_touched"] = snapshot() != tree
found["setup"] = setup()
found["active_without_now"] = show("ActiveState")
found["enabled"] = run("systemctl", "is-enabled", "tidegate.service")
found["sysctls"] = {"before": values, "set": sysctls()}

# A probe in the sandbox, before the guard.
probe = Path("/etc/systemd/system/tidegate.service.d/probe.conf")
probe.parent.mkdir()
probe.write_text(f'[Service]\nExecStartPre={sys.executable} -c "{PROBE}"\n')
run("systemctl", "daemon-reload")
run("systemctl", "start", "tidegate.service")
seen = wait_ready()
scene.eventually(lambda: show("ActiveState") == "active", seconds=20)
found["memory_min"] = {"before": mins, "set": protection()}
found["status"] = seen
guard, worker = seen["guard"]["pid"], seen["worker"]["pid"]
found["main_pid"] = int(show("MainPID"))
found["processes"] = {"guard": of_process(guard), "worker": of_process(worker)}
found["worker_group"] = {
    name: (Path("/sys/fs/cgroup") / found["processes"]["worker"]["group"].lstrip("/") / name).read_text().strip()
    for name in ("memory.max", "memory.oom.group", "cpu.weight", "memory.swap.max")
    if (Path("/sys/fs/cgroup") / found["processes"]["worker"]["group"].lstrip("/") / name).exists()
}

# The kill path: the engine is deaf to TERM.
began = time.monotonic()
found["reset"] = json.loads(run("tidegate", "reset", "--json"))
found["reset_took_s"] = time.monotonic() - began
found["first_worker_left"] = exists(worker)
os.kill(status()["worker"]["pid"], signal.SIGKILL)
found["after_foreign_kill"] = wait_ready()["guard"]["pid"] == guard

probe.write_text("[Service]\nTimeoutStopSec=3\n")
run("systemctl", "daemon-reload")
found["crash"] = crash()
found["security"] = run("systemd-analyze", "security", "tidegate.service", "--no-pager").splitlines()[-1]
found["again"] = setup()

# Stopped; stopped while it hangs; killed when it cannot start again.
worker = status()["worker"]["pid"]
run("systemctl", "stop", "tidegate.service")
found["stopped"] = {"result": show("Result"), "left": left() if GROUP.exists() else [], "worker": exists(worker)}
run("systemctl", "start", "tidegate.service")
seen = wait_ready()
# systemd wakes what is stopped by a signal, but not this: the guard does not see its TERM.
(GROUP / "guard" / "cgroup.freeze").write_text("1")
run("systemctl", "stop", "tidegate.service", check=False)
found["hung"] = {
    "result": show("Result"),
    "left": left() if GROUP.exists() else [],
    "worker": exists(seen["worker"]["pid"]),
}
run("systemctl", "reset-failed", "tidegate.service", check=False)
run("systemctl", "start", "tidegate.service")
seen = wait_ready()
text = CONFIG.read_text()
CONFIG.write_text("[nonsense]\n")
os.kill(seen["guard"]["pid"], signal.SIGKILL)
scene.eventually(lambda: show("ActiveState") == "failed", seconds=30, what="failed")
found["cannot_start"] = {
    "status": show("ExecMainStatus"),
    "left": left() if GROUP.exists() else [],
    "worker": exists(seen["worker"]["pid"]),
}
CONFIG.write_text(text)

# As an older systemd has it: the guard is started in the unit's own group.
ours = UNIT.read_bytes()
times = UNIT.stat()
older = re.sub(rb"DelegateSubgroup=.*\n", b"", ours)
reap = b"ExecStopPost=-/opt/tidegate/bin/tidegate reap --unit tidegate.service --release-controllers\n"
older = re.sub(rb"ExecStopPost=.*\n", lambda _: reap, older)
UNIT.write_bytes(older)
run("systemctl", "daemon-reload")
run("systemctl", "start", "tidegate.service")
found["older_systemd"] = {**crash(), "changed": older != ours}
run("systemctl", "stop", "tidegate.service")
UNIT.write_bytes(ours)
os.utime(UNIT, ns=(times.st_atime_ns, times.st_mtime_ns))
shutil.rmtree(probe.parent)
run("systemctl", "daemon-reload")

run("systemctl", "start", "tidegate.service")
worker = wait_ready()["worker"]["pid"]
found["undo"] = setup("--undo")
found["undone_worker"] = exists(worker)
found["undone"] = {
    "sysctls": sysctls() == values,
    "memory_min": protection(),
    "load_state": show("LoadState"),
    "run_directory": Path("/run/tidegate").exists(),
}
CONFIG.write_text(text)
after = snapshot()
found["trace"] = {
    path: [tree.get(path), after.get(path)]
    for path in sorted(tree.keys() | after.keys())
    if tree.get(path) != after.get(path) and path != str(CONFIG)
}
found["journal"] = run("journalctl", "-o", "short-monotonic", "-u", "tidegate.service")
scene.leave("setup_service", found)
