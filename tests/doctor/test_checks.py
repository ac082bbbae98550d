"""Each check finds its own fault on an otherwise quiet board, and nothing on the quiet board."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.trees import CGROUP2, found, meminfo, process, quiet, report, write
from tidegate.doctor.finding import Severity

PI = "Raspberry Pi 5 Model B Rev 1.0\0"
PI_FIRMWARE = "coherent_pool=1M cgroup_disable=memory vc_mem.mem_base=0x3fc00000  console=tty1 root=/dev/mmcblk0p2"
NO_MEMORY = {"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io pids\n"}
GROUP = "/sys/fs/cgroup/system.slice/llama.service"

Files = dict[str, "str | bytes"]


def without_memory(root: Path, files: Files) -> Path:
    """A board without memory.* files."""
    quiet(root, {**NO_MEMORY, **files})
    for path in (root / GROUP.lstrip("/")).iterdir():
        path.unlink()
    return root


def without_psi(root: Path, files: Files) -> Path:
    (quiet(root, files) / "proc/pressure/memory").unlink()
    return root


def test_a_quiet_board_has_no_findings(tmp_path: Path) -> None:
    assert report(quiet(tmp_path)).findings == ()


#: Files over the quiet board, changed lines of meminfo, the finding's id and severity, words it must have.
FAULTS: list[tuple[Files, dict[str, int | None], str, Severity, list[str]]] = [
    (
        {"/proc/sys/vm/panic_on_oom": "2\n"},
        {},
        "panic.panic_on_oom",
        Severity.CRITICAL,
        ["panic_on_oom=2", "memory.max"],
    ),
    (
        {"/proc/sys/vm/panic_on_oom": "1\n", "/proc/sys/kernel/panic": "10\n"},
        {},
        "panic.panic_on_oom",
        Severity.WARNING,
        ["kernel.panic=10", "sysctl -w vm.panic_on_oom=0"],
    ),
    ({"/proc/sys/kernel/panic": "0\n"}, {}, "panic.stays_dead", Severity.INFO, ["kernel.panic=10"]),
    (
        {"/proc/sys/vm/oom_kill_allocating_task": "1\n"},
        {},
        "panic.oom_kill_allocating_task",
        Severity.WARNING,
        ["oom_kill_allocating_task = 0"],
    ),
    (
        {"/proc/sys/kernel/hung_task_panic": "1\n", "/proc/sys/kernel/hung_task_timeout_secs": "120\n"},
        {},
        "panic.hung_task",
        Severity.WARNING,
        ["hung_task_timeout_secs=120"],
    ),
    ({"/proc/sys/vm/oom_dump_tasks": "0\n"}, {}, "panic.oom_dump_tasks", Severity.INFO, ["vm.oom_dump_tasks = 1"]),
    ({"/proc/sys/kernel/sysrq": "176\n"}, {}, "panic.sysrq", Severity.INFO, ["kernel.sysrq = 240"]),
    ({"/sys/class/watchdog/watchdog0/state": "x"}, {}, "panic.watchdog", Severity.INFO, ["RuntimeWatchdogSec=30s"]),
    (
        {"/proc/sys/vm/overcommit_memory": "2\n"},
        {"CommitLimit": 4000000, "Committed_AS": 3900000},
        "overcommit.strict",
        Severity.CRITICAL,
        ["CommitLimit 4000000 kB", "Committed_AS 3900000 kB", "97.7 MiB left"],
    ),
    (
        {"/proc/sys/vm/overcommit_memory": "2\n"},
        {"CommitLimit": 9000000, "Committed_AS": 3000000},
        "overcommit.strict",
        Severity.WARNING,
        ["5.7 GiB left"],
    ),
    (
        {"/proc/sys/vm/overcommit_memory": "2\n", "/proc/sys/vm/overcommit_kbytes": "4000000\n"},
        {},
        "overcommit.strict",
        Severity.CRITICAL,
        ["overcommit_kbytes 4000000"],
    ),
    ({}, {"Committed_AS": 7000000}, "overcommit.advice", Severity.INFO, ["overcommit_ratio=80", "6.1 GiB"]),
    (
        {"/proc/sys/vm/min_free_kbytes": "500\n"},
        {},
        "reclaim.min_free_kbytes",
        Severity.WARNING,
        ["subtly broken", "about 11313", "min_free_kbytes = 16384"],
    ),
    ({"/proc/sys/vm/min_free_kbytes": "1000000\n"}, {}, "reclaim.min_free_kbytes", Severity.WARNING, ["12%"]),
    (
        {"/proc/sys/vm/watermark_scale_factor": "10\n"},
        {},
        "reclaim.watermark_scale_factor",
        Severity.INFO,
        ["watermark_scale_factor = 125"],
    ),
    (
        {"/proc/sys/vm/swappiness": "60\n", "/proc/swaps": "h\n/dev/mmcblk0p3 partition 1000000 900000 -2\n"},
        {"SwapTotal": 1000000, "SwapFree": 100000},
        "swap.card",
        Severity.WARNING,
        ["/dev/mmcblk0p3", "swappiness=60"],
    ),
    (
        {"/proc/sys/vm/swappiness": "60\n", "/proc/swaps": "h\n/dev/sda2 partition 1000000 0 -2\n"},
        {"SwapTotal": 1000000, "SwapFree": 1000000},
        "reclaim.swappiness",
        Severity.WARNING,
        ["vm.swappiness = 10", "memory.swap.max"],
    ),
    (
        {
            "/proc/sys/vm/swappiness": "60\n",
            "/proc/swaps": "h\n/dev/zram0 partition 2000000 0 100\n",
            "/sys/block/zram0/disksize": "2048000000\n",
            "/sys/block/zram0/mm_stat": "0 0 0 0 0 0 0 0 0\n",
        },
        {"SwapTotal": 2000000, "SwapFree": 2000000},
        "reclaim.swappiness",
        Severity.INFO,
        ["zram", "vm.swappiness=150"],
    ),
    (
        {
            "/proc/sys/vm/swappiness": "100\n",
            "/proc/swaps": "h\n/dev/zram0 partition 2000000 0 100\n",
            "/sys/block/zram0/disksize": "2048000000\n",
            "/sys/block/zram0/mm_stat": "0 0 0 0 0 0 0 0 0\n",
        },
        {"SwapTotal": 2000000, "SwapFree": 2000000},
        "reclaim.swappiness",
        Severity.INFO,
        ["vm.swappiness = 150"],
    ),
    (
        {
            "/proc/sys/vm/swappiness": "150\n",
            "/proc/swaps": "h\n/dev/zram0 partition 7000000 6000000 100\n",
            "/sys/block/zram0/disksize": "7168000000\n",
            "/sys/block/zram0/mm_stat": "6144000000 2000000000 2147483648 0 0 0 0 0 0\n",
        },
        {"SwapTotal": 7000000, "SwapFree": 1000000},
        "swap.zram",
        Severity.WARNING,
        ["88% of the RAM", "2.0 GiB of RAM", "mem_used_total"],
    ),
    (
        {},
        {"HugePages_Total": 1024, "HugePages_Free": 1024, "Hugepagesize": 2048, "Hugetlb": 2097152},
        "hugepages.reserved",
        Severity.WARNING,
        ["HugePages_Total 1024", "2.0 GiB of it is idle", "vm.nr_hugepages=0"],
    ),
    (
        {},
        {"HighTotal": 7000000, "HighFree": 3000000, "LowTotal": 800000, "LowFree": 30000},
        "low_memory.zone",
        Severity.WARNING,
        ["LowFree", "HighTotal 7000000 kB", "64-bit kernel"],
    ),
    (
        {"/proc/cmdline": "root=/dev/sda1 cma=4G\n"},
        {"CmaTotal": 0, "CmaFree": 0},
        "cma.not_reserved",
        Severity.WARNING,
        ["cma=4G", "CmaTotal 0 kB"],
    ),
    ({}, {"CmaTotal": 524288, "CmaFree": 4096}, "cma.used_up", Severity.WARNING, ["CmaFree 4096 kB", "pinned"]),
    ({}, {"CmaTotal": 524288, "CmaFree": 400000}, "cma.large", Severity.INFO, ["512.0 MiB"]),
    ({}, {"MemFree": 300000, "MemAvailable": 2000000}, "outside.device_memory", Severity.WARNING, ["dma-buf", "NvMap"]),
    (
        {
            "/sys/firmware/devicetree/base/model": "NVIDIA Jetson Orin Nano\0",
            "/sys/kernel/debug/nvmap/iovmm/clients": "CLIENT\ntotal   3145728K\n",
        },
        {"MemFree": 300000, "MemAvailable": 2000000},
        "outside.device_memory",
        Severity.WARNING,
        ["NvMap 3.0 GiB", "/sys/kernel/debug/nvmap/iovmm/clients"],
    ),
    (
        {"/dev/dri/card0": "", "/proc/version": "Linux version 6.12.1-amd64 (x) #1\n"},
        {"MemFree": 300000, "MemAvailable": 2000000},
        "outside.device_memory",
        Severity.WARNING,
        ["translation tables (GTT)"],
    ),
    (
        {"/sys/kernel/dmabuf/buffers/1/size": "2000000000\n", "/sys/kernel/dmabuf/buffers/2/size": "1000000000\n"},
        {},
        "outside.device_memory",
        Severity.INFO,
        ["dma-buf 2.8 GiB"],
    ),
    (
        {"/sys/class/drm/card0/device/mem_info_gtt_used": "2147483648\n", "/dev/dri/card0": ""},
        {},
        "outside.device_memory",
        Severity.INFO,
        ["GPU GTT 2.0 GiB", "/sys/class/drm/card0/device/mem_info_gtt_used"],
    ),
    (
        {"/sys/kernel/debug/dma_buf/bufinfo": "size flags\n4096 0\n\nTotal 2 objects, 1610612736 bytes\n"},
        {},
        "outside.device_memory",
        Severity.INFO,
        ["dma-buf 1.5 GiB (/sys/kernel/debug/dma_buf/bufinfo)"],
    ),
    (
        {"/proc/buddyinfo": "Node 0, zone A 9 9 9 9 9 0 0 0 0 0 0\nNode 0, zone B 5000 900 80 1 0 0 0 0 0 0 0\n"},
        {},
        "outside.fragmented",
        Severity.INFO,
        ["order 4", "5009 909"],
    ),
    ({}, {"Mapped": 2500000}, "weights.mapped", Severity.INFO, ["2.4 GiB", "88 %"]),
    ({}, {"MemAvailable": None}, "readings.available", Severity.INFO, ["MemAvailable", "3.14"]),
    ({}, {"SwapTotal": 5, "SwapFree": 9}, "readings.swap", Severity.WARNING, ["SwapFree 9 kB"]),
    (
        {"/proc/pressure/memory": "some avg10=40.00 total=1\nfull avg10=30.00 total=1\n"},
        {},
        "livelock.pressure",
        Severity.WARNING,
        ["full avg10=30.00"],
    ),
    (
        {f"{GROUP}/memory.high": "1000000000\n", f"{GROUP}/memory.max": "4000000000\n"},
        {},
        "limits.high_far_under_max",
        Severity.WARNING,
        ["memory.high", "3800000000 > /sys/fs/cgroup/system.slice/llama.service/memory.high"],
    ),
    (
        {f"{GROUP}/memory.max": "1000000000\n", f"{GROUP}/memory.events.local": "max 3\noom 2\noom_kill 2\n"},
        {},
        "limits.oom_kill",
        Severity.WARNING,
        ["oom_kill 2", "memory.events.local"],
    ),
    (
        {f"{GROUP}/memory.max": "1000000000\n", f"{GROUP}/memory.current": "990000000\n"},
        {},
        "limits.nearest",
        Severity.WARNING,
        ["memory.max of /system.slice/llama.service", "nearly reached"],
    ),
    (
        {"/proc/mounts": CGROUP2.replace(",memory_recursiveprot", "")},
        {},
        "hierarchy.recursiveprot",
        Severity.INFO,
        ["remount"],
    ),
    (
        {"/proc/mounts": CGROUP2.replace("nsdelegate", "memory_localevents")},
        {},
        "hierarchy.localevents",
        Severity.INFO,
        ["memory_localevents"],
    ),
    ({"/proc/mounts": "proc /proc proc rw 0 0\n"}, {}, "hierarchy.none", Severity.WARNING, ["memory.max"]),
    (
        {"/proc/self/cgroup": "0::/user.slice\n", "/sys/fs/cgroup/user.slice/cgroup.procs": ""},
        {},
        "hierarchy.not_handed_down",
        Severity.WARNING,
        ["+memory > /sys/fs/cgroup/cgroup.subtree_control"],
    ),
    (
        {
            "/sys/fs/cgroup/system.slice/camera.service/memory.min": "2147483648\n",
            "/sys/fs/cgroup/system.slice/memory.min": "0\n",
        },
        {},
        "protection.capped",
        Severity.WARNING,
        ["memory.min of camera.service is worth nothing", "set-property system.slice MemoryMin=2048M"],
    ),
    (
        {"/etc/systemd/system/camera.service": "[Service]\nExecStart=/bin/camera\nMemoryMin=1G\n"},
        {},
        "protection.slice",
        Severity.WARNING,
        ["MemoryMin=1G of camera.service", "/etc/systemd/system/system.slice.d/90-memory.conf"],
    ),
    (
        process(77, "vision", anon=500000, swap=3000000),
        {},
        "swap.process",
        Severity.WARNING,
        ["VmSwap 3000000 kB", "pid 77"],
    ),
    (process(5, "sshd"), {}, "victims.vital", Severity.INFO, ["sshd (pid 5) 0"]),
    (
        process(88, "llama-server", anon=3000000, score=700, adj=-900),
        {},
        "victims.owner",
        Severity.WARNING,
        ["oom_score_adj -900", "hardly looks at it"],
    ),
    (
        process(88, "llama-server", anon=3000000, score=700),
        {},
        "victims.owner",
        Severity.WARNING,
        ["llama-server (pid 88)", "OOMScoreAdjust=800"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("files", "changed", "wanted", "severity", "words"), FAULTS, ids=[row[2] for row in FAULTS])
def test_the_fault_is_found(
    tmp_path: Path, files: Files, changed: dict[str, int | None], wanted: str, severity: Severity, words: list[str]
) -> None:
    findings = found(quiet(tmp_path, files, **changed))
    assert wanted in findings
    finding = findings[wanted]
    text = f"{finding.summary} {finding.evidence} {finding.fix} {finding.why}"
    assert finding.severity is severity
    assert [word for word in words if word not in text] == []


def test_the_firmware_turned_the_controller_off(tmp_path: Path) -> None:
    root = without_memory(tmp_path, {"/proc/cmdline": PI_FIRMWARE, "/sys/firmware/devicetree/base/model": PI})
    finding = found(root)["boot.memory_controller"]
    assert finding.severity is Severity.CRITICAL
    assert "/boot/firmware/cmdline.txt" in finding.fix
    assert "cgroup_enable=memory cgroup_memory=1" in finding.fix
    assert "reboot" in finding.fix
    assert "ignored" in finding.why


def test_an_older_raspberry_pi_has_its_command_line_elsewhere(tmp_path: Path) -> None:
    files: Files = {"/proc/cmdline": PI_FIRMWARE, "/etc/os-release": 'ID=debian\nVERSION_ID="11"\n'}
    assert "in /boot/cmdline.txt" in found(without_memory(tmp_path, files))["boot.memory_controller"].fix


def test_the_order_of_the_options_decides(tmp_path: Path) -> None:
    files: Files = {"/proc/cmdline": "cgroup_enable=memory cgroup_memory=1 " + PI_FIRMWARE}
    finding = found(without_memory(tmp_path, files))["boot.memory_controller"]
    assert "the last one counts" in finding.evidence
    assert "after every cgroup_disable=memory" in finding.fix


def test_a_controller_that_works_is_not_judged_by_the_command_line(tmp_path: Path) -> None:
    # 6.12 without CONFIG_MEMCG_V1: the old table has no memory row.
    files: Files = {"/proc/cmdline": PI_FIRMWARE, "/proc/cgroups": "#subsys_name\thierarchy\ncpu\t0\t1\t1\n"}
    assert not any(name.startswith("boot.") for name in found(quiet(tmp_path, files)))


def test_what_is_asked_for_already_is_not_advised(tmp_path: Path) -> None:
    files: Files = {"/proc/cmdline": PI_FIRMWARE + " cgroup_enable=memory psi=1"}
    (without_memory(tmp_path, files) / "proc/pressure/memory").unlink()
    findings = found(tmp_path)
    assert "cgroup_enable=memory" not in findings["boot.memory_controller"].fix
    assert "psi=1" not in findings["boot.psi"].fix
    assert "CONFIG_PSI=y" in findings["boot.psi"].fix


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({}, "/etc/default/grub"),
        ({"/sys/firmware/devicetree/base/model": "Generic RK3588 Edge Board\0"}, "/boot/extlinux/extlinux.conf"),
        ({"/sys/firmware/devicetree/base/model": PI}, "/boot/firmware/cmdline.txt"),
        ({"/sys/firmware/devicetree/base/model": PI, "/boot/cmdline.txt": "x"}, "/boot/cmdline.txt"),
    ],
)
def test_the_boot_command_line_has_its_own_place_on_each_board(tmp_path: Path, files: Files, place: str) -> None:
    assert f"{place}" in found(without_psi(tmp_path, files))["boot.psi"].fix


def test_swap_limits_are_advised_only_where_they_work(tmp_path: Path) -> None:
    files: Files = {"/proc/sys/vm/swappiness": "60\n", "/proc/swaps": "h\n/dev/sda2 partition 1000000 0 -2\n"}
    root = without_memory(tmp_path, files)
    assert "swap.max" not in found(root)["reclaim.swappiness"].fix


@pytest.mark.parametrize(
    ("files", "advised"),
    [
        ({}, True),
        ({"/proc/cmdline": "ro psi=0"}, True),
        ({"/boot/config-6.12.1": "CONFIG_PSI=y\nCONFIG_PSI_DEFAULT_DISABLED=y\n"}, True),
        ({"/boot/config-6.12.1": "# CONFIG_PSI is not set\n"}, False),
        ({"/proc/version": "Linux version 4.19.0 (x) #1\n"}, False),
        ({"/.dockerenv": ""}, False),
    ],
)
def test_psi_is_advised_only_where_it_can_help(tmp_path: Path, files: Files, advised: bool) -> None:
    finding = found(without_psi(tmp_path, files))["boot.psi"]
    assert ("psi=1" in finding.fix) is advised


def test_a_livelock_needs_all_of_its_signs(tmp_path: Path) -> None:
    stuck: Files = {
        f"{GROUP}/memory.high": "300000000\n",
        f"{GROUP}/memory.max": "310000000\n",
        f"{GROUP}/memory.current": "299900000\n",
        f"{GROUP}/memory.stat": "anon 290000000\npgscan 100000\npgsteal 3000\n",
        f"{GROUP}/memory.events.local": "high 500000\nmax 0\noom_kill 0\n",
        f"{GROUP}/memory.pressure": "some avg10=90.00 total=9\nfull avg10=85.00 total=9\n",
    }
    finding = found(quiet(tmp_path / "stuck", stuck))["livelock.memory_high"]
    assert "full avg10=85.00" in finding.evidence
    assert "pgsteal/pgscan 3%" in finding.evidence
    calm: list[Files] = [
        {f"{GROUP}/memory.pressure": "some avg10=9.00 total=9\nfull avg10=8.00 total=9\n"},
        {f"{GROUP}/memory.events.local": "high 3\n"},
        {f"{GROUP}/memory.current": "200000000\n"},
    ]
    for number, changed in enumerate(calm):
        assert "livelock.memory_high" not in found(quiet(tmp_path / str(number), {**stuck, **changed}))


def test_a_zram_of_a_quarter_is_worth_a_word_and_a_limit_bounds_it(tmp_path: Path) -> None:
    def zram(size_kb: int, limit: int, pool: int) -> Files:
        return {
            "/proc/swaps": f"h\n/dev/zram0 partition {size_kb} 0 100\n",
            "/sys/block/zram0/disksize": f"{size_kb << 10}\n",
            "/sys/block/zram0/mm_stat": f"0 0 {pool} {limit} 0 0 0 0 0\n",
        }

    cases = [(1000000, 0, 0, None), (3000000, 0, 0, Severity.INFO), (7000000, 0, 0, Severity.WARNING)]
    cases += [(7000000, 1 << 30, 0, Severity.INFO), (1000000, 0, 900 << 20, Severity.WARNING)]
    for number, (size, limit, pool, severity) in enumerate(cases):
        finding = found(quiet(tmp_path / str(number), zram(size, limit, pool))).get("swap.zram")
        assert (finding and finding.severity) == severity, number


def test_the_advised_overcommit_counts_swap(tmp_path: Path) -> None:
    assert "overcommit.advice" not in found(quiet(tmp_path, Committed_AS=7000000, SwapTotal=800000, SwapFree=800000))


def test_hugepages_in_use_are_no_waste(tmp_path: Path) -> None:
    lines: dict[str, int | None] = {
        "HugePages_Total": 1024,
        "HugePages_Free": 0,
        "Hugepagesize": 2048,
        "Hugetlb": 2097152,
    }
    assert found(quiet(tmp_path, None, **lines))["hugepages.reserved"].severity is Severity.INFO


def test_the_owner_is_the_largest(tmp_path: Path) -> None:
    files = {**process(5, "small"), **process(6, "database", anon=3000000), **process(7, "other")}
    finding = found(quiet(tmp_path, files))["victims.owner"]
    assert "database (pid 6) owns the most memory, 2.9 GiB" in finding.summary
    assert finding.severity is Severity.INFO
    assert "6 database 37.5% 10 0" in found(tmp_path)["victims.next"].evidence


def test_kernel_threads_are_no_victims(tmp_path: Path) -> None:
    files: Files = {"/proc/2/status": "Name:\tkthreadd\nState:\tS\n", "/proc/2/oom_score": "0\n", **process(6, "job")}
    assert "kthreadd" not in found(quiet(tmp_path, files))["victims.next"].evidence


def test_a_sessions_sshd_is_not_the_daemon(tmp_path: Path) -> None:
    files = {**process(5, "sshd", adj=-1000), **process(6, "sshd")}
    assert "victims.vital" not in found(quiet(tmp_path, files))


def test_a_vital_service_counts_where_it_would_be_killed(tmp_path: Path) -> None:
    """Of all but sshd and journald, only those among the next ten victims."""
    crowd: Files = {}
    for pid in range(20, 30):
        crowd |= process(pid, "job", score=100)
    assert "victims.vital" not in found(quiet(tmp_path, {**crowd, **process(5, "dbus-daemon", score=1)}))
    assert "victims.vital" in found(quiet(tmp_path, process(5, "dbus-daemon", score=900)))


def test_a_packages_own_protection_is_only_mentioned(tmp_path: Path) -> None:
    files: Files = {
        "/usr/lib/systemd/system/systemd-oomd.service": "[Service]\nMemoryMin=64M\n",
        "/etc/systemd/system/multi-user.target.wants/systemd-oomd.service": "",
        "/sys/fs/cgroup/system.slice/systemd-oomd.service/memory.min": "67108864\n",
        "/sys/fs/cgroup/system.slice/memory.min": "0\n",
    }
    findings = found(quiet(tmp_path, files))
    assert findings["protection.capped"].severity is Severity.INFO
    assert "protection.slice" not in findings


@pytest.mark.parametrize(
    ("mount", "container"),
    [
        ("lxcfs /proc/meminfo fuse.lxcfs rw 0 0", True),
        ("lxcfs /var/lib/lxcfs fuse.lxcfs rw 0 0", False),
        ("overlay / overlay rw,lowerdir=/var/lib/docker/overlay2/l/A 0 0", True),
        ("overlay / overlay rw,lowerdir=/lower,upperdir=/upper 0 0", False),
    ],
)
def test_what_is_a_container(tmp_path: Path, mount: str, container: bool) -> None:
    files: Files = {"/proc/mounts": f"{CGROUP2}{mount}\n", "/proc/sys/kernel/panic": "0\n"}
    assert ("panic.stays_dead" not in found(quiet(tmp_path, files))) is container


def test_an_oom_group_with_old_files_that_may_not_kill(tmp_path: Path) -> None:
    v1 = "/sys/fs/cgroup/memory"
    files: Files = {
        "/proc/mounts": "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n",
        "/proc/self/cgroup": "5:memory:/box\n",
        f"{v1}/memory.limit_in_bytes": "9223372036854771712\n",
        f"{v1}/box/memory.limit_in_bytes": "1000000000\n",
        f"{v1}/box/memory.usage_in_bytes": "950000000\n",
        f"{v1}/box/memory.stat": "total_cache 900000000\ntotal_inactive_file 800000000\ntotal_dirty 700000000\n",
        f"{v1}/box/memory.oom_control": "oom_kill_disable 1\nunder_oom 1\noom_kill 3\n",
        f"{v1}/box/memory.failcnt": "41\n",
    }
    findings = found(quiet(tmp_path, files))
    assert findings["limits.oom_kill_disable"].severity is Severity.CRITICAL
    assert "667.6 MiB of it is dirty page cache" in findings["limits.oom_kill"].evidence
    assert "hit 41 times (memory.failcnt)" in findings["limits.nearest"].evidence
    assert report(tmp_path).memory.cgroup == "v1"


def test_whom_the_kernel_would_kill_comes_by_score(tmp_path: Path) -> None:
    files: Files = {}
    for number in range(12):
        files |= process(100 + number, f"job{number}", score=number * 10)
    files |= process(90, "controller", score=0, adj=-1000)
    finding = found(quiet(tmp_path, files))["victims.next"]
    rows = finding.evidence.partition("adj: ")[2].split("; ")
    assert [row.split()[1] for row in rows] == [f"job{number}" for number in range(11, 1, -1)]
    assert "controller" not in finding.evidence


def test_a_container_is_told_nothing_of_the_hosts_kernel(tmp_path: Path) -> None:
    files: Files = {
        "/.dockerenv": "",
        "/proc/sys/kernel/sysrq": "0\n",
        "/proc/sys/kernel/panic": "0\n",
        "/proc/sys/vm/min_free_kbytes": "1\n",
        "/proc/sys/vm/watermark_scale_factor": "10\n",
        "/proc/mounts": CGROUP2.replace(",memory_recursiveprot", ""),
    }
    assert found(quiet(tmp_path, files)) == {}


def test_the_nearest_limit_is_the_one_that_leaves_least(tmp_path: Path) -> None:
    files: Files = {
        f"{GROUP}/memory.max": "6442450944\n",
        "/sys/fs/cgroup/system.slice/memory.max": "2147483648\n",
        "/sys/fs/cgroup/system.slice/memory.high": "max\n",
        "/sys/fs/cgroup/system.slice/memory.current": "1073741824\n",
        "/sys/fs/cgroup/system.slice/memory.stat": "anon 1073741824\n",
    }
    findings = found(quiet(tmp_path, files))
    assert "memory.max of /system.slice " in findings["limits.nearest"].summary
    assert "can never be reached" in findings["limits.never_reached"].summary
    assert report(tmp_path).memory.headroom_kb == 1024 * 1024


def test_a_check_that_breaks_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_board: object) -> list[object]:
        raise ZeroDivisionError("by zero")

    broken.__module__ = "tidegate.doctor.checks.broken"
    monkeypatch.setattr("tidegate.doctor.runner.CHECKS", (broken, *_checks()))
    root = quiet(tmp_path, {"/proc/sys/vm/panic_on_oom": "2\n"})
    findings = found(root)
    assert findings["broken.failed"].evidence == "ZeroDivisionError: by zero"
    assert "panic.panic_on_oom" in findings


def _checks() -> tuple[object, ...]:
    from tidegate.doctor.runner import CHECKS

    return CHECKS


def test_a_tree_without_meminfo_is_said_to_be_one(tmp_path: Path) -> None:
    write(tmp_path, {"/etc/hostname": "x"})
    findings = found(tmp_path)
    assert findings["readings.meminfo"].severity is Severity.CRITICAL
    assert str(tmp_path) not in findings["readings.meminfo"].evidence
    assert report(tmp_path).memory.mem_total_kb is None
    write(tmp_path, {"/proc/meminfo": meminfo()})
    assert "readings.meminfo" not in found(tmp_path)
