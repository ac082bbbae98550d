"""Finding the memory controller and reading groups: trees built by hand, and the kernel's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boards import board
from tidegate.host.cgroup import CgroupKind, Hierarchy, find_hierarchy, parse_proc_cgroup
from tidegate.host.cgroup_memory import (
    GroupFiles,
    find_limits,
    group_id,
    is_populated,
    open_limited,
    parse_keyed,
    parse_limit,
    read_events,
    read_group,
)

V2_MOUNT = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
STAT = "anon 50\nfile 40\nfile_mapped 15\ninactive_file 10\nactive_file 20\nshmem 7\nslab_reclaimable 3\n"


class Tree:
    """A sysroot with a v2 mount, grown by a test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/mounts", V2_MOUNT)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def group(self, path: str, **files: str) -> None:
        content = {"memory_current": "100", "memory_stat": STAT, "memory_max": "max", "memory_high": "max", **files}
        for name, text in content.items():
            self.write(f"sys/fs/cgroup{path}/{name.replace('_', '.', 1)}", text)

    def find(self, line: str, pid: int | None = None) -> Hierarchy:
        self.write(f"proc/{pid or 'self'}/cgroup", line)
        return find_hierarchy(pid, str(self.root))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_the_chain_ends_at_the_top(tree: Tree) -> None:
    tree.group("/a/b")
    assert tree.find("0::/a/b\n").chain() == ("/a/b", "/a", "/")
    assert tree.find("0::/\n").chain() == ("/",)


def test_another_process(tree: Tree) -> None:
    tree.group("/a")
    assert tree.find("0::/a\n", 77).group == "/a"


def test_proc_cgroups_has_no_say(tree: Tree) -> None:
    """Pi OS 6.12: no memory row there, and the controller works."""
    tree.write("proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t9\t1\n")
    tree.group("/a")
    tree.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    (tree.root / "sys/fs/cgroup/a/memory.current").unlink()
    assert tree.find("0::/a\n").memory
    tree.write("sys/fs/cgroup/cgroup.controllers", "cpu\n")
    tree.write("proc/cgroups", "memory\t0\t9\t1\n")
    assert not tree.find("0::/a\n").memory


def test_files_prove_a_controller_whose_list_is_hidden(tree: Tree) -> None:
    tree.group("/a")
    assert tree.find("0::/a\n").memory


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    found = find_hierarchy(None, str(tmp_path))
    assert (found.kind, found.memory, find_limits(found)) == (CgroupKind.NONE, False, ())


def test_hybrid(tree: Tree) -> None:
    tree.write(
        "proc/mounts",
        "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
    )
    tree.write("sys/fs/cgroup/memory/app/memory.limit_in_bytes", "1000\n")
    tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    tree.write("sys/fs/cgroup/unified/svc/cgroup.events", "populated 1\n")
    found = tree.find("4:cpu,memory:/app\n0::/svc\n")
    assert (found.kind, found.memory, found.group, found.is_v1) == (CgroupKind.HYBRID, True, "/app", True)
    assert found.unified == f"{tree.root}/sys/fs/cgroup/unified/svc"
    assert [(limit.path, limit.limit) for limit in find_limits(found)] == [("/app", 1000)]


def test_v1_without_memory(tree: Tree) -> None:
    tree.write("proc/mounts", "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n")
    found = tree.find("1:cpu:/\n")
    assert (found.kind, found.memory, find_limits(found)) == (CgroupKind.V1, False, ())


