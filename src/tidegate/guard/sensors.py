"""The guard's eyes: held descriptors, one look at a time, and what of it can be trusted on this machine."""

from __future__ import annotations

from tidegate.frozen import frozen
from tidegate.host import capabilities, cgroup, cgroup_memory, meminfo, process, psi, vmstat
from tidegate.host.errors import HostReadError
from tidegate.policy import headroom
from tidegate.policy.diagnosis import StallWindow
from tidegate.worker.group import may_make_groups, sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.host.cgroup_memory import GroupReading
    from tidegate.host.meminfo import MemInfo
    from tidegate.host.process import ProcessMemory

#: PSI counters are compared over this long; the kernel's averages move every 2 s.
_STALL_WINDOW_S = 3.0
_PAGE = 4096
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
    followed worker's mapped weights that it does not read again."""

    def __init__(self, *, root: str = "/", budget: int | None = None) -> None:
        self._root = root
        self.budget = budget
        self.capabilities = capabilities.probe(root)
        self.hierarchy = cgroup.find_hierarchy(None, root)
        self._meminfo = meminfo.MemInfoFile(root)
        self._last_meminfo: MemInfo = self._meminfo.read()
        self._groups = cgroup_memory.open_limited(self.hierarchy)
        self._resolved = 0.0
        self._strict_commit = meminfo.read_overcommit(root) == 2
        self._processes: tuple[process.ProcessFiles, ...] = ()
        self.cold_file = 0
        self._pressure = psi.pressure_path(root)
        self._pressure_file = psi.HeldPressure.open(self._pressure)
        self._stall_points: list[tuple[float, int, vmstat.VmStat | None]] = []
        self.notes = list(self._last_meminfo.notes)
        self.failures = 0

    def open_trigger(self) -> int | None:
        """A descriptor that polls with POLLPRI when tasks stall on memory, or None where the kernel gives none."""
        if not self.capabilities.psi_trigger:
            return None
        # 5 % of a second: the first event comes 0.1-0.2 s after the first throttling (measured on a 1 GB board).
        opened = psi.open_trigger(self._pressure, "some", 50_000, 1_000_000)
        return None if opened is None else opened[0]

    def worker_groups(self) -> str:
        """The v2 group below which a worker may have a group of its own, or "" where there is none. What dead guards
        left there is removed."""
        parent = self.hierarchy.unified
        if parent is None or not self.capabilities.cgroup_writable:
            return ""
        if not may_make_groups(parent):
            return ""
        sweep(parent)
        return parent

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
            words.append("PSI averages" if self._pressure_file is not None else "no PSI")
        if self.budget is not None:
            words.append("budget")
        return words

    def follow(self, pid: int | None) -> None:
        """Read the worker ``pid`` and its children from now on; None: there is no worker."""
        for files in self._processes:
            files.close()
        self._processes = ()
        self.cold_file = 0
        if pid is None:
            return
        pids = (pid, *process.find_children(pid, self._root))[:_MOST_PROCESSES]
        opened = (process.ProcessFiles.open(each, self._root) for each in pids)
        self._processes = tuple(files for files in opened if files is not None)

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
            strict_commit=self._strict_commit,
        )
        return Look(now, axes, worker, hot, self._read_stall(now))

    def oom_kills(self) -> int | None:
        """Processes that any OOM killer of the kernel has killed since boot, or None where that is not counted."""
        counters = vmstat.read_vmstat(self._root)
        return None if counters is None else counters.oom_kills

    def close(self) -> None:
        """Give every descriptor back."""
        self.follow(None)
        self._meminfo.close()
        for group in self._groups:
            group.close()
        if self._pressure_file is not None:
            self._pressure_file.close()

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
            for group in self._groups:
                group.close()
            self.hierarchy = cgroup.find_hierarchy(None, self._root)
            self._groups = cgroup_memory.open_limited(self.hierarchy)
            readings = [group.read() for group in self._groups]
        return [reading for reading in readings if reading is not None]

    def _read_stall(self, now: float) -> StallWindow:
        pressure = self._pressure_file.read() if self._pressure_file is not None else None
        if pressure is None:
            return StallWindow(0.0)
        points = self._stall_points
        # vmstat costs 100 us: only while tasks do stall.
        moved = bool(points) and pressure.full_total_us > points[-1][1]
        counters = vmstat.read_vmstat(self._root) if moved else None
        points.append((now, pressure.full_total_us, counters))
        while len(points) > 2 and (now - points[1][0] >= _STALL_WINDOW_S or len(points) > 400):
            del points[0]
        start, full_before, _ = points[0]
        span = now - start
        if span <= 0:
            return StallWindow(0.0)
        share = min(1.0, max(0.0, (pressure.full_total_us - full_before) / 1e6 / span))
        known = [(time, values) for time, _, values in points if values is not None]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return StallWindow(span, psi_full=share)
        (first_time, first), (last_time, last) = known[0], known[-1]
        scanned = last.scanned - first.scanned
        return StallWindow(
            span,
            psi_full=share,
            refault_bytes=(last.refault_file - first.refault_file) * _PAGE / (last_time - first_time),
            steal_per_scan=(last.stolen - first.stolen) / scanned if scanned > 0 else None,
        )
