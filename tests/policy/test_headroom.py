"""The axes, one by one and together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.frozen import replace
from tidegate.host.cgroup_memory import GroupReading
from tidegate.host.meminfo import MemInfo
from tidegate.policy.headroom import Axis, axes, budget_axis, commit_axis, group_axis, headroom, nearest, system_axis

INFO = MemInfo(1000, 600, "MemAvailable", 100, 0, 500, 0, 0, 300, 200, 0, 0, 0, 0, 2000, 1500)
GROUP = GroupReading(
    path="/a",
    limit=500,
    limit_name="memory.max",
    current=450,
    anon=100,
    file=300,
    file_mapped=250,
    inactive_file=200,
    active_file=100,
    shmem=0,
    slab_reclaimable=10,
    swap=None,
)


def test_hot_weights_are_not_free() -> None:
    assert system_axis(INFO) == Axis("system", 1000, 400, 600)
    assert system_axis(INFO, 250) == Axis("system", 1000, 650, 350)
    assert system_axis(INFO, 9999) == Axis("system", 1000, 1000, 0)
    assert system_axis(INFO, -5) == system_axis(INFO)


def test_a_group_counts_what_cannot_be_reclaimed() -> None:
    assert group_axis(GROUP) == Axis("cgroup:/a", 500, 140, 360)
    assert group_axis(replace(GROUP, limit=None)) is None


def test_no_more_than_the_groups_own_mapped_pages_are_hot() -> None:
    assert group_axis(GROUP, 50) == Axis("cgroup:/a", 500, 190, 310)
    assert group_axis(GROUP, 9999) == Axis("cgroup:/a", 500, 390, 110)
    assert group_axis(replace(GROUP, file_mapped=0), 9999) == group_axis(GROUP)


def test_use_may_be_above_the_limit() -> None:
    axis = group_axis(replace(GROUP, limit=100))
    assert axis == Axis("cgroup:/a", 100, 140, 0)
    assert axis is not None
    assert axis.ratio == 1.4


def test_a_limit_of_zero_is_full() -> None:
    assert budget_axis(0, 0).ratio == 1.0


def test_all_of_them_in_order() -> None:
    inner = replace(GROUP, path="/a/b", limit=None)
    found = axes(INFO, [inner, GROUP], hot_file=50, budget=900, worker_memory=300, strict_commit=True)
    assert found == (
        Axis("system", 1000, 450, 550),
        Axis("commit", 2000, 1500, 500),
        Axis("cgroup:/a", 500, 190, 310),
        Axis("budget", 900, 300, 600),
    )
    assert nearest(found).name == "commit"
    assert headroom(found) == 310


def test_our_own_fences_are_no_axis() -> None:
    found = axes(INFO, [GROUP, replace(GROUP, path="/")], own_fences=("/a",))
    assert [axis.name for axis in found] == ["system", "cgroup:/"]


def test_commit_only_where_it_is_strict() -> None:
    assert [axis.name for axis in axes(INFO, [])] == ["system"]
    assert [axis.name for axis in axes(replace(INFO, commit_limit=0), [], strict_commit=True)] == ["system"]
    assert commit_axis(INFO) == Axis("commit", 2000, 1500, 500)


def test_of_equal_shares_the_fewest_bytes_are_nearest() -> None:
    big, small = Axis("system", 1000, 500, 500), Axis("budget", 100, 50, 50)
    assert nearest((big, small)) is small
    assert nearest((small, big)) is small


def test_no_axis_at_all() -> None:
    with pytest.raises(ValueError, match=r"empty"):
        nearest(())


def test_json() -> None:
    assert Axis("system", 3, 1, 2).to_json() == {
        "name": "system",
        "limit_bytes": 3,
        "used_bytes": 1,
        "available_bytes": 2,
        "used_ratio": 0.3333,
    }


sizes = st.integers(0, 1 << 45)
groups = st.builds(
    GroupReading,
    path=st.just("/g"),
    limit=sizes,
    limit_name=st.just("memory.max"),
    current=sizes,
    anon=sizes,
    file=sizes,
    file_mapped=sizes,
    inactive_file=sizes,
    active_file=sizes,
    shmem=sizes,
    slab_reclaimable=sizes,
    swap=st.none(),
)


@given(groups, sizes, sizes)
def test_more_use_or_more_heat_is_never_more_room(group: GroupReading, hot: int, more: int) -> None:
    before = group_axis(group, hot)
    assert before is not None
    for worse in (
        group_axis(replace(group, current=group.current + more), hot),
        group_axis(group, hot + more),
        group_axis(replace(group, file_mapped=group.file_mapped + more), hot),
    ):
        assert worse is not None
        assert worse.available <= before.available
        assert worse.used >= before.used
    assert before.available == max(0, before.limit - before.used)


@given(sizes, sizes, sizes, sizes)
def test_the_system_axis_adds_up(total: int, available: int, hot: int, more: int) -> None:
    axis = system_axis(replace(INFO, total=total, available=available), hot)
    assert axis.used + axis.available == axis.limit
    assert system_axis(replace(INFO, total=total, available=available), hot + more).available <= axis.available
