"""Pressure files and triggers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.host.psi import Pressure, open_trigger, parse_pressure, pressure_path, read_pressure

SOME = b"some avg10=91.20 avg60=89.41 avg300=86.30 total=5210118204\n"
FULL = b"full avg10=20.11 avg60=19.80 avg300=18.42 total=1204118204\n"


def test_both_lines() -> None:
    assert parse_pressure(SOME + FULL) == Pressure(91.20, 5210118204, 20.11, 1204118204)


def test_a_missing_full_line_is_zero() -> None:
    assert parse_pressure(SOME) == Pressure(91.20, 5210118204, 0.0, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"full avg10=1.00 total=5\n",
        b"some\n",
        b"some avg10=nan total=5",
        b"some avg10=1e3 total=5",
        b"some avg10=1",
    ],
)
def test_what_is_no_pressure(data: bytes) -> None:
    assert parse_pressure(data) is None


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: b"some avg10=" + tail))
def test_garbage_never_raises(data: bytes) -> None:
    found = parse_pressure(data)
    assert found is None or 0 <= found.some_avg10 <= 100


def test_no_file_is_none(tmp_path: Path) -> None:
    assert read_pressure(pressure_path(str(tmp_path))) is None
    assert open_trigger(str(tmp_path / "missing"), "some", 1, 2) is None


def test_psi_that_is_off_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """psi=0: the file can be opened, and the read fails (nohang#74)."""

    def refuse(fd: int, size: int) -> bytes:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    path = tmp_path / "memory"
    path.write_bytes(SOME)
    monkeypatch.setattr(os, "read", refuse)
    assert read_pressure(str(path)) is None


def test_the_trigger_ends_in_a_nul(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(b"")
    opened = open_trigger(str(path), "some", 50_000, 1_000_000)
    assert opened is not None
    os.close(opened[0])
    assert opened[1] == 1_000_000
    assert path.read_bytes() == b"some 50000 1000000\0"


def _refusing(refused: int, number: int) -> tuple[list[bytes], object]:
    """A write() that refuses the first ``refused`` triggers with errno ``number``, and what was written."""
    seen: list[bytes] = []

    def write(fd: int, data: bytes) -> int:
        seen.append(data)
        if len(seen) <= refused:
            raise OSError(number, os.strerror(number))
        return len(data)

    return seen, write


def test_without_privilege_the_same_share_of_two_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(b"")
    seen, write = _refusing(1, errno.EINVAL)
    monkeypatch.setattr(os, "write", write)
    opened = open_trigger(str(path), "full", 50_000, 1_000_000)
    assert opened is not None
    os.close(opened[0])
    assert opened[1] == 2_000_000
    assert seen == [b"full 50000 1000000\0", b"full 100000 2000000\0"]


@pytest.mark.parametrize(("number", "tries"), [(errno.EINVAL, 2), (errno.EPERM, 2), (errno.EOPNOTSUPP, 1)])
def test_a_refused_trigger_leaks_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, tries: int
) -> None:
    path = tmp_path / "memory"
    path.write_bytes(b"")
    before = len(os.listdir("/proc/self/fd"))
    seen, write = _refusing(9, number)
    monkeypatch.setattr(os, "write", write)
    assert open_trigger(str(path), "some", 50_000, 1_000_000) is None
    assert len(seen) == tries
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_kernel_takes_our_trigger() -> None:
    path = pressure_path()
    if read_pressure(path) is None or not os.access(path, os.W_OK):
        pytest.skip("no writable pressure file on this machine")
    opened = open_trigger(path, "some", 50_000, 1_000_000)
    assert opened is not None
    os.close(opened[0])
    assert opened[1] in (1_000_000, 2_000_000)
