"""The few system calls that Python's os module does not have, through ctypes. Constants carry their origin.

Every wrapper raises OSError with the call's name, by way of :func:`oserror`.
"""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)

# include/uapi/asm-generic/mman.h; alpha, powerpc and sparc differ, and no board of those runs a local LLM.
MCL_CURRENT = 1
MCL_FUTURE = 2
MCL_ONFAULT = 4

# include/uapi/linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# include/uapi/asm-generic/unistd.h and arch/x86/entry/syscalls: calls since 5.1 have one number on all machines.
NR_PROCESS_MRELEASE = 448

_libc.mlockall.argtypes = [ctypes.c_int]
_libc.munlockall.argtypes = []
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.syscall.restype = ctypes.c_long


def oserror(call: str) -> OSError:
    """The errno of the last call through ctypes as an exception that names ``call``."""
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


def lock_memory() -> None:
    """Keep what the process has and will have in RAM once it is touched (mlockall with ONFAULT: nothing is read in).

    Raises:
        OSError: EPERM or ENOMEM without CAP_IPC_LOCK and with a small RLIMIT_MEMLOCK.
    """
    if _libc.mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0:
        raise oserror("mlockall")


def unlock_memory() -> None:
    """Undo :func:`lock_memory`.

    Raises:
        OSError: as munlockall(2).
    """
    if _libc.munlockall() != 0:
        raise oserror("munlockall")


def process_mrelease(pidfd: int) -> None:
    """Free the anonymous memory of a process that is being killed, before it has left by itself (Linux 5.15).

    Raises:
        OSError: EINVAL no SIGKILL is pending, EAGAIN only a part was freed (call again), ESRCH it is gone,
            ENOSYS or EPERM the call is not to be had here.
    """
    if _libc.syscall(ctypes.c_long(NR_PROCESS_MRELEASE), ctypes.c_int(pidfd), ctypes.c_uint(0)) != 0:
        raise oserror("process_mrelease")


def set_parent_death_signal(signal: int) -> None:
    """Send ``signal`` to this process when the *thread* that started it ends; 0 turns that off. Survives exec.

    Raises:
        OSError: EINVAL not a signal.
    """
    if _libc.prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0) != 0:
        raise oserror("prctl(PR_SET_PDEATHSIG)")


def set_child_subreaper(*, on: bool) -> None:
    """Make orphaned descendants children of this process instead of init's.

    Raises:
        OSError: as prctl(2).
    """
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
        raise oserror("prctl(PR_SET_CHILD_SUBREAPER)")
