"""The boot command line: whether it, or the firmware, turned the memory controller or PSI off.

Judged by what works and not by the words: an option may come twice, and the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.doctor.board import Board
from tidegate.doctor.finding import Finding, Severity
from tidegate.host.cgroup import CgroupKind
from tidegate.host.kernel import version_of

#: PSI came with 4.20.
_PSI_SINCE = (4, 20)


def check(board: Board) -> Iterator[Finding]:
    """The memory controller, then PSI."""
    if not board.hierarchy.memory and board.hierarchy.kind is not CgroupKind.NONE:
        yield _memory_controller(board)
    if board.pressure is None:
        yield _pressure(board)


def _memory_controller(board: Board) -> Finding:
    disabled, enabled = _last(board.command_line, "cgroup_disable"), _last(board.command_line, "cgroup_enable")
    why = (
        "until the next boot with it every limit (memory.max, memory.high, MemoryMax= of units, docker --memory) is "
        "silently ignored, and one process can take the whole board"
    )
    evidence = f"cgroup.controllers lists {', '.join(board.controllers) or 'nothing'}; no memory.* files are there"
    if board.is_container:
        fix = "on the host: turn its memory controller on and hand it down to this container"
    elif enabled > disabled:
        fix = "a kernel that is built with CONFIG_MEMCG=y; the boot command line asks for it already"
        if _is_unset(board, "CONFIG_MEMCG"):
            evidence += "; the kernel's configuration has CONFIG_MEMCG unset"
    elif disabled < 0 and not board.is_raspberry_pi:
        fix = "a kernel that is built with CONFIG_MEMCG=y (zgrep CONFIG_MEMCG /proc/config.gz), then reboot"
    else:
        return _disabled(board, disabled, enabled, evidence, why)
    return Finding(
        id="boot.memory_controller",
        severity=Severity.CRITICAL,
        summary="the memory controller is not there: no memory limit works",
        evidence=evidence,
        why=why,
        fix=fix,
    )


def _disabled(board: Board, disabled: int, enabled: int, evidence: str, why: str) -> Finding:
    """The command line, or the Raspberry Pi's firmware, turned it off."""
    words = board.command_line
    said = f"word {disabled + 1} of /proc/cmdline is {words[disabled]}" if disabled >= 0 else "the kernel's default"
    if 0 <= enabled < disabled:
        said += f", after {words[enabled]} at {enabled + 1}: the last one counts"
    if board.is_raspberry_pi:
        file = f"{board.firmware_directory}/cmdline.txt"
        said += "; the Raspberry Pi's firmware adds it before what cmdline.txt has" if disabled >= 0 else ""
        fix = (
            f"in {file}, at the end of its one line: cgroup_enable=memory cgroup_memory=1"
            " (it must come after every cgroup_disable=memory), then reboot"
        )
        if 0 <= enabled < disabled:
            fix += f"; if {file} has a cgroup_disable=memory of its own, take it out"
    else:
        fix = (
            f"take cgroup_disable=memory out of {_place(board)}, then reboot; if the firmware adds it, put "
            "cgroup_enable=memory after it, which kernels of the Raspberry Pi kind know"
        )
    return Finding(
        id="boot.memory_controller",
        severity=Severity.CRITICAL,
        summary="the memory controller is off (cgroup_disable=memory): no memory limit works",
        evidence=f"{evidence}; {said}",
        why=why,
        fix=fix,
    )


def _pressure(board: Board) -> Finding:
    asked = _last_value(board.command_line, "psi")
    version = version_of(board.release)
    rebuilt = "a kernel of 4.20 or later that is built with CONFIG_PSI=y"
    evidence = "/proc/pressure/memory cannot be read"
    if board.is_container:
        fix = "on the host: let this container see /proc/pressure, or boot the host with pressure on"
    elif version is not None and version < _PSI_SINCE:
        evidence, fix = f"{evidence}; the kernel is {board.release}", rebuilt
    elif _is_unset(board, "CONFIG_PSI"):
        evidence, fix = f"{evidence}; the kernel's configuration has CONFIG_PSI unset", rebuilt
    elif asked in ("1", "y", "on", "yes", "true"):
        evidence, fix = f"{evidence} although the boot command line asks for it", rebuilt
    else:
        if asked is not None:
            evidence += f"; /proc/cmdline has psi={asked}"
        where = _place(board)
        if board.config is not None and board.config.get("CONFIG_PSI") == "y":
            fix = f"add to {where}: psi=1, then reboot"
        else:
            fix = f"add to {where}: psi=1, then reboot; it needs a kernel that is built with CONFIG_PSI=y"
    return Finding(
        id="boot.psi",
        severity=Severity.WARNING,
        summary="pressure stall information (PSI) is off",
        evidence=evidence,
        why="stalls are seen late, by refaults and by the clock alone; thrashing of mapped weights is what PSI shows "
        "first (0.1-0.2 s after the first throttling, measured)",
        fix=fix,
    )


def _place(board: Board) -> str:
    """Where the boot command line is written."""
    if board.is_raspberry_pi:
        return f"{board.firmware_directory}/cmdline.txt, at the end of its one line"
    if board.has_device_tree:
        return "the boot command line (append in /boot/extlinux/extlinux.conf, extraargs= in /boot/armbianEnv.txt)"
    return "the boot command line (GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub)"


def _last(words: tuple[str, ...], name: str) -> int:
    """The place of the last word ``name=..`` with memory among its values, or -1."""
    for place in range(len(words) - 1, -1, -1):
        key, _, value = words[place].partition("=")
        if key == name and "memory" in value.split(","):
            return place
    return -1


def _last_value(words: tuple[str, ...], name: str) -> str | None:
    values = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    return values[-1] if values else None


def _is_unset(board: Board, option: str) -> bool:
    """Whether the kernel's configuration is known and does not have ``option``."""
    return board.config is not None and board.config.get(option, "n") == "n"
