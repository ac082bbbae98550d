"""A real llama-server whose decode never returns: it answers everything else, and is replaced all the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.conftest import Up
from e2e.load import post, worker_pids
from running import eventually

#: Stops the first thread of a process, which is llama-server's decoding one, and no other; ends with the process. A
#: tracer has to take note of the death before the parent can.
STOPPER = """
import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
if libc.ptrace(0x4206, pid, 0, 0) or libc.ptrace(0x4207, pid, 0, 0):  # PTRACE_SEIZE, PTRACE_INTERRUPT
    print(os.strerror(ctypes.get_errno()), flush=True)
    sys.exit(1)
os.waitpid(pid, 0x40000000)  # __WALL
print("stopped", flush=True)
while os.WIFSTOPPED(os.waitpid(pid, 0x40000000)[1]):
    pass
"""

CONFIG = """
[[worker.profile]]
name = "full"
context = 2048
slots = 2
"""


@pytest.fixture(name="stop_decoding")
def stop_decoding_fixture() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("engine", ["llama-server"], indirect=True)
def test_a_wedged_llama_server_is_replaced(up: Up, stop_decoding: list[subprocess.Popen[str]]) -> None:
    door = up(CONFIG)
    door.wait_ready()
    url = f"{door.url}/v1/chat/completions"
    (worker,) = worker_pids(door.process.pid)
    stopper = subprocess.Popen([sys.executable, "-c", STOPPER, str(worker)], stdout=subprocess.PIPE, text=True)
    stop_decoding.append(stopper)
    assert stopper.stdout is not None
    if (said := stopper.stdout.readline().strip()) != "stopped":
        pytest.skip(f"no thread of another process can be stopped here: {said}")
    with ThreadPoolExecutor(3) as pool:
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
        asking = [pool.submit(post, url, body) for _ in range(3)]
        eventually(lambda: door.worker()["generation"] == 2, seconds=90, what="a new worker")
        assert [answer.result()[0] for answer in asking] == [200] * 3
    door.wait_ready(generation=2)
    print("\n" + "\n".join(line for line in door.log.splitlines() if "worker" in line))
