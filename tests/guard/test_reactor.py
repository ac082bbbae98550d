"""The reactor with a clock of ours: what fires when, and in which thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tidegate.guard.reactor import READ, WRITE, Reactor


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(name="clock")
def clock_fixture() -> Clock:
    return Clock()


@pytest.fixture(name="reactor")
def reactor_fixture(clock: Clock) -> Iterator[Reactor]:
    reactor = Reactor(clock)
    yield reactor
    reactor.close()


@pytest.fixture(name="pipe")
def pipe_fixture() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def spin(reactor: Reactor) -> None:
    """One round that does not wait."""
    reactor.after("spin", 0, lambda: None)
    reactor.run_once()


def test_a_timer_fires_once_when_its_time_has_come(reactor: Reactor, clock: Clock) -> None:
    fired: list[str] = []
    reactor.after("a", 5, lambda: fired.append("a"))
    spin(reactor)
    clock.now += 4.999
    spin(reactor)
    assert fired == []
    clock.now += 0.001
    spin(reactor)
    spin(reactor)
    assert fired == ["a"]


def test_a_name_has_one_deadline(reactor: Reactor, clock: Clock) -> None:
    fired: list[str] = []
    reactor.after("a", 5, lambda: fired.append("first"))
    reactor.after("a", 10, lambda: fired.append("second"))
    clock.now += 5
    spin(reactor)
    assert fired == []
    clock.now += 5
    spin(reactor)
    assert fired == ["second"]


def test_cancelled_timers_do_not_fire(reactor: Reactor, clock: Clock) -> None:
    fired: list[str] = []
    reactor.after("a", 1, lambda: fired.append("a"))
    reactor.cancel("a")
    reactor.cancel("never there")
    clock.now += 2
    spin(reactor)
    assert fired == []


def test_a_timer_that_sets_itself_again_waits_for_the_next_round(reactor: Reactor, clock: Clock) -> None:
    fired: list[float] = []

    def tick() -> None:
        fired.append(clock.now)
        reactor.after("tick", 0, tick)

    reactor.after("tick", 0, tick)
    reactor.run_once()
    assert fired == [1000.0]
    clock.now += 1
    reactor.run_once()
    assert fired == [1000.0, 1001.0]


def test_a_timer_may_cancel_another_that_is_due(reactor: Reactor, clock: Clock) -> None:
    fired: list[str] = []
    reactor.after("a", 1, lambda: reactor.cancel("b"))
    reactor.after("b", 1, lambda: fired.append("b"))
    clock.now += 1
    spin(reactor)
    assert fired == []


def test_a_timer_may_put_off_another_that_is_due(reactor: Reactor, clock: Clock) -> None:
    fired: list[str] = []
    reactor.after("a", 1, lambda: reactor.after("b", 10, lambda: fired.append("b, late")))
    reactor.after("b", 1, lambda: fired.append("b"))
    clock.now += 1
    spin(reactor)
    assert fired == []


def test_a_deadline_in_the_past_does_not_wait(reactor: Reactor) -> None:
    fired: list[str] = []
    reactor.after("a", -5, lambda: fired.append("a"))
    reactor.run_once()
    assert fired == ["a"]


def test_it_sleeps_to_the_deadline_and_not_less() -> None:
    """A real clock: a wait rounded down would go round for the last part of a millisecond."""
    reactor = Reactor()
    fired: list[float] = []
    start = reactor.clock()
    for name, seconds in (("a", 0.0105), ("b", 0.0209)):
        reactor.after(name, seconds, lambda: fired.append(reactor.clock() - start))
    while len(fired) < 2:
        reactor.run_once()
    reactor.close()
    assert reactor.rounds <= 2
    assert fired[0] >= 0.0105
    assert fired[1] >= 0.0209


def test_descriptors(reactor: Reactor, pipe: tuple[int, int]) -> None:
    read, write = pipe
    seen: list[tuple[str, int]] = []
    reactor.watch(read, READ, lambda mask: seen.append(("read", mask)))
    spin(reactor)
    assert seen == []
    os.write(write, b"x")
    spin(reactor)
    assert seen == [("read", READ)]
    reactor.watch(read, READ, lambda mask: seen.append(("replaced", mask)))
    spin(reactor)
    assert seen[1:] == [("replaced", READ)]
    reactor.unwatch(read)
    reactor.unwatch(read)
    reactor.unwatch(12345)
    spin(reactor)
    assert len(seen) == 2


def test_a_mask_can_be_changed(reactor: Reactor, pipe: tuple[int, int]) -> None:
    seen: list[int] = []
    reactor.watch(pipe[1], 0, seen.append)
    spin(reactor)
    assert seen == []
    reactor.watch(pipe[1], WRITE, seen.append)
    spin(reactor)
    assert seen == [WRITE]


def test_one_callback_may_take_away_another_with_an_event_in_the_same_round(reactor: Reactor) -> None:
    pipes = [os.pipe(), os.pipe()]
    seen: list[int] = []

    def take(mine: int) -> None:
        seen.append(mine)
        for read, _ in pipes:
            reactor.unwatch(read)

    for read, write in pipes:
        os.write(write, b"x")
        reactor.watch(read, READ, lambda _mask, read=read: take(read))  # type: ignore[misc]
    spin(reactor)
    assert len(seen) == 1
    for fd in (*pipes[0], *pipes[1]):
        os.close(fd)


def test_wake_from_another_thread_calls_back_in_this_one(reactor: Reactor) -> None:
    called: list[int] = []
    reactor.on_wake(lambda: called.append(threading.get_ident()))
    thread = threading.Thread(target=reactor.wake)
    thread.start()
    # Without the wake-up this would wait for ever: there is no timer.
    reactor.run_once()
    thread.join()
    assert called == [threading.get_ident()]


def test_wakes_without_a_reader_never_block_and_are_one(reactor: Reactor) -> None:
    called: list[bool] = []
    reactor.on_wake(lambda: called.append(True))
    for _ in range(100_000):
        reactor.wake()
    spin(reactor)
    assert called == [True]
    # The pipe holds 64 KiB; what is left of them wakes again, and then there is silence.
    for _ in range(20):
        spin(reactor)
    rounds = len(called)
    spin(reactor)
    assert len(called) == rounds


def test_signals_are_handled_in_the_loop(reactor: Reactor) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    seen: list[str] = []
    try:
        reactor.on_signal(signal.SIGUSR1, lambda: seen.append("usr1"))
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert seen == []
        # No timer: the signal that came before poll() must end it.
        reactor.run_once()
        assert seen == ["usr1"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_close_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        Reactor().close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_event_is_not_given_to_who_took_over_the_number(reactor: Reactor) -> None:
    pipes = [os.pipe() for _ in range(2)]
    called: list[str] = []

    def first(_: int) -> None:
        called.append("first")
        # The other one ends, and another file gets its number.
        for read, _write in pipes:
            reactor.unwatch(read)
        os.close(pipes[1][0])
        again, write = os.pipe()
        assert again == pipes[1][0]
        reactor.watch(again, READ, lambda _: called.append("new"))
        pipes[1] = (again, pipes[1][1])
        pipes.append((os.dup(again), write))

    for read, write in pipes:
        os.write(write, b"x")
        reactor.watch(read, READ, first)
    reactor.after("end", 0.0, lambda: None)
    reactor.run_once()
    assert called == ["first"]
    reactor.unwatch(pipes[1][0])
    for ends in pipes:
        for fd in ends:
            os.close(fd)
