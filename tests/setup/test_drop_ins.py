"""Drop-ins for protected units and the slices above them; kernel settings; boot command line; proposals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.settings.model import ProtectSettings
from tidegate.setup import boot, drop_ins, sysctls
from tidegate.setup.drop_ins import chain
from tidegate.setup.machine import read_machine
from tidegate.setup.proposals import proposals
from tidegate.setup.unit import OWN_MEMORY_MIN

MIB = 1 << 20


def write(root: Path, path: str, text: str = "") -> None:
    full = root / path
    full.parent.mkdir(parents=True, exist_ok=True)
    full.write_text(text)


def rendered(root: Path, *units: str, memory_min: int | None = None) -> dict[str, list[str]]:
    """Lines of each drop-in, by unit."""
    found = drop_ins.render(ProtectSettings(units=units, memory_min=memory_min), str(root))
    name = "/60-tidegate.conf"
    assert all(path.startswith("/etc/systemd/system/") and path.endswith(f".d{name}") for path, _ in found.files)
    return {
        path.removeprefix("/etc/systemd/system/").removesuffix(f".d{name}"): [
            line for line in text.splitlines() if not line.startswith("#")
        ]
        for path, text in found.files
    }


def slice_min(size: int) -> list[str]:
    return ["[Slice]", f"MemoryMin={size}"]


def test_a_slice_has_what_its_units_have_together(tmp_path: Path) -> None:
    write(tmp_path, "usr/lib/systemd/system/b.service", "[Service]\nSlice=robot-eyes.slice\n")
    found = rendered(tmp_path, "a.service", "b.service", "c.service", memory_min=100 * MIB)
    assert found["a.service"] == ["[Service]", "OOMScoreAdjust=-1000", f"MemoryMin={100 * MIB}"]
    assert found["system.slice"] == slice_min(200 * MIB + OWN_MEMORY_MIN)
    assert found["robot-eyes.slice"] == found["robot.slice"] == slice_min(100 * MIB)


def test_without_memory_min_only_tidegate_needs_memory(tmp_path: Path) -> None:
    found = rendered(tmp_path, "a.service", "b.slice")
    assert found == {"a.service": ["[Service]", "OOMScoreAdjust=-1000"], "system.slice": slice_min(OWN_MEMORY_MIN)}


def test_instances_are_in_their_templates_slice(tmp_path: Path) -> None:
    found = rendered(tmp_path, "cam-era@front.service", memory_min=MIB)
    assert found["system-cam\\x2dera.slice"] == slice_min(MIB)
    assert found["system.slice"] == slice_min(MIB + OWN_MEMORY_MIN)


def test_kinds_of_units(tmp_path: Path) -> None:
    found = rendered(tmp_path, "a-b.slice", "c.scope", memory_min=MIB)
    assert found["a-b.slice"] == slice_min(MIB)
    assert found["a.slice"] == slice_min(MIB)
    assert found["c.scope"] == ["[Scope]", f"MemoryMin={MIB}"]


def test_logins_do_not_inherit_what_sshd_was_given(tmp_path: Path) -> None:
    write(tmp_path, "lib/systemd/system/ssh.service")
    found = drop_ins.render(ProtectSettings(units=("ssh.service",), memory_min=MIB), str(tmp_path))
    assert "OOMScoreAdjust" not in "".join(text for _, text in found.files)
    assert f"MemoryMin={MIB}" in dict(found.files)["/etc/systemd/system/ssh.service.d/60-tidegate.conf"]
    assert any(note.startswith("ssh.service: no OOMScoreAdjust") for note in found.notes)
    assert "ssh.service" not in rendered(tmp_path, "ssh.service")


@pytest.mark.parametrize(
    ("theirs", "stays"),
    [("1G", True), ("10%", True), ("infinity", True), ("1M", False), ("", False), ("65M\nMemoryMin=", False)],
)
def test_more_that_somebody_gave_a_slice_stays(tmp_path: Path, theirs: str, stays: bool) -> None:
    write(tmp_path, "etc/systemd/system/system.slice.d/50-site.conf", f"[Slice]\nMemoryMin={theirs}\n")
    # Our own of an earlier run is not somebody's.
    write(tmp_path, "etc/systemd/system/system.slice.d/60-tidegate.conf", "[Slice]\nMemoryMin=8G\n")
    found = rendered(tmp_path)
    assert ("system.slice" not in found) is stays


@pytest.mark.parametrize(("theirs", "stays"), [("1G", True), ("infinity", True), ("1M", False)])
def test_more_that_somebody_gave_a_unit_stays(tmp_path: Path, theirs: str, stays: bool) -> None:
    write(tmp_path, "etc/systemd/system.control/a.service.d/50-MemoryMin.conf", f"[Service]\nMemoryMin={theirs}\n")
    found = drop_ins.render(ProtectSettings(units=("a.service",), memory_min=8 * MIB), str(tmp_path))
    text = dict(found.files)["/etc/systemd/system/a.service.d/60-tidegate.conf"]
    assert ("MemoryMin" not in text) is stays
    assert any(note.startswith(f"a.service: its MemoryMin={theirs}") for note in found.notes) is stays


def test_a_slice_has_room_for_more_that_somebody_gave_a_unit(tmp_path: Path) -> None:
    """Or the unit's claim, larger than what its slice has, takes most of it from those beside it."""
    write(tmp_path, "usr/lib/systemd/system/a.service", "[Service]\nMemoryMin=1G\n")
    found = rendered(tmp_path, "a.service", "b.service", memory_min=8 * MIB)
    assert found["a.service"] == ["[Service]", "OOMScoreAdjust=-1000"]
    assert found["system.slice"] == slice_min((1 << 30) + 8 * MIB + OWN_MEMORY_MIN)
    # A claim without a number is not handed on: the slice would keep everything.
    write(tmp_path, "usr/lib/systemd/system/a.service", "[Service]\nMemoryMin=infinity\n")
    found = rendered(tmp_path, "a.service", "b.service", memory_min=8 * MIB)
    assert found["system.slice"] == slice_min(16 * MIB + OWN_MEMORY_MIN)


