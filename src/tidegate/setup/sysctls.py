"""Which kernel settings a guarded board wants, and their file in sysctl.d. Pure."""

from __future__ import annotations

from collections.abc import Mapping

PATH = "/etc/sysctl.d/60-tidegate.conf"
#: 16 sync, 64 kill and oom-kill (kernel.org, admin-guide/sysrq): the last resort of a person at the console.
_SYSRQ = 16 | 64
#: Debian's own, for a tree whose kernel does not run: 2 + 4 + 16 + 32 + 128 + 256.
_USUAL_SYSRQ = 438
#: With swap on storage, at most: a card is slow, and a swapped KV cache useless.
SWAPPINESS = 10
#: With zram alone. The kernel takes the number as the ratio of two costs that add up to 200, 133 where swap is twice as
#: fast as the filesystem (admin-guide/sysctl/vm.rst, swappiness): 150 is three times, 50 + 150.
SWAPPINESS_ZRAM = 150
#: Above it somebody has thought about it: it is what a kernel before 5.8 allows at most.
SWAPPINESS_EVEN = 100
#: What has to be known of a machine for :func:`wanted`.
KEYS = (
    "vm.panic_on_oom",
    "vm.swappiness",
    "kernel.sysrq",
    "vm.overcommit_kbytes",
    "vm.overcommit_ratio",
    "vm.overcommit_memory",
)


def wanted(original: Mapping[str, int] | None, *, zram: bool, strict: bool) -> tuple[tuple[str, int], ...]:
    """(key, value) in the order in which they are to be set; undone in the opposite order.

    ``original`` are the values before tidegate, None where no kernel runs; a key that is not there is left out.
    ``strict`` adds vm.overcommit_memory 2 with a ratio of 80 %.
    """
    known = {} if original is None else original
    sysrq = known.get("kernel.sysrq", _USUAL_SYSRQ)
    swappiness = known.get("vm.swappiness", 60)
    if not zram:
        swappiness = min(swappiness, SWAPPINESS)
    elif swappiness <= SWAPPINESS_EVEN:
        swappiness = SWAPPINESS_ZRAM
    found = [
        ("vm.panic_on_oom", 0),
        ("vm.swappiness", swappiness),
        # 1 is everything, so nothing can be added to it.
        ("kernel.sysrq", 1 if sysrq == 1 else sysrq | _SYSRQ),
    ]
    if strict:
        # A limit in kB takes the ratio's place, and setting either sets the other to 0.
        if known.get("vm.overcommit_kbytes"):
            found.append(("vm.overcommit_kbytes", 0))
        found += [("vm.overcommit_ratio", 80), ("vm.overcommit_memory", 2)]
    return tuple((key, value) for key, value in found if original is None or key in original)


def render(values: tuple[tuple[str, int], ...]) -> str:
    """The file."""
    why = {
        "vm.panic_on_oom": "The OOM killer kills; it does not take the board down.",
        "vm.swappiness": "How readily anonymous memory is swapped rather than file pages dropped.",
        "kernel.sysrq": "Lets a person at the console sync (16) and call the OOM killer (64).",
        "vm.overcommit_kbytes": "The ratio below is the limit.",
        "vm.overcommit_ratio": "Percent of RAM that may be promised, beside swap.",
        "vm.overcommit_memory": "2: memory beyond the limit is refused when it is asked for.",
    }
    lines = ["# Written by tidegate setup, taken back by tidegate setup --undo."]
    for key, value in values:
        lines += [f"# {why[key]}", f"{key} = {value}"]
    return "\n".join([*lines, ""])
