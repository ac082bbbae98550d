"""One look at a machine, or at a tree of one: everything that the checks judge."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tidegate.doctor.engine_commands import EngineProcess, read_engines
from tidegate.doctor.rival_files import RivalFiles, read_rivals
from tidegate.host import kernel
from tidegate.host.cgroup import Hierarchy, find_hierarchy
from tidegate.host.cgroup_memory import GroupLimit, GroupReading, find_limits, parse_keyed, read_events, read_group
from tidegate.host.cgroup_tree import ProtectedGroup, read_protected
from tidegate.host.device_memory import DeviceMemory, read_device_memory
from tidegate.host.errors import HostReadError
from tidegate.host.files import read_file, rooted
from tidegate.host.meminfo import MemInfo, read_meminfo
from tidegate.host.memory_lines import read_memory_lines
from tidegate.host.mount_options import read_cgroup2_options
from tidegate.host.process_table import ProcessRow, read_processes
from tidegate.host.psi import Pressure, pressure_path, read_pressure
from tidegate.host.swap import SwapArea, read_swaps
from tidegate.host.sysctl import read_sysctl
from tidegate.host.unit_files import Unit, read_units
from tidegate.host.zram import ZramDevice, read_zram

#: Every kernel setting that a check looks at.
SYSCTLS = (
    *("vm.overcommit_memory", "vm.overcommit_ratio", "vm.overcommit_kbytes", "vm.panic_on_oom"),
    *("vm.oom_kill_allocating_task", "vm.oom_dump_tasks", "vm.swappiness", "vm.min_free_kbytes"),
    *("vm.watermark_scale_factor", "kernel.sysrq", "kernel.panic", "kernel.hung_task_panic"),
    "kernel.hung_task_timeout_secs",
)


@dataclass(frozen=True)
class Group:
    """One group of the process's own chain. ``events``: memory.events.local, or of v1 what memory.oom_control and
    memory.failcnt say; ``stat``: memory.stat; ``limits``: the numbers that are set in its limit files, in bytes."""

    reading: GroupReading
    events: dict[str, int]
    stat: dict[str, int]
    limits: dict[str, int]
    pressure: Pressure | None
    has_oom_group: bool


@dataclass(frozen=True)
class Board:
    """``info`` is None where /proc/meminfo cannot be used, and then ``problem`` says why. ``lines`` is all of it, in
    bytes.

    ``chain`` are the groups of the process in ``/proc/self/cgroup``, own group first, as far as they have memory files;
    ``limits`` those of them that are limited. ``firmware_directory`` is where a Raspberry Pi has cmdline.txt.
    """

    info: MemInfo | None
    problem: str
    lines: dict[str, int]
    hierarchy: Hierarchy
    controllers: tuple[str, ...]
    mount_options: tuple[str, ...] | None
    chain: tuple[Group, ...]
    limits: tuple[GroupLimit, ...]
    pressure: Pressure | None
    command_line: tuple[str, ...]
    release: str
    config: dict[str, str] | None
    model: str
    is_container: bool
    firmware_directory: str
    sysctls: dict[str, int]
    swaps: tuple[SwapArea, ...]
    zram: tuple[ZramDevice, ...]
    devices: tuple[DeviceMemory, ...]
    has_device_tree: bool
    has_gpu: bool
    has_watchdog: bool
    free_blocks: tuple[int, ...]
    processes: tuple[ProcessRow, ...]
    engines: tuple[EngineProcess, ...]
    units: tuple[Unit, ...]
    protected: tuple[ProtectedGroup, ...]
    rivals: RivalFiles = field(default_factory=RivalFiles)

    @property
    def total(self) -> int:
        """RAM in bytes, 0 where it is not known."""
        return self.info.total if self.info else 0

    @property
    def available(self) -> int:
        """Available memory in bytes, 0 where it is not known."""
        return self.info.available if self.info else 0

    @property
    def can_limit_swap(self) -> bool:
        """Whether memory.swap.max (MemorySwapMax=) does anything here."""
        return self.hierarchy.memory and not self.hierarchy.is_v1

    @property
    def is_raspberry_pi(self) -> bool:
        """Judged by the model, the kernel's release and what its firmware adds to the command line."""
        told = any(word.startswith(("vc_mem.", "bcm2708", "bcm2709")) for word in self.command_line)
        return "raspberry pi" in self.model.lower() or "rpi" in self.release or "-v8" in self.release or told

    @property
    def is_jetson(self) -> bool:
        """Judged by the model and the kernel's release."""
        return "jetson" in self.model.lower() or "nvidia" in self.model.lower() or "tegra" in self.release

    @property
    def name(self) -> str:
        """What to call it in a sentence."""
        return self.model or "this board"

    def unit(self, name: str) -> Unit | None:
        """The unit ``name``, if it has files."""
        return next((unit for unit in self.units if unit.name == name), None)


