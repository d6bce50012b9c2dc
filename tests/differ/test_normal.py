"""Two brokers give other ids and other orders; the normal form has neither."""

from typing import Any

from tests.differ.events import event
from tests.differ.normal import Message, Place, difference, normal


def place(ledger_id: int, entry_id: int, batch_index: int = -1, partition: int = -1) -> Place:
    return Place("t0", partition, ledger_id, entry_id, batch_index)


def message(number: int, at: Place, *, who: str = "c0", redelivered: int = 0) -> Message:
    return Message(who, number, at.partition, redelivered, at, ("x",))


def test_ids_have_their_rank() -> None:
    outcomes = [[None, place(7, 0, 0), place(7, 0, 1), place(9, 0, 0)], place(7, 3), place(-1, -1)]
    assert normal(outcomes) == [[None, "#0.0", "#0.1", "#2.0"], "#1", "no id -1"]
    assert normal([place(5, 1, partition=0), place(4, 1, partition=1)]) == ["#0:0", "#1:0"]


def test_what_redelivery_and_sharing_mix_up_is_put_in_order() -> None:
    first, second = message(0, place(1, 0), who="c1"), message(1, place(1, 1), who="c0", redelivered=1)
    for kind in ("Shared", "KeyShared"):
        assert normal([[kind, second, first]]) == normal([[kind, first._replace(who="c9"), second]])
    assert normal([["Failover", second, first]]) == normal([["Failover", first, second]])
    assert normal([["Failover", second, first]]) != normal([["Failover", first._replace(who="c9"), second]])


def test_order_that_is_promised_counts() -> None:
    first, second = message(0, place(1, 0)), message(1, place(1, 1))
    assert normal([["in order", second, first]]) != normal([["in order", first, second]])
    parts = [message(number, place(1, number, partition=number % 2)) for number in range(4)]
    mixed = [parts[0], parts[1], parts[2], parts[3]], [parts[1], parts[3], parts[0], parts[2]]
    assert normal([["in order", *mixed[0]]]) == normal([["in order", *mixed[1]]])


def test_a_message_that_comes_twice_is_seen() -> None:
    once = message(0, place(1, 0))
    assert normal([["Shared", once, once]]) != normal([["Shared", once]])
    part = message(0, place(1, 0, partition=1))
    assert normal([["Shared", part, part]]) == normal([["Shared", part]])


def test_the_first_event_that_differs_is_named() -> None:
    program = (event("t0", "create"), event("t0", "stats"), event("t0", "unload"))
    same: list[Any] = [None, {"msgInCounter": 1}, None]
    assert difference(program, same, list(same)) is None
    found = difference(program, same, [None, {"msgInCounter": 2}, 404])
    assert found is not None
    assert (found.at, found.event, found.apache, found.ours) == (
        1,
        program[1],
        {"msgInCounter": 1},
        {"msgInCounter": 2},
    )
