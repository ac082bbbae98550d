"""The real guard over the fake engine: its life, its orders, and what it does when things go wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from guard.conftest import Start
from running import eventually, fake_config, fake_profile, is_alive, memory_of
from tidegate.engines import llama_api
from tidegate.host.capabilities import can_make_group
from tidegate.host.cgroup import find_hierarchy
from tidegate.worker.group import find_parent

FORBIDDEN = (
    "asyncio", "http", "http.client", "argparse", "tomllib", "subprocess", "pathlib", "logging", "ssl", "email",
    "dataclasses", "inspect", "typing", "multiprocessing", "concurrent", "urllib", "tempfile", "shutil", "random",
    "aiohttp", "xllamacpp", "rich",
)  # fmt: skip


def test_starts_reports_and_stops(start: Start) -> None:
    running = start()
    worker = running.wait_ready()
    assert (worker["profile"], worker["engine"], worker["generation"]) == ("full", "llama-server", 1)
    status = running.status()
    assert status["level"] == "normal"
    assert {axis["name"] for axis in status["axes"]} >= {"system"}
    assert "guarding with" in running.log
    pid = worker["pid"]
    assert running.stop() == 0
    assert not is_alive(pid)
    assert list(running.run_directory.glob("*.sock")) == []


def test_a_second_term_ends_at_once(start: Start) -> None:
    running = start(extra=("--fake-ignore-term",))
    worker = running.wait_ready()
    running.process.send_signal(signal.SIGTERM)
    running.wait_log("stopping")
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(5) == 0
    assert not is_alive(worker["pid"])


@pytest.mark.parametrize("name", ["SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE"])
def test_a_stray_signal_neither_ends_nor_suspends_the_guard(start: Start, name: str) -> None:
    running = start()
    worker = running.wait_ready()
    running.process.send_signal(getattr(signal, name))
    if name != "SIGPIPE":
        running.wait_log(f"ignored {name}")
    assert running.worker()["state"] == "ready"
    # The worker has the default again: it is its own master.
    ignored = re.search(r"^SigIgn:\t(\w+)$", Path(f"/proc/{worker['pid']}/status").read_text(), re.MULTILINE)
    assert ignored is not None
    assert not int(ignored[1], 16) & 1 << getattr(signal, name) - 1 or name == "SIGPIPE"


def test_a_reload_that_takes_the_running_profile_away(start: Start) -> None:
    running = start()
    running.wait_ready()
    profile = fake_profile("other", model=running.directory / "model.gguf", context=2048)
    running.config.write_text(running.config.read_text().partition("[[worker.profile]]")[0] + profile)
    running.process.send_signal(signal.SIGHUP)
    assert running.wait_ready(generation=2)["profile"] == "other"
    assert "step down to other: full is no profile any more" in running.log


def test_a_reload_that_fails_says_why(start: Start) -> None:
    running = start()
    running.wait_ready()
    (running.directory / "model.gguf").unlink()
    running.process.send_signal(signal.SIGHUP)
    running.wait_log(r"error: cannot reload: cannot read .*model\.gguf")
    assert running.worker()["state"] == "ready"


def test_a_worker_that_ignores_term_is_killed_by_time(start: Start) -> None:
    running = start(extra=("--fake-ignore-term",))
    worker = running.wait_ready()
    done = running.cli("step", "lean", "--json")
    result = json.loads(done.stdout)
    assert result["profile"] == "lean"
    # 2 s of grace and the new start, and not the 10 s of a supervisor.
    assert 2000 <= result["took_ms"] < 4000
    assert not is_alive(worker["pid"])


def test_steps_resets_and_their_log(start: Start) -> None:
    running = start("--budget", "300M", extra=("--fake-anon-mib", "150"))
    running.wait_ready()
    assert running.cli("step", "lean").returncode == 0
    assert running.worker()["profile"] == "lean"
    assert running.cli("reset").returncode == 0
    assert running.cli("step", "full").returncode == 0
    actions = running.status()["last_actions"]
    assert [action["step"] for action in actions] == ["down to lean", "reset to lean", "up to full"]
    assert all(action["result"] == "effective" and action["took_ms"] > 0 for action in actions)
    assert running.worker()["generation"] == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("step", "fast"), "cannot step to fast: no such profile"),
        (("step", "full"), "cannot step to full: it runs already"),
        (("pause", "soon"), "cannot pause: 'soon' is not a duration"),
        (("pause", "0"), "cannot pause: seconds must be above 0"),
    ],
)
def test_orders_that_make_no_sense(start: Start, arguments: tuple[str, ...], said: str) -> None:
    running = start()
    running.wait_ready()
    done = running.cli(*arguments)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert running.worker()["generation"] == 1


def test_without_a_gateway_the_engine_s_slots_say_when_it_is_drained(start: Start) -> None:
    running = start(extra=("--fake-token-ms", "30"))
    worker = running.wait_ready()
    answers: list[bytes] = []

    def ask() -> None:
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(worker["url"].removeprefix("unix:"))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
            data = b""
            while chunk := connection.recv(65536):
                data += chunk
        answers.append(data)

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: llama_api.busy_slots(worker["url"], timeout=5) == 1)
    result = running.ask("step", profile="lean")["result"]
    asking.join()
    assert b"tok19" in answers[0]
    # It took the rest of the answer's 0.6 s, not the whole drain of 5 s.
    assert result["took_ms"] < 4000


def test_pause_and_resume_are_shown(start: Start) -> None:
    running = start()
    running.wait_ready()
    assert running.cli("pause", "10m").stdout.startswith("paused until")
    assert running.status()["paused"]
    assert running.cli("resume").stdout == "resumed\n"
    assert not running.status()["paused"]


def test_a_worker_that_exits_by_itself_is_started_again(start: Start) -> None:
    running = start()
    worker = running.wait_ready()
    os.kill(worker["pid"], signal.SIGKILL)
    after = running.wait_ready(generation=2)
    assert after["pid"] != worker["pid"]
    assert "was killed (SIGKILL)" in running.log


def test_what_a_worker_leaves_behind_is_ended_too(start: Start, tmp_path: Path) -> None:
    shell = tmp_path / "engine.sh"
    shell.write_text(
        f'#!/bin/sh\ncase "$*" in *--help*) exec "$@";; esac\nsleep 1000 &\necho $! > {tmp_path}/child\n"$@"\n'
    )
    shell.chmod(0o755)
    config = fake_config(tmp_path).replace('command = ["', f'command = ["{shell}", "')
    running = start(config=config)
    worker = running.wait_ready()
    child = int((tmp_path / "child").read_text())
    assert running.cli("reset").returncode == 0
    assert not is_alive(worker["pid"])
    assert not is_alive(child)
    os.kill(running.worker()["pid"], signal.SIGKILL)
    running.wait_ready(generation=3)
    assert not is_alive(int((tmp_path / "child").read_text())) or running.worker()["generation"] == 3


def test_what_left_the_session_is_ended_by_the_cgroup(start: Start, tmp_path: Path) -> None:
    unified = find_hierarchy().unified
    parent = Path(find_parent(unified) if unified is not None else "")
    if unified is None or not can_make_group(str(parent)):
        pytest.skip("no cgroup v2 group can be made here")
    shell = tmp_path / "engine.sh"
    shell.write_text(
        '#!/bin/sh\ncase "$*" in *--help*) exec "$@";; esac\n'
        f'setsid sh -c "echo \\$\\$ > {tmp_path}/child; exec sleep 1000" &\nexec "$@"\n'
    )
    shell.chmod(0o755)
    config = fake_config(tmp_path).replace('command = ["', f'command = ["{shell}", "')
    running = start(config=config)
    worker = running.wait_ready()
    written = tmp_path / "child"
    child = int(eventually(lambda: written.exists() and written.read_text()))
    group = Path(f"/proc/{worker['pid']}/cgroup").read_text().rpartition("0::")[2].strip()
    assert f"tidegate-worker-{running.process.pid}-1" in group
    assert running.cli("reset").returncode == 0
    assert not is_alive(child)
    assert not (parent / f"tidegate-worker-{running.process.pid}-1").exists()
    running.stop()
    assert list(parent.glob(f"tidegate-worker-{running.process.pid}-*")) == []


def test_a_worker_that_never_starts_waits_longer_and_says_why(start: Start) -> None:
    running = start(extra=("--fake-fail", "no such model: cannot mmap"))
    running.wait_up()
    running.wait_log(r"worker failed, 4 in a row: exited with status 1: no such model: cannot mmap")
    worker = running.wait_state("backoff")
    assert "cannot mmap" in worker["message"]
    # Both profiles were tried; the ladder stays at the last one.
    assert "step down to lean: full does not start" in running.log
    assert running.stop() == 0


def test_an_engine_that_cannot_be_run_is_a_failure_with_its_reason(start: Start, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_text('#!/bin/sh\nexec "$@"\n')
    engine.chmod(0o755)
    config = fake_config(tmp_path).replace('command = ["', f'command = ["{engine}", "')
    running = start(config=config)
    running.wait_ready()
    # It was fine when the launcher looked; then somebody replaced it.
    engine.write_text("#!/no/such/interpreter\n")
    done = running.cli("reset")
    assert done.returncode == 1
    assert "the worker does not start: exited with status 127: cannot run" in done.stderr
    running.wait_log(r"exited with status 127: cannot run .*engine: No such file or directory")


def test_a_load_that_hangs_is_ended(start: Start, tmp_path: Path) -> None:
    config = fake_config(tmp_path, extra=("--fake-load-ms", "60000"))
    hung = start(config=config.replace('load_timeout = "10s"', 'load_timeout = "1s"'))
    hung.wait_up()
    hung.wait_log(r"worker failed, 2 in a row: it was not ready in time")


def test_the_profile_that_does_not_start_is_left_for_a_lower_one(start: Start, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    fake_config(tmp_path)
    profiles = fake_profile("full", model=model, extra=("--fake-fail", "boom")) + fake_profile("lean", model=model)
    running = start(config=fake_config(tmp_path, profiles=profiles))
    assert running.wait_ready()["profile"] == "lean"
    assert running.status()["last_actions"][-1]["reason"] == "full does not start"


def test_growth_leads_down_and_the_bytes_come_back(start: Start, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    fake_config(tmp_path)
    profiles = fake_profile("full", model=model, extra=("--fake-anon-mib", "370")) + fake_profile(
        "lean", model=model, context=1024, extra=("--fake-anon-mib", "50")
    )
    running = start("--budget", "450M", config=fake_config(tmp_path, profiles=profiles))
    first = running.wait_ready()
    action = eventually(lambda: [a for a in running.status()["last_actions"] if a["result"] == "effective"])[0]
    assert action["step"] == "down to lean"
    assert action["freed_bytes"] >= 350 << 20
    worker = running.wait_ready(generation=2)
    assert not is_alive(first["pid"])
    assert worker["anon_bytes"] < 100 << 20
    assert running.status()["axes"][-1]["name"] == "budget"


def test_observe_only_says_what_it_would_do(start: Start, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    fake_config(tmp_path)
    profiles = fake_profile("full", model=model, extra=("--fake-anon-mib", "370")) + fake_profile("lean", model=model)
    running = start("--budget", "450M", "--observe", config=fake_config(tmp_path, profiles=profiles))
    running.wait_ready()
    running.wait_log("would step down to lean")
    assert running.status()["last_actions"] == []
    assert running.worker()["generation"] == 1


def test_foreground_leaves_no_orphan_when_the_guard_is_killed(start: Start) -> None:
    running = start()
    worker = running.wait_ready()
    running.process.kill()
    running.process.wait()
    eventually(lambda: not is_alive(worker["pid"]))


def test_under_a_supervisor_the_next_guard_adopts_the_worker(start: Start) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        running = start()
        running.stop()
        manager.bind(str(running.directory / "notify"))
        env = {"NOTIFY_SOCKET": str(running.directory / "notify")}
        config = running.config.read_text()
        first = start(directory=running.directory, config=config, env=env)
        worker = first.wait_ready()
        first.process.kill()
        first.process.wait()
        assert is_alive(worker["pid"])
        second = start(directory=running.directory, config=config, env=env)
        adopted = second.wait_ready()
        assert (adopted["pid"], adopted["generation"]) == (worker["pid"], 1)
        assert second.cli("step", "lean").returncode == 0
        assert not is_alive(worker["pid"])
        second.process.kill()
        second.process.wait()
        # Another shape in the settings: the old worker is not ours any more and is ended before a new one starts.
        changed = start(directory=running.directory, config=config.replace("1024", "2048"), env=env)
        assert changed.wait_ready()["profile"] == "full"
        assert "ending worker" in changed.log


def test_notify_ready_and_status_reach_the_manager(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "n"))
        manager.settimeout(20)
        running = start(env={"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "400000"})
        seen = ""
        while "WATCHDOG=1" not in seen or "STATUS=" not in seen:
            seen += manager.recv(4096).decode() + "\n"
        assert f"READY=1\nMAINPID={running.process.pid}" in seen
        running.process.send_signal(signal.SIGHUP)
        while "RELOADING=1" not in seen:
            seen += manager.recv(4096).decode() + "\n"
        running.stop()
        while "STOPPING=1" not in seen:
            seen += manager.recv(4096).decode() + "\n"


def test_after_a_reload_the_gateway_is_told_what_the_running_worker_has(start: Start) -> None:
    running = start()
    running.wait_ready()
    running.config.write_text(running.config.read_text().replace("context = 4096", "context = 8192"))
    running.process.send_signal(signal.SIGHUP)
    running.wait_log(r"full.context: 4096 -> 8192 \(from its next start on\)")

    def told() -> tuple[int, int]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gateway:
            gateway.connect(str(running.run_directory / "guard.sock"))
            gateway.sendall(json.dumps({"hello": "gateway", "pid": os.getpid()}).encode() + b"\n")
            state = json.loads(gateway.makefile().readline())["state"]
        return state["worker"]["context"], state["best_context"]

    assert told() == (4096, 4096)
    assert running.cli("reset").returncode == 0
    assert told() == (8192, 8192)
    assert running.cli("step", "lean").returncode == 0
    assert told() == (1024, 8192)


def test_a_step_to_what_does_not_fit_is_no_success(start: Start, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    fake_config(tmp_path)
    # It takes 300 MiB while it loads, which is critical before it is ready, so the ladder puts the lower one in its
    # place: at the start, and again after the order.
    heavy = ("--fake-anon-mib", "300", "--fake-load-ms", "3000")
    profiles = fake_profile("full", model=model, extra=heavy) + fake_profile("lean", model=model, context=1024)
    running = start("--budget", "170M", config=fake_config(tmp_path, profiles=profiles))
    assert running.wait_ready()["profile"] == "lean"
    done = running.cli("step", "full")
    assert done.returncode == 1
    assert "cannot step to full: lean runs now, because it does not fit" in done.stderr, running.log


@pytest.mark.parametrize(("listen", "warned"), [("127.0.0.1:0", False), ("0.0.0.0:0", True)])
def test_an_address_beyond_this_machine_is_warned_of(start: Start, tmp_path: Path, listen: str, warned: bool) -> None:
    config = fake_config(tmp_path) + "\n[gateway]\nwithout_keys = true\n"
    running = start("--listen", listen, config=config, kind="up")
    running.wait_log("listening on http://")
    assert ("no key is asked for" in running.log) is warned


def test_hup_reloads_and_says_what_changed(start: Start) -> None:
    running = start("--budget", "400M")
    running.wait_ready()
    running.config.write_text(running.config.read_text().replace("[memory]", "[memory]\nwarn = 0.5"))
    running.process.send_signal(signal.SIGHUP)
    running.wait_log(r"reload: memory.warn: 0.82 -> 0.5")
    running.config.write_text("[memory]\nwarm = 1\n")
    running.process.send_signal(signal.SIGHUP)
    running.wait_log("cannot reload: .*did you mean 'warn'")
    running.config.write_text("[memory]\nwarn = 2\n")
    assert running.worker()["state"] == "ready"


def test_descriptors_of_the_shell_are_neither_kept_nor_passed_on(start: Start) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    try:
        running = start(pass_fds=(write_end,))
        worker = running.wait_ready()
    finally:
        os.close(write_end)
    # End of file: nobody holds the other end any more, though guard and worker live.
    assert os.read(read_end, 1) == b""
    os.close(read_end)
    assert is_alive(worker["pid"])


def test_settings_of_llama_server_in_the_environment_do_not_reach_the_worker(start: Start) -> None:
    running = start(env={"LLAMA_ARG_CTX_SIZE": "131072", "LLAMA_API_KEY": "secret", "LLAMA_CACHE": "/tmp/models"})
    worker = running.wait_ready()
    environment = Path(f"/proc/{worker['pid']}/environ").read_bytes().split(b"\0")
    names = {entry.partition(b"=")[0] for entry in environment}
    assert b"LLAMA_CACHE" in names
    assert not names & {b"LLAMA_ARG_CTX_SIZE", b"LLAMA_API_KEY"}


def test_hostile_messages_do_not_harm(start: Start) -> None:
    running = start()
    running.wait_ready()
    path = str(running.run_directory / "guard.sock")
    assert os.stat(path).st_mode & 0o077 == 0
    for data in (b"\n", b"nonsense\n", b"[]\n", b"{}\n", b'{"command": 7}\n', b'{"command": "step"}\n',
                 b'{"command": "step", "profile": {"a": 1}}\n', b'{"command": "clear_context", "keep_tokens": true}\n',
                 b'{"ledger": {"in_flight": 5}}\n', b'{"drained": 1}\n', b"[" * 5000 + b"\n", b"\xff\xfe\n",
                 b'{"hello": "gateway", "pid": "x"}\n{"ledger": [1]}\n{"ledger": {"in_flight": -1}}\n'):  # fmt: skip
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(path)
            connection.sendall(data)
            connection.settimeout(0.05)
            try:
                while connection.recv(65536):
                    pass
            except TimeoutError:
                pass
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as flood:
        flood.connect(path)
        with pytest.raises(OSError, match=r"Broken pipe|Connection reset"):
            while True:
                flood.sendall(b"x" * 65536)
    assert running.worker()["state"] == "ready"


def test_a_peer_that_does_not_read_is_dropped(start: Start) -> None:
    running = start()
    running.wait_ready()
    before = memory_of(running.process.pid)["VmRSS"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.connect(str(running.run_directory / "guard.sock"))
        with pytest.raises(OSError, match=r"Broken pipe|Connection reset|timed out"):
            deaf.settimeout(5)
            while True:
                deaf.sendall(b'{"id": 1, "command": "status"}\n' * 100)
    assert running.status()["level"] == "normal"
    assert memory_of(running.process.pid)["VmRSS"] < before + (4 << 20)


def test_a_full_run_directory_does_not_end_the_guard(start: Start) -> None:
    running = start()
    running.stop()
    running.run_directory.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(running.run_directory)], check=False
    )
    if done.returncode != 0:
        pytest.skip("needs root: mounts a small tmpfs")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(running.directory / "notify"))
            full = start(
                directory=running.directory,
                config=running.config.read_text(),
                env={"NOTIFY_SOCKET": str(running.directory / "notify")},
            )
            full.wait_ready()
            filler = running.run_directory / "filler"
            with pytest.raises(OSError, match="No space"):
                filler.write_bytes(b"x" * (1 << 20))
            assert full.cli("step", "lean").returncode == 0
            full.wait_log("cannot write .*state.json: No space left on device")
            assert full.worker()["profile"] == "lean"
    finally:
        full.stop()
        subprocess.run(["umount", str(running.run_directory)], check=True)


def test_only_the_standard_library_and_nothing_after_start(start: Start, tmp_path: Path) -> None:
    """The real process: modules after start, after steps and after a crash and restart."""
    probe = tmp_path / "probe"
    running = start(program=(str(Path(__file__).with_name("watched.py")),), env={"WATCHED_MODULES": str(probe)})
    running.wait_ready()

    def modules() -> list[str]:
        probe.unlink(missing_ok=True)
        running.process.send_signal(signal.SIGRTMIN)
        return sorted(eventually(lambda: probe.read_text() if probe.exists() else "").split())

    first = modules()
    assert [name for name in first if name.split(".")[0] in FORBIDDEN] == []
    assert "tidegate.gguf" not in first
    running.cli("step", "lean")
    os.kill(running.worker()["pid"], signal.SIGKILL)
    running.wait_ready(generation=3)
    running.cli("pause", "1s")
    running.ask("clear_context", keep_tokens=512)
    running.process.send_signal(signal.SIGHUP)
    running.wait_log("reload: nothing changed")
    assert modules() == first