@pytest.mark.parametrize("control", ["etc/systemd/system.control", "run/systemd/system.control"])
def test_what_set_property_gave_a_slice_stays(tmp_path: Path, control: str) -> None:
    write(tmp_path, f"{control}/system.slice.d/50-MemoryLow.conf", "[Slice]\nMemoryLow=1G\n")
    found = drop_ins.render(ProtectSettings(units=("a.service",), memory_low=8 * MIB), str(tmp_path))
    text = dict(found.files)["/etc/systemd/system/system.slice.d/60-tidegate.conf"]
    assert "MemoryLow" not in text
    assert any(note.startswith("system.slice: its MemoryLow=1G") for note in found.notes)


@pytest.mark.parametrize(
    "path",
    [
        "usr/lib/systemd/system/cam-era@.service",
        "usr/lib/systemd/system/cam-era@.service.d/1.conf",
        "etc/systemd/system/cam-era@front.service.d/1.conf",
        "etc/systemd/system/cam-@.service.d/1.conf",
        "etc/systemd/system/service.d/1.conf",
    ],
)
def test_an_instance_has_what_its_template_and_its_kind_were_given(tmp_path: Path, path: str) -> None:
    write(tmp_path, path, "[Service]\nMemoryMin=1G\nSlice=robot.slice\n")
    found = rendered(tmp_path, "cam-era@front.service", memory_min=MIB)
    assert found["cam-era@front.service"] == ["[Service]", "OOMScoreAdjust=-1000"]
    # What is said of every service moves tidegate's own too.
    own = OWN_MEMORY_MIN if "/service.d/" in path else 0
    assert found["robot.slice"] == slice_min((1 << 30) + own)


def test_of_one_name_the_more_particular_drop_in_counts(tmp_path: Path) -> None:
    for size, name in enumerate(("service", "a-.service", "a-b.service"), 2):
        write(tmp_path, f"etc/systemd/system/{name}.d/1.conf", f"[Service]\nMemoryMin={size}G\n")
        notes = drop_ins.render(ProtectSettings(units=("a-b.service",), memory_min=MIB), str(tmp_path)).notes
        assert any(f"MemoryMin={size}G" in note for note in notes)


def test_memory_low_goes_up_the_chain_too(tmp_path: Path) -> None:
    protect = ProtectSettings(units=("a.service", "b.service"), memory_min=MIB, memory_low=3 * MIB)
    found = dict(drop_ins.render(protect, str(tmp_path)).files)
    assert f"MemoryMin={MIB}\nMemoryLow={3 * MIB}\n" in found["/etc/systemd/system/a.service.d/60-tidegate.conf"]
    text = found["/etc/systemd/system/system.slice.d/60-tidegate.conf"]
    assert f"MemoryMin={2 * MIB + OWN_MEMORY_MIN}\nMemoryLow={6 * MIB}\n" in text


def test_units_that_are_not_there_are_said(tmp_path: Path) -> None:
    write(tmp_path, "etc/systemd/system/a@.service")
    notes = drop_ins.render(ProtectSettings(units=("a@1.service", "b.service")), str(tmp_path)).notes
    assert notes == ("b.service: there is no such unit here (yet)",)


@pytest.mark.parametrize(
    ("name", "slices"),
    [
        ("system.slice", ("system.slice",)),
        ("a-b-c.slice", ("a-b-c.slice", "a-b.slice", "a.slice")),
        ("-.slice", ()),
    ],
)
def test_slices_are_in_slices(name: str, slices: tuple[str, ...]) -> None:
    assert chain(name) == slices


# -- kernel settings -------------------------------------------------------------------------------------------------

STOCK = {
    "vm.panic_on_oom": 1,
    "vm.swappiness": 60,
    "kernel.sysrq": 438,
    "vm.overcommit_kbytes": 0,
    "vm.overcommit_ratio": 50,
    "vm.overcommit_memory": 0,
}


