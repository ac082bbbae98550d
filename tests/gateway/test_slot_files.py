"""Files of saved slots: found by what they fit, checked, few."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.gateway import slot_files as module
from tidegate.gateway.slot_files import SlotFile, SlotFiles

KEY, OTHER = "a" * 16, "b" * 16


def prefix(number: int) -> str:
    return f"{number:016x}"


def saved(files: SlotFiles, folder: Path, number: int, *, key: str = KEY, tokens: int = 100, age: int = 0) -> SlotFile:
    (folder / files.fresh_name).write_bytes(b"slot %d" % number)
    file = files.adopt(key, prefix(number), tokens)
    assert file is not None
    os.utime(folder / file.name, (1_000_000 - age, 1_000_000 - age))
    return file


def found(files: SlotFiles, number: int, *, key: str = KEY, most: int = 1000) -> str | None:
    file = files.find(key, prefix(number), most_tokens=most)
    return None if file is None else file.prefix


def test_the_beginnings_own_file_else_the_last_used(tmp_path: Path) -> None:
    files = SlotFiles(str(tmp_path))
    for number, age in ((1, 30), (2, 10), (3, 20)):
        saved(files, tmp_path, number, age=age)
    assert found(files, 3) == prefix(3)
    # That was a use.
    assert found(files, 9) == prefix(3)
    assert files.has(KEY, prefix(1))
    assert not files.has(OTHER, prefix(1))
    assert found(files, 1, key=OTHER) is None
    assert found(files, 1, most=99) is None


@pytest.mark.parametrize("harm", [b"", b"slot", b"slot 2", b"slot 1 and more"])
def test_a_file_that_is_not_what_it_was_is_thrown_away(harm: bytes, tmp_path: Path) -> None:
    files = SlotFiles(str(tmp_path))
    file = saved(files, tmp_path, 1)
    (tmp_path / file.name).write_bytes(harm)
    assert found(files, 1) is None
    assert os.listdir(tmp_path) == []


def test_a_file_that_cannot_be_read_is_no_file(tmp_path: Path) -> None:
    files = SlotFiles(str(tmp_path))
    file = saved(files, tmp_path, 1)
    (tmp_path / file.name).unlink()
    (tmp_path / file.name).mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / f"{KEY}-{prefix(2)}-1-{OTHER}.slot").symlink_to("/etc/passwd")
    assert found(files, 1) is None


def test_four_files_are_kept_and_one_for_each_beginning(tmp_path: Path) -> None:
    files = SlotFiles(str(tmp_path))
    for number in range(6):
        saved(files, tmp_path, number, age=100 - number)
    assert sorted(os.listdir(tmp_path)) == sorted(
        name for name in os.listdir(tmp_path) if name.split("-")[1] in {prefix(number) for number in (2, 3, 4, 5)}
    )
    assert len(os.listdir(tmp_path)) == 4
    saved(files, tmp_path, 5, tokens=7)
    assert len(os.listdir(tmp_path)) == 4
    assert found(files, 5, most=10) == prefix(5)


def test_bytes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SlotFiles(str(tmp_path))
    monkeypatch.setattr(module, "MOST_BYTES", 13)
    for number in range(3):
        saved(files, tmp_path, number, age=10 - number)
    assert [found(files, number) == prefix(number) for number in range(3)] == [False, True, True]


def test_what_was_not_written_is_not_adopted(tmp_path: Path) -> None:
    files = SlotFiles(str(tmp_path))
    assert files.adopt(KEY, prefix(1), 5) is None
    assert SlotFiles(str(tmp_path / "gone")).adopt(KEY, prefix(1), 5) is None
    assert not SlotFiles(str(tmp_path / "gone")).has_room()
    files.discard_fresh()
    (tmp_path / files.fresh_name).touch()
    files.discard_fresh()
    assert os.listdir(tmp_path) == []


def test_half_written_files_of_dead_gateways_go(tmp_path: Path) -> None:
    files = SlotFiles(str(tmp_path))
    for name, age in (("new-1.tmp", 4000), ("new-2.tmp", 10)):
        (tmp_path / name).touch()
        stamp = (tmp_path / name).stat().st_mtime - age
        os.utime(tmp_path / name, (stamp, stamp))
    saved(files, tmp_path, 1)
    assert not (tmp_path / "new-1.tmp").exists()
    assert (tmp_path / "new-2.tmp").exists()
