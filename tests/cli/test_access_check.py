"""What `tidegate up` says of keys before anything listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.cli.launch import check_access
from tidegate.errors import TidegateError
from tidegate.settings.model import GatewaySettings

KEY = "0123456789abcdef"


@pytest.mark.parametrize("listen", ["127.0.0.1:8080", "[::1]:8080", "localhost:0", "unix:/run/x.sock"])
def test_on_this_machine_no_key_is_needed(listen: str) -> None:
    check_access(GatewaySettings(listen=listen), gateway=True)


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080", "192.0.2.7:80"])
def test_beyond_it_one_is(tmp_path: Path, listen: str) -> None:
    with pytest.raises(TidegateError, match="without keys: everybody in its network") as caught:
        check_access(GatewaySettings(listen=listen), gateway=True)
    assert "gateway.without_keys = true" in (caught.value.hint or "")
    check_access(GatewaySettings(listen=listen, without_keys=True), gateway=True)
    # Nothing listens.
    check_access(GatewaySettings(listen=listen), gateway=False)
    path = tmp_path / "keys"
    path.write_text(KEY)
    path.chmod(0o600)
    check_access(GatewaySettings(listen=listen, keys=str(path)), gateway=True)


@pytest.mark.parametrize("name", ["keys", "control_keys"])
def test_a_file_that_cannot_be_used_ends_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "keys"
    path.write_text(KEY)
    path.chmod(0o644)
    with pytest.raises(TidegateError, match=f"cannot use gateway.{name} = .*: its mode is 0644"):
        check_access(GatewaySettings(**{name: str(path)}), gateway=True)  # type: ignore[arg-type]
