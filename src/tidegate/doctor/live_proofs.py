"""``python -m tidegate.doctor.live_proofs``: does what a guard relies on work here, in this very sandbox? Tried, in a
throw-away cgroup of 64 MB, and printed as JSON.

Run by itself, because a seccomp filter that does not know a call may end the process that makes it.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from tidegate.host import syscalls
from tidegate.host.capabilities import can_lock_memory, can_lower_oom_score_adj
from tidegate.host.cgroup import CgroupKind, Hierarchy, find_hierarchy
from tidegate.host.cgroup_memory import is_populated, read_events
from tidegate.host.files import read_number
from tidegate.host.psi import open_trigger, read_pressure
from tidegate.host.sysctl import read_sysctl
from tidegate.worker.group import enable_controllers, find_parent, make_group

LIMIT = 64 << 20
_HIGH = 24 << 20
#: Over memory.high, and with an interpreter's 8 MB far from memory.max: a kill here may be a panic.
_PRESSED = 36 << 20
#: Twice the limit; a child that could take all of it was not limited.
_TAKEN = 128 << 20
#: On the virtual board the kill comes within 0.3 s of the limit, the first PSI event 0.2 s after the first throttling.
_MOST_S = 10.0
#: What the guard asks for: 50 ms of stall in a second.
_STALL_US, _WINDOW_US = 50_000, 1_000_000

#: Goes into the group by itself, says so, and waits for a line or takes memory at ``rate`` bytes/s.
_CHILD = """
import sys, time
group, size, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with open(group + "/cgroup.procs", "w") as file:
    file.write("0")
sys.stdout.write("in\\n")
sys.stdout.flush()
if size:
    kept = []
    for _ in range(size >> 20):
        kept.append(bytearray(b"x") * (1 << 20))
        time.sleep((1 << 20) / rate)
