"""Trees that mean harm: links out of them, circles, pipes, garbage, files without end. And the machine itself."""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doctor.trees import found, meminfo, process, quiet, report, write
from tidegate.cli.main import run
from tidegate.doctor import sysroot
from tidegate.doctor.board import SYSCTLS
from tidegate.doctor.runner import examine_tree
from tidegate.doctor.sysroot import Tree, safe_copy


def link(root: Path, name: str, target: str) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    os.symlink(target, path)


def check_whole(root: Path) -> None:
    """The report can be made, and no check broke."""
    done = examine_tree(str(root))
    assert not [finding for finding in done.findings if finding.id.endswith(".failed")]
    json.dumps(done.to_json())


@pytest.mark.parametrize("target", ["/proc/meminfo", "../../../../../../../../../../proc/meminfo"])
def test_a_link_never_leads_out(tmp_path: Path, target: str) -> None:
    root = quiet(tmp_path)
    link(root, "/proc/meminfo", target)
    # Within the tree it points at itself.
    assert "readings.meminfo" in found(root)
    assert report(root).memory.mem_total_kb is None


def test_a_link_is_resolved_within_the_tree(tmp_path: Path) -> None:
    root = quiet(tmp_path, {"/data/meminfo": meminfo(MemTotal=4242424)})
    link(root, "/proc/meminfo", "/data/../../../data/meminfo")
    assert report(root).memory.mem_total_kb == 4242424


def test_directories_that_lead_out_are_not_walked(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"a/memory.max": "1\n", "b/status": "Name: secret\nRssAnon: 9 kB\n"})
    root = quiet(tmp_path / "tree")
    for name in ("/sys/fs/cgroup/out", "/proc/777", "/etc/systemd/system", "/sys/block"):
        link(root, name, str(outside))
    link(root, "/sys/fs/cgroup/system.slice", "/../../../../../../../sys/fs/cgroup")
    text = json.dumps(report(root).to_json())
    assert "secret" not in text
    check_whole(root)


@pytest.mark.parametrize(
    "point", ["/../../../../../../sys/fs/cgroup", "sys/fs/cgroup", "/sys/../../../../sys/fs/cgroup"]
)
def test_a_mount_point_never_leads_out(tmp_path: Path, point: str) -> None:
    for name in ("/proc/mounts", "/proc/self/mounts"):
        root = quiet(tmp_path / name.replace("/", "_"), {name: f"cgroup2 {point} cgroup2 rw 0 0\n"})
        if name != "/proc/mounts":
            (root / "proc/mounts").unlink()
        assert report(root).memory.cgroup == "none"
    info = f"30 23 0:26 / {point} rw - cgroup2 cgroup2 rw\n"
    assert report(quiet(tmp_path / "info", {"/proc/self/mountinfo": info})).memory.cgroup == "none"


@pytest.mark.parametrize("path", ["/../../../../etc", "/a/../../../..", "/" + "x/" * 5000, "/\0", "/a\udcff"])
def test_a_group_never_leads_out(tmp_path: Path, path: str) -> None:
    check_whole(quiet(tmp_path, {"/proc/self/cgroup": f"0::{path}\n".encode("utf-8", "surrogateescape")}))


def test_circles_pipes_and_directories_in_the_place_of_files(tmp_path: Path) -> None:
    root = quiet(tmp_path)
    link(root, "/proc/swaps", "swaps")
    link(root, "/proc/cmdline", "/proc/version")
    link(root, "/proc/version", "/proc/cmdline")
    link(root, "/sys/fs/cgroup/loop", "..")
    (root / "proc/buddyinfo").mkdir()
    for name in ("proc/pressure/memory", "etc/default/earlyoom", "proc/5/status", "sys/block/zram0/mm_stat"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    began = time.monotonic()
    check_whole(root)
    assert time.monotonic() - began < 5


def test_a_pipe_with_a_writer_is_not_read(tmp_path: Path) -> None:
    root = quiet(tmp_path)
    path = root / "proc/meminfo"
    path.unlink()
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)
    os.write(fd, meminfo(MemTotal=1234567).encode())
    assert report(root).memory.mem_total_kb is None
    os.close(fd)