@pytest.mark.parametrize(
    ("original", "zram", "swappiness"),
    [(60, False, 10), (1, False, 1), (0, False, 0), (60, True, 150), (100, True, 150), (180, True, 180)],
)
def test_swappiness(original: int, zram: bool, swappiness: int) -> None:
    found = dict(sysctls.wanted({**STOCK, "vm.swappiness": original}, zram=zram, strict=False))
    assert found["vm.swappiness"] == swappiness
    assert found["vm.panic_on_oom"] == 0
    assert not [key for key in found if "overcommit" in key]


HEADER = "Filename\tType\tSize\tUsed\tPriority\n"
ZRAM = "/dev/zram0 partition 4000000 0 100\n"
CARD = "/var/swap file 200000 0 -2\n"


@pytest.mark.parametrize(("swaps", "zram"), [("", False), (ZRAM, True), (ZRAM + CARD, False), (CARD, False)])
def test_swap_on_a_card_beside_zram_is_still_on_a_card(tmp_path: Path, swaps: str, zram: bool) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/swaps").write_text(HEADER + swaps)
    assert read_machine(str(tmp_path)).zram is zram


@pytest.mark.parametrize(("original", "sysrq"), [(438, 502), (0, 80), (1, 1), (176, 240), (80, 80)])
def test_sysrq_keeps_what_is_allowed(original: int, sysrq: int) -> None:
    assert dict(sysctls.wanted({**STOCK, "kernel.sysrq": original}, zram=False, strict=False))["kernel.sysrq"] == sysrq


def test_strict_overcommit_is_set_last_and_a_limit_in_kb_first() -> None:
    keys = [key for key, _ in sysctls.wanted(STOCK, zram=False, strict=True)]
    assert keys[-2:] == ["vm.overcommit_ratio", "vm.overcommit_memory"]
    found = sysctls.wanted({**STOCK, "vm.overcommit_kbytes": 500}, zram=False, strict=True)
    assert found[-3:] == (("vm.overcommit_kbytes", 0), ("vm.overcommit_ratio", 80), ("vm.overcommit_memory", 2))


def test_what_the_kernel_does_not_have_is_left_out() -> None:
    found = sysctls.wanted({"vm.swappiness": 60}, zram=False, strict=True)
    assert found == (("vm.swappiness", 10),)
    # Of an image no kernel runs.
    assert [key for key, _ in sysctls.wanted(None, zram=False, strict=False)] == [
        "vm.panic_on_oom", "vm.swappiness", "kernel.sysrq",
    ]  # fmt: skip


def test_the_file_is_one_that_sysctl_reads() -> None:
    lines = sysctls.render((("vm.swappiness", 10), ("vm.panic_on_oom", 0))).splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["vm.swappiness = 10", "vm.panic_on_oom = 0"]


# -- boot command line of a Raspberry Pi -----------------------------------------------------------------------------


def test_what_a_raspberry_pi_lacks(tmp_path: Path) -> None:
    assert boot.advice(str(tmp_path)) == ()
    write(tmp_path, "boot/firmware/cmdline.txt", "console=tty1 root=PARTUUID=1 rootwait\n")
    (advice,) = boot.advice(str(tmp_path))
    assert advice.endswith("and reboot: cgroup_enable=memory psi=1")
    assert "/boot/firmware/cmdline.txt" in advice
    write(tmp_path, "boot/firmware/cmdline.txt", "root=PARTUUID=1 cgroup_enable=memory psi=1\n")
    assert boot.advice(str(tmp_path)) == ()


def test_what_works_already_is_not_advised(tmp_path: Path) -> None:
    write(tmp_path, "boot/cmdline.txt", "root=PARTUUID=1\n")
    write(tmp_path, "proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    (tmp_path / "proc/self").mkdir()
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n")
    (advice,) = boot.advice(str(tmp_path))
    assert advice.endswith(": psi=1")
    write(tmp_path, "proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    assert boot.advice(str(tmp_path)) == ()


def test_other_boards_have_other_firmware(tmp_path: Path) -> None:
    write(tmp_path, "boot/cmdline.txt", "root=/dev/mmcblk0p2\n")
    write(tmp_path, "proc/device-tree/model", "Radxa ROCK 5B\0")
    assert boot.advice(str(tmp_path)) == ()


# -- proposals -------------------------------------------------------------------------------------------------------


def test_a_way_in_and_the_log_are_proposed_where_they_are(tmp_path: Path) -> None:
    assert proposals(ProtectSettings(), str(tmp_path)) == ()
    write(tmp_path, "usr/lib/systemd/system/sshd.service")
    write(tmp_path, "usr/lib/systemd/system/systemd-journald.service")
    ssh, journald = proposals(ProtectSettings(), str(tmp_path))
    assert "sshd.service.d" in ssh
    assert "OOMScoreAdjust" not in ssh
    assert "OOMScoreAdjust=-900" in journald
    (only,) = proposals(ProtectSettings(units=("ssh.service",)), str(tmp_path))
    assert "journald" in only
