"""The kernel's limits on the worker: behind our lines, with room for the weights, none where none is asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.policy.fences import Fences, foreign_fences, own_fences
from tidegate.settings.model import FenceSettings

MIB = 1 << 20
SIZES = st.integers(0, 1 << 44)


def test_defaults_of_our_own_worker() -> None:
    fences = own_fences(FenceSettings(), budget=450 * MIB, mapped=90 * MIB)
    assert fences == Fences(high=None, max=570 * MIB, swap_max=0, oom_group=True, cpu_weight=50)
    assert fences.files() == (
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("memory.max", str(570 * MIB)),
        ("cpu.weight", "50"),
    )


def test_without_a_budget_there_is_no_limit_to_make_a_fence_of() -> None:
    assert own_fences(FenceSettings(), budget=None, mapped=90 * MIB).max is None


def test_what_is_set_wins() -> None:
    given_ = FenceSettings(high=500 * MIB + 1, max=600 * MIB, swap_max=MIB, oom_group=False, cpu_weight=10)
    wanted = Fences(high=500 * MIB, max=600 * MIB, swap_max=MIB, oom_group=False, cpu_weight=10)
    assert own_fences(given_, budget=450 * MIB, mapped=0) == foreign_fences(given_) == wanted


def test_a_server_of_somebody_elses_is_left_alone() -> None:
    assert foreign_fences(FenceSettings()).files() == ()


@given(st.none() | SIZES, SIZES)
def test_the_default_never_stands_in_front_of_the_budget(budget: int | None, mapped: int) -> None:
    fences = own_fences(FenceSettings(), budget=budget, mapped=mapped)
    assert fences.max is None or budget is None or budget + mapped - 4096 < fences.max
