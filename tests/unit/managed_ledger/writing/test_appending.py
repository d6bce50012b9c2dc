"""Appending without a ledger: what is sent when, what an answer means, when the next ledger is due."""

import pytest

from managed_ledger.errors import (
    ManagedLedgerClosed,
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerTerminated,
    StorageUnavailable,
)
from managed_ledger.retention import RolloverRule
from managed_ledger.writing.appending import SEND_RUN_MAX, Appending, State, Step

RULE = RolloverRule(entries_max=10, bytes_max=1000, age_max_ms=100_000, age_min_ms=0)


def opened() -> Appending:
    appending = Appending()
    appending.on_ledger_begun()
    appending.open()
    return appending


def put(appending: Appending, first: int, last: int) -> bool:
    numbers = list(range(first, last))
    return appending.append([b"%d" % number for number in numbers], numbers)


def send(appending: Appending, rule: RolloverRule = RULE, age_ms: int = 0) -> list[int]:
    """Hand over what may be; the contexts of it."""
    sent: list[int] = []
    while run := appending.next_run(rule, age_ms):
        appending.on_sent(run, sum(len(data) for data, _ in run))
        sent.extend(context for _, context in run)
    return sent


def acknowledge(appending: Appending, up_to: int) -> list[int]:
    stored = appending.on_acknowledged(up_to)
    return [] if stored is None else stored.contexts


def next_ledger(appending: Appending) -> None:
    appending.creating()
    appending.on_ledger_begun()
    appending.open()


def test_contexts_come_out_in_order_and_once() -> None:
    appending = opened()
    assert put(appending, 0, 5)
    assert send(appending) == [0, 1, 2, 3, 4]
    stored = appending.on_acknowledged(1)
    assert stored == (0, [b"0", b"1"], [0, 1])
    assert appending.on_acknowledged(1) is None
    assert acknowledge(appending, 4) == [2, 3, 4]
    assert appending.on_acknowledged(4) is None
    assert appending.count == 0
    assert (appending.entries_added, appending.acked_bytes) == (5, 5)


def test_what_comes_while_there_is_no_ledger_waits_for_the_next() -> None:
    appending = Appending()
    assert not put(appending, 0, 3)
    assert appending.next_step() is Step.NOTHING
    appending.on_ledger_begun()
    appending.open()
    assert appending.next_step() is Step.SEND
    assert send(appending) == [0, 1, 2]


def test_a_full_ledger_is_closed_when_all_it_was_sent_is_answered() -> None:
    appending = opened()
    put(appending, 0, 14)
    assert send(appending) == list(range(10))
    assert appending.next_run(RULE, 0) is None
    assert appending.begin_rollover() is Step.NOTHING
    assert appending.state is State.CLOSING
    acknowledge(appending, 8)
    assert appending.next_step() is Step.NOTHING
    acknowledge(appending, 9)
    assert appending.next_step() is Step.NEXT_LEDGER
    assert appending.next_step() is Step.NOTHING, "one rollover at a time"
    next_ledger(appending)
    assert send(appending) == [10, 11, 12, 13]
    assert acknowledge(appending, 3) == [10, 11, 12, 13]


def test_a_full_ledger_without_pending_entries_is_closed_at_once() -> None:
    appending = opened()
    put(appending, 0, 10)
    send(appending)
    acknowledge(appending, 9)
    assert appending.is_full(RULE, 0)
    assert appending.begin_rollover() is Step.NEXT_LEDGER
    assert not appending.is_full(RULE, 0)


def test_a_young_ledger_takes_more_than_its_number() -> None:
    appending = opened()
    rule = RolloverRule(entries_max=10, bytes_max=1000, age_max_ms=100_000, age_min_ms=60)
    put(appending, 0, 14)
    assert send(appending, rule, age_ms=59) == list(range(14))
    assert appending.is_full(rule, 60)


