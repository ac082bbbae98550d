"""What keeps tidegate from starting on this machine: taken, missing or somebody else's. Real processes and sockets."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from complaints import check_lines
from running import Running, fake_config
from tidegate.cli import launch
from tidegate.cli.main import run
from tidegate.errors import TidegateError

CANNOT_START = 3


def tidegate(place: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process with the fake engine's settings."""
    config = place / "tidegate.toml"
    if not config.exists():
        config.write_text(fake_config(place))
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *argv, "--config", str(config)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def refused(place: Path, *argv: str, why: str, hint: str = "") -> None:
    done = tidegate(place, *argv)
    assert done.returncode == CANNOT_START, done.stderr
    check_lines(done.stderr, why, hint)
    assert done.stdout == ""


def test_port_taken(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        refused(
            place, "up", "--listen", address,
            why=f"cannot listen on {address}: Address already in use", hint="choose another address with --listen",
        )  # fmt: skip


def test_address_of_another_machine(place: Path) -> None:
    (place / "tidegate.toml").write_text(fake_config(place) + "\n[gateway]\nwithout_keys = true\n")
    refused(
        place, "up", "--listen", "192.0.2.1:8080",
        why="cannot listen on 192.0.2.1:8080: Cannot assign requested",
    )  # fmt: skip


def test_beyond_this_machine_without_keys(place: Path) -> None:
    refused(
        place, "up", "--listen", "0.0.0.0:8080",
        why="cannot listen on 0.0.0.0:8080 without keys: everybody in its network could use the model",
        hint="set gateway.keys to a file of keys, or gateway.without_keys = true",
    )  # fmt: skip


def test_two_instances(place: Path) -> None:
    first = Running(place, fake_config(place))
    try:
        first.wait_up()
        refused(
            place, "guard",
            why=f"cannot start: another tidegate (pid {first.process.pid}) runs in {place}/run",
            hint="set $RUNTIME_DIRECTORY for a second instance",
        )  # fmt: skip
        assert first.status()["guard"]["pid"] == first.process.pid
    finally:
        assert first.stop() == 0


def test_settings_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has memory at address 0, root neither."""
    assert run(["check-config", "--config", "/proc/self/mem"]) == CANNOT_START
    check_lines(capsys.readouterr().err, "cannot read settings /proc/self/mem: Input/output error", "")


def test_run_directory_that_cannot_be_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In /proc nobody can make a directory, root neither."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/proc/tidegate")
    refused(place, "guard", why="cannot use run directory /proc/tidegate: No such file or directory")


def test_run_directory_is_a_file(place: Path) -> None:
    (place / "run").touch()
    refused(place, "guard", why=f"cannot use run directory {place}/run: File exists")


def test_run_directory_below_a_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(place / "model.gguf" / "run"))
    refused(place, "guard", why=f"cannot use run directory {place}/model.gguf/run: Not a directory")


def test_run_directory_is_a_link(place: Path) -> None:
    (place / "real").mkdir(mode=0o700)
    (place / "run").symlink_to(place / "real")
    refused(place, "guard", why=f"cannot use run directory {place}/run: it is not a directory of this user")


def test_run_directory_of_somebody_else(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "run").mkdir(mode=0o700)
    (place / "tidegate.toml").write_text(fake_config(place))
    monkeypatch.setattr("os.getuid", lambda: 4711)
    assert run(["guard", "--config", str(place / "tidegate.toml")]) == CANNOT_START
    check_lines(capsys.readouterr().err, f"cannot use run directory {place}/run: it is not a directory of this", "")


def test_run_directory_that_others_can_write_to(place: Path) -> None:
    (place / "run").mkdir()
    (place / "run").chmod(0o777)
    refused(
        place, "guard", why=f"cannot use run directory {place}/run: others can write to it",
        hint=f"chmod go-w {place}/run",
    )  # fmt: skip


def test_run_directory_whose_name_leaves_no_room_for_sockets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{place}/{'x' * 80}")
    refused(place, "guard", why=f"cannot use run directory {place}/{'x' * 80}: longer than 87 bytes")


def test_the_lock_is_a_directory(place: Path) -> None:
    (place / "run" / "lock").mkdir(parents=True)
    (place / "run").chmod(0o700)
    refused(place, "guard", why=f"cannot open {place}/run/lock: Is a directory")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("unix:{dir}/none/x.sock", "No such file or directory"),
        ("unix:{dir}/model.gguf", "Address already in use"),
        ("unix:{dir}", "Address already in use"),
        (f"{'x' * 70}.example:80", "no such host name"),
        ("no..name:80", "no such host name"),
    ],
    ids=["directory missing", "a file", "a directory", "long label", "empty label"],
)
def test_addresses_that_nobody_can_listen_on(place: Path, address: str, why: str) -> None:
    address = address.format(dir=place)
    before = (place / "model.gguf").read_bytes()
    with pytest.raises(TidegateError) as caught:
        launch.listen(address)
    assert caught.value.message == f"cannot listen on {address}: {why}"
    # A file that is not a socket is somebody's; it must not be cleared away for ours.
    assert (place / "model.gguf").read_bytes() == before


def test_a_socket_on_which_somebody_listens(place: Path) -> None:
    path = place / "x.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen(1)
        for _ in range(4):  # and once its backlog is full
            with pytest.raises(TidegateError, match="Address already in use"):
                launch.listen(f"unix:{path}")
    assert path.exists()


def test_the_socket_of_a_dead_instance_is_taken_over(place: Path) -> None:
    path = place / "x.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with launch.listen(f"unix:{path}") as listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        assert listener.getsockname() == str(path)


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """Make the launcher believe that packages are not installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in missing else real(name))


@pytest.mark.parametrize(
    ("command", "engine", "missing", "why", "hint"),
    [
        ("up", "", "aiohttp", "cannot start the gateway: aiohttp is not installed", "pip install 'tidegate[gateway]'"),
        (
            "guard",
            "xllamacpp",
            "xllamacpp",
            "cannot use engine xllamacpp: it is not installed",
            "pip install 'tidegate[",
        ),
    ],
)
def test_a_package_that_is_missing(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    engine: str,
    missing: str,
    why: str,
    hint: str,
) -> None:
    without(monkeypatch, missing)
    config = place / "tidegate.toml"
    config.write_text("" if engine else fake_config(place))
    flags = ["--engine", engine, "--model", str(place / "model.gguf")] if engine else []
    assert run([command, "--config", str(config), *flags]) == CANNOT_START
    check_lines(capsys.readouterr().err, why, hint)


def test_the_openmp_library_is_missing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("ctypes.CDLL", load)
    assert run(["guard", "--engine", "xllamacpp", "--model", str(place / "model.gguf")]) == CANNOT_START
    check_lines(
        capsys.readouterr().err,
        "cannot use engine xllamacpp: libgomp.so.1 is not installed",
        "apt-get install libgomp1",
    )


def test_nothing_installed_for_auto(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "xllamacpp")
    monkeypatch.setenv("PATH", str(place))
    assert run(["guard", "--model", str(place / "model.gguf")]) == CANNOT_START
    check_lines(
        capsys.readouterr().err, "cannot use engine llama-server: no program llama-server", "set worker.command, or pip"
    )
