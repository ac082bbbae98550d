from __future__ import annotations

import pytest

from tidegate.policy.diagnosis import Baseline, Diagnosis, StallWindow, diagnose

CALM = StallWindow(3.0, psi_full=0.0)
MIB = 1 << 20


@pytest.mark.parametrize(
    ("axis_used", "worker", "expected"),
    [
        (300 * MIB, 300 * MIB, Diagnosis.GROWTH),
        (300 * MIB, 100 * MIB, Diagnosis.ELSEWHERE),
        (300 * MIB, 200 * MIB, Diagnosis.GROWTH),
        (90 * MIB, 90 * MIB, Diagnosis.NONE),
    ],
)
def test_who_took_the_memory(axis_used: int, worker: int, expected: Diagnosis) -> None:
    baseline = Baseline(axis_used=100 * MIB, worker_bytes=100 * MIB)
    found = diagnose(pressed=True, axis_used=axis_used, worker_bytes=worker, baseline=baseline, stall=CALM)
    assert found is expected


def test_without_pressure_or_baseline_there_is_no_verdict() -> None:
    baseline = Baseline(0, 0)
    assert diagnose(pressed=False, axis_used=9, worker_bytes=9, baseline=baseline, stall=CALM) is Diagnosis.NONE
    assert diagnose(pressed=True, axis_used=9, worker_bytes=9, baseline=None, stall=CALM) is Diagnosis.NONE


@pytest.mark.parametrize(
    ("stall", "expected"),
    [
        (StallWindow(3.0, psi_full=0.9), Diagnosis.NONE),
        (StallWindow(3.0, psi_full=0.9, refault_bytes=50e6), Diagnosis.THRASH),
        (StallWindow(3.0, psi_full=0.2, refault_bytes=50e6), Diagnosis.NONE),
        (StallWindow(1.0, psi_full=0.9, refault_bytes=50e6), Diagnosis.NONE),
        # The livelock that was measured: 3 % steal per scan, `high` climbing, nothing killed.
        (
            StallWindow(3.0, psi_full=0.86, steal_per_scan=0.03, high_events=500, max_events=0, oom_kills=0),
            Diagnosis.LIVELOCK,
        ),
        (
            StallWindow(3.0, psi_full=0.86, steal_per_scan=0.03, high_events=500, max_events=0, oom_kills=1),
            Diagnosis.NONE,
        ),
        (
            StallWindow(3.0, psi_full=0.86, steal_per_scan=0.60, high_events=500, max_events=0, oom_kills=0),
            Diagnosis.NONE,
        ),
        (StallWindow(3.0, psi_full=0.86, steal_per_scan=0.03), Diagnosis.NONE),
    ],
)
def test_psi_alone_is_never_a_verdict(stall: StallWindow, expected: Diagnosis) -> None:
    assert diagnose(pressed=True, axis_used=0, worker_bytes=0, baseline=Baseline(0, 0), stall=stall) is expected
