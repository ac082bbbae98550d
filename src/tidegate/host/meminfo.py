"""/proc/meminfo, in bytes.

Read every 10 ms when the water is high, so the parser is one pass and keeps only what somebody uses.
"""

from __future__ import annotations

from tidegate.frozen import frozen
from tidegate.host.errors import HostReadError
from tidegate.host.files import HeldFile, read_file, read_number, rooted

_WANTED = frozenset(
    (
        b"MemTotal",
        b"MemFree",
        b"MemAvailable",
        b"Buffers",
        b"Cached",
        b"SwapTotal",
        b"SwapFree",
        b"AnonPages",
        b"Mapped",
        b"Shmem",
        b"SReclaimable",
        b"CmaTotal",
        b"CmaFree",
        b"CommitLimit",
        b"Committed_AS",
        b"Active(file)",
        b"Inactive(file)",
    )
)

# 2**50 kB is 2**60 bytes, the most that tidegate.units accepts as a size.
_MOST_KB = 1 << 50
# A subtraction below zero in the kernel or in lxcfs is printed as an unsigned 64-bit number near its top.
_WRAPPED_KB = 1 << 63


@frozen
class MemInfo:
    """One look at the system's memory. All numbers are bytes >= 0; a line the kernel does not have is 0.

    ``available`` is never above ``total``; ``available_source`` is "MemAvailable" or "estimate". ``notes`` says, one
    sentence each, what was wrong with the file and how it was read.
    """

    total: int
    available: int
    available_source: str
    free: int
    buffers: int
    cached: int
    swap_total: int
    swap_free: int
    anon_pages: int
    mapped: int
    shmem: int
    slab_reclaimable: int
    cma_total: int
    cma_free: int
    commit_limit: int
    committed_as: int
    notes: tuple[str, ...] = ()


def parse_meminfo(data: bytes, *, min_free: int | None = None) -> MemInfo:
    """The content of /proc/meminfo.

    A line that is not ``Name: number kB`` reads as 0 with a note; SwapFree near 2**64 (lxcfs subtracts below zero) is
    0 with a note. Without a usable MemAvailable (before Linux 3.14, or hidden by a container) it is estimated, see
    :func:`estimate_available`; ``min_free`` is vm.min_free_kbytes in bytes, for that estimate only.

    Raises:
        HostReadError: MemTotal is missing, not a number, zero or out of range.
    """
    values: dict[bytes, int] = {}
    notes: list[str] = []
    for line in data.split(b"\n"):
        name, _, rest = line.partition(b":")
        if name not in _WANTED:
            continue
        words = rest.split()
        if len(words) == 2 and words[1] == b"kB" and words[0].isdigit() and len(words[0]) <= 20:
            kilobytes = int(words[0])
            if kilobytes < _MOST_KB:
                values[name] = kilobytes << 10
                continue
            problem = "wrapped below zero" if kilobytes >= _WRAPPED_KB else "is out of range"
        else:
            problem = "is not a number of kB"
        notes.append(f"{name.decode()} {problem}, read as 0")
    get = values.get
    total = get(b"MemTotal", 0)
    if total == 0:
        why = next((note for note in notes if note.startswith("MemTotal ")), "no MemTotal line")
        raise HostReadError(f"cannot read meminfo: {why.removesuffix(', read as 0')}")
    free, buffers, cached, shmem = get(b"MemFree", 0), get(b"Buffers", 0), get(b"Cached", 0), get(b"Shmem", 0)
    slab = get(b"SReclaimable", 0)
    available, source = values.get(b"MemAvailable"), "MemAvailable"
    if available is None:
        source = "estimate"
        # A bad MemAvailable is better estimated than taken as 0, which would end the worker for a typing error.
        notes = [note.replace("read as 0", "estimated") if note.startswith("MemAvailable ") else note for note in notes]
        if b"Active(file)" in values and b"Inactive(file)" in values:
            file_pages = values[b"Active(file)"] + values[b"Inactive(file)"]
        else:
            file_pages = max(0, cached + buffers - shmem)
        available = estimate_available(total, free, file_pages, slab, min_free=min_free)
    if available > total:
        notes.append("MemAvailable is above MemTotal, read as MemTotal")
        available = total
    return MemInfo(
        total,
        available,
        source,
        free,
        buffers,
        cached,
        get(b"SwapTotal", 0),
        get(b"SwapFree", 0),
        get(b"AnonPages", 0),
        get(b"Mapped", 0),
        shmem,
        slab,
        get(b"CmaTotal", 0),
        get(b"CmaFree", 0),
        get(b"CommitLimit", 0),
        get(b"Committed_AS", 0),
        tuple(notes),
    )


def estimate_available(total: int, free: int, file_pages: int, slab: int, *, min_free: int | None = None) -> int:
    """MemAvailable as the kernel makes it, in bytes, 0 to ``total``.

    ``free - low + file - min(file / 2, low) + slab - min(slab / 2, low)``: si_mem_available() of mm/show_mem.c (commit
    34e431b0ae39, Linux 3.14), where ``low`` is the sum of the zones' low watermarks. User space does not see that sum;
    as in procps it is taken as 5/4 of vm.min_free_kbytes (__setup_per_zone_wmarks: low = min + min / 4). With
    ``min_free`` unknown it is the kernel's default, 4 * sqrt(total in kB) kB, 128 kB to 256 MB
    (calculate_min_free_kbytes, mm/page_alloc.c).
    """
    if min_free is None:
        min_free = min(max(int(4 * (total >> 10) ** 0.5), 128), 262144) << 10
    low = min_free * 5 // 4
    available = free - low + file_pages - min(file_pages // 2, low) + slab - min(slab // 2, low)
    return max(0, min(available, total))


class MemInfoFile:
    """/proc/meminfo held open: one descriptor, :meth:`read` as often as wanted."""

    __slots__ = ("_file", "_min_free")

    def __init__(self, root: str = "/") -> None:
        """Open it below ``root``.

        Raises:
            HostReadError: there is no /proc/meminfo.
        """
        path = rooted(root, "/proc/meminfo")
        held = HeldFile.open(path)
        if held is None:
            raise HostReadError(f"cannot read meminfo: no {path}")
        self._file = held
        self._min_free = read_min_free(root)

    def read(self) -> MemInfo:
        """The values now.

        Raises:
            HostReadError: as :func:`parse_meminfo`, or the read itself failed.
        """
        data = self._file.read()
        if data is None:
            raise HostReadError(f"cannot read meminfo: {self._file.path} does not answer")
        return parse_meminfo(data, min_free=self._min_free)

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()


def read_meminfo(root: str = "/") -> MemInfo:
    """/proc/meminfo below ``root``, once.

    Raises:
        HostReadError: missing, or as :func:`parse_meminfo`.
    """
    path = rooted(root, "/proc/meminfo")
    data = read_file(path)
    if data is None:
        raise HostReadError(f"cannot read meminfo: no {path}")
    return parse_meminfo(data, min_free=read_min_free(root))


def read_min_free(root: str = "/") -> int | None:
    """vm.min_free_kbytes in bytes, or None where it cannot be read."""
    kilobytes = read_number(rooted(root, "/proc/sys/vm/min_free_kbytes"))
    return None if kilobytes is None or kilobytes >= _MOST_KB else kilobytes << 10


def read_overcommit(root: str = "/") -> int:
    """vm.overcommit_memory: 0 (guess), 1 (always) or 2 (never beyond CommitLimit); 0 where it cannot be read."""
    mode = read_number(rooted(root, "/proc/sys/vm/overcommit_memory"))
    return mode if mode is not None and mode <= 2 else 0
