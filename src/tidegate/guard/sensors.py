"""The guard's eyes: held descriptors, one look at a time, and what of it can be trusted on this machine."""

from __future__ import annotations

from tidegate.frozen import frozen
from tidegate.guard.group_watch import STALL_US, WINDOW_US
from tidegate.guard.stalls import Stalls
from tidegate.host import cgroup, cgroup_memory, meminfo, process, psi, vmstat
from tidegate.host.errors import HostReadError
from tidegate.policy import headroom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.host.capabilities import Capabilities
    from tidegate.host.cgroup_memory import GroupReading
    from tidegate.host.meminfo import MemInfo
    from tidegate.host.process import ProcessMemory
    from tidegate.policy.diagnosis import StallWindow

#: Engines are one process; a wrapper around one makes two. More than this is not read on the hot path.
_MOST_PROCESSES = 4
#: Groups are resolved anew this often while looks are slow: limits are set and removed by others.
_RESOLVE_S = 30.0


@frozen
class Look:
    """One reading of everything. ``worker`` is None while there is no worker; ``hot_file`` is bytes of its mapped
    weights that must stay resident."""

    time: float
    axes: tuple[headroom.Axis, ...]
    worker: ProcessMemory | None
    hot_file: int
    stall: StallWindow


class Sensors:
    """``root`` is where /proc and the cgroup mounts are; ``budget`` is bytes or None; ``cold_file`` is bytes of the
    followed worker's mapped weights that it does not read again; ``attached``: the worker is in other cgroups than the
    guard."""

    def __init__(
        self, *, capabilities: Capabilities, root: str = "/", budget: int | None = None, attached: bool = False
    ) -> None:
        self._root = root
        self._attached = attached
        #: Whose limits count: the worker's own groups where it does not live below ours (None: ours).
        self._subject: int | None = None
        self.budget = budget
        self.capabilities = capabilities
        self.hierarchy = cgroup.find_hierarchy(None, root)
        self._meminfo = meminfo.MemInfoFile(root)
        self._last_meminfo: MemInfo = self._meminfo.read()
        self._groups = cgroup_memory.open_limited(self.hierarchy)
        self._resolved = 0.0
        self._strict_commit = meminfo.read_overcommit(root) == 2
        self._processes: tuple[process.ProcessFiles, ...] = ()
        self.cold_file = 0
        self.stalls = Stalls(root)
        #: Groups that have limits of our own: fences, no axes.
        self.own_fences: frozenset[str] = frozenset()
        #: The directory of the v2 group whose events and stalls are the worker's, or "".
        self.group = ""
        self.notes = list(self._last_meminfo.notes)
        self.failures = 0

    def open_trigger(self) -> int | None:
        """A descriptor that polls with POLLPRI when tasks stall on memory, or None where the kernel gives none."""
        if not self.capabilities.psi_trigger:
            return None
        opened = psi.open_trigger(psi.pressure_path(self._root), "some", STALL_US, WINDOW_US)
        return None if opened is None else opened[0]

    def tier(self) -> list[str]:
        """What is read here, in words, for the start-up line and the status."""
        source = self._last_meminfo.available_source
        words = ["MemAvailable" if source == "MemAvailable" else "MemAvailable (estimated)"]
        if self._groups:
            words += [f"cgroup {self.hierarchy.kind.value} {group.path} ({group.limit_name})" for group in self._groups]
        elif self.hierarchy.memory:
            words.append(f"cgroup {self.hierarchy.kind.value} (no limit)")
        else:
            words.append("no memory cgroup")
        window = self.capabilities.psi_trigger
        if window:
            words.append(f"PSI trigger {window / 1e6:g} s")
        else:
            words.append("PSI averages" if self.stalls.readable else "no PSI")
        if self.budget is not None:
            words.append("budget")
        return words

    def follow(self, pids: tuple[int, ...], group: str = "") -> None:
        """Read the worker's processes ``pids`` from now on; (): there is no worker. ``group`` is the directory of its
        own v2 group, if it has one."""
        for files in self._processes:
            files.close()
        self.cold_file = 0
        opened = (process.ProcessFiles.open(each, self._root) for each in pids[:_MOST_PROCESSES])
        self._processes = tuple(files for files in opened if files is not None)
        if self._attached:
            self._subject = pids[0] if pids else None
            self._resolve()
        else:
            self.group = group
            self.stalls.follow(group)

    def _attached_group(self) -> str:
        """The v2 group that an attached worker is in, if the memory controller is on there."""
        found = self.hierarchy
        usable = self._subject is not None and found.memory and not found.is_v1 and found.unified is not None
        return found.unified or "" if usable and found.group != "/" else ""

    def cpu_time(self) -> float:
        """Seconds of CPU time that the worker's processes have used."""
        return sum(process.read_cpu_time(files.id.pid, self._root) or 0.0 for files in self._processes)

    def look(self, now: float) -> Look:
        """Read everything. Never raises: what cannot be read keeps its last value and is counted in ``failures``."""
        try:
            self._last_meminfo = self._meminfo.read()
        except HostReadError:
            self.failures += 1
        worker = self._read_worker()
        hot = max(0, worker.rss_file - self.cold_file) if worker is not None else 0
        axes = headroom.axes(
            self._last_meminfo,
            self._read_groups(now),
            hot_file=hot,
            budget=self.budget,
            worker_memory=worker.unreclaimable if worker is not None else 0,
            own_fences=self.own_fences,
            strict_commit=self._strict_commit,
        )
        return Look(now, axes, worker, hot, self.stalls.read(now))

    def oom_kills(self) -> int | None:
        """Processes that any OOM killer of the kernel has killed since boot, or None where that is not counted."""
        counters = vmstat.read_vmstat(self._root)
        return None if counters is None else counters.oom_kills

    def close(self) -> None:
        """Give every descriptor back."""
        self.follow(())
        self._meminfo.close()
        for group in self._groups:
            group.close()
        self.stalls.close()

    def _read_worker(self) -> ProcessMemory | None:
        found = [memory for memory in (files.read() for files in self._processes) if memory is not None]
        if not found:
            return None
        if len(found) == 1:
            return found[0]
        return process.ProcessMemory(
            rss_anon=sum(memory.rss_anon for memory in found),
            rss_file=max(memory.rss_file for memory in found),
            rss_shmem=sum(memory.rss_shmem for memory in found),
            swap=sum(memory.swap for memory in found),
            threads=sum(memory.threads for memory in found),
            state=found[0].state,
        )

    def _read_groups(self, now: float) -> list[GroupReading]:
        readings = [group.read() for group in self._groups]
        if None in readings or now - self._resolved > _RESOLVE_S:
            self._resolved = now
            self._resolve()
            readings = [group.read() for group in self._groups]
        return [reading for reading in readings if reading is not None]

    def _resolve(self) -> None:
        for group in self._groups:
            group.close()
        self.hierarchy = cgroup.find_hierarchy(self._subject, self._root)
        self._groups = cgroup_memory.open_limited(self.hierarchy)
        if self._attached:
            self.group = self._attached_group()
            self.stalls.follow(self.group)
