"""A service manager hands the last guard's listening socket to the next one."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

LISTEN = """
import os, sys
address, fd, pid, name = sys.argv[1:]
os.dup2(int(fd), 3)
os.environ.update(LISTEN_PID=pid or str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES=name)
from tidegate.cli.launch import fitting, kept_listeners, listen
from tidegate.errors import TidegateError
try:
    got = fitting(kept_listeners(), address) or listen(address)
except TidegateError as error:
    sys.exit(error.message)
left = [name for name in os.environ if name.startswith("LISTEN_")]
print(got.fileno(), got.getsockname()[1], os.get_inheritable(got.fileno()), left)
"""


def started(listener: socket.socket, address: str, *, pid: str = "", name: str = "listener") -> tuple[int, str, str]:
    """Code, output and complaint of a process that has ``listener`` as its descriptor 3. ``pid`` "" is its own."""
    words = [sys.executable, "-c", LISTEN, address, str(listener.fileno()), pid, name]
    done = subprocess.run(words, pass_fds=[listener.fileno()], capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


@pytest.fixture(name="listener")
def listener_fixture() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


def test_the_socket_of_that_address_is_used_again(listener: socket.socket) -> None:
    with listener:
        port = listener.getsockname()[1]
        assert started(listener, f"127.0.0.1:{port}") == (0, f"3 {port} False []", "")


def test_for_another_address_there_is_a_new_one(listener: socket.socket) -> None:
    with listener:
        code, out, _ = started(listener, "127.0.0.1:0")
        assert code == 0
        assert out.split()[1] != str(listener.getsockname()[1])


@pytest.mark.parametrize("given", [{"pid": "1"}, {"pid": "x"}, {"name": "other"}])
def test_what_is_meant_for_somebody_else_is_not_taken(listener: socket.socket, given: dict[str, str]) -> None:
    with listener:
        code, _, said = started(listener, f"127.0.0.1:{listener.getsockname()[1]}", **given)
        assert (code, said[:13]) == (1, "cannot listen")