def look(root: str = "/") -> Board:
    """Read everything below ``root``, once. Never raises.

    ``root`` other than "/" must be a tree without links that leave it: see :mod:`tidegate.doctor.sysroot`.
    """
    info: MemInfo | None = None
    problem = ""
    try:
        info = read_meminfo(root)
    except HostReadError as error:
        # The directory is the reader's own copy, of which nobody wants to hear.
        problem = error.message.replace(root.rstrip("/"), "") if root != "/" else error.message
    hierarchy = find_hierarchy(None, root)
    values = ((name, read_sysctl(name, root)) for name in SYSCTLS)
    # Not ourselves: gone in a moment.
    processes = tuple(row for row in read_processes(root) if root != "/" or row.pid != os.getpid())
    return Board(
        info=info,
        problem=problem,
        lines=read_memory_lines(root),
        hierarchy=hierarchy,
        controllers=_controllers(hierarchy),
        mount_options=read_cgroup2_options(root),
        chain=_chain(hierarchy),
        limits=find_limits(hierarchy),
        pressure=read_pressure(pressure_path(root)),
        command_line=kernel.read_command_line(root),
        release=kernel.read_release(root),
        config=kernel.read_config(root),
        model=kernel.read_model(root),
        is_container=kernel.is_container(root),
        firmware_directory=_firmware_directory(root),
        sysctls={name: value for name, value in values if value is not None},
        swaps=read_swaps(root),
        zram=read_zram(root),
        devices=read_device_memory(root),
        has_device_tree=kernel.has_path("/sys/firmware/devicetree/base", root),
        has_gpu=kernel.has_path("/sys/class/drm/card0", root) or kernel.has_path("/dev/dri", root),
        has_watchdog=kernel.has_path("/sys/class/watchdog/watchdog0", root) or kernel.has_path("/dev/watchdog0", root),
        free_blocks=_free_blocks(root),
        processes=processes,
        engines=read_engines(processes, root),
        units=read_units(root),
        protected=read_protected(hierarchy),
        rivals=read_rivals(root),
    )


def _controllers(hierarchy: Hierarchy) -> tuple[str, ...]:
    """What cgroup.controllers of the top group lists, sorted as there."""
    data = read_file(f"{hierarchy.mount}/cgroup.controllers", 4096) if hierarchy.mount else None
    return tuple(os.fsdecode(data or b"").split())


def _chain(hierarchy: Hierarchy) -> tuple[Group, ...]:
    if not hierarchy.memory:
        return ()
    found = []
    for path in hierarchy.chain():
        reading = read_group(hierarchy, path)
        if reading is not None:
            found.append(_group(hierarchy, reading))
    return tuple(found)


_LIMIT_FILES = ("memory.max", "memory.high", "memory.swap.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")


def _group(hierarchy: Hierarchy, reading: GroupReading) -> Group:
    directory = hierarchy.directory_of(reading.path)
    events = read_events(directory, local=True) or read_events(directory) or {}
    if hierarchy.is_v1:
        events = parse_keyed(read_file(f"{directory}/memory.oom_control", 4096) or b"")
        # Charges that hit the limit: the "max" of v2.
        failed = parse_keyed(b"max " + (read_file(f"{directory}/memory.failcnt", 64) or b"").strip())
        events.update(failed)
    limits = {}
    for name in _LIMIT_FILES:
        value = parse_keyed(b"limit " + (read_file(f"{directory}/{name}", 64) or b"").strip()).get("limit")
        if value is not None and value < 1 << 60:
            limits[name] = value
    return Group(
        reading=reading,
        events=events,
        stat=parse_keyed(read_file(f"{directory}/memory.stat", 65536) or b""),
        limits=limits,
        pressure=read_pressure(f"{directory}/memory.pressure"),
        has_oom_group=(read_file(f"{directory}/memory.oom.group", 64) or b"").strip() == b"1",
    )


def _firmware_directory(root: str) -> str:
    """/boot/firmware since Debian 12, /boot before; where neither has a cmdline.txt the system's version decides."""
    for directory in ("/boot/firmware", "/boot"):
        if kernel.has_path(f"{directory}/cmdline.txt", root):
            return directory
    release = read_file(rooted(root, "/etc/os-release"), 65536) or b""
    return "/boot" if any(f'VERSION_ID="{old}"'.encode() in release for old in (9, 10, 11)) else "/boot/firmware"


def _free_blocks(root: str) -> tuple[int, ...]:
    """How many free blocks there are of each order (4 KiB << order with 4 KiB pages), summed over all zones."""
    totals: list[int] = []
    for line in (read_file(rooted(root, "/proc/buddyinfo"), 65536) or b"").split(b"\n"):
        _, _, tail = line.partition(b" zone ")
        counts = [int(word) for word in tail.split()[1:] if word.isdigit() and len(word) < 12]
        if counts:
            totals = [a + b for a, b in zip(totals or [0] * len(counts), counts, strict=False)]
    return tuple(totals)