sys.stdin.readline()
"""


@dataclass(frozen=True)
class Proof:
    """``name`` is one of :data:`PROOFS`; ``held``: it was tried and works; ``detail``: the figures, or why not."""

    name: str
    held: bool
    detail: str


#: What is proved, and what it is for.
PROOFS = {
    "group": "a cgroup of the worker's own can be made",
    "limit": "memory.max bites",
    "oom_kill": "the kernel's kill is counted as oom_kill in memory.events",
    "poll": "poll wakes when memory.events changes",
    "psi": "a PSI trigger fires",
    "cgroup_kill": "cgroup.kill ends a whole group",
    "signals": "SIGTERM and SIGKILL reach a worker through its pidfd",
    "mrelease": "process_mrelease frees a dying worker's memory",
    "oom_score_adj": "oom_score_adj can be lowered to -900",
    "mlock": "the guard's memory can be locked",
}
_IN_A_GROUP = ("limit", "oom_kill", "poll", "psi", "cgroup_kill")


def prove_all(root: str = "/") -> tuple[Proof, ...]:
    """Try everything, worst loss first. Takes 1 to 3 s where all is well. Never raises."""
    proofs = list(_prove_group(find_hierarchy(None, root), root))
    for name, prove in (("signals", _signals), ("mrelease", _mrelease)):
        proofs.append(_tried(name, prove))
    lowered, locked = can_lower_oom_score_adj(root), can_lock_memory()
    proofs.append(Proof("oom_score_adj", lowered, "-900" if lowered else "refused: it takes CAP_SYS_RESOURCE"))
    proofs.append(Proof("mlock", locked, "mlockall" if locked else "refused: it takes CAP_IPC_LOCK or LimitMEMLOCK="))
    return tuple(proofs)


def _prove_group(hierarchy: Hierarchy, root: str) -> Iterator[Proof]:
    group, why = _group(hierarchy)
    yield Proof("group", bool(group), f"{group} with memory.max {LIMIT >> 20} MiB" if group else why)
    if not group:
        yield from (Proof(name, False, "there is no group to try it in") for name in _IN_A_GROUP)
        return
    try:
        if read_sysctl("vm.panic_on_oom", root) == 2:
            refused = "not tried: with vm.panic_on_oom=2 the kill in a group would take the board down"
            yield from (Proof(name, False, refused) for name in ("limit", "oom_kill", "poll"))
        else:
            yield from _limit(group)
        yield _tried("psi", lambda: _psi(group))
        yield _tried("cgroup_kill", lambda: _cgroup_kill(group))
    finally:
        _remove(group)


def _group(hierarchy: Hierarchy) -> tuple[str, str]:
    """The directory of the group, or why there is none."""
    if hierarchy.kind is not CgroupKind.V2 or not hierarchy.memory:
        return "", f"the memory controller is not on a v2 hierarchy here ({hierarchy.kind.value})"
    parent = find_parent(hierarchy.directory)
    if not parent:
        return "", f"{hierarchy.group} is not delegated to this process (Delegate=yes in its unit)"
    controllers = enable_controllers(parent)
    if "memory" not in controllers:
        return "", f"the memory controller cannot be enabled below {parent}"
    group = make_group(parent, f"tidegate-proof-{os.getpid()}")
    if not group:
        return "", f"no group can be made below {parent}"
    try:
        # Swap first: with swap to go to, nothing would be killed.
        for name, value in (("memory.swap.max", 0), ("memory.max", LIMIT), ("memory.oom.group", 1)):
            if name != "memory.swap.max" or os.path.exists(f"{group}/{name}"):
                _write(f"{group}/{name}", str(value))
    except OSError as error:
        _remove(group)
        return "", f"its limits cannot be written: {error.strerror}"
    return group, ""


def _limit(group: str) -> Iterator[Proof]:
    """memory.max, oom_kill and the wake-up, by one child that takes too much."""
    fd = os.open(f"{group}/memory.events", os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = read_events(group) or {}
        # A descriptor that was never read is ready at once.
        os.pread(fd, 4096, 0)
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        began = time.monotonic()
        with _child(group, _TAKEN, 1e9) as child:
            woken = bool(poll.poll(_MOST_S * 1000))
            woke_after = time.monotonic() - began
            code = _wait(child)
        took = time.monotonic() - began
    except OSError as error:
        yield from (Proof(name, False, _why(error)) for name in ("limit", "oom_kill", "poll"))
        return
    finally:
        os.close(fd)
    after, peak = read_events(group) or {}, read_number(f"{group}/memory.peak")
    reached = "" if peak is None else f", memory.peak {peak >> 10} kB"
    bites = code == -signal.SIGKILL
    yield Proof(
        "limit",
        bites,
        f"a process that took {_TAKEN >> 20} MiB was killed after {took:.1f} s{reached}"
        if bites
        else f"a process took {_TAKEN >> 20} MiB in a group of {LIMIT >> 20} MiB{reached} (ended with {code})",
    )
    kills = after.get("oom_kill", 0) - before.get("oom_kill", 0)
    yield Proof("oom_kill", kills > 0, f"oom_kill rose by {kills}, max by {after.get('max', 0) - before.get('max', 0)}")
    yield Proof("poll", woken, f"after {woke_after:.2f} s" if woken else f"no event within {_MOST_S:.0f} s")


def _psi(group: str) -> str:
    opened = open_trigger(f"{group}/memory.pressure", "some", _STALL_US, _WINDOW_US)
    if opened is None:
        raise OSError(errno.EOPNOTSUPP, "no trigger can be set on memory.pressure")
    fd, window = opened
    try:
        _write(f"{group}/memory.high", str(_HIGH))
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        began = time.monotonic()
        before = _stalled(group)
        with _child(group, _PRESSED, 80e6):
            stalled = 0
            while stalled < _STALL_US:
                # An unprivileged trigger may fire once without cause (bun#42783): the total must have moved as well.
                events = poll.poll(max(0.0, began + _MOST_S - time.monotonic()) * 1000)
                if not events or not events[0][1] & select.POLLPRI:
                    raise OSError(errno.ETIMEDOUT, f"no event within {_MOST_S:.0f} s over memory.high")
                stalled = _stalled(group) - before
        return f"after {time.monotonic() - began:.2f} s, window {window // 1000} ms"
    finally:
        os.close(fd)
        _write(f"{group}/memory.high", "max")


def _stalled(group: str) -> int:
    """Microseconds that tasks of the group have waited for memory."""
    pressure = read_pressure(f"{group}/memory.pressure")
    return 0 if pressure is None else pressure.some_total_us


def _cgroup_kill(group: str) -> str:
    with _child(group, 0, 1.0), _child(group, 0, 1.0):
        began = time.monotonic()
        _write(f"{group}/cgroup.kill", "1")
        while is_populated(group):
            if time.monotonic() - began > _MOST_S:
                raise OSError(errno.ETIMEDOUT, "the group is still populated")
            time.sleep(0.01)
        return f"two processes gone after {(time.monotonic() - began) * 1000:.0f} ms"


def _signals() -> str:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with _child("", 0, 1.0) as child:
            pidfd = os.pidfd_open(child.pid)
            try:
                signal.pidfd_send_signal(pidfd, number)
            finally:
                os.close(pidfd)
            code = _wait(child)
            if code != -number:
                raise OSError(errno.EPERM, f"{signal.Signals(number).name} did not end a process")
    return "both ended a process"


def _mrelease() -> str:
    with _child("", 32 << 20, 1e12) as child:
        pidfd = os.pidfd_open(child.pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            syscalls.process_mrelease(pidfd)
        except ProcessLookupError:
            # Gone before it could be helped: the call itself is there, or it would have said so.
            pass
        finally:
            os.close(pidfd)
    return "it took a process that was being killed"


def _tried(name: str, prove: Callable[[], str]) -> Proof:
    try:
        return Proof(name, True, prove())
    except OSError as error:
        return Proof(name, False, _why(error))


def _why(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "")
    return f"{error.strerror or error} ({name})" if name else str(error)


@contextmanager
def _child(group: str, size: int, rate: float) -> Iterator[subprocess.Popen[bytes]]:
    """A process in ``group`` ("": where we are) that takes ``size`` bytes; it is gone at the end."""
    code = (
        _CHILD
        if group
        else _CHILD.replace('with open(group + "/cgroup.procs", "w") as file:\n    file.write("0")\n', "")
    )
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, group, str(size), str(rate)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert child.stdout is not None
        if child.stdout.readline() != b"in\n":
            raise OSError(errno.EPERM, "a process cannot be put into the group, or not started")
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _wait(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(_MOST_S)
    except subprocess.TimeoutExpired:
        return None


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _remove(group: str) -> None:
    """What was killed a moment ago may still be leaving."""
    deadline = time.monotonic() + 2.0
    while True:
        try:
            os.rmdir(group)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return
            time.sleep(0.02)
        else:
            return


if __name__ == "__main__":
    print(json.dumps([asdict(proof) for proof in prove_all()]))
