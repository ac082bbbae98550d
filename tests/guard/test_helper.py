"""The helper thread: jobs in order, results in the loop, and a job that fails or hangs harms nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tidegate.guard.helper import Helper


class Loop:
    """Stands for the reactor: ``deliver`` as often as the helper has woken it."""

    def __init__(self) -> None:
        self._woken = threading.Semaphore(0)
        self.helper = Helper(self._woken.release)
        self.results: list[object] = []
        self.threads: list[int] = []

    def then(self, result: object) -> None:
        self.results.append(result)
        self.threads.append(threading.get_ident())

    def submit(self, job: Callable[[], object]) -> None:
        self.helper.submit(job, self.then)

    def turn(self) -> None:
        assert self._woken.acquire(timeout=10)
        self.helper.deliver()


@pytest.fixture(name="loop")
def loop_fixture() -> Loop:
    return Loop()


def test_jobs_run_elsewhere_in_order_and_results_come_here(loop: Loop) -> None:
    loop.helper.start()
    ran: list[tuple[int, int]] = []

    def job(number: int) -> Callable[[], object]:
        def run() -> int:
            ran.append((number, threading.get_ident()))
            return number * 10

        return run

    for number in range(20):
        loop.submit(job(number))
    while len(loop.results) < 20:
        loop.turn()
    assert loop.results == [number * 10 for number in range(20)]
    assert [number for number, _ in ran] == list(range(20))
    assert {thread for _, thread in ran}.isdisjoint(loop.threads)
    assert set(loop.threads) == {threading.get_ident()}


def test_a_job_that_fails_gives_its_exception_and_the_next_runs(loop: Loop) -> None:
    error = ValueError("no")

    def fail() -> object:
        raise error

    loop.helper.start()
    loop.submit(fail)
    loop.submit(lambda: "fine")
    while len(loop.results) < 2:
        loop.turn()
    assert loop.results == [error, "fine"]


def test_jobs_from_before_the_start_are_not_lost(loop: Loop) -> None:
    loop.submit(lambda: "early")
    loop.helper.start()
    loop.turn()
    assert loop.results == ["early"]


def test_nothing_is_delivered_before_deliver(loop: Loop) -> None:
    done = threading.Event()
    loop.helper.start()
    loop.submit(done.set)
    assert done.wait(10)
    assert loop.results == []
    loop.turn()
    assert loop.results == [None]
    loop.helper.deliver()
    assert loop.results == [None]


def test_a_result_may_submit_the_next_job(loop: Loop) -> None:
    loop.helper.start()

    def again(result: object) -> None:
        loop.then(result)
        if len(loop.results) < 3:
            loop.helper.submit(lambda: len(loop.results), again)

    loop.helper.submit(lambda: 0, again)
    while len(loop.results) < 3:
        loop.turn()
    assert loop.results == [0, 1, 2]


def test_a_job_that_hangs_does_not_keep_the_process(loop: Loop) -> None:
    hanging, release = threading.Event(), threading.Event()
    before = set(threading.enumerate())
    loop.helper.start()
    (thread,) = set(threading.enumerate()) - before

    def hang() -> object:
        hanging.set()
        return release.wait(60)

    loop.submit(hang)
    assert hanging.wait(10)
    assert thread.daemon
    loop.helper.deliver()
    release.set()
    loop.turn()
    assert loop.results == [True]
