from magnetar_core.runtime.clock import DeadlineSweep
from tests.support.manual_clock import ManualClock


def test_timers_run_in_the_order_in_which_they_are_due() -> None:
    clock = ManualClock()
    ran: list[str] = []
    clock.call_later(2.0, lambda: ran.append("second"))
    clock.call_later(1.0, lambda: ran.append("first"))
    cancelled = clock.call_later(1.5, lambda: ran.append("never"))
    cancelled.cancel()
    clock.advance(1.9)
    assert ran == ["first"]
    clock.advance(0.2)
    assert ran == ["first", "second"]


def test_a_timer_set_by_a_timer_runs_in_the_same_advance() -> None:
    clock = ManualClock()
    ran: list[float] = []

    def again() -> None:
        clock.call_later(1.0, lambda: ran.append(clock.monotonic()))

    clock.call_later(1.0, again)
    clock.advance(5.0)
    assert ran == [2.0]


def test_the_sweep_expires_each_item_once_and_not_early() -> None:
    clock = ManualClock()
    expired: list[tuple[float, str]] = []
    sweep: DeadlineSweep[str] = DeadlineSweep(clock, 10.0, lambda item: expired.append((clock.monotonic(), item)))
    sweep.add("a")
    clock.advance(4.0)
    sweep.add("b")
    clock.advance(5.9)
    assert expired == []
    clock.advance(10.0)
    assert [item for _, item in expired] == ["a", "b"]
    assert expired[0][0] >= 10.0
    assert expired[1][0] >= 14.0


def test_a_closed_sweep_expires_nothing() -> None:
    clock = ManualClock()
    expired: list[str] = []
    sweep: DeadlineSweep[str] = DeadlineSweep(clock, 1.0, expired.append)
    sweep.add("a")
    sweep.close()
    clock.advance(10.0)
    assert expired == []
