"""Entries and list of a state log as bytes; the fold."""

import pytest

from magnetar_core.runtime.types import ConfigurationError, Corruption
from managed_ledger.position import Position
from managed_ledger.state_log.config import StateLogConfig
from managed_ledger.state_log.edits import (
    EDIT_BYTES_MAX,
    TOKENS_KEPT,
    Edit,
    Header,
    Marker,
    Record,
    Token,
    decode,
    encode,
)
from managed_ledger.state_log.errors import EditRefused, LogDamaged
from managed_ledger.state_log.log.log_list import ListedLedger, LogList, decode_list, encode_list
from managed_ledger.state_log.replica import Replica, Verdict
from tests.support.state_log_world import Dictionary, setting

TOKEN = Token(bytes(range(16)), 6)
RECORDS: tuple[Record, ...] = (
    Header(3, 7, "a/00000001"),
    Edit(7, 1_700_000_000_000, TOKEN, b"payload"),
    Edit(8, 0, TOKEN, b""),
    Marker(8),
)


def test_what_is_encoded_is_decoded() -> None:
    for record in RECORDS:
        assert decode(encode(record), "here") == record


def test_every_entry_that_is_cut_off_or_unknown_is_refused() -> None:
    sizes = (18, 42, 42, 10)
    for record, size in zip(RECORDS, sizes, strict=True):
        data = encode(record)
        for length in range(size):
            with pytest.raises(Corruption, match="here"):
                decode(data[:length], "here")
    for data in (
        b"\x02\x02" + bytes(50),
        b"\x01\x09" + bytes(50),
        encode(Marker(1)) + b"x",
        encode(RECORDS[0]) + b"\xff",
    ):
        with pytest.raises(Corruption):
            decode(data, "here")


def test_an_edit_that_is_too_large_is_refused() -> None:
    assert len(encode(Edit(1, 0, TOKEN, bytes(EDIT_BYTES_MAX)))) == EDIT_BYTES_MAX + 42
    with pytest.raises(EditRefused, match="4194305 bytes"):
        encode(Edit(1, 0, TOKEN, bytes(EDIT_BYTES_MAX + 1)))


def test_a_list_is_read_back_and_damage_is_told() -> None:
    value = LogList("ab" * 16, 3, "a/1", (ListedLedger(4, 2, 1), ListedLedger(9, 3, 11)), (1, 2))
    assert decode_list(encode_list(value), "here") == value
    for data in (b"", b"{}", b"[]", encode_list(value).replace(b'"version": 1', b'"version": 2')):
        with pytest.raises(Corruption, match="here"):
            decode_list(data, "here")


def replica() -> Replica:
    made = Replica(Dictionary(), "log")
    made.enter(ListedLedger(5, 1, 1))
    made.fold(Position(5, 0), Header(1, 1, "a/1"))
    return made


def edit(number: int, token: Token | None = None) -> Edit:
    token = Token(number.to_bytes(16, "big"), number - 1) if token is None else token
    return Edit(number, 0, token, setting("x", number))


@pytest.mark.parametrize(
    ("position", "record"),
    [
        (Position(5, 2), edit(1)),  # an entry is left out
        (Position(5, 0), edit(1)),  # the same entry again
        (Position(6, 1), edit(1)),  # another ledger
        (Position(5, 1), edit(2)),  # an edit is left out
        (Position(5, 1), edit(0)),
        (Position(5, 1), Marker(1)),
        (Position(5, 1), Header(1, 1, "a/1")),
    ],
)
def test_i118_nothing_is_folded_out_of_order(position: Position, record: Edit | Marker | Header) -> None:
    made = replica()
    with pytest.raises(LogDamaged):
        made.fold(position, record)
    assert (made.position, made.number) == (Position(5, 0), 0)
    with pytest.raises(LogDamaged):
        made.fold(Position(5, 1), edit(1))


def test_a_ledger_whose_header_is_not_that_of_the_list_is_damage() -> None:
    for header in (Header(2, 1, "a/1"), Header(1, 2, "a/1")):
        made = Replica(Dictionary(), "log")
        made.enter(ListedLedger(5, 1, 1))
        with pytest.raises(LogDamaged):
            made.fold(Position(5, 0), header)


def test_i126_a_ledger_is_left_only_behind_its_last_entry() -> None:
    made = replica()
    made.fold(Position(5, 1), edit(1))
    assert not made.may_leave(2)
    assert made.may_leave(1)
    with pytest.raises(LogDamaged):
        made.may_leave(0)


def test_a_ledger_that_does_not_go_on_where_the_last_one_ended_is_damage() -> None:
    for ledger in (ListedLedger(6, 1, 3), ListedLedger(6, 0, 2)):
        made = replica()
        made.fold(Position(5, 1), edit(1))
        with pytest.raises(LogDamaged):
            made.enter(ledger)


def test_i125_a_token_is_known_for_so_many_edits_and_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applied, known, and from the moment when it is forgotten on: refused. There is no gap between the two."""
    monkeypatch.setattr("managed_ledger.state_log.replica.TOKENS_KEPT", 5)
    for since in range(3):
        made = replica()
        token = Token(b"t" * 16, since)
        verdicts = []
        for number in range(1, 20):
            told = made.fold(Position(5, number), edit(number, token if number >= 3 else None))
            assert told is not None
            verdicts.append(told.verdict)
        assert verdicts[:3] == [Verdict.APPLIED] * 3
        assert Verdict.APPLIED not in verdicts[3:]
        assert verdicts[-1] is Verdict.EXPIRED
        assert len(made.tokens) <= 5


def test_so_many_tokens_are_kept() -> None:
    made = replica()
    for number in range(1, TOKENS_KEPT + 11):
        made.fold(Position(5, number), edit(number))
    assert len(made.tokens) == TOKENS_KEPT
    assert min(made.tokens.values()) == 11


@pytest.mark.parametrize(
    "root", ["", "/", "dictionary", "/a//b", "/ledgers", "/ledgers/x", "/admin/x", "/managed-ledgers/q"]
)
def test_a_root_in_the_trees_of_others_is_refused(root: str) -> None:
    with pytest.raises(ConfigurationError, match="root"):
        StateLogConfig(root=root)


def test_settings_that_contradict_each_other_are_refused_together() -> None:
    with pytest.raises(ConfigurationError, match=r"ack_quorum.*poll_s"):
        StateLogConfig(root="/x", ack_quorum=4, poll_s=2.0)


def test_i122_ledgers_leave_behind_the_snapshots_of_enough_nodes() -> None:
    value = LogList("ab" * 16, 1, "a/1", tuple(ListedLedger(one, 1, 1 + 10 * one) for one in range(4)))
    assert value.droppable(25, [], 1) == (0, 1)
    assert value.droppable(25, [], 2) == ()
    assert value.droppable(25, [9, 8], 2) == ()
    assert value.droppable(25, [9, 12], 2) == (0,)
    assert value.droppable(9, [30, 30], 2) == ()
    assert value.droppable(20, [20, 10], 3) == (0,)
    assert value.droppable(1000, [1000], 2) == (0, 1, 2), "the last one stays"
    left = value.without_ledgers((0, 1))
    assert [one.ledger_id for one in left.ledgers] == [2, 3]
    assert left.leaving == (0, 1)
    assert left.with_deleted([0]).leaving == (1,)
