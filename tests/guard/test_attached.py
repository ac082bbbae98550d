"""A server that somebody else starts: found, guarded, ended by the rule, found again; one clear line each time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from guard.conftest import Foreign, Start
from guard.foreign_server import ForeignServer
from running import Running, eventually, is_alive
from tidegate.host.cgroup import find_hierarchy


def config(server: ForeignServer, *, target: str = "", memory: str = "", more: str = 'restart = "supervisor"') -> str:
    target = target or 'process = "fake-llama"'
    return f'[memory]\n{memory}\n[worker]\n{target}\nurl = "{server.url}"\n{more}\n'


def lines(running: Running, pattern: str) -> list[str]:
    return [line for line in running.log.splitlines() if re.search(pattern, line)]


def test_it_is_found_and_found_again_after_a_restart_that_nobody_ordered(start: Start, foreign: Foreign) -> None:
    server = foreign().wait_up()
    running = start(config=config(server))
    worker = running.wait_ready()
    assert worker["pid"] == server.pid()
    assert (worker["profile"], worker["url"]) == ("attached", server.url)
    os.kill(worker["pid"], signal.SIGKILL)
    again = running.wait_ready(generation=2)
    assert again["pid"] == server.pid() != worker["pid"]
    assert len(lines(running, "found worker")) == 2
    assert len(lines(running, "worker .* ended")) == 1


def test_a_reset_ends_it_and_its_supervisor_starts_it(start: Start, foreign: Foreign) -> None:
    server = foreign().wait_up()
    running = start(config=config(server))
    worker = running.wait_ready()
    result = running.ask("reset")
    assert result["ok"], result
    assert running.worker()["pid"] == server.pid() != worker["pid"]
    action = running.status()["last_actions"][-1]
    assert (action["step"], action["took_ms"] < 4000) == ("reset to attached", True)


def test_one_that_ignores_term_is_killed_in_time(start: Start, foreign: Foreign) -> None:
    server = foreign("--fake-ignore-term").wait_up()
    running = start(config=config(server))
    running.wait_ready()
    assert running.ask("reset")["ok"]
    # A patrol gives 0.3 s between TERM and KILL; then come the supervisor's 0.2 s and a start.
    assert 300 <= running.status()["last_actions"][-1]["took_ms"] < 2000


def test_the_restart_command_is_run_after_our_own_reset_only(start: Start, foreign: Foreign, tmp_path: Path) -> None:
    server = foreign(supervised=False).wait_up()
    script = tmp_path / "restart"
    quoted = " ".join(server.command)
    script.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{quoted} </dev/null >/dev/null 2>&1 &\n")
    script.chmod(0o755)
    running = start(config=config(server, more=f'restart = "{script}"'))
    worker = running.wait_ready()
    assert running.ask("reset")["ok"]
    second = running.worker()
    assert second["pid"] not in (worker["pid"], None)
    os.kill(second["pid"], signal.SIGTERM)
    running.wait_state("starting", generation=3)
    # Whoever stopped it by hand does not want it back.
    running.wait_log("waiting for process fake-llama: no process has that name")
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_restart_command_that_fails_is_named_and_run_again(start: Start, foreign: Foreign, tmp_path: Path) -> None:
    server = foreign(supervised=False).wait_up()
    quoted = " ".join(server.command)
    script = tmp_path / "restart"
    script.write_text(f"#!/bin/sh\n[ -e {tmp_path}/ok ] || exit 7\n{quoted} </dev/null >/dev/null 2>&1 &\n")
    script.chmod(0o755)
    running = start(config=config(server, more=f'restart = "{script}"'))
    running.wait_ready()
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(running.ask("reset")))
    asking.start()
    running.wait_log(r"cannot start process fake-llama again: .*restart: status 7")
    (tmp_path / "ok").touch()
    asking.join()
    assert answers[0]["ok"]
    assert running.worker()["pid"] == server.pid()


def test_nobody_would_start_it_again_so_it_is_not_ended(start: Start, foreign: Foreign) -> None:
    server = foreign("--fake-anon-mib", "200", supervised=False).wait_up()
    running = start(config=config(server, memory='budget = "180M"', more=""))
    worker = running.wait_ready()
    running.wait_log("the kill is not armed")
    running.wait_log("would step reset to attached: .*; but nobody would start the server again")
    assert len(lines(running, "would step")) == 1
    refused = running.ask("reset")
    assert (refused["ok"], refused["hint"]) == (False, "set worker.restart")
    assert is_alive(worker["pid"])
    assert running.status()["last_actions"] == []


def test_growth_at_critical_resets_it(start: Start, foreign: Foreign) -> None:
    server = foreign("--fake-leak-kib", "20480").wait_up()
    running = start(config=config(server, memory='budget = "300M"'))
    worker = running.wait_ready()
    eventually(lambda: ask(server.url) == 200 and running.worker()["generation"] > 1, what="a reset")
    again = running.wait_ready(generation=2)
    assert again["pid"] != worker["pid"]
    action = running.status()["last_actions"][-1]
    assert action["result"] == "effective"
    assert action["freed_bytes"] > 100 << 20


def ask(url: str) -> int:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body), timeout=30) as answer:
            return int(answer.status)
    except OSError:
        return 200


def test_the_guard_leaves_it_running(start: Start, foreign: Foreign) -> None:
    server = foreign().wait_up()
    running = start(config=config(server))
    pid = running.wait_ready()["pid"]
    assert running.stop() == 0
    assert server.pid() == pid


def test_two_match_the_largest_is_guarded_and_the_other_named(start: Start, foreign: Foreign) -> None:
    small = foreign("--fake-anon-mib", "20").wait_up()
    first = small.pid()
    server = foreign("--fake-anon-mib", "80").wait_up()
    second = next(pid for pid in server.pids() if pid != first)
    running = start(config=config(server))
    assert running.wait_ready()["pid"] == second
    assert len(lines(running, rf"{second} holds the most, .*; not guarded: {first} \(fake-llama\)")) == 1
    # Its own successor is guarded after its death, not the one that stayed.
    os.kill(second, signal.SIGKILL)
    third = running.wait_ready(generation=2)["pid"]
    assert third not in (first, second)
    assert third in server.pids()


def test_one_that_comes_later_is_waited_for(start: Start, foreign: Foreign) -> None:
    gone = foreign(supervised=False)
    gone.stop()
    running = start(config=config(gone))
    running.wait_log("waiting for process fake-llama: no process has that name")
    for order in (running.ask("reset"), running.ask("step", profile="attached")):
        assert order["error"].startswith("cannot step: there is no worker; waiting for process fake-llama")
    late = foreign("--fake-load-ms", "300", port=gone.port)
    assert running.wait_ready()["pid"] == late.pid()
    assert len(lines(running, "waiting for")) == 1
    assert running.worker()["message"] == ""


def own_group(name: str) -> str:
    """A new v2 group beside ours, or a skip."""
    unified = find_hierarchy().unified
    if unified is None or not os.access(unified, os.W_OK):
        pytest.skip("no writable v2 cgroup here")
    path = f"{unified}/{name}-{os.getpid()}"
    os.mkdir(path)
    return path


def test_a_cgroup_that_disappears_and_returns(start: Start, foreign: Foreign) -> None:
    path = own_group("ai_inference")
    group = re.sub(r"^.*?/cgroup(/unified)?(?=/)", "", path)
    server = foreign(group=path).wait_up()
    running = start(config=config(server, target=f'cgroup = "{group}"'))
    # Of the shell and the engine in it the engine is the larger.
    first = running.wait_ready()["pid"]
    assert first == server.pid()
    server.stop()
    eventually(lambda: not Path(path, "cgroup.procs").read_text())
    os.rmdir(path)
    running.wait_log(rf"waiting for cgroup {group}: it has no cgroup now")
    os.mkdir(path)
    again = foreign(group=path, port=server.port).wait_up()
    try:
        assert running.wait_ready(generation=2)["pid"] == again.pid()
    finally:
        again.stop()
        eventually(lambda: not Path(path, "cgroup.procs").read_text())
        os.rmdir(path)


def test_of_a_shell_and_its_engine_the_engine_is_guarded_and_inspected(start: Start, foreign: Foreign) -> None:
    path = own_group("ai_shell")
    group = re.sub(r"^.*?/cgroup(/unified)?(?=/)", "", path)
    late = foreign("--fake-load-ms", "500", "-cram", "0", group=path)
    try:
        running = start(config=config(late, target=f'cgroup = "{group}"'))
        assert running.wait_ready()["pid"] == late.pid()
        running.wait_log("its context is unset")
        assert lines(running, "prompt cache") == []
    finally:
        late.stop()
        eventually(lambda: not Path(path, "cgroup.procs").read_text())
        os.rmdir(path)


def restart_script(directory: Path, text: str) -> Path:
    script = directory / "restart"
    script.write_text(f"#!/bin/sh\necho run >> {directory}/runs\n{text}\n")
    script.chmod(0o755)
    return script


def test_a_hung_start_is_only_spoken_of_while_observing(start: Start, foreign: Foreign) -> None:
    server = foreign(supervised=False).wait_up()
    running = start("--observe", config=config(server))
    running.wait_ready()
    server.stop()
    # It takes connections, into the kernel's backlog, and answers none.
    deaf = f"import socket, time; s = socket.create_server(('127.0.0.1', {server.port})); time.sleep(600)"
    with subprocess.Popen([server.command[0], "-I", "-S", "-c", deaf]) as hung:
        try:
            running.wait_log("would step reset to attached: it takes connections and answers none")
            assert hung.poll() is None
            assert running.status()["last_actions"] == []
        finally:
            hung.kill()


def test_a_restart_command_that_stays_with_its_server(start: Start, foreign: Foreign, tmp_path: Path) -> None:
    server = foreign(supervised=False).wait_up()
    script = restart_script(tmp_path, "exec " + " ".join(server.command))
    running = start(config=config(server, more=f'restart = "{script}"'))
    running.wait_ready()
    for generation in (2, 3):
        assert running.ask("reset")["ok"]
        assert running.wait_ready(generation=generation)["pid"] == server.pid()
    assert (tmp_path / "runs").read_text() == "run\n" * 2
    assert lines(running, "cannot start") == []


def test_a_restart_command_that_fails_beside_a_worker_that_is_there(
    start: Start, foreign: Foreign, tmp_path: Path
) -> None:
    server = foreign("--fake-leak-kib", "20480").wait_up()
    script = restart_script(tmp_path, f"while [ ! -e {tmp_path}/fail ]; do sleep 0.05; done; exit 3")
    running = start(config=config(server, more=f'restart = "{script}"'))
    running.wait_ready()
    assert running.ask("reset")["ok"]
    ask(server.url)
    (tmp_path / "fail").touch()
    eventually(lambda: not running_scripts(script), what="the command's end")
    assert running.worker()["message"] == ""
    # It is ready once, with what it needs, and not again with what it has grown by.
    assert len(lines(running, "worker .* ready")) == 2
    assert lines(running, "cannot start") == []


def running_scripts(script: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(script).encode() in entry.read_bytes().split(b"\0"):
                found.append(entry.parent.name)
        except OSError:
            pass
    return found


def test_the_guard_that_is_stopped_in_a_reset_ends_what_it_began(
    start: Start, foreign: Foreign, tmp_path: Path
) -> None:
    server = foreign("--fake-ignore-term", supervised=False).wait_up()
    script = restart_script(tmp_path, "exec " + " ".join(server.command))
    running = start(config=config(server, more=f'restart = "{script}"'))
    first = running.wait_ready()["pid"]
    asking = threading.Thread(target=lambda: running.cli("reset"))
    asking.start()
    running.wait_state("stopping")
    assert running.stop() == 0
    asking.join()
    eventually(lambda: server.pids() and server.pids() != [first], what="the server, started again")
    assert not is_alive(first)


def test_the_gateway_is_not_taken_for_the_worker(start: Start, foreign: Foreign) -> None:
    server = foreign(name="python3", supervised=False).wait_up()
    name = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    if name != "python3":
        # The gateway is called what the tests' own interpreter is called.
        server.stop()
        server = foreign(name=name, supervised=False).wait_up()
    running = start("--listen", "127.0.0.1:0", kind="up", config=config(server, target=f'process = "{name}"'))
    pid = eventually(lambda: running.is_up() and running.worker()["pid"])
    gateways = running_scripts(Path("tidegate.gateway"))
    assert gateways
    if pid == server.pid():
        server.stop()
        eventually(lambda: running.worker()["pid"] != pid)
    assert str(running.worker()["pid"]) not in gateways


def test_all_of_a_cgroup_is_ended(start: Start, foreign: Foreign) -> None:
    path = own_group("ai_two")
    group = re.sub(r"^.*?/cgroup(/unified)?(?=/)", "", path)
    first = foreign("--fake-anon-mib", "20", group=path, supervised=False).wait_up()
    second = foreign(name="beside", group=path, supervised=False).wait_up()
    try:
        running = start(config=config(first, target=f'cgroup = "{group}"'))
        running.wait_ready()
        both = first.pids() + second.pids()
        asking = threading.Thread(target=lambda: running.cli("reset"))
        asking.start()
        eventually(lambda: not any(is_alive(pid) for pid in both), what="the end of both")
        running.wait_state("starting", generation=2)
        running.stop()
        asking.join()
    finally:
        first.stop()
        second.stop()
        eventually(lambda: not Path(path, "cgroup.procs").read_text())
        os.rmdir(path)
