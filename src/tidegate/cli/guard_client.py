"""Ask the running guard over its socket."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from tidegate.errors import Exit, TidegateError
from tidegate.settings.paths import run_directory

#: A status document of 32 actions is 10 kB.
_MOST_ANSWER_BYTES = 1 << 20
#: "cannot X": what was wanted, for people.
_WANTED = {"status": "show the status", "step": "change the profile", "reset": "restart the worker"}


def ask(command: str, *, timeout: float = 5.0, **more: Any) -> dict[str, Any]:
    """The result of ``command``; ``timeout`` is seconds for the whole exchange.

    Raises:
        TidegateError: no guard runs here, it does not answer in time, or it refuses (exit code 1).
    """
    path = os.path.join(run_directory(os.environ, uid=os.getuid()), "guard.sock")
    wanted = _WANTED.get(command, command)
    deadline = time.monotonic() + timeout
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(json.dumps({"id": 1, "command": command, **more}).encode() + b"\n")
            data = b""
            while b"\n" not in data and len(data) < _MOST_ANSWER_BYTES:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                chunk = connection.recv(65536)
                if not chunk:
                    raise TidegateError(f"cannot {wanted}: the guard ended")
                data += chunk
    except (FileNotFoundError, ConnectionRefusedError):
        raise TidegateError(
            f"cannot {wanted}: no guard runs here ({path})", hint="start one with tidegate up"
        ) from None
    except TimeoutError:
        raise TidegateError(f"cannot {wanted}: the guard does not answer within {timeout:g} s") from None
    except OSError as error:
        raise TidegateError(f"cannot {wanted}: {error.strerror or error} ({path})") from None
    try:
        answer = json.loads(data)
        if answer["ok"]:
            return dict(answer["result"])
        refusal = TidegateError(str(answer["error"]), hint=str(answer.get("hint", "")), exit_code=Exit.FINDINGS)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise TidegateError(f"cannot {wanted}: the guard's answer is not one of ours") from None
    raise refusal
