"""Memory of devices that belongs to no process: GPU, NPU and video buffers, as far as their drivers tell.

Most of these files are below debugfs, which root alone may read; a driver that tells nothing is the common case, and
then only the arithmetic over /proc/meminfo is left (:func:`unexplained`).
"""

from __future__ import annotations

import os
import re

from tidegate.frozen import frozen
from tidegate.host.files import number, read_file, read_number, rooted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# "Total 3 objects, 12582912 bytes", the last line of debugfs' dma_buf/bufinfo (drivers/dma-buf/dma-buf.c).
_DMA_BUF_TOTAL = re.compile(rb"Total (\d{1,9}) objects, (\d{1,18}) bytes")
# NvMap (Jetson): "total  123456K" or "0B" ends debugfs' nvmap/iovmm/clients (drivers/video/tegra/nvmap/nvmap_dev.c).
_NVMAP_TOTAL = re.compile(rb"^total\s+(\d{1,15})([KMB]?)\s*$", re.MULTILINE)
_FACTOR = {b"": 1, b"B": 1, b"K": 1 << 10, b"M": 1 << 20}
_MOST_ENTRIES = 20000

#: Lines of /proc/meminfo that are disjoint and together hold everything that has a name; zram is added by the caller.
EXPLAINED = (
    *("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "Slab"),
    *("KernelStack", "PageTables", "SecPageTables", "Percpu", "Hugetlb", "Zswap"),
)


@frozen
class DeviceMemory:
    """``size`` bytes that ``holder`` ("dma-buf", "NvMap", "GPU GTT") has, as said by the file ``source``. The holders
    overlap: a buffer of NvMap may be exported as dma-buf."""

    holder: str
    size: int
    source: str


def parse_dma_buf_info(data: bytes) -> int | None:
    """Bytes in all dma-bufs by the content of bufinfo, or None."""
    found = _DMA_BUF_TOTAL.search(data)
    return int(found[2]) if found else None


def parse_nvmap_clients(data: bytes) -> int | None:
    """Bytes that NvMap has given out, or None."""
    found = _NVMAP_TOTAL.search(data)
    return int(found[1]) * _FACTOR[found[2]] if found else None


def unexplained(lines: Mapping[str, int], zram: int = 0) -> int:
    """Bytes of MemTotal that are neither free nor in any process, cache, kernel table or zram pool (``zram`` bytes).

    What remains are pages that drivers took for devices. Not below 0: in a container MemTotal may be made up.
    """
    return max(0, lines.get("MemTotal", 0) - sum(lines.get(name, 0) for name in EXPLAINED) - max(0, zram))


def read_device_memory(root: str = "/") -> tuple[DeviceMemory, ...]:
    """What drivers tell about their memory, largest first; () is common. Never raises."""
    found = [_dma_bufs(root), _nvmap(root), *_gtt(root)]
    return tuple(sorted((each for each in found if each is not None and each.size), key=lambda each: -each.size))


def _dma_bufs(root: str) -> DeviceMemory | None:
    source = "/sys/kernel/debug/dma_buf/bufinfo"
    data = read_file(rooted(root, source), 8 << 20)
    size = None if data is None else parse_dma_buf_info(data)
    if size is None:
        # Android-style statistics (CONFIG_DMABUF_SYSFS_STATS), one directory a buffer.
        source = "/sys/kernel/dmabuf/buffers"
        names = _entries(rooted(root, source))
        sizes = [read_number(rooted(root, f"{source}/{name}/size")) for name in names]
        size = sum(each for each in sizes if each is not None)
    return DeviceMemory("dma-buf", size, source)


def _nvmap(root: str) -> DeviceMemory | None:
    source = "/sys/kernel/debug/nvmap/iovmm/clients"
    size = parse_nvmap_clients(read_file(rooted(root, source), 1 << 20) or b"")
    return None if size is None else DeviceMemory("NvMap", size, source)


def _gtt(root: str) -> list[DeviceMemory]:
    """System memory in the GPU's translation tables (amdgpu)."""
    found = []
    for name in _entries(rooted(root, "/sys/class/drm")):
        if re.fullmatch(r"card\d{1,3}", name):
            source = f"/sys/class/drm/{name}/device/mem_info_gtt_used"
            size = number((read_file(rooted(root, source), 64) or b"").strip())
            if size is not None:
                found.append(DeviceMemory("GPU GTT", size, source))
    return found


def _entries(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))[:_MOST_ENTRIES]
    except OSError:
        return []
