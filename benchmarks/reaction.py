"""From crossing the critical line (91 % of memory in use) to the first signal, beside the rivals, on the virtual board.

    scripts/bench reaction [RUNS [RATE ...]]

A process takes memory at 60 MiB/s, at 1.2 GiB/s, and as fast as the kernel gives it (0), or at the RATEs given (MiB/s);
each guard has the settings that its own documentation gives for that line. tests/board/scenarios/reaction.py says how
exact the figures are. A guard that foresees the crossing signals before it: then the reaction is shown as "before".
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from board.harness import Board, built, wheel_of_checkout

GUARDS = ("none", "earlyoom", "nohang", "systemd-oomd", "tidegate")
RAM = "1G"
#: MiB/s.
RATES = (60, 1229, 0)
#: A slow fill takes 10 s, and the kernel alone 20 s of thrash for each: fewer of these.
SLOW_MIB_S, SLOW_SHARE, RIVALS_SHARE, THRASHING = 100, 0.1, 0.4, 2
BEFORE = -1.0


def main(runs: int, rates: tuple[int, ...]) -> int:
    """Measure and print; 1 if tidegate's p99 is above 50 ms at any rate."""
    image, uml = built("image", sys.stderr), built("uml", sys.stderr)
    slow = False
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        directory = Path(name)
        board = Board(image, uml, wheel=wheel_of_checkout(directory), directory=directory)
        for rate in rates:
            for who in GUARDS:
                share = (SLOW_SHARE if 0 < rate < SLOW_MIB_S else 1.0) * (1.0 if who == "tidegate" else RIVALS_SHARE)
                count = THRASHING if who in ("none", "systemd-oomd") else max(3, round(runs * share))
                result = board.run("reaction.py", who, str(rate), str(count), ram=RAM, timeout=1200).checked()
                found = result.json("reaction")["runs"]
                print(line(who, found), flush=True)
                slow = slow or (who == "tidegate" and percentile(reactions(found), 0.99) > 0.05)
    return 1 if slow else 0


def reactions(found: list[dict[str, Any]]) -> list[float]:
    """Seconds, ascending; `BEFORE` for a signal before the crossing, infinity where only the kernel acted."""
    times = []
    for run in found:
        if run["ended_by"] == "kernel":
            times.append(float("inf"))
        else:
            times.append(BEFORE if run["reaction_s"] is None else run["reaction_s"])
    return sorted(times)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of ``values`` does not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]


def line(who: str, found: list[dict[str, Any]]) -> str:
    """One line for a reader."""
    times = reactions(found)
    rates = sorted(run["rate_mib_s"] for run in found)
    kernel = sum(run["ended_by"] == "kernel" for run in found)
    left = min(run["left_mib"] for run in found)
    shown = ", ".join(f"{name} {show(percentile(times, share))}" for name, share in (("p50", 0.5), ("p99", 0.99)))
    return (
        f"{who:13} {len(found):3} runs at {rates[len(rates) // 2]:5.0f} MiB/s: {shown}; "
        f"killed by the kernel {kernel}, least left {left:.0f} MiB"
    )


def show(seconds: float) -> str:
    """``seconds`` for a reader."""
    if seconds == float("inf"):
        return "never"
    return "before" if seconds == BEFORE else f"{seconds * 1000:.0f} ms"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50, tuple(map(int, sys.argv[2:])) or RATES))