def test_a_file_without_end_costs_a_megabyte(tmp_path: Path) -> None:
    root = quiet(tmp_path)
    for name in ("proc/meminfo", "etc/default/earlyoom", "etc/systemd/system/a.service", "proc/cmdline"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.truncate(1 << 33)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_whole(root)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert report(root).memory.mem_total_kb == 8000000


def test_a_bomb_of_a_kernel_configuration(tmp_path: Path) -> None:
    import gzip

    root = quiet(tmp_path, {"/proc/config.gz": gzip.compress(b"CONFIG_X=y\n" * 3_000_000)})
    check_whole(root)
    write(root, {"/proc/config.gz": b"\x1f\x8b\x08garbage"})
    check_whole(root)


def test_thousands_of_processes_and_groups(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {}
    for pid in range(1, 501):
        files |= process(pid, f"p{pid}")
    for number in range(300):
        files[f"/sys/fs/cgroup/system.slice/s{number}.service/memory.min"] = "1\n"
    root = quiet(tmp_path, files)
    began = time.monotonic()
    check_whole(root)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("bound", ["_MOST_FILES", "_MOST_LOOKS"])
def test_a_copy_that_is_full_looks_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    files: dict[str, str | bytes] = {}
    for number in range(300):
        files[f"/etc/systemd/system/u{number}.service"] = "[Service]\n"
        files[f"/sys/fs/cgroup/system.slice/s{number}.service/memory.min"] = "1\n"
        files |= process(1000 + number, "p")
    mounts = "".join(f"cgroup2 /sys/fs{'/.' * count}/cgroup cgroup2 rw 0 0\n" for count in range(200))
    root = quiet(tmp_path, {**files, "/proc/mounts": mounts})
    monkeypatch.setattr(sysroot, bound, 100)
    looks: list[str] = []
    for name in ("read", "entries"):
        true = getattr(Tree, name)

        def counted(self: Tree, path: str, true: Callable[[Tree, str], object] = true) -> object:
            looks.append(path)
            return true(self, path)

        monkeypatch.setattr(Tree, name, counted)
    check_whole(root)
    assert len(looks) < 500


def test_a_name_that_is_too_long_for_the_copy_spoils_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / ("t" * 100) / ("u" * 100)
    place.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    root = quiet(tmp_path / "tree", {"/proc/meminfo": meminfo(MemTotal=4242424)})
    deep = root / "sys/fs/cgroup"
    while len(str(deep)) < 3850:
        deep /= "n" * 200
    deep.mkdir(parents=True)
    assert report(root).memory.mem_total_kb == 4242424


def test_nothing_is_left_of_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with safe_copy(str(quiet(tmp_path / "tree"))) as copy:
        assert Path(copy).parent == place
        # Nothing in it can lead anywhere.
        assert not [path for path in Path(copy).rglob("*") if path.is_symlink()]
    assert list(place.iterdir()) == []


def test_a_tree_is_only_read(tmp_path: Path) -> None:
    root = quiet(tmp_path, process(5, "x"))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    check_whole(root)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


names = st.sampled_from(["a", "b", "c", "..", ".", "/a", "/b/c", "../../x", "/"])


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", "a/b"]), names), max_size=6), st.lists(names, max_size=6))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_path_resolves_to_anything_outside(links: list[tuple[str, str]], parts: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="tg") as place:
        root = Path(place) / "root"
        (root / "a").mkdir(parents=True)
        for name, target in links:
            try:
                os.symlink(target, root / name)
            except OSError:
                continue
        real = Tree(str(root)).real("/".join(parts))
        assert real is None or f"{real}/".startswith(f"{os.path.realpath(root)}/")
        assert real is None or not os.path.islink(real)


PATHS = (
    *("/proc/meminfo", "/proc/swaps", "/proc/cmdline", "/proc/mounts", "/proc/self/cgroup", "/proc/pressure/memory"),
    *(
        "/proc/self/mountinfo",
        "/proc/buddyinfo",
        "/proc/version",
        "/sys/block/zram0/mm_stat",
        "/sys/block/zram0/disksize",
    ),
    *("/proc/8/status", "/proc/8/oom_score", "/proc/8/oom_score_adj", "/proc/8/cmdline", "/proc/8/environ"),
    *("/etc/default/earlyoom", "/etc/nohang/nohang.conf", "/etc/systemd/oomd.conf", "/etc/systemd/system/a.service"),
    *("/etc/os-release", "/sys/fs/cgroup/cgroup.controllers", "/sys/firmware/devicetree/base/model"),
    *(f"/sys/fs/cgroup/system.slice/llama.service/{name}" for name in ("memory.max", "memory.high", "memory.stat")),
    *(f"/sys/fs/cgroup/system.slice/llama.service/{name}" for name in ("memory.current", "memory.pressure")),
    *("/sys/fs/cgroup/system.slice/llama.service/memory.events.local", "/sys/fs/cgroup/system.slice/memory.min"),
    *("/sys/kernel/debug/dma_buf/bufinfo", "/sys/kernel/debug/nvmap/iovmm/clients", "/proc/config.gz"),
    *(f"/proc/sys/{name.replace('.', '/')}" for name in SYSCTLS),
)
LINES = (
    *("MemTotal: 8000000 kB", "SwapFree: 18446744073709551615 kB", "HugePages_Total: 99999999999", "CmaTotal: 5 kB"),
    *("0::/system.slice/llama.service", "4:memory:/x", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", "max", "-1", "0"),
    *("18446744073709551615", "9" * 30, "/dev/zram0 partition 5 5 -2", "Name: llama-server", "RssAnon: 99999999 kB"),
    *("[Service]", "ExecStart=llama-server", "MemoryHigh=101%", "MemoryMax=1e9", "Restart=always", "RestartSec=inf"),
    *('EARLYOOM_ARGS="-m 1e9 -s"', "soft_threshold_min_mem = 99999 %", "SwapUsedLimit=%", "full avg10=99.99 total=1"),
    *("some avg10=1 total=1", "high 99999999", "oom_kill 1", "Total 1 objects, 99999999999 bytes", "total 9K", "\\"),
)
contents = st.binary(max_size=200) | st.lists(st.sampled_from(LINES), max_size=8).map(
    lambda lines: "\n".join(lines).encode()
)


@given(st.dictionaries(st.sampled_from(PATHS), contents, max_size=12))
@settings(max_examples=150, deadline=None)
def test_no_content_breaks_a_check(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="tg") as place:
        root = quiet(Path(place))
        for name, data in files.items():
            write(root, {name: data})
        check_whole(root)


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_sysroot_that_is_no_directory_is_wrong_usage(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x"
    if kind == "file":
        path.write_text("")
    assert run(["doctor", "--sysroot", str(path)]) == 2
    why = "not a directory" if kind == "file" else "no such directory"
    assert capsys.readouterr().err.startswith(f"tidegate: cannot read the tree {path}: {why}\n  hint: ")


def test_exit_codes_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet(tmp_path)
    assert run(["doctor", "--sysroot", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["memory", "findings"]
    assert document["findings"] == []
    write(tmp_path, {"/proc/sys/kernel/panic": "0\n"})
    assert run(["doctor", "--sysroot", str(tmp_path)]) == 0
    write(tmp_path, {"/proc/sys/vm/panic_on_oom": "1\n"})
    assert run(["doctor", "--sysroot", str(tmp_path)]) == 1


def test_what_people_see_is_worst_first_and_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"/proc/sys/vm/panic_on_oom": "2\n", **process(5, "sshd\x1b[2J"), **process(6, "x" * 60, score=900)}
    run(["doctor", "--sysroot", str(quiet(tmp_path, files))])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("memory    7.6 GiB, 4.8 GiB available (MemAvailable), headroom ")
    marks = [line.split()[0] for line in lines if line.startswith(("critical", "warning", "info"))]
    assert marks[0] == "critical"
    assert lines[-1] == "1 critical, 1 info"
    assert all(line.isprintable() for line in lines)


def test_this_machine_in_two_seconds() -> None:
    done: list[float] = []

    def look() -> None:
        began = time.monotonic()
        examine_tree(None)
        done.append(time.monotonic() - began)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(20)
    assert done
    assert done[0] < 2
