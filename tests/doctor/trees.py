"""Trees that are made in a test: files below a directory, and what doctor says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from boards import board
from tidegate.doctor.finding import Finding
from tidegate.doctor.runner import Report, examine_tree

MEMINFO = {
    "MemTotal": 8000000,
    "MemFree": 3000000,
    "MemAvailable": 5000000,
    "Buffers": 100000,
    "Cached": 2000000,
    "AnonPages": 2600000,
    "Mapped": 100000,
    "Slab": 200000,
    "KernelStack": 8000,
    "PageTables": 20000,
    "Percpu": 2000,
    "CommitLimit": 4000000,
    "Committed_AS": 3000000,
}
CGROUP2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate,memory_recursiveprot 0 0\n"


def meminfo(**changed: int | None) -> str:
    """/proc/meminfo of a quiet 8 GB board with ``changed`` lines; None leaves one out."""
    values = {**MEMINFO, **changed}
    return "".join(
        f"{name}: {value}\n" if name.startswith("HugePages") else f"{name}: {value} kB\n"
        for name, value in values.items()
        if value is not None
    )


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    """Put ``files`` below ``root``."""
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def quiet(root: Path, files: dict[str, str | bytes] | None = None, **changed: int | None) -> Path:
    """A board of which doctor has nothing to say, with ``files`` over it."""
    base: dict[str, str | bytes] = {
        "/proc/meminfo": meminfo(**changed),
        "/proc/version": "Linux version 6.12.1 (builder@host1) #1 SMP\n",
        "/proc/cmdline": "root=/dev/nvme0n1p2 ro\n",
        "/proc/mounts": CGROUP2,
        "/proc/swaps": "Filename Type Size Used Priority\n",
        "/proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "/proc/self/cgroup": "0::/system.slice/llama.service\n",
        "/sys/fs/cgroup/cgroup.controllers": "cpu io memory pids\n",
        "/sys/fs/cgroup/system.slice/llama.service/memory.current": "1000000\n",
        "/sys/fs/cgroup/system.slice/llama.service/memory.stat": "anon 1000000\n",
        "/sys/fs/cgroup/system.slice/llama.service/memory.max": "max\n",
        "/sys/fs/cgroup/system.slice/llama.service/memory.high": "max\n",
    }
    return write(root, {**base, **(files or {})})


def process(
    pid: int, name: str, *, anon: int = 10000, swap: int = 0, score: int = 10, adj: int = 0
) -> dict[str, str | bytes]:
    """The files of a process; sizes in kB."""
    status = f"Name:\t{name}\nState:\tS\nRssAnon:\t{anon} kB\nRssFile:\t500 kB\nRssShmem:\t0 kB\nVmSwap:\t{swap} kB\n"
    return {
        f"/proc/{pid}/status": status,
        f"/proc/{pid}/oom_score": f"{score}\n",
        f"/proc/{pid}/oom_score_adj": f"{adj}\n",
    }


def report(root: Path | str) -> Report:
    return examine_tree(str(root))


def found(root: Path | str) -> dict[str, Finding]:
    """The findings by id; of several with one id the last."""
    return {finding.id: finding for finding in report(root).findings}


def expectation(name: str) -> tuple[str, dict[str, Any]]:
    """Root and expected.json of a recorded board."""
    root = board(name).root
    return root, json.loads((Path(root) / "expected.json").read_text())


def text_of(findings: tuple[Finding, ...]) -> str:
    """What a must_mention term is looked for in, lower-cased."""
    return " ".join(f"{each.summary} {each.evidence} {each.fix}" for each in findings).lower()
