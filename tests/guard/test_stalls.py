"""What reclaim costs, from counters: the worker's own group where it has one, every throttling ancestor asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.guard.stalls import Stalls, throttles
from tidegate.policy.diagnosis import is_livelock, is_thrash


class Machine:
    """A tree whose counters a test moves. ``group`` is the worker's, ``above`` its parent."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = root / "cgroup"
        self.above = self.top / "above"
        self.group = self.above / "worker"
        self.group.mkdir(parents=True)
        (root / "proc/pressure").mkdir(parents=True)
        self.pressure(root / "proc/pressure/memory", 0)
        self.vmstat(0)
        for directory in (self.above, self.group):
            (directory / "cgroup.controllers").write_text("memory\n")
            (directory / "memory.high").write_text("max\n")
            self.pressure(directory / "memory.pressure", 0)
            self.stat(directory, refaults=0, scanned=0, stolen=0)
            self.events(directory)

    def pressure(self, path: Path, total_us: int) -> None:
        lines = (f"{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}" for kind in ("some", "full"))
        path.write_text("\n".join(lines) + "\n")

    def vmstat(self, refaults: int) -> None:
        text = f"workingset_refault_file {refaults}\npgscan_direct {refaults}\npgsteal_direct {refaults}\n"
        (self.root / "proc/vmstat").write_text(text)

    def stat(self, directory: Path, *, refaults: int, scanned: int, stolen: int) -> None:
        text = f"anon 1\nworkingset_refault_file {refaults}\npgscan {scanned}\npgsteal {stolen}\n"
        (directory / "memory.stat").write_text(text)

    def events(self, directory: Path, *, high: int = 0, most: int = 0, oom_kill: int = 0) -> None:
        (directory / "memory.events").write_text(f"low 0\nhigh {high}\nmax {most}\noom 0\noom_kill {oom_kill}\n")


@pytest.fixture(name="machine")
def machine_fixture(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(name="stalls")
def stalls_fixture(machine: Machine) -> Stalls:
    return Stalls(str(machine.root))


def test_the_system_is_read_where_the_worker_has_no_group(machine: Machine, stalls: Stalls) -> None:
    for second in range(5):
        machine.pressure(machine.root / "proc/pressure/memory", second * 600_000)
        machine.vmstat(second * 10_000)
        window = stalls.read(float(second))
    assert window.seconds >= 3
    assert window.psi_full == pytest.approx(0.6)
    assert window.refault_bytes == pytest.approx(10_000 * 4096)
    assert (window.high_events, window.steal_per_scan) == (None, 1.0)
    assert is_thrash(window)


def test_a_busy_neighbour_hides_nothing_of_the_group(machine: Machine, stalls: Stalls) -> None:
    stalls.follow(str(machine.group))
    for second in range(5):
        machine.pressure(machine.group / "memory.pressure", second * 500_000)
        machine.stat(machine.group, refaults=second * 8_000, scanned=second * 100, stolen=second * 90)
        window = stalls.read(float(second))
    assert window.psi_full == pytest.approx(0.5)
    assert is_thrash(window)
    assert not is_livelock(window)


@pytest.mark.parametrize("where", ["group", "above"])
def test_a_livelock_is_seen_wherever_the_brake_is(machine: Machine, stalls: Stalls, where: str) -> None:
    braked: Path = getattr(machine, where)
    stalls.follow(str(machine.group))
    verdicts = []
    for second in range(9):
        if second == 2:
            # The brake is put on while the worker runs.
            (braked / "memory.high").write_text("209715200\n")
        if second >= 2:
            machine.pressure(machine.group / "memory.pressure", (second - 2) * 800_000)
            machine.stat(machine.group, refaults=0, scanned=second * 1000, stolen=second * 30)
            machine.events(braked, high=second * 50)
        verdicts.append(is_livelock(stalls.read(float(second))))
    assert stalls.throttles == (str(braked),)
    assert verdicts.index(True) - 2 <= 5
    assert verdicts[-1]


def test_a_group_that_kills_is_no_livelock(machine: Machine, stalls: Stalls) -> None:
    (machine.group / "memory.high").write_text("209715200\n")
    stalls.follow(str(machine.group))
    for second in range(9):
        machine.pressure(machine.group / "memory.pressure", second * 800_000)
        machine.stat(machine.group, refaults=0, scanned=second * 1000, stolen=second * 30)
        machine.events(machine.group, high=second * 50, oom_kill=second)
        window = stalls.read(float(second))
    assert window.oom_kills
    assert not is_livelock(window)


def test_a_removed_group_falls_back_to_the_system(machine: Machine, stalls: Stalls) -> None:
    stalls.follow(str(machine.group))
    stalls.read(0.0)
    machine.group.joinpath("memory.pressure").write_text("")
    assert stalls.read(1.0).seconds == 0.0
    machine.pressure(machine.root / "proc/pressure/memory", 500_000)
    assert stalls.read(2.0).psi_full == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["memory.stat", "memory.events", "memory.high"])
@pytest.mark.parametrize("garbage", [b"", b"high", b"\xff\0\n high x\n", b"pgscan -1\nhigh 99999999999999999999999\n"])
def test_garbage_is_no_evidence(machine: Machine, stalls: Stalls, name: str, garbage: bytes) -> None:
    (machine.group / name).write_bytes(garbage)
    stalls.follow(str(machine.group))
    for second in range(5):
        machine.pressure(machine.group / "memory.pressure", second * 800_000)
        window = stalls.read(float(second))
    assert not is_livelock(window)
    assert not is_thrash(window)


def test_no_pressure_at_all(tmp_path: Path) -> None:
    stalls = Stalls(str(tmp_path))
    assert not stalls.readable
    assert stalls.read(1.0).psi_full is None


def test_throttling_groups_nearest_first(machine: Machine) -> None:
    assert throttles(str(machine.group)) == ()
    (machine.above / "memory.high").write_text("1\n")
    (machine.group / "memory.high").write_text("2\n")
    assert throttles(str(machine.group)) == (str(machine.group), str(machine.above))
