"""A part of the board that cannot be built is refused with a reason, and leaves nothing that looks built."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from board.harness import NotBuiltError, built


@pytest.mark.parametrize("package", [None, b"not the pinned one"], ids=["missing", "changed"])
def test_the_reason_is_told_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: bytes | None
) -> None:
    source = tmp_path / "linux-source.deb"
    if package:
        source.write_bytes(package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TIDEGATE_BOARD_KERNEL_DEB", str(source))
    said = io.StringIO()
    with pytest.raises(NotBuiltError, match=r"^cannot (read|use the kernel source|build it without)") as caught:
        built("uml", said)
    assert str(caught.value) in said.getvalue()
    assert [path.name for path in (tmp_path / "cache" / "tidegate" / "board").iterdir()] == ["uml.lock"]
