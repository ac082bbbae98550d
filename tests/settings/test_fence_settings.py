"""Settings of the kernel's fences and of whom it spares."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.errors import Exit, TidegateError
from tidegate.settings.load import Overrides, load_settings
from tidegate.settings.model import Settings


def load(document: dict[str, Any]) -> Settings:
    return load_settings(document, Overrides({}), {}, default_model="/m.gguf")


def test_fences_stand_behind_our_lines() -> None:
    document = {"memory": {"budget": "400M"}, "fence": {"high": "380M", "max": "420M"}}
    fence = load(document).fence
    assert (fence.high, fence.max) == (380 << 20, 420 << 20)


def test_a_fence_without_a_budget_gives_one_before_it() -> None:
    assert load({"fence": {"max": "640M"}}).memory.budget == 600 << 20
    # The limit of a server of somebody else's stays an axis of its own.
    attached = {"worker": {"cgroup": "/ai"}, "fence": {"max": "640M"}}
    assert load(attached).memory.budget is None


@pytest.mark.parametrize(
    ("fence", "message"),
    [
        ({"high": "350M"}, "cannot use fence.high = 350.0 MiB: it is below the critical line, 364.0 MiB"),
        ({"max": "399M"}, "cannot use fence.max = 399.0 MiB: it is below memory.budget, 400.0 MiB"),
        ({"high": "500M", "max": "450M"}, "cannot use fence.high = 500.0 MiB: it is above fence.max = 450.0 MiB"),
        ({"swap_max": "-1"}, "cannot use fence.swap_max"),
        ({"oom_group": 1}, "cannot use fence.oom_group = 1: not true or false"),
        ({"cpu_weight": 0}, "cannot use fence.cpu_weight = 0: below the lowest possible value, 1"),
        ({"maximum": 1}, "cannot use fence.maximum: no such setting"),
    ],
)
def test_faults_of_a_fence(fence: dict[str, Any], message: str) -> None:
    with pytest.raises(TidegateError) as caught:
        load({"memory": {"budget": "400M"}, "fence": fence})
    assert caught.value.message.startswith(message)
    assert caught.value.exit_code == Exit.CANNOT_START


def test_a_brake_needs_a_line_before_it() -> None:
    with pytest.raises(TidegateError, match=r"there is no memory\.budget before it"):
        load({"fence": {"high": "400M"}})
    assert load({"worker": {"cgroup": "/ai"}, "fence": {"high": "400M"}}).fence.high == 400 << 20


def test_names_of_the_protected_are_made_plain() -> None:
    protect = load(
        {"protect": {"processes": ["core_robot_controller"], "units": ["camera", "a.b", "video.slice"]}}
    ).protect
    assert protect.processes == ("core_robot_cont",)
    assert protect.units == ("camera.service", "a.b.service", "video.slice")


@pytest.mark.parametrize(
    ("protect", "message"),
    [
        ({"units": ["a/b"]}, 'cannot use protect.units with "a/b": not the name of a systemd unit'),
        ({"units": ["-"]}, 'cannot use protect.units with "-": not the name of a systemd unit'),
        ({"processes": ["/usr/bin/x"]}, 'cannot use protect.processes with "/usr/bin/x": not the name of a command'),
        ({"processes": [" "]}, 'cannot use protect.processes with " ": not the name of a command'),
    ],
)
def test_faults_of_the_protected(protect: dict[str, Any], message: str) -> None:
    with pytest.raises(TidegateError) as caught:
        load({"protect": protect})
    assert caught.value.message == message
