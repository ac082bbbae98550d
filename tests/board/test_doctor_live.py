"""``tidegate doctor --live`` on a real kernel under a real systemd: what works is proved, the rest is not claimed."""

from __future__ import annotations

from typing import Any

from board.harness import Board
from tidegate.doctor.live_proofs import PROOFS

IN_A_GROUP = {"limit", "oom_kill", "poll", "psi", "cgroup_kill"}


def not_protected(run: dict[str, Any]) -> set[str]:
    ids = {finding["id"] for finding in run["report"]["findings"]}
    return {name for name in PROOFS if f"live.{name}" in ids}


def proved(run: dict[str, Any]) -> str:
    return next((each["evidence"] for each in run["report"]["findings"] if each["id"] == "live.proved"), "")


def test_what_works_in_the_sandbox_is_proved_and_nothing_else_is_claimed(board: Board) -> None:
    result = board.run("doctor_live.py", ram="640M", timeout=300).checked().json("doctor_live")
    found = result["found"]
    assert {name: run["error"] for name, run in found.items()} == dict.fromkeys(found, "")
    missing = {name: not_protected(run) for name, run in found.items()}
    assert missing["none"] == missing["good"] == missing["shipped"] == set()
    for name in ("good", "shipped"):
        assert "in the sandbox of tidegate.service" in proved(found[name])
    assert "tidegate.service is not installed" in proved(found["none"])
    # Without CAP_SYS_RESOURCE there is a trigger of 2 s still, and systemd itself has set the -900.
    assert missing["no_capabilities"] == set()
    assert "window 2000 ms" in proved(found["no_capabilities"])
    assert "window 1000 ms" in proved(found["good"])
    assert missing["read_only_cgroups"] == missing["not_delegated"] == {"group", *IN_A_GROUP}
    assert missing["refused_call"] == {"mrelease"}
    # A filter that kills: what was tried before it is not known either.
    assert missing["deadly_call"] == set(PROOFS)
    assert missing["panic_on_oom"] == {"limit", "oom_kill", "poll"}
    for name in ("read_only_cgroups", "not_delegated", "refused_call", "deadly_call", "panic_on_oom"):
        assert found[name]["code"] == 1
    assert (result["left"], result["failed"]) == ([], [])
    print(f"\n{found['shipped']['took_s']:.1f} s: {proved(found['shipped'])}")


def test_who_acts_first_is_said_of_other_guards_that_run(board: Board) -> None:
    found = board.run("doctor_rivals.py", ram="640M", timeout=120).checked().json("doctor_rivals")
    assert found["before"] == {}
    assert set(found["after"]) == {"rivals.earlyoom", "rivals.systemd-oomd"}
    # Debian's earlyoom: SIGTERM at 10 % available; there is no swap that it could wait for.
    assert "earlyoom at 90 %" in found["after"]["rivals.earlyoom"]["summary"]
    assert "there being no swap" in found["after"]["rivals.earlyoom"]["evidence"]
    assert "without swap oomd sees pressure alone" in found["after"]["rivals.systemd-oomd"]["why"]
