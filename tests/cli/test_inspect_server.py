"""What is read of a running server: its model among the files that it has mapped, and nothing that hangs or grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import gguf_builder
from running import eventually
from tidegate.cli import inspect_server

#: Maps the files after "maps" in their order and keeps them.
SERVER = (
    "import mmap, sys\n"
    "at = sys.argv.index('maps')\n"
    "files = [open(path, 'rb') for path in sys.argv[at + 1 :]]\n"
    "kept = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files]\n"
    "print('up', flush=True)\n"
    "sys.stdin.read()"
)


@contextmanager
def server(directory: Path, *words: str) -> Iterator[int]:
    command = [sys.executable, "-I", "-S", "-c", SERVER, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=directory) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid
        process.kill()


def told(pid: int, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert inspect_server.main(pid) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def write(path: Path, *, padding: int = 0) -> Path:
    path.write_bytes(gguf_builder.gguf(gguf_builder.llama()) + bytes(padding))
    return path


# Files of megabytes: the kernel maps them one below the other, so that the last comes first in the list.
def test_the_named_model_counts_and_not_the_draft_that_was_mapped_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, draft = write(tmp_path / "main.gguf", padding=8 << 20), write(tmp_path / "draft.gguf", padding=6 << 20)
    with server(tmp_path, "-m", "main.gguf", "-c", "512", "maps", str(main), str(draft)) as pid:
        answer = told(pid, capsys)
    assert answer["bytes"]["file"] == main.stat().st_size
    assert answer["bytes"]["known"] > 0


@pytest.mark.parametrize("order", [("main.gguf", "draft.gguf"), ("draft.gguf", "main.gguf")])
def test_without_a_name_it_is_the_largest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], order: tuple[str, str]
) -> None:
    main = write(tmp_path / "main.gguf", padding=8 << 20)
    write(tmp_path / "draft.gguf", padding=6 << 20)
    with server(tmp_path, "-hf", "some/model", "maps", *(str(tmp_path / name) for name in order)) as pid:
        assert told(pid, capsys)["bytes"]["file"] == main.stat().st_size


def test_of_a_split_model_the_first_part_is_read(tmp_path: Path) -> None:
    parts = [write(tmp_path / f"m-0000{part}-of-00002.gguf", padding=part << 16) for part in (1, 2)]
    with server(tmp_path, "maps", *map(str, parts)) as pid:
        assert inspect_server._model(pid, "").endswith("/m-00001-of-00002.gguf")


@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "garbage", "hole"])
def test_what_is_no_model_is_said_and_neither_waited_for_nor_read_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / "m.gguf"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    elif kind == "garbage":
        path.write_bytes(os.urandom(4096))
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with server(tmp_path, "-m", "m.gguf", "-c", "512", "-np", "1", "-cram", "0", "maps") as pid:
        answer = told(pid, capsys)
    assert answer["bytes"] == dict.fromkeys(answer["bytes"], 0)
    assert len(answer["findings"]) == 1
    assert "cannot read" in answer["findings"][0]


def test_a_hostile_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["", "-m", os.fsdecode(b"\xff\xfe"), "-c", "-1", "-np", "9" * 5000, "-b", "-7", "-cram", "x", "maps"]
    with server(tmp_path, *words) as pid:
        answer = told(pid, capsys)
    assert answer["bytes"] == dict.fromkeys(answer["bytes"], 0)


def test_one_that_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    eventually(lambda: not Path(f"/proc/{process.pid}").exists())
    assert inspect_server.main(process.pid) == 1
    assert capsys.readouterr().out.startswith("cannot read the command line")