def test_a_container_without_a_namespace_by_mountinfo(tree: Tree) -> None:
    """The host's path in /proc/self/cgroup, and only the container's group mounted."""
    tree.write("proc/self/mountinfo", "41 31 0:38 /docker/ab\\040c /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
    tree.group("", memory_max="500")
    tree.group("/w")
    tree.group("/ab c")  # one inside with the name of the one that is mounted
    assert tree.find("0::/docker/ab c\n").group == "/"
    found = tree.find("0::/docker/ab c/w\n")
    assert found.chain() == ("/w", "/")
    assert [limit.path for limit in find_limits(found)] == ["/"]


def test_a_container_without_a_namespace_and_without_mountinfo(tree: Tree) -> None:
    tree.group("", memory_max="500")
    tree.group("/w")
    assert tree.find("0::/docker/abc\n").group == "/"
    assert tree.find("0::/docker/abc/w\n").group == "/w"


def test_a_process_outside_of_the_namespace(tree: Tree) -> None:
    tree.group("/other", cgroup_procs="12\n")
    assert tree.find("0::/../other\n", 13).group == "/"
    assert tree.find("0::/../other\n", 12).group == "/other"
    assert tree.find("0::/../..\n", 12).group == "/"


def test_a_deleted_group_still_has_its_path() -> None:
    assert parse_proc_cgroup(b"0::/a/b (deleted)\n") == ("/a/b", "/")


@given(st.binary(max_size=200))
def test_garbage_paths_never_raise(data: bytes) -> None:
    for path in parse_proc_cgroup(data):
        assert path.startswith("/")


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (b"1073741824\n", 1 << 30),
        (b"0\n", 0),
        (b"max\n", None),
        (b"9223372036854771712\n", None),
        (b"8796093018112\n", None),  # 32 bits
        (b"-1\n", None),
        (b"", None),
        (None, None),
    ],
)
def test_limits(data: bytes | None, limit: int | None) -> None:
    assert parse_limit(data) == limit


def test_the_lower_of_high_and_max_counts(tree: Tree) -> None:
    tree.group("/a", memory_high="300", memory_max="400")
    tree.group("/a/b", memory_max="200")
    limits = find_limits(tree.find("0::/a/b\n"))
    assert [(limit.path, limit.limit, limit.limit_name) for limit in limits] == [
        ("/a/b", 200, "memory.max"),
        ("/a", 300, "memory.high"),
    ]


def test_a_held_group(tree: Tree) -> None:
    tree.group("/a", memory_max="200")
    (files,) = open_limited(tree.find("0::/a\n"))
    reading = files.read()
    assert reading is not None
    assert (reading.path, reading.limit, reading.limit_name, reading.current) == ("/a", 200, "memory.max", 100)
    assert (reading.anon, reading.file, reading.file_mapped, reading.shmem) == (50, 40, 15, 7)
    assert (reading.inactive_file, reading.active_file, reading.slab_reclaimable) == (10, 20, 3)
    assert reading.swap is None
    tree.group("/a", memory_max="max", memory_current="101")
    reading = files.read()
    assert reading is not None
    assert (reading.limit, reading.current) == (None, 101)
    files.close()
    files.close()
    assert files.read() is None


def test_a_held_group_takes_three_descriptors_and_gives_them_back(tree: Tree) -> None:
    tree.group("/a", memory_max="200", memory_high="200")
    tree.group("/a/b")
    hierarchy = tree.find("0::/a/b\n")
    before = len(os.listdir("/proc/self/fd"))
    held = open_limited(hierarchy)
    assert len(os.listdir("/proc/self/fd")) == before + 3
    for _ in range(1000):
        for files in held:
            assert files.read() is not None
            files.close()
        held = open_limited(find_hierarchy(None, str(tree.root)))
    for files in held:
        files.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_group_without_its_files_is_not_held(tree: Tree) -> None:
    tree.group("/a", memory_max="200")
    hierarchy = tree.find("0::/a\n")
    (limit,) = find_limits(hierarchy)
    (tree.root / "sys/fs/cgroup/a/memory.stat").unlink()
    before = len(os.listdir("/proc/self/fd"))
    assert GroupFiles.open(hierarchy, limit) is None
    assert read_group(hierarchy, "/a") is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_unlimited_group_can_be_read_with_its_swap(tree: Tree) -> None:
    tree.group("/a", memory_swap_current="0")
    tree.write("sys/fs/cgroup/a/memory.swap.current", "9\n")
    tree.write("sys/fs/cgroup/a/memory.swap.max", "max\n")
    hierarchy = tree.find("0::/a\n")
    reading = read_group(hierarchy, "/a")
    assert reading is not None
    assert (reading.limit, reading.limit_name, reading.swap) == (None, "", 9)


V1_STAT = (
    "cache 1\nhierarchical_memory_limit 700\ntotal_cache 40\ntotal_rss 50\ntotal_mapped_file 15\n"
    "total_inactive_file 10\ntotal_active_file 20\ntotal_shmem 7\ntotal_swap 5\n"
)


