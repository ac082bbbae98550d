"""The state file: whole or not at all, and nothing but our own records is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.frozen import as_json
from tidegate.guard.state_file import WorkerRecord, load, save

RECORD = WorkerRecord(
    pid=123,
    start_time=456,
    generation=7,
    profile="lean",
    url="unix:/run/tidegate/worker-7.sock",
    group="/tidegate/worker-7",
    argv=("llama-server", "-m", "/models/m.gguf"),
    prompt_cache=64 << 20,
)


def test_a_record_comes_back(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    assert save(path, RECORD) == ""
    assert load(path) == RECORD
    assert os.listdir(tmp_path) == ["state.json"]


def test_nothing_runs(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    assert save(path, RECORD) == save(path, None) == ""
    assert load(path) is None


def test_no_file(tmp_path: Path) -> None:
    assert load(str(tmp_path / "state.json")) is None


def test_paths_that_are_no_text_come_back(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    record = WorkerRecord(**{**vars(RECORD), "argv": (os.fsdecode(b"/models/\xff.gguf"),)})
    assert save(path, record) == ""
    assert load(path) == record


def test_what_cannot_be_written_is_said_and_leaves_the_old(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save(str(path), RECORD)
    (tmp_path / "state.json.new").mkdir()
    assert save(str(path), None) == f"cannot write {path}: Is a directory"
    assert load(str(path)) == RECORD
    assert save(str(tmp_path / "none" / "state.json"), RECORD).endswith("No such file or directory")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save(str(path), RECORD)
    (tmp_path / "state.json.new").symlink_to("/dev/full")
    assert save(str(path), None) == f"cannot write {path}: No space left on device"
    assert load(str(path)) == RECORD


@pytest.mark.parametrize(
    "changed",
    [
        {"pid": 0}, {"pid": -1}, {"start_time": 0}, {"generation": 0}, {"generation": -3}, {"pid": None},
        {"pid": "123"}, {"pid": [1]}, {"argv": None}, {"argv": 5}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_records_that_are_not_ours(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({**as_json(RECORD), **changed}))
    assert load(str(path)) is None


@pytest.mark.parametrize("name", list(vars(RECORD)))
def test_a_record_with_a_field_missing(tmp_path: Path, name: str) -> None:
    document = as_json(RECORD)
    del document[name]
    path = tmp_path / "state.json"
    path.write_text(json.dumps(document))
    assert load(str(path)) is None


@pytest.mark.parametrize("length", [0, 1, 10, 100])
def test_a_torn_file(tmp_path: Path, length: int) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(as_json(RECORD))[:length])
    assert load(str(path)) is None


def test_a_file_that_is_much_too_long(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({**as_json(RECORD), "argv": ["x" * 100_000]}))
    assert load(str(path)) is None


def test_a_file_nested_without_end(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("[" * 60_000)
    assert load(str(path)) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_is_no_record(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(data)
    assert load(str(path)) is None
