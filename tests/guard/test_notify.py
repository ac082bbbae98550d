"""sd_notify against a socket of ours in the place of systemd's."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.guard.notify import Notifier


@pytest.fixture(name="manager")
def manager_fixture() -> Iterator[socket.socket]:
    directory = Path(tempfile.mkdtemp(prefix="tg"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(directory / "notify"))
        manager.setblocking(False)
        yield manager
    shutil.rmtree(directory)


@pytest.fixture(name="closing", autouse=True)
def closing_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The guard keeps its notifier to its end; here its socket is closed with the test."""
    made: list[socket.socket] = []
    real = socket.socket

    def make(*arguments: int) -> socket.socket:
        made.append(real(*arguments))
        return made[-1]

    monkeypatch.setattr("tidegate.guard.notify.socket.socket", make)
    yield
    for each in made:
        each.close()


def told(manager: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(manager.recv(4096).decode())
        except BlockingIOError:
            return found


def notifier(manager: socket.socket, **environ: str) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": manager.getsockname(), **environ})


def test_everything_that_is_said(manager: socket.socket) -> None:
    speaker = notifier(manager)
    assert speaker.active
    speaker.ready()
    speaker.reloading(12.5)
    speaker.alive()
    speaker.stopping()
    assert told(manager) == [
        f"READY=1\nMAINPID={os.getpid()}",
        # sd_notify(3): systemd drops a RELOADING without the time.
        "RELOADING=1\nMONOTONIC_USEC=12500000",
        "WATCHDOG=1",
        "STOPPING=1",
    ]


def test_a_status_is_said_when_it_changes(manager: socket.socket) -> None:
    speaker = notifier(manager)
    for text in ("normal", "normal", "warn", "normal"):
        speaker.status(text)
    assert told(manager) == ["STATUS=normal", "STATUS=warn", "STATUS=normal"]


def test_an_abstract_address() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0tidegate-test-{os.getpid()}")
        manager.setblocking(False)
        Notifier({"NOTIFY_SOCKET": f"@tidegate-test-{os.getpid()}"}).alive()
        assert told(manager) == ["WATCHDOG=1"]


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234", "unix:/x"])
def test_without_a_manager_it_is_silent(address: str) -> None:
    speaker = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "5000000"} if address else {})
    assert not speaker.active
    assert speaker.watchdog == 0.0
    speaker.ready()
    speaker.status("x")


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "10000000"}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}, 5.0),
        # Meant for the process that started us, or for one of its children.
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "0"}, 0.0),
        ({"WATCHDOG_USEC": "-5"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({"WATCHDOG_USEC": ""}, 0.0),
    ],
)
def test_half_of_the_watchdogs_limit(manager: socket.socket, environ: dict[str, str], seconds: float) -> None:
    assert notifier(manager, **environ).watchdog == seconds


@pytest.mark.parametrize("address", ["/nonexistent/notify", "/" + "x" * 200])
def test_a_manager_that_cannot_be_reached_is_no_fault_of_ours(address: str) -> None:
    speaker = Notifier({"NOTIFY_SOCKET": address})
    speaker.ready()
    speaker.status("x")


def test_a_manager_that_does_not_read_is_not_waited_for(manager: socket.socket) -> None:
    speaker = notifier(manager)
    for number in range(2000):
        speaker.status(f"{number} {'x' * 500}")
    assert 0 < len(told(manager)) < 2000
    speaker.alive()
    assert told(manager) == ["WATCHDOG=1"]


def test_listening_sockets_are_kept_where_the_manager_keeps_them(manager: socket.socket) -> None:
    with socket.socket() as listener:
        notifier(manager).keep((listener.fileno(),))
        assert told(manager) == []
        notifier(manager, FDSTORE="2").keep(())
        assert told(manager) == ["FDSTOREREMOVE=1\nFDNAME=listener"]
        notifier(manager, FDSTORE="2").keep((listener.fileno(),))
        assert manager.recv(4096) == b"FDSTOREREMOVE=1\nFDNAME=listener"
        message, fds, _, _ = socket.recv_fds(manager, 4096, 4)
        assert message == b"FDSTORE=1\nFDNAME=listener"
        (fd,) = fds
        try:
            assert os.path.sameopenfile(fd, listener.fileno())
        finally:
            os.close(fd)


def test_a_status_that_is_no_text_is_told(manager: socket.socket) -> None:
    notifier(manager).status("cgroup:/\udcff at 3 %")
    assert told(manager) == ["STATUS=cgroup:/\\udcff at 3 %"]
