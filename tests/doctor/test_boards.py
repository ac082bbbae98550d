"""Every recorded board: the readings, what must be said of it, and what must not."""

from __future__ import annotations

import json

import pytest

from boards import NAMES
from doctor.trees import expectation, report, text_of
from tidegate.doctor.finding import Severity


@pytest.mark.parametrize("name", NAMES)
def test_the_readings_are_right(name: str) -> None:
    root, expected = expectation(name)
    memory = report(root).memory.to_json()
    assert set(memory) == {
        *("mem_total_kb", "mem_available_kb", "mem_available_source", "swap_total_kb", "swap_free_kb"),
        *("cgroup", "memory_controller", "psi", "headroom_kb"),
    }
    assert {key: expected[key] for key in memory if key in expected} == {
        key: value for key, value in memory.items() if key != "headroom_kb"
    }
    assert expected["headroom_kb_min"] <= report(root).memory.headroom_kb <= expected["headroom_kb_max"]


@pytest.mark.parametrize("name", NAMES)
def test_what_must_be_said_is_said_and_nothing_else(name: str) -> None:
    root, expected = expectation(name)
    found = report(root)
    missing = [word for word in expected["must_mention"] if word not in text_of(found.findings)]
    wrong = [word for word in expected["must_not_mention"] if word in json.dumps(found.to_json()).lower()]
    assert (missing, wrong) == ([], [])


@pytest.mark.parametrize("name", NAMES)
def test_every_finding_is_whole(name: str) -> None:
    root, _ = expectation(name)
    findings = report(root).findings
    for finding in findings:
        parts = finding.to_json()
        assert list(parts) == ["id", "severity", "summary", "evidence", "why", "fix"]
        assert all(parts.values()), finding
        assert not finding.id.endswith(".failed"), finding
        # The directory of the copy that was read is nobody's business.
        assert "tidegate-doctor-" not in json.dumps(parts)
    ranks = [finding.severity.rank for finding in findings]
    assert ranks == sorted(ranks)


#: What each is worst at, and what must not be made of it.
WORST = {
    "docker_nested_cache": ("limits.nearest", Severity.INFO),
    "lxc_wrapped_swapfree": ("readings.line", Severity.WARNING),
    "memhigh_livelock": ("livelock.memory_high", Severity.CRITICAL),
    "pi5_8g_memcg_on": ("reclaim.swappiness", Severity.WARNING),
    "pi5_8g_stock": ("boot.memory_controller", Severity.CRITICAL),
    "rk3588_8g_vendor": ("outside.device_memory", Severity.WARNING),
    "v1_host_overcommit2": ("overcommit.strict", Severity.CRITICAL),
    "x86_16g_zram100_panic": ("panic.panic_on_oom", Severity.CRITICAL),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_worst_comes_first(name: str) -> None:
    root, _ = expectation(name)
    findings = report(root).findings
    wanted, severity = WORST[name]
    assert findings[0].severity is severity
    assert wanted in {finding.id for finding in findings if finding.severity is severity}
    assert report(root).is_fine == (severity is Severity.INFO)


def test_the_memory_outside_processes_is_the_readmes_sum() -> None:
    root, _ = expectation("rk3588_8g_vendor")
    (finding,) = [each for each in report(root).findings if each.id == "outside.device_memory"]
    assert "leaves 5654940 kB" in finding.evidence or "leaves 5655000 kB" in finding.evidence


def test_a_zram_pool_is_not_taken_for_device_memory() -> None:
    root, _ = expectation("x86_16g_zram100_panic")
    assert "outside.device_memory" not in {each.id for each in report(root).findings}
