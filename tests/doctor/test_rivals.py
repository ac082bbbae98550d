"""Who acts first: the lines of other guards against tidegate's 82 % and 91 %."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.trees import found, process, quiet
from tidegate.doctor.finding import Severity

DEFAULTS = "/etc/default/earlyoom"


def test_a_rival_that_is_installed_and_off_is_none(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        DEFAULTS: 'EARLYOOM_ARGS="-m 50"\n',
        "/usr/lib/systemd/system/earlyoom.service": "[Service]\nExecStart=/usr/bin/earlyoom\n",
    }
    assert found(quiet(tmp_path, files)) == {}


@pytest.mark.parametrize(
    ("arguments", "severity", "said"),
    [
        ("", Severity.WARNING, "warn line (82 %) comes first, earlyoom at 90 %"),
        ("-r 60 -m 25", Severity.WARNING, "earlyoom acts first, at 75 % in use, before tidegate's warn line"),
        ("-m25", Severity.WARNING, "earlyoom acts first, at 75 % in use"),
        ("-m 4,2 -s 100,100", Severity.INFO, "tidegate acts first, at 82 % and 91 % in use; earlyoom at 96 %"),
        ("-M 400000", Severity.INFO, "earlyoom at 95 %"),
        ("-m x -M", Severity.WARNING, "earlyoom at 90 %"),
        ("-m 4 it's", Severity.INFO, "earlyoom at 96 %"),
    ],
)
def test_earlyoom(tmp_path: Path, arguments: str, severity: Severity, said: str) -> None:
    files = {DEFAULTS: f'# EARLYOOM_ARGS="-m 90"\nEARLYOOM_ARGS="{arguments}"\n', **process(9, "earlyoom", adj=-100)}
    finding = found(quiet(tmp_path, files))["rivals.earlyoom"]
    assert said in finding.summary
    assert finding.severity is severity


def test_earlyoom_waits_for_swap(tmp_path: Path) -> None:
    files = process(9, "earlyoom", adj=-100)
    finding = found(quiet(tmp_path, files, SwapTotal=1000000, SwapFree=1000000))["rivals.earlyoom"]
    assert "while more than 10 % of swap is free it waits" in finding.evidence


def test_nohang_by_its_own_file(tmp_path: Path) -> None:
    files = {
        "/etc/nohang/nohang.conf": "soft_threshold_min_mem = 12 %\nhard_threshold_min_mem = 160 M\n",
        **process(9, "nohang", adj=-100),
    }
    finding = found(quiet(tmp_path, files))["rivals.nohang"]
    assert "nohang at 88 %" in finding.summary
    assert "SIGKILL at 2.048 %" in finding.evidence


def test_oomd_with_nothing_enrolled_and_with_a_slice(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "/usr/lib/systemd/system/systemd-oomd.service": "[Service]\nExecStart=/lib/systemd/systemd-oomd\n",
        "/etc/systemd/system/multi-user.target.wants/systemd-oomd.service": "",
        "/etc/systemd/oomd.conf": "[OOM]\n#SwapUsedLimit=1%\nDefaultMemoryPressureLimit=50%\n",
    }
    idle = found(quiet(tmp_path / "idle", files))["rivals.systemd-oomd"]
    assert (idle.severity, "nothing is enrolled" in idle.summary) == (Severity.INFO, True)
    files["/usr/lib/systemd/system/user@.service.d/10-oomd.conf"] = "[Service]\nManagedOOMMemoryPressure=kill\n"
    shipped = found(quiet(tmp_path / "shipped", files))["rivals.systemd-oomd"]
    assert (shipped.severity, "in users' own units alone" in shipped.summary) == (Severity.INFO, True)
    files["/etc/systemd/system/system.slice.d/oomd.conf"] = "[Slice]\nManagedOOMSwap=kill\n"
    armed = found(quiet(tmp_path / "armed", files))["rivals.systemd-oomd"]
    assert armed.severity is Severity.WARNING
    assert "PSI full above 50% for 30s" in armed.evidence
    assert "user@.service" in armed.evidence
    assert "82% (warn)" in armed.evidence


def test_a_drop_in_of_oomd_comes_after_its_main_file(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        **process(9, "systemd-oomd", adj=-900),
        "/etc/systemd/oomd.conf": "[OOM]\nDefaultMemoryPressureDurationSec=40s\nDefaultMemoryPressureLimit=50%\n",
        "/usr/lib/systemd/oomd.conf": "[OOM]\nDefaultMemoryPressureLimit=70%\n",
        # Where Fedora and Ubuntu have it.
        "/usr/lib/systemd/oomd.conf.d/10-oomd-defaults.conf": "[OOM]\nDefaultMemoryPressureDurationSec=20s\n",
        "/run/systemd/oomd.conf.d/05-first.conf": "[OOM]\nDefaultMemoryPressureDurationSec=30s\n",
        "/run/systemd/oomd.conf.d/20-last.txt": "[OOM]\nDefaultMemoryPressureDurationSec=1s\n",
    }
    assert "PSI full above 50% for 20s" in found(quiet(tmp_path, files))["rivals.systemd-oomd"].evidence


def test_a_watchdog_may_be_fed_by_a_drop_in(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "/sys/class/watchdog/watchdog0/state": "active\n",
        "/etc/systemd/system.conf": "[Manager]\n#RuntimeWatchdogSec=off\n",
    }
    assert "panic.watchdog" in found(quiet(tmp_path / "bare", files))
    files["/etc/systemd/system.conf.d/10-watchdog.conf"] = "[Manager]\nRuntimeWatchdogSec=15s\n"
    assert "panic.watchdog" not in found(quiet(tmp_path / "fed", files))