@pytest.fixture
def v1(tree: Tree) -> Tree:
    tree.write("proc/mounts", "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n")
    for path, limit in (("", "9223372036854771712"), ("/a", "600"), ("/a/b", "9223372036854771712")):
        for name, text in (("limit_in_bytes", limit), ("usage_in_bytes", "100"), ("stat", V1_STAT)):
            tree.write(f"sys/fs/cgroup/memory{path}/memory.{name}", text)
    return tree


def test_v1_totals_and_the_limit_of_the_ancestors_outside(v1: Tree) -> None:
    held = open_limited(v1.find("9:memory:/a/b\n"))
    readings = [files.read() for files in held]
    for files in held:
        files.close()
    assert [(one.path, one.limit, one.limit_name) for one in readings if one is not None] == [
        ("/a", 600, "memory.limit_in_bytes"),
        ("/", 700, "hierarchical_memory_limit"),
    ]
    first = readings[0]
    assert first is not None
    assert (first.anon, first.file, first.file_mapped, first.shmem, first.swap) == (50, 40, 15, 7, 5)
    assert (first.inactive_file, first.active_file, first.slab_reclaimable) == (10, 20, 0)


def test_a_v1_ancestor_that_is_not_charged_is_no_limit(v1: Tree) -> None:
    v1.write("sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n")
    assert [limit.path for limit in find_limits(v1.find("9:memory:/a/b\n"))] == ["/"]
    assert [limit.path for limit in find_limits(v1.find("9:memory:/a\n"))] == ["/a", "/"]


def test_events_accept_new_keys() -> None:
    directory = find_hierarchy(None, board("memhigh_livelock").root).directory
    events = read_events(directory)
    assert events is not None
    assert (events["high"], events["oom_kill"], "oom_group_kill" in events) == (556812, 0, True)
    assert read_events(directory, local=True) is not None
    assert read_events("/nowhere") is None
    assert parse_keyed(b"high 5\nsock_throttled 7\nbad\nworse x\n") == {"high": 5, "sock_throttled": 7}


def test_populated(tree: Tree) -> None:
    directory = str(tree.root)
    assert is_populated(directory) is None
    tree.write("cgroup.events", "populated 1\nfrozen 0\n")
    assert is_populated(directory) is True
    tree.write("cgroup.events", "populated 0\nfrozen 0\n")
    assert is_populated(directory) is False


@given(st.binary(max_size=200))
def test_garbage_statistics_never_raise(data: bytes) -> None:
    assert all(value >= 0 for value in parse_keyed(data).values())
    parse_limit(data)


@pytest.fixture
def real_group() -> Iterator[tuple[Hierarchy, str]]:
    """A child of our own group in the kernel's hierarchy, with a limit."""
    hierarchy = find_hierarchy()
    if not hierarchy.memory:
        pytest.skip("no memory controller on this machine")
    name = f"tidegate-test-{os.getpid()}"
    group = f"{hierarchy.group.rstrip('/')}/{name}"
    directory = hierarchy.directory_of(group)
    limit_file = "memory.limit_in_bytes" if hierarchy.is_v1 else "memory.max"
    try:
        os.mkdir(directory)
    except OSError:
        pytest.skip("no cgroup can be made on this machine")
    try:
        try:
            with open(f"{directory}/{limit_file}", "w", encoding="ascii") as file:
                file.write(str(64 << 20))
        except OSError:
            pytest.skip("the memory controller is not delegated on this machine")
        yield hierarchy, group
    finally:
        if os.path.isdir(directory):
            os.rmdir(directory)


def test_a_group_of_the_kernel_and_its_end(real_group: tuple[Hierarchy, str]) -> None:
    hierarchy, group = real_group
    inner = Hierarchy(hierarchy.kind, hierarchy.memory, hierarchy.mount, group, hierarchy.unified)
    limit = find_limits(inner)[0]
    assert (limit.path, limit.limit) == (group, 64 << 20)
    files = GroupFiles.open(inner, limit)
    assert files is not None
    reading = files.read()
    assert reading is not None
    assert (reading.limit, reading.anon) == (64 << 20, 0)
    identity = group_id(inner.directory)
    assert identity is not None
    os.rmdir(inner.directory)
    assert files.read() is None
    files.close()
    os.mkdir(inner.directory)
    assert group_id(inner.directory) != identity