def test_after_a_failed_write_everything_goes_to_the_next_ledger_in_order() -> None:
    appending = opened()
    put(appending, 0, 4)
    send(appending)
    acknowledge(appending, 0)
    put(appending, 4, 6)
    appending.on_write_failed()
    assert not appending.is_written
    assert not put(appending, 6, 7)
    next_ledger(appending)
    assert send(appending) == [1, 2, 3, 4, 5, 6]
    assert acknowledge(appending, 5) == [1, 2, 3, 4, 5, 6]


def test_a_ledger_that_is_done_with_cannot_fail() -> None:
    appending = opened()
    put(appending, 0, 1)
    send(appending)
    assert appending.is_written
    appending.begin_termination()
    assert appending.is_written
    acknowledge(appending, 0)
    assert not appending.is_written


def test_a_run_that_is_too_long_is_halved_until_it_fits() -> None:
    appending = opened()
    rule = RolloverRule(entries_max=10**6, bytes_max=10**9, age_max_ms=10**9, age_min_ms=0)
    put(appending, 0, SEND_RUN_MAX + 8)
    lengths = []
    for _ in range(3):
        run = appending.next_run(rule, 0)
        assert run is not None
        lengths.append(len(run))
        assert appending.on_too_many(len(run), is_blocked=False) is Step.SEND
    assert lengths == [SEND_RUN_MAX, SEND_RUN_MAX // 2, SEND_RUN_MAX // 4]
    assert send(appending, rule) == list(range(SEND_RUN_MAX + 8))
    put(appending, 0, SEND_RUN_MAX)
    run = appending.next_run(rule, 0)
    assert run is not None
    assert len(run) == SEND_RUN_MAX, "the next time begins with long runs"


@pytest.mark.parametrize(
    ("pending", "is_blocked", "count", "step"),
    [
        (True, False, 5, Step.NOTHING),
        (True, True, 5, Step.NOTHING),
        (False, True, 5, Step.SEND_WHEN_WRITABLE),
        (False, False, 1, Step.GIVE_UP),
    ],
)
def test_who_makes_room(pending: bool, is_blocked: bool, count: int, step: Step) -> None:
    appending = opened()
    if pending:
        put(appending, 0, 1)
        send(appending)
    put(appending, 1, 6)
    assert appending.on_too_many(count, is_blocked=is_blocked) is step


def test_an_entry_that_is_too_large_is_found_among_its_neighbours() -> None:
    appending = opened()
    put(appending, 0, 5)
    sent, refused = [], []
    while run := appending.next_run(RULE, 0):
        if any(context == 3 for _, context in run):
            refused += appending.take_refused(len(run))
        else:
            appending.on_sent(run, 1)
            sent += [context for _, context in run]
    assert (sent, refused) == ([0, 1, 2, 4], [3])


def test_the_end_gives_back_what_nobody_will_answer() -> None:
    appending = opened()
    put(appending, 0, 12)
    send(appending)
    acknowledge(appending, 2)
    assert appending.end(State.FENCED, ManagedLedgerFenced("another owner")) == list(range(3, 12))
    assert appending.count == 0
    assert acknowledge(appending, 9) == []
    with pytest.raises(AssertionError, match="final"):
        appending.end(State.CLOSED, ManagedLedgerClosed("closed"))


@pytest.mark.parametrize(
    ("state", "error", "raised"),
    [
        (State.FENCED, ManagedLedgerFenced("another owner"), ManagedLedgerFenced),
        (State.CLOSED, ManagedLedgerClosed("closed here"), ManagedLedgerClosed),
        (State.CLOSED, StorageUnavailable("no bookies"), ManagedLedgerClosed),
        (State.TERMINATED, ManagedLedgerTerminated("no more"), None),
    ],
)
def test_after_the_end_the_reason_is_what_everybody_is_told(
    state: State, error: ManagedLedgerError, raised: type[ManagedLedgerError] | None
) -> None:
    appending = opened()
    appending.check_not_ended()
    appending.end(state, error)
    refusal = appending.refusal()
    assert (type(refusal), str(refusal)) == (type(error), str(error))
    assert refusal is not error, "the one that is kept has no traceback"
    if raised is None:
        appending.check_not_ended()
        return
    with pytest.raises(raised, match=str(error)):
        appending.check_not_ended()
