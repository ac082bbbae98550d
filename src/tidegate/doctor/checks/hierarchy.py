"""Which cgroup hierarchy there is, how it is mounted, and whether its controllers reach the group in question."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.host.cgroup import CgroupKind


def check(board: Board) -> Iterator[Finding]:
    """No hierarchy, an old one, controllers that are not handed down, mount options."""
    kind = board.hierarchy.kind
    if kind is CgroupKind.NONE:
        yield Finding(
            id="hierarchy.none",
            severity=Severity.WARNING,
            summary="no cgroup hierarchy is mounted: nothing limits, protects or kills a group as a whole",
            evidence="neither /proc/self/mountinfo nor /proc/mounts has a cgroup or cgroup2 line",
            why="tidegate works by its budget alone: no memory.max as the last fence, no cgroup.kill, no memory.min",
            fix="mount -t cgroup2 none /sys/fs/cgroup",
        )
        return
    if kind in (CgroupKind.V1, CgroupKind.HYBRID):
        yield _old(board)
    elif board.hierarchy.memory:
        yield from _not_handed_down(board)
    yield from _options(board)


def _old(board: Board) -> Finding:
    forced = [word for word in board.command_line if word.startswith(("systemd.unified_cgroup_hierarchy=0",))]
    forced += [word for word in board.command_line if word.startswith("systemd.legacy_systemd_cgroup_controller")]
    seen = f"; /proc/cmdline has {' '.join(forced)}" if forced else ""
    return Finding(
        id="hierarchy.v1",
        severity=Severity.INFO,
        summary="memory is controlled by cgroup v1 (memory.limit_in_bytes)",
        evidence=f"the memory controller is mounted as v1 at {_place(board)}{seen}",
        why="v1 has no memory.high, no memory.min, no memory.oom.group, no memory.events to poll and no cgroup.kill: "
        "tidegate guards by its budget and reads the limits, but cannot fence, and nothing protects the board's job",
        fix=(f"take {' '.join(forced)} out of the boot command line and " if forced else "")
        + "boot with systemd.unified_cgroup_hierarchy=1",
    )


def _place(board: Board) -> str:
    """The mount point without the directory of a copied tree."""
    place = board.hierarchy.mount
    return place[place.find("/sys/fs/cgroup") :] if "/sys/fs/cgroup" in place else place.rpartition("/")[2]


def _not_handed_down(board: Board) -> Iterator[Finding]:
    own = board.hierarchy.group
    if own != "/" and not any(group.reading.path == own for group in board.chain):
        parent = own.rpartition("/")[0] or "/"
        yield Finding(
            id="hierarchy.not_handed_down",
            severity=Severity.WARNING,
            summary=f"the memory controller does not reach {own}: it has no memory.max",
            evidence=f"cgroup.controllers of the top group lists memory, but {own} has no memory.current",
            why="a limit on this group is ignored, and what it uses is counted in a group above it",
            fix=f"echo +memory > /sys/fs/cgroup{parent.rstrip('/')}/cgroup.subtree_control, or MemoryAccounting=yes in "
            "the unit",
        )


def _options(board: Board) -> Iterator[Finding]:
    options = board.mount_options
    if options is None or board.hierarchy.is_v1:
        return
    if "memory_localevents" in options:
        yield Finding(
            id="hierarchy.localevents",
            severity=Severity.INFO,
            summary="cgroup2 is mounted with memory_localevents",
            evidence=f"/proc/mounts: {','.join(options)}",
            why="memory.events of a group does not count what happens in its children: a kill there is not seen above",
            fix="mount -o remount,nsdelegate,memory_recursiveprot /sys/fs/cgroup",
        )
    if board.hierarchy.memory and not board.is_container and "memory_recursiveprot" not in options:
        yield Finding(
            id="hierarchy.recursiveprot",
            severity=Severity.INFO,
            summary="cgroup2 is mounted without memory_recursiveprot",
            evidence=f"/proc/mounts: {','.join(options)}",
            why="memory.min and memory.low of a slice do not reach the units in it; each must have its own",
            fix="mount -o remount,nsdelegate,memory_recursiveprot /sys/fs/cgroup (systemd 248 and later mounts it so)",
        )
