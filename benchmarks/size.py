"""What guard and gateway hold, beside a bare interpreter in the same run.

    scripts/bench size

Resident memory (VmRSS) at rest after two steps, descriptors and threads of the real processes over the fake engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from running import Running, eventually, fake_config, memory_of

MIB = 1 << 20


def main() -> int:
    """Measure and print."""
    bare = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        running = Running(Path(name), fake_config(Path(name)), "--listen", "127.0.0.1:0", kind="up")
        try:
            running.wait_ready()
            for profile in ("lean", "full"):
                assert running.ask("step", profile=profile)["ok"]
            guard = running.process.pid
            gateway = eventually(
                lambda: next((pid for pid in children(guard) if b"tidegate.gateway" in command(pid)), 0)
            )
            peer = memory_of(bare.pid)["VmRSS"]
            for what, pid in (("guard", guard), ("gateway", gateway)):
                resident = memory_of(pid)["VmRSS"]
                print(
                    f"{what:8} {resident / MIB:5.1f} MiB, {resident / peer:.1f} x a bare interpreter, "
                    f"{len(os.listdir(f'/proc/{pid}/fd'))} descriptors, {len(os.listdir(f'/proc/{pid}/task'))} threads"
                )
            print(f"python   {peer / MIB:5.1f} MiB ({sys.version.split()[0]}, -I -S)")
        finally:
            running.stop()
            bare.communicate(b"\n")
    return 0


def find_gateway(guard: int) -> int:
    """The guard's child that is the gateway, or 0."""
    return next((pid for pid in children(guard) if b"tidegate.gateway" in command(pid)), 0)


def children(pid: int) -> list[int]:
    """The children of ``pid``."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command(pid: int) -> bytes:
    """The command line of ``pid``."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


if __name__ == "__main__":
    raise SystemExit(main())
