"""The kernel's limits around the worker: which group may have them, what is put there, and the brake taken off."""

from __future__ import annotations

from tidegate.host.cgroup_memory import is_populated
from tidegate.policy.fences import Fences, foreign_fences, own_fences
from tidegate.units import format_size
from tidegate.worker import group
from tidegate.worker.fence import lift_high, write_fences, write_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.guard.known_bytes import KnownBytes
    from tidegate.guard.log import Log
    from tidegate.guard.plan import Plan
    from tidegate.guard.sensors import Sensors
    from tidegate.host.capabilities import Capabilities
    from tidegate.host.cgroup import Hierarchy


def prepare_groups(hierarchy: Hierarchy, capabilities: Capabilities) -> tuple[str, str]:
    """(v2 group below which workers get one of their own, or "", why no limit can be put there, or "").

    Moves this process into a leaf of its group where that is needed: ask where it is again afterwards. What dead guards
    left there is removed.
    """
    own = hierarchy.unified
    if own is None:
        kind = "cgroup v1" if hierarchy.is_v1 else "no cgroups"
        return "", f"{kind} here"
    parent = group.find_parent(own)
    if not parent or not (parent != own or capabilities.cgroup_writable):
        return "", "our own cgroup is not ours to divide (a unit says Delegate=yes)"
    group.sweep(parent)
    if "memory" not in group.enable_controllers(parent):
        kind = "the memory controller is on cgroup v1" if hierarchy.is_v1 else f"no memory controller below {parent}"
        return parent, kind
    return parent, ""


class Fencing:
    """Puts the plan's fences around workers and says once what does not hold."""

    def __init__(
        self, plan: Callable[[], Plan], known: KnownBytes, sensors: Sensors, log: Log, *, why_not: str
    ) -> None:
        self._plan = plan
        self._known = known
        self._sensors = sensors
        self._log = log
        self._why_not = why_not
        self._said: set[str] = set()
        self._lifted: dict[str, str] = {}

    def put_around(self, directory: str, profile: str) -> None:
        """Fence the group at ``directory`` ("": it has none), in which a worker of ``profile`` runs or will run."""
        plan, fences = self._plan(), self._fences(profile)
        if plan.observe or not fences.files():
            return
        if self._why_not or not directory:
            why = self._why_not or "it has no cgroup of its own"
            self._say(f"no fence around the worker: {why}; the budget holds without one")
            return
        troubles = write_fences(directory, fences, ours=plan.attachment is None)
        for trouble in troubles:
            self._say(f"the fence around the worker: {trouble}")
        limited = fences.max is not None or fences.high is not None
        if limited and plan.settings.memory.budget is not None:
            # Without a budget the fence of an attached server is the only line that there is, so it stays an axis.
            self._sensors.own_fences = frozenset((directory.removeprefix(self._sensors.hierarchy.mount),))
        if not troubles:
            limit = "" if fences.max is None else f", memory.max {format_size(fences.max)}"
            self._log.debug(f"fenced {directory}{limit}", fences=dict(fences.files()))

    def check(self, directory: str) -> None:
        """A worker that is ready lives in its group, or no fence holds it."""
        if directory and is_populated(directory) is False:
            self._say(f"the worker is not in its cgroup {directory}: no fence holds it")

    def _fences(self, profile: str) -> Fences:
        plan = self._plan()
        settings = plan.settings
        if plan.attachment is not None:
            return foreign_fences(settings.fence)
        planned = self._known.planned(profile)
        mapped = 0 if planned is None else planned.file
        return own_fences(settings.fence, budget=settings.memory.budget, mapped=mapped)

    def lift(self) -> None:
        """Take memory.high off the groups that throttle the worker to death, until :meth:`restore`."""
        for directory in self._sensors.stalls.throttles:
            high = lift_high(directory)
            if high:
                self._lifted[directory] = high
                self._log.warning(f"memory.high of {directory} was {high}: raised to max until the worker is replaced")
            else:
                self._log.warning(f"cannot raise memory.high of {directory}: the worker may be slow to stop")

    def restore(self) -> None:
        """Put back what :meth:`lift` took off, where the group is still there."""
        for directory, high in self._lifted.items():
            write_value(f"{directory}/memory.high", high)
        self._lifted.clear()

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._log.warning(message)
