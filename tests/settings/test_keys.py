"""Files of API keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import TidegateError
from tidegate.settings.keys import read_keys

KEY = "0123456789abcdef"


def file(directory: Path, text: str | bytes, mode: int = 0o600) -> str:
    path = directory / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return str(path)


def test_one_key_a_line(tmp_path: Path) -> None:
    path = file(tmp_path, f"# phone\n{KEY}\n\n  {KEY}-2  \r\n")
    assert read_keys(path, "gateway.keys") == (KEY, f"{KEY}-2")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no key in it"),
        ("# nothing\n", "there is no key in it"),
        ("short\n", "line 1 is no key"),
        (f"{KEY}\nwith a space in it\n", "line 2 is no key"),
        ("ключключключключ\n", "line 1 is no key"),
        (b"\xff" * 20, "line 1 is no key"),
        (b"x" * ((1 << 20) + 1), "larger than 1 MiB"),
    ],
)
def test_what_is_no_file_of_keys(tmp_path: Path, text: str | bytes, why: str) -> None:
    with pytest.raises(TidegateError, match=why) as caught:
        read_keys(file(tmp_path, text), "gateway.keys")
    assert caught.value.message.startswith("cannot use gateway.keys = ")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_others_may_not_read_it(tmp_path: Path, mode: int) -> None:
    path = file(tmp_path, KEY, mode)
    with pytest.raises(TidegateError, match=f"its mode is {mode:04o}") as caught:
        read_keys(path, "gateway.keys")
    assert caught.value.hint == f"chmod 600 {path}"


@pytest.mark.parametrize(("name", "why"), [("none", "No such file"), (".", "Is a directory")])
def test_what_cannot_be_read(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(TidegateError, match=f"cannot read gateway.control_keys = .*: {why}"):
        read_keys(str(tmp_path / name), "gateway.control_keys")
