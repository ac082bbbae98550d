"""Files of API keys: one key a line, ``#`` before a comment."""

from __future__ import annotations

import os
import stat

from tidegate.errors import TidegateError

#: Nobody guesses 16 characters over a network; `openssl rand -hex 16` makes 32.
LEAST_CHARACTERS = 16
_MOST_BYTES = 1 << 20


def read_keys(path: str, setting: str) -> tuple[str, ...]:
    """The keys in the file at ``path``, which ``setting`` names.

    Raises:
        TidegateError: it cannot be read, others may read or change it, or a key in it is none.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise TidegateError(f"cannot read {setting} = {path}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise TidegateError(f"cannot use {setting} = {path}: it is no file")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise TidegateError(
            f"cannot use {setting} = {path}: its mode is {mode:04o}, so others may read it", hint=f"chmod 600 {path}"
        )
    if len(data) > _MOST_BYTES:
        raise TidegateError(f"cannot use {setting} = {path}: it is larger than {_MOST_BYTES >> 20} MiB")
    keys = []
    for number, line in enumerate(data.decode("ascii", "replace").splitlines(), start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        # A key travels in a header's value.
        if len(key) < LEAST_CHARACTERS or not all("!" <= char <= "~" for char in key):
            raise TidegateError(
                f"cannot use {setting} = {path}: line {number} is no key of at least {LEAST_CHARACTERS} visible "
                "ASCII characters",
                hint="openssl rand -hex 16",
            )
        keys.append(key)
    if not keys:
        raise TidegateError(f"cannot use {setting} = {path}: there is no key in it", hint="openssl rand -hex 16")
    return tuple(keys)
