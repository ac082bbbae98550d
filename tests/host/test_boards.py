"""Every recorded board is read as its expected.json says."""

from __future__ import annotations

import pytest

from boards import NAMES, Board, board
from tidegate.host.cgroup import find_hierarchy
from tidegate.host.cgroup_memory import GroupReading, open_limited
from tidegate.host.meminfo import read_meminfo, read_overcommit
from tidegate.host.psi import pressure_path, read_pressure
from tidegate.policy.headroom import Axis, axes, headroom, nearest


@pytest.fixture(params=NAMES)
def tree(request: pytest.FixtureRequest) -> Board:
    return board(request.param)


def readings(tree: Board) -> list[GroupReading]:
    """One look at every limited group, the descriptors given back."""
    found = []
    for files in open_limited(find_hierarchy(None, tree.root)):
        reading = files.read()
        assert reading is not None
        found.append(reading)
        files.close()
    return found


def board_axes(tree: Board, *, strict_commit: bool) -> tuple[Axis, ...]:
    return axes(read_meminfo(tree.root), readings(tree), strict_commit=strict_commit)


def test_all_boards_are_here() -> None:
    assert len(NAMES) == 8


def test_memory_totals(tree: Board) -> None:
    info = read_meminfo(tree.root)
    assert info.total >> 10 == tree.mem_total_kb
    assert tree.mem_available_kb in (None, info.available >> 10)
    assert info.available_source == tree.mem_available_source
    assert (info.swap_total >> 10, info.swap_free >> 10) == (tree.swap_total_kb, tree.swap_free_kb)


def test_cgroup_hierarchy(tree: Board) -> None:
    hierarchy = find_hierarchy(None, tree.root)
    assert (hierarchy.kind.value, hierarchy.memory) == (tree.cgroup, tree.memory_controller)


def test_pressure_can_be_read_or_not(tree: Board) -> None:
    assert (read_pressure(pressure_path(tree.root)) is not None) == tree.psi


def test_headroom_lies_within_the_bounds(tree: Board) -> None:
    strict = read_overcommit(tree.root) == 2
    for found in (board_axes(tree, strict_commit=strict), board_axes(tree, strict_commit=False)):
        assert tree.headroom_kb_min <= headroom(found) >> 10 <= tree.headroom_kb_max


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("docker_nested_cache", ["/worker memory.max", "/ memory.max"]),
        ("lxc_wrapped_swapfree", ["/ memory.max"]),
        ("memhigh_livelock", ["/system.slice/llama-server.service memory.high"]),
        ("pi5_8g_memcg_on", ["/system.slice/llama-server.service memory.max"]),
        ("pi5_8g_stock", []),
        ("rk3588_8g_vendor", []),
        ("v1_host_overcommit2", ["/system.slice/app.service memory.limit_in_bytes"]),
        ("x86_16g_zram100_panic", []),
    ],
)
def test_the_limits_found(name: str, limits: list[str]) -> None:
    assert [f"{reading.path} {reading.limit_name}" for reading in readings(board(name))] == limits


def test_what_is_nearest() -> None:
    assert nearest(board_axes(board("memhigh_livelock"), strict_commit=False)).name == (
        "cgroup:/system.slice/llama-server.service"
    )
    assert nearest(board_axes(board("v1_host_overcommit2"), strict_commit=True)).name == "commit"
    assert nearest(board_axes(board("rk3588_8g_vendor"), strict_commit=False)).name == "system"


def test_the_wrapped_swap_is_said() -> None:
    assert read_meminfo(board("lxc_wrapped_swapfree").root).notes == ("SwapFree wrapped below zero, read as 0",)
