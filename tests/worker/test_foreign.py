"""Finding and ending processes that are not ours, without ever touching another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from running import ROOT, eventually, is_alive
from tidegate.frozen import replace
from tidegate.guard.plan import Attachment
from tidegate.host.process import ProcessId, read_process_id
from tidegate.worker.foreign import Foreign, Match, find, others

NAME = "tg-foreign"


def attachment(name: str = NAME) -> Attachment:
    return Attachment("process", name, "", (), True, False, "")


@pytest.fixture(name="program")
def program_fixture(tmp_path: Path) -> str:
    path = tmp_path / NAME
    path.symlink_to(os.path.realpath(sys.executable))
    return str(path)


@pytest.fixture(name="sleepers")
def sleepers_fixture(program: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [
        subprocess.Popen([program, "-I", "-S", "-c", f"x = bytearray({size} << 20); import time; time.sleep(600)"])
        for size in (1, 30, 10)
    ]
    yield started
    for each in started:
        each.kill()
        each.wait()


def test_the_largest_comes_first_and_the_others_are_named(sleepers: list[subprocess.Popen[bytes]]) -> None:
    wanted = [sleepers[1].pid, sleepers[2].pid, sleepers[0].pid]
    # All of them have their memory: until then the order may change.
    sizes = [30 << 20, 10 << 20, 1 << 20]
    eventually(
        lambda: [found.anon >= size for found, size in zip(find(attachment()), sizes, strict=False)] == [True] * 3
    )
    found = find(attachment())
    assert [match.pid for match in found] == wanted
    assert others(found) == f"{wanted[1]} ({NAME}), {wanted[2]} ({NAME})"
    assert others(found[:1]) == ""
    assert others(found * 3).endswith(" and 3 more")


def test_its_own_ancestors_are_never_found(program: str) -> None:
    """A tidegate that a Python script starts, told to guard "python3", would end itself with the script."""
    code = (
        "import os; from tidegate.guard.plan import Attachment; from tidegate.worker.foreign import find;"
        f"found = find(Attachment('process', {NAME!r}, '', (), True, False, ''));"
        "assert not {os.getpid(), os.getppid()} & {each.pid for each in found}, found"
    )
    parent = f"import subprocess, sys; sys.exit(subprocess.call([{program!r}, '-c', {code!r}]))"
    assert subprocess.call([program, "-c", parent], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}) == 0


def test_nothing_is_found_where_nothing_is() -> None:
    assert find(attachment("no-such-name")) == ()
    assert find(Attachment("cgroup", "/no/such", "/no/such", (), True, False, "")) == ()


def test_it_and_what_it_started_are_ended(program: str) -> None:
    asleep = "import time; time.sleep(600)"
    code = f"import subprocess; subprocess.Popen([{program!r}, '-c', {asleep!r}]); {asleep}"
    parent = subprocess.Popen([program, "-I", "-S", "-c", code])
    eventually(lambda: len(find(attachment())) == 2)
    child = next(match.pid for match in find(attachment()) if match.pid != parent.pid)
    identity = read_process_id(parent.pid)
    assert identity is not None
    foreign = Foreign(Match(identity, NAME, 0), group="")
    assert foreign.may_be_ended()
    assert not foreign.reap()
    assert not foreign.is_empty()
    foreign.kill()
    assert parent.wait() == -signal.SIGKILL
    eventually(foreign.is_empty)
    assert not is_alive(child)
    foreign.kill()
    foreign.close()


def test_a_pid_that_was_used_again_is_another_process(sleepers: list[subprocess.Popen[bytes]]) -> None:
    identity = read_process_id(sleepers[0].pid)
    assert identity is not None
    earlier = replace(identity, start_time=identity.start_time - 1)
    with pytest.raises(ProcessLookupError):
        Foreign(Match(earlier, NAME, 0), group="")
    with pytest.raises(OSError):
        Foreign(Match(ProcessId(1 << 30, 1), NAME, 0), group="")


def test_its_successor_is_not_ended_with_it(sleepers: list[subprocess.Popen[bytes]]) -> None:
    first, second = sleepers[0], sleepers[1]
    identity = read_process_id(first.pid)
    assert identity is not None
    foreign = Foreign(Match(identity, NAME, 0), group="")
    foreign.terminate()
    first.wait()
    foreign.kill()
    assert second.poll() is None
    assert foreign.is_empty()
    foreign.close()
