"""Which answer belongs to which request, stepped without sockets, futures or a clock."""

from collections.abc import Iterable

import pytest

from magnetar_core.bookkeeper.client.deciding.outstanding import OVERTAKEN_MAX, Outstanding
from magnetar_core.bookkeeper.client.deciding.writer import PendingAdd
from magnetar_core.bookkeeper.wire.codec_v2 import add_response, read_response
from magnetar_core.runtime.types import Buffer

LEDGER, TIMEOUT_S = 7, 10.0


@pytest.fixture
def waiting() -> Outstanding[str, str]:
    return Outstanding(TIMEOUT_S)


def send(waiting: Outstanding[str, str], adder: str, entry_ids: Iterable[int], now_s: float = 0) -> list[Buffer]:
    outbox: list[Buffer] = []
    run = [PendingAdd(entry_id, 0, b"head %d," % entry_id, b"payload") for entry_id in entry_ids]
    assert waiting.add(adder, LEDGER, run, now_s, outbox) == sum(map(len, outbox))
    return outbox


def nothing_waits(waiting: Outstanding[str, str]) -> bool:
    return not len(waiting) and waiting.due_s is None


def added(*entry_ids: int, rc: int = 0, ledger_id: int = LEDGER) -> list[memoryview]:
    return [memoryview(add_response(rc, ledger_id, entry_id))[4:] for entry_id in entry_ids]


def was_read(entry_id: int, entry: bytes = b"", rc: int = 0) -> list[memoryview]:
    return [memoryview(read_response(rc, LEDGER, entry_id, len(entry)) + entry)[4:]]


def batch(number: int, *entries: bytes, rc: int = 0) -> list[memoryview]:
    word = (2 << 24 | 7 << 16).to_bytes(4, "big")
    head = word + rc.to_bytes(4, "big") + LEDGER.to_bytes(8, "big") + bytes(8) + number.to_bytes(8, "big")
    return [memoryview(head + b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries))]


# ------------------------------------------------------------------------------------------------------- adds


def test_a_run_goes_out_as_heads_and_payloads(waiting: Outstanding[str, str]) -> None:
    assert send(waiting, "a", [3, 4]) == [b"head 3,", b"payload", b"head 4,", b"payload"]
    assert len(waiting) == 2


def test_answers_are_matched_by_ledger_and_entry_in_whatever_order(waiting: Outstanding[str, str]) -> None:
    send(waiting, "a", [0, 1, 2])
    send(waiting, "b", [5])
    chunk = [*added(2, 0), *added(5), *added(1), *added(1, ledger_id=LEDGER + 1), *added(9)]
    assert waiting.match(chunk) == ({"a": [2, 0, 1], "b": [5]}, {}, [], "")
    assert len(waiting) == 0
    assert waiting.match(added(1)) == ({}, {}, [], ""), "each is answered once"


def test_the_oldest_of_equal_adds_gets_the_answer(waiting: Outstanding[str, str]) -> None:
    for adder in "abc":
        send(waiting, adder, [1])
    assert [waiting.match(added(1))[0] for _ in range(4)] == [{"a": [1]}, {"b": [1]}, {"c": [1]}, {}]


def test_refusals_are_gathered_by_adder_and_code(waiting: Outstanding[str, str]) -> None:
    send(waiting, "a", [0, 1, 2, 3])
    send(waiting, "b", [4])
    chunk = [*added(0, 2, rc=104), *added(1, rc=105), *added(3), *added(4, rc=104)]
    assert waiting.match(chunk) == ({"a": [3]}, {("a", 104): [0, 2], ("a", 105): [1], ("b", 104): [4]}, [], "")


@pytest.mark.parametrize("last", [memoryview(bytes(3)), memoryview((2 << 24 | 3 << 16).to_bytes(4, "big") + b"auth")])
def test_what_came_before_a_frame_that_is_no_answer_counts(waiting: Outstanding[str, str], last: memoryview) -> None:
    send(waiting, "a", [0, 1])
    found, _, _, malformed = waiting.match([*added(0), last, *added(1)])
    assert found == {"a": [0]}
    assert malformed.startswith("an answer ")


# ------------------------------------------------------------------------------------------------------ reads


