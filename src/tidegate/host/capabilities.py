"""What this process may do here, each proved by trying.

Capability sets do not tell: seccomp filters, LSMs, user namespaces and a read-only /sys refuse what they allow. Made
once at start, before memory is locked. No probe raises, and none leaves anything changed.
"""

from __future__ import annotations

import errno
import mmap
import os

from tidegate.frozen import frozen
from tidegate.host import syscalls
from tidegate.host.cgroup import Hierarchy, find_hierarchy
from tidegate.host.process import read_oom_score_adj, write_oom_score_adj
from tidegate.host.psi import open_trigger, pressure_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# What the guard wants for itself; below it no probe is needed.
_WANTED_OOM_SCORE_ADJ = -900
# 5 % of a second: the trigger the guard uses (kernel notice within 0.1-0.2 s of the first throttling, measured).
_STALL_US = 50_000
_WINDOW_US = 1_000_000
# Above the default RLIMIT_MEMLOCK of 8 MiB, and more than the guard will ever map later.
_FUTURE_BYTES = 64 << 20


@frozen
class Capabilities:
    """True: tried, and it works.

    ``psi_trigger`` is the window in microseconds of a system memory trigger that the kernel accepts, 0 for none.
    ``cgroup_kill``: the own v2 group's cgroup.kill is there and writable. ``cgroup_writable``: a child group can be
    made (and was removed again).
    """

    pidfd: bool
    mlock: bool
    lower_oom_score_adj: bool
    psi_trigger: int
    cgroup_kill: bool
    mrelease: bool
    cgroup_writable: bool


def probe(root: str = "/", *, hierarchy: Hierarchy | None = None) -> Capabilities:
    """Try everything. ``root`` moves /proc and the cgroup mounts; pidfd, mlock and mrelease are of this process."""
    if hierarchy is None:
        hierarchy = find_hierarchy(None, root)
    return Capabilities(
        pidfd=has_pidfd(),
        mlock=can_lock_memory(),
        lower_oom_score_adj=can_lower_oom_score_adj(root),
        psi_trigger=psi_trigger_window(pressure_path(root)),
        cgroup_kill=can_cgroup_kill(hierarchy.unified),
        mrelease=has_mrelease(),
        cgroup_writable=can_make_group(hierarchy.unified if hierarchy.unified is not None else hierarchy.directory),
    )


def has_pidfd() -> bool:
    """pidfd_open works on this process (Linux 5.3)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def can_lock_memory(
    lock: Callable[[], None] = syscalls.lock_memory, unlock: Callable[[], None] = syscalls.unlock_memory
) -> bool:
    """All memory can be locked, *future* memory too. Undoes any lock in force: call it before locking.

    mlockall succeeding is not enough: with a finite RLIMIT_MEMLOCK and MCL_FUTURE a later mmap fails with EAGAIN, and
    Python dies of MemoryError. So a big map is made under the lock; with ONFAULT and never touched, it costs nothing.
    """
    try:
        lock()
    except OSError:
        return False
    try:
        # Read-only: not counted by overcommit_memory=2.
        mmap.mmap(-1, _FUTURE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ).close()
    except (OSError, ValueError, MemoryError):
        return False
    else:
        return True
    finally:
        try:
            unlock()
        except OSError:
            pass


def can_lower_oom_score_adj(root: str = "/") -> bool:
    """This process may take oom_score_adj -900. The value is put back at once; raising it is always allowed."""
    now = read_oom_score_adj(None, root)
    if now is None:
        return False
    allowed = write_oom_score_adj(min(now, _WANTED_OOM_SCORE_ADJ), None, root)
    if allowed:
        write_oom_score_adj(now, None, root)
    return allowed


def psi_trigger_window(path: str) -> int:
    """The window in microseconds of a trigger that the kernel accepts on ``path``; 0: none."""
    opened = open_trigger(path, "some", _STALL_US, _WINDOW_US)
    if opened is None:
        return 0
    fd, window = opened
    os.close(fd)
    return window


def can_cgroup_kill(directory: str | None) -> bool:
    """cgroup.kill (Linux 5.14) is there and may be written. Looked at only: writing it would end us."""
    return directory is not None and os.access(f"{directory}/cgroup.kill", os.W_OK)


def has_mrelease(release: Callable[[int], None] = syscalls.process_mrelease) -> bool:
    """process_mrelease exists here: on a process without a pending SIGKILL, this one, it answers EINVAL.

    A seccomp filter that does not know the call and kills (systemd's SystemCallFilter without an error number) ends
    us here, at start, and not in the emergency.
    """
    try:
        pidfd = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        release(pidfd)
    except OSError as error:
        return error.errno == errno.EINVAL
    else:
        return True
    finally:
        os.close(pidfd)


def can_make_group(directory: str) -> bool:
    """A child group can be made in ``directory``; it is removed again."""
    if not directory:
        return False
    child = f"{directory}/tidegate-probe-{os.getpid()}"
    try:
        os.mkdir(child)
        os.rmdir(child)
    except OSError:
        return False
    return True
