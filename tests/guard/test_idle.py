"""When a patrol may take its server for idle."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.engines.llama_api import WireError
from tidegate.guard.idle import EVERY_S, QUIET_S, IdleWatch

URL = "http://127.0.0.1:8081"


class Desk:
    """Stands in for reactor and helper: the next question is asked and answered when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timer: Callable[[], None] | None = None
        self.jobs: list[Callable[[object], None]] = []
        self.told = 0
        self.watch = IdleWatch(self, self, self._idle)  # type: ignore[arg-type]

    def _idle(self) -> None:
        self.told += 1

    def clock(self) -> float:
        return self.now

    def after(self, _name: str, seconds: float, callback: Callable[[], None]) -> None:
        assert seconds == EVERY_S
        self.timer = callback

    def submit(self, _job: object, then: Callable[[object], None]) -> None:
        self.jobs.append(then)

    def answers(self, *busy: object) -> None:
        for each in busy:
            self.jobs.pop()(each)
            self.now += EVERY_S
            assert self.timer is not None
            self.timer()


def test_quiet_must_last() -> None:
    desk = Desk()
    desk.watch.watch(URL)
    needed = int(QUIET_S / EVERY_S)
    desk.answers(*[0] * needed)
    assert (desk.watch.idle, desk.told) == (False, 0)
    desk.answers(0, 0, 0)
    assert (desk.watch.idle, desk.told) == (True, 1)


def test_a_request_and_an_unreadable_answer_begin_it_anew() -> None:
    desk = Desk()
    desk.watch.watch(URL)
    needed = int(QUIET_S / EVERY_S)
    for between in (1, WireError("no slot list")):
        desk.answers(*[0] * needed, between)
        assert not desk.watch.idle
    desk.answers(*[0] * needed)
    assert (desk.watch.idle, desk.told) == (False, 0)


def test_nobody_is_asked_when_it_is_over() -> None:
    desk = Desk()
    desk.watch.watch(URL)
    desk.answers(*[0] * 10)
    desk.watch.watch("")
    assert not desk.watch.idle
    desk.answers(0)
    assert (desk.watch.idle, desk.jobs) == (False, [])
    desk.watch.watch(URL)
    assert len(desk.jobs) == 1