def test_the_oldest_of_equal_reads_gets_the_answer_and_a_batch_is_matched_by_its_number(
    waiting: Outstanding[str, str],
) -> None:
    first, second, third = waiting.read("x", None, 0), waiting.read("y", (LEDGER, 0), 0), waiting.read("z", None, 0)
    waiting.read("w", (LEDGER, 0), 0)
    assert len({first, second, third}) == 3
    is_unknown = [waiting.is_batch_unknown]
    reads = waiting.match([*batch(third, b"e0", b"e1"), *was_read(0, b"entry"), *was_read(0, rc=1)])[2]
    assert reads == [
        ("z", 0, LEDGER, 0, [b"e0", b"e1"]),
        ("y", 0, LEDGER, 0, b"entry"),
        ("w", 1, LEDGER, 0, None),
    ]
    is_unknown.append(waiting.is_batch_unknown)
    assert waiting.match([*batch(third, b"e0"), *was_read(0, b"entry"), *batch(99, b"e")])[2] == []
    assert len(waiting) == 1
    assert waiting.fail_all() == ({}, ["x"])
    waiting.read("x", None, 0)
    is_unknown.append(waiting.is_batch_unknown)
    assert is_unknown == [True, False, True], "over another socket there may be another version"


# ------------------------------------------------------------------------------------------------------- ends


def test_what_a_silent_bookie_did_not_answer_expires_in_the_order_of_the_times(waiting: Outstanding[str, str]) -> None:
    send(waiting, "a", [0, 1, 2], now_s=1)
    waiting.read("x", (LEDGER, 0), 2)
    waiting.read("y", None, 3)
    send(waiting, "b", [3], now_s=4)
    waiting.match(added(1))
    assert waiting.due_s == 11
    assert waiting.expire(10.9, alive_s=0) == ([], [])
    assert waiting.expire(12, alive_s=0) == ([("a", LEDGER, [0, 2])], ["x"])
    assert waiting.due_s == 13
    assert waiting.expire(20, alive_s=0) == ([("b", LEDGER, [3])], ["y"])
    assert nothing_waits(waiting)
    late = waiting.match([*added(0, 2, 3), *was_read(0, b"e"), *batch(2, b"e")])
    assert late == ({}, {}, [], ""), "each ends once"


def test_what_was_answered_in_time_does_not_expire(waiting: Outstanding[str, str]) -> None:
    send(waiting, "a", [0])
    waiting.read("x", (LEDGER, 0), 0)
    waiting.match([*added(0), *was_read(0, b"e")])
    assert waiting.expire(100, alive_s=0) == ([], [])


def test_only_the_adder_expires_whose_time_is_over(waiting: Outstanding[str, str]) -> None:
    send(waiting, "a", [1], now_s=0)
    send(waiting, "b", [1], now_s=5)
    assert waiting.expire(10, alive_s=-1) == ([("a", LEDGER, [1])], [])
    assert waiting.match(added(1))[0] == {"b": [1]}


def test_a_read_that_expired_leaves_the_answer_to_the_next_one(waiting: Outstanding[str, str]) -> None:
    waiting.read("x", (LEDGER, 0), 0)
    waiting.read("y", (LEDGER, 0), 5)
    assert waiting.expire(10, alive_s=10) == ([], ["x"]), "others were answered: a read is not queued for so long"
    assert waiting.match(was_read(0, b"e"))[2] == [("y", 0, LEDGER, 0, b"e")]


def test_an_add_waits_on_while_the_bookie_answers_others_but_not_for_ever(waiting: Outstanding[str, str]) -> None:
    send(waiting, "a", [0, 1])
    for round_ in range(1, OVERTAKEN_MAX + 1):
        now_s = round_ * TIMEOUT_S
        assert waiting.expire(now_s, alive_s=now_s - 1) == ([], [])
        assert waiting.due_s == now_s + TIMEOUT_S
    now_s += TIMEOUT_S
    assert waiting.expire(now_s, alive_s=now_s) == ([("a", LEDGER, [0, 1])], [])


def test_an_add_that_was_overtaken_expires_when_the_bookie_falls_silent(waiting: Outstanding[str, str]) -> None:
    send(waiting, "a", [0])
    assert waiting.expire(10, alive_s=5) == ([], [])
    assert waiting.expire(20, alive_s=5) == ([("a", LEDGER, [0])], [])


def test_all_fail_with_their_connection_and_nothing_is_left_to_expire(waiting: Outstanding[str, str]) -> None:
    send(waiting, "a", [0, 1])
    send(waiting, "b", [1, 2])
    waiting.read("x", (LEDGER, 0), 0)
    waiting.read("y", (LEDGER, 0), 0)
    waiting.read("z", None, 0)
    assert waiting.fail_all() == ({"a": [0, 1], "b": [1, 2]}, ["x", "y", "z"])
    assert nothing_waits(waiting)
    send(waiting, "c", [0], now_s=5)
    assert waiting.expire(14, alive_s=0) == ([], []), "the deadline of what failed is nobody's any more"
    assert waiting.match(added(0))[0] == {"c": [0]}
