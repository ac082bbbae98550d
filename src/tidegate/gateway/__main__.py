"""``python -m tidegate.gateway``: started by the guard, see docs/gateway.md."""

from __future__ import annotations

import os
import sys

# The gateway never speaks TLS, but aiohttp loads every root certificate at import: 2 MB and 60 ms.
os.environ["SSL_CERT_FILE"] = os.devnull

from tidegate.gateway.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
