"""The state machine of the writer, driven by hand."""

import json
from collections.abc import Mapping

import pytest

from magnetar_core.bookkeeper.client.deciding.quorum import Quorum
from magnetar_core.bookkeeper.client.deciding.writer import (
    LEFT_OUT_S,
    Acknowledge,
    Changed,
    ChangeEnsemble,
    Failed,
    Held,
    Leave,
    LedgerWriter,
    judge_conflict,
)
from magnetar_core.bookkeeper.client.errors import (
    BookieReadOnly,
    BookieUnavailable,
    BookKeeperError,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    Unauthorized,
)
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, Segment
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec, master_key
from tests.support import vectors

DOWN = BookieUnavailable("down")
CODEC = EntryCodec(DigestType.CRC32C, b"")


def make(e: int = 3, w: int = 3, a: int = 2, **more: object) -> LedgerWriter:
    names = [f"b{i}" for i in range(e)]
    return LedgerWriter(1, Quorum(e, w, a), names, CODEC, master_key(b""), **more)  # type: ignore[arg-type]


@pytest.fixture
def writer() -> LedgerWriter:
    return make()


def add(writer: LedgerWriter, count: int) -> None:
    writer.add([b"x"] * count)


def ok(writer: LedgerWriter, entry_id: int, index: int) -> Acknowledge | None:
    effect = writer.on_added(index, writer.ensemble[index], [entry_id])
    writer.check_invariants()
    return effect


def fail(
    writer: LedgerWriter, entry_id: int, index: int, error: BookKeeperError = DOWN
) -> ChangeEnsemble | Failed | None:
    effect = writer.on_failed(index, writer.ensemble[index], [entry_id], error)
    writer.check_invariants()
    return effect


def test_answers_out_of_order_are_held_back(writer: LedgerWriter) -> None:
    add(writer, 3)
    for entry_id in (2, 1):
        assert ok(writer, entry_id, 0) is None
        assert ok(writer, entry_id, 1) is None
    assert ok(writer, 0, 0) is None
    assert ok(writer, 0, 1) == Acknowledge(2)
    assert (writer.confirmed_length, writer.pending_bytes) == (3, 0)


def test_an_add_carries_what_is_confirmed_when_it_is_packed(writer: LedgerWriter) -> None:
    add(writer, 3)
    ok(writer, 0, 0)
    ok(writer, 0, 1)
    (packed,) = writer.add([b"x"])
    # Behind length, opcode and master key stands the entry as it is stored.
    assert CODEC.open(memoryview(packed.head[28:] + b"x"), 1, 3).last_add_confirmed == 0


def test_a_bookie_outside_the_write_set_confirms_nothing() -> None:
    writer = make(3, 2, 2)
    add(writer, 1)
    assert writer.quorum.write_set(0) == (0, 1)
    assert ok(writer, 0, 2) is None
    assert ok(writer, 0, 0) is None
    assert ok(writer, 0, 1) == Acknowledge(0)


def test_a_new_bookie_gets_also_what_others_have_confirmed() -> None:
    writer = make(3, 3, 3)
    add(writer, 2)
    ok(writer, 0, 0)
    ok(writer, 0, 2)
    assert isinstance(fail(writer, 0, 1), ChangeEnsemble)
    changed = writer.on_ensemble_changed({1: "new"})
    assert [each.entry_id for each in changed.resend[1]] == [0, 1]


def test_an_answer_that_comes_twice_counts_once(writer: LedgerWriter) -> None:
    add(writer, 1)
    assert ok(writer, 0, 0) is None
    assert ok(writer, 0, 0) is None
    assert ok(writer, 0, 2) == Acknowledge(0)
    assert ok(writer, 0, 1) is None


def test_a_bookie_outside_the_write_set_has_no_say() -> None:
    writer = make(3, 2, 2)
    add(writer, 1)
    assert ok(writer, 0, 2) is None
    assert ok(writer, 0, 0) is None
    assert ok(writer, 0, 1) == Acknowledge(0)


def test_frames_are_those_of_the_stock_client() -> None:
    rows = [
        json.loads(line)
        for line in (vectors.ROOT / "wire/bk-v2-fence.decoded.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    raw = b"".join(
        vectors.b64(row["data"])
        for row in map(json.loads, (vectors.ROOT / "wire/bk-v2-fence.jsonl").read_text(encoding="utf-8").splitlines())
        if row["conn"] == 0 and row["dir"] == "c2s" and "data" in row
    )
    writes = [row for row in rows if row["conn"] == 0 and row["dir"] == "c2s"]
    codec = EntryCodec(DigestType.CRC32C, b"secret")
    key = master_key(b"secret")
    writer = LedgerWriter(8, Quorum(3, 3, 2), ["b0", "b1", "b2"], codec, key)
    sent = b""
    for row in writes:
        payload = bytes.fromhex(row["entry"]["digest_and_payload"])[4:]
        (made,) = writer.add([payload])
        sent += made.head + payload
        for index in range(2):
            ok(writer, made.entry_id, index)
    assert sent == raw

    recovery_adds = [r for r in rows if r["dir"] == "c2s" and r["opcode"] == "ADDENTRY" and r["flags"]]
    assert recovery_adds
    (again,) = make(recovery=True, last_add_confirmed=2).add([b"x"])
    assert {row["flags"] for row in recovery_adds} == {again.head[7]} == {6}


def test_a_failure_replaces_the_bookie_from_the_first_unconfirmed_entry_on(writer: LedgerWriter) -> None:
    add(writer, 3)
    ok(writer, 0, 0)
    assert ok(writer, 0, 1) == Acknowledge(0)
    assert fail(writer, 1, 2) == ChangeEnsemble({2: "b2"})
    assert writer.new_segment({2: "b9"}) == (1, ("b0", "b1", "b9"))
    changed = writer.on_ensemble_changed({2: "b9"})
    assert [made.entry_id for made in changed.resend[2]] == [1, 2]
    assert changed.effect is None
    assert writer.on_added(2, "b2", [1]) is None
    ok(writer, 1, 2)
    assert ok(writer, 1, 0) == Acknowledge(1)


def test_nothing_is_acknowledged_behind_the_barrier(writer: LedgerWriter) -> None:
    """R-L8: answers arrive after the change was committed and before the writer is told so."""
    add(writer, 2)
    fail(writer, 1, 2)
    for index in (0, 1):
        assert ok(writer, 0, index) is None
        assert ok(writer, 1, index) is None
    assert writer.new_segment({2: "b9"})[0] == 0
    assert writer.on_ensemble_changed({2: "b9"}).effect == Acknowledge(1)


def test_a_replaced_bookies_answers_are_taken_back_from_all_adds_before_any_completes() -> None:
    """R-L9: E 2, both quorums 1; entry 1 was answered by the bookie that dies, entry 0 completes meanwhile."""
    writer = make(2, 1, 1)
    add(writer, 4)
    ok(writer, 1, 1)
    assert fail(writer, 3, 1) == ChangeEnsemble({1: "b1"})
    assert ok(writer, 0, 0) is None
    changed = writer.on_ensemble_changed({1: "b9"})
    assert changed.effect == Acknowledge(0)
    assert [made.entry_id for made in changed.resend[1]] == [1, 3]
    ok(writer, 2, 0)
    assert ok(writer, 1, 1) == Acknowledge(2)


def test_a_second_failure_during_a_change_starts_another_one_after_it() -> None:
    writer = make(3, 3, 2)
    add(writer, 1)
    fail(writer, 0, 0)
    assert fail(writer, 0, 0) is None
    assert fail(writer, 0, 1) is None
    changed = writer.on_ensemble_changed({0: "b8"})
    assert changed.effect == ChangeEnsemble({1: "b1"})
    assert writer.new_segment({1: "b9"}) == (0, ("b8", "b9", "b2"))
    changed = writer.on_ensemble_changed({1: "b9"})
    assert changed.effect is None
    assert not writer.is_changing
    ok(writer, 0, 0)
    assert ok(writer, 0, 1) == Acknowledge(0)


def test_a_failure_of_an_entry_that_has_enough_waits_for_the_next_add(writer: LedgerWriter) -> None:
    add(writer, 1)
    ok(writer, 0, 0)
    ok(writer, 0, 1)
    assert fail(writer, 0, 2) is None
    assert writer.start_delayed_change() == ChangeEnsemble({2: "b2"})
    assert writer.start_delayed_change() is None


def test_late_failures_of_a_replaced_bookie_are_ignored(writer: LedgerWriter) -> None:
    """R-L10: the same bookie is reported twice, once too late."""
    add(writer, 2)
    fail(writer, 0, 2)
    writer.on_ensemble_changed({2: "b9"})
    assert writer.on_failed(2, "b2", [1], DOWN) is None
    assert not writer.is_changing
    assert writer.on_failed(2, "b2", [1], LedgerFenced("")) is None
    assert writer.is_open()


@pytest.mark.parametrize("error", [LedgerFenced("f"), Unauthorized("u")])
def test_after_a_fence_nothing_is_acknowledged(writer: LedgerWriter, error: BookKeeperError) -> None:
    add(writer, 2)
    ok(writer, 0, 0)
    assert fail(writer, 1, 2, error) == Failed(error)
    assert ok(writer, 0, 1) is None
    assert fail(writer, 0, 1) is None
    assert writer.last_add_confirmed == -1
    assert writer.pending_count == 0
    with pytest.raises(type(error)):
        add(writer, 1)


def test_a_fence_ends_a_writer_that_is_changing_its_ensemble(writer: LedgerWriter) -> None:
    """R-L19."""
    add(writer, 2)
    fail(writer, 0, 0)
    assert isinstance(fail(writer, 0, 1, LedgerFenced("")), Failed)
    assert writer.on_ensemble_changed({0: "b9"}).effect is None
    assert ok(writer, 0, 1) is None


def test_a_position_without_a_successor_is_left_out_while_the_ack_quorum_can_be_reached(
    writer: LedgerWriter,
) -> None:
    add(writer, 1)
    fail(writer, 0, 0)
    assert writer.on_ensemble_changed({}).effect is None
    assert writer.left_out == {0: "b0"}
    assert fail(writer, 0, 0) is None
    ok(writer, 0, 1)
    assert ok(writer, 0, 2) == Acknowledge(0)
    add(writer, 1)
    fail(writer, 1, 1)
    effect = writer.on_ensemble_changed({}).effect
    assert isinstance(effect, Failed)
    assert isinstance(effect.error, NotEnoughBookies)


# ----------------------------------------------------------------- positions without a bookie, step by step

ALL = frozenset({"b0", "b1", "b2"})


def nobody(left_out: Mapping[int, str]) -> Mapping[int, str]:
    return {}


def anybody(left_out: Mapping[int, str]) -> Mapping[int, str]:
    return left_out


def starved(hold_s: float = 30.0, refuse: bool = False) -> LedgerWriter:
    """At 100 s two of three bookies were left out."""
    writer = make(hold_s=hold_s)
    add(writer, 1)
    for index in (0, 1):
        writer.on_failed(index, f"b{index}", [0], BookieReadOnly("its disks are newer") if refuse else DOWN, refuse)
        writer.on_ensemble_changed({})
    assert writer.is_starved
    return writer


def test_a_left_out_position_is_filled_later(writer: LedgerWriter) -> None:
    add(writer, 2)
    fail(writer, 0, 0)
    writer.on_ensemble_changed({})
    assert writer.fill(ALL - {"b0"}, anybody) == Changed({}, None), "nobody is there who could take it"
    changed = writer.fill(ALL, anybody)
    assert [made.entry_id for made in changed.resend[0]] == [0, 1], "its own bookie is back"
    assert writer.left_out == {}
    fail(writer, 0, 0)
    writer.on_ensemble_changed({})
    assert writer.fill({"b9", *ALL} - {"b0"}, nobody) == Changed({}, None), "a placement rule keeps b9 out"
    assert writer.fill({"b9", *ALL}, anybody).effect == ChangeEnsemble({0: "b0"})
    assert writer.fill({"b9", *ALL}, anybody) == Changed({}, None), "a change is under way"
    changed = writer.on_ensemble_changed({0: "b9"})
    assert [made.entry_id for made in changed.resend[0]] == [0, 1]
    assert writer.ensemble == ["b9", "b1", "b2"]


def test_a_position_without_a_bookie_is_looked_at_again_after_a_while(writer: LedgerWriter) -> None:
    add(writer, 1)
    fail(writer, 0, 0)
    writer.on_ensemble_changed({})
    assert writer.tick(100) is None, "two of three are enough"
    assert writer.due_s == 100 + LEFT_OUT_S
    writer.fill(ALL, nobody)
    writer.tick(102)
    assert [writer.due_s] == [None]


def test_a_starved_writer_holds_its_entries_and_fails_when_its_time_is_over() -> None:
    writer = starved(hold_s=30)
    effect = writer.tick(100)
    assert isinstance(effect, Held)
    assert str(effect.error) == "ledger 1: no bookie is left to replace b0, b1"
    assert [writer.tick(now_s) for now_s in (102, 129.9)] == [None, None]
    assert writer.pending_count == 1
    effect = writer.tick(130)
    assert isinstance(effect, Failed)
    assert isinstance(effect.error, NotEnoughBookies)
    assert writer.tick(132) is None


def test_what_is_acknowledged_gives_a_starved_writer_its_time_again() -> None:
    writer = starved(hold_s=30)
    writer.tick(100)
    for index in (0, 1):
        assert len(writer.fill({"b2", f"b{index}"}, nobody).resend[index]) == 1
        effect = ok(writer, 0, index)
    assert effect == Acknowledge(0)
    add(writer, 1)
    for index in (0, 1):
        fail(writer, 1, index)
        writer.on_ensemble_changed({})
    assert isinstance(writer.tick(200), Held)
    assert writer.tick(229) is None
    assert isinstance(writer.tick(230), Failed)


def test_bookies_that_are_back_without_an_acknowledgement_do_not_stop_the_clock() -> None:
    writer = starved(hold_s=30)
    writer.tick(100)
    writer.fill(ALL, nobody)
    assert writer.tick(110) is None
    for index in (0, 1):
        fail(writer, 0, index)
        writer.on_ensemble_changed({})
    assert isinstance(writer.tick(130), Failed)


def test_a_writer_that_may_not_hold_its_entries_fails_at_once() -> None:
    writer = make()
    add(writer, 1)
    fail(writer, 0, 0)
    writer.on_ensemble_changed({})
    fail(writer, 0, 1)
    assert isinstance(writer.on_ensemble_changed({}).effect, Failed)


def test_where_only_bookies_that_refuse_the_ledger_could_help_nothing_is_waited_for() -> None:
    writer = starved(refuse=True)
    assert writer.refusing == {"b0", "b1"}
    assert writer.fill(ALL, anybody) == Changed({}, None), "they are not asked again"
    assert isinstance(writer.tick(100), Failed)


def test_a_bookie_that_refuses_everything_for_a_while_comes_back(writer: LedgerWriter) -> None:
    """Its disk is full, and it may be writable again before the next entry is added."""
    add(writer, 1)
    ok(writer, 0, 1)
    ok(writer, 0, 2)
    assert writer.on_failed(0, "b0", [0], BookieReadOnly("full"), is_writable=False) is None
    writer.on_bookies(ALL, frozenset())
    assert writer.refusing == set()
    writer.start_delayed_change()
    writer.on_ensemble_changed({})
    assert writer.fill(ALL, nobody).resend.keys() == {0}


def test_a_bookie_that_refused_while_it_was_about_to_turn_read_only_comes_back() -> None:
    writer = starved(refuse=True)
    writer.on_bookies({"b2"}, {"b0", "b1"})
    assert isinstance(writer.tick(100), Held)
    writer.on_bookies(ALL, frozenset())
    assert writer.fill(ALL, nobody).resend.keys() == {0, 1}


# ------------------------------------------------------------------------------------------- the end


def test_closing_leaves_out_what_is_pending(writer: LedgerWriter) -> None:
    writer.add([b"12345", b"678"])
    ok(writer, 0, 0)
    ok(writer, 0, 1)
    assert writer.close() == (0, 5)
    assert writer.length == 5
    assert ok(writer, 1, 0) is None
    with pytest.raises(LedgerClosed):
        add(writer, 1)


def test_each_add_carries_the_lac_known_when_it_was_packed(writer: LedgerWriter) -> None:
    (first,) = writer.add([b"a"])
    ok(writer, 0, 0)
    ok(writer, 0, 1)
    (second,) = writer.add([b"b"])
    opened = [CODEC.open(made.head[28:] + bytes(made.payload), 1, made.entry_id) for made in (first, second)]
    assert [entry.last_add_confirmed for entry in opened] == [-1, 0]
    assert [entry.length for entry in opened] == [1, 2]


def test_only_conflicts_about_older_segments_are_survived() -> None:
    """R-L18, R-L14."""
    own = LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        digest_type=DigestType.CRC32C,
        segments=(Segment(0, ("a",)), Segment(5, ("b",))),
    )
    copied = own.with_segment_replaced(0, ("c",))
    assert judge_conflict(own, copied, 1) == copied
    with pytest.raises(LedgerFenced):
        judge_conflict(own, own.with_segment_replaced(5, ("c",)), 1)
    with pytest.raises(LedgerFenced):
        judge_conflict(own, own.in_recovery(), 1)
    with pytest.raises(LedgerClosed):
        judge_conflict(own, own.closed(7, 7), 1)


def test_a_bookie_that_still_answers_is_left_behind_the_same_barrier(writer: LedgerWriter) -> None:
    add(writer, 2)
    ok(writer, 0, 0)
    assert writer.leave({1: "b9"}) == ChangeEnsemble({1: "b1"})
    assert writer.skipped == {1: "b1"}
    assert ok(writer, 0, 1) is None, "nothing is acknowledged before the record says who has it"
    assert writer.new_segment({1: "b9"}) == (0, ("b0", "b9", "b2"))
    changed = writer.on_ensemble_changed({1: "b9"})
    assert changed.effect is None, "what the bookie that was left confirmed does not count"
    assert [made.entry_id for made in changed.resend[1]] == [0, 1]
    assert ok(writer, 0, 1) == Acknowledge(0)


def test_a_read_only_bookie_is_left_with_the_next_entry_once_and_a_failure_comes_first(writer: LedgerWriter) -> None:
    writer.on_bookies({"b0", "b2"}, {"b1", "b7"})
    add(writer, 1)
    assert writer.start_delayed_change() == Leave({1: "b1"})
    assert writer.start_delayed_change() is None, "something is done about it"
    writer.on_bookies({"b0"}, {"b1", "b2"})
    ok(writer, 0, 0)
    ok(writer, 0, 1)
    fail(writer, 0, 2)
    assert writer.start_delayed_change() == ChangeEnsemble({2: "b2"})
    assert writer.start_delayed_change() is None, "a change is under way"
    writer.on_ensemble_changed({2: "b9"})
    writer.on_bookies({"b0", "b9"}, {"b1", "b2"})
    assert writer.start_delayed_change() == Leave({1: "b1"})


def test_neither_a_position_without_a_bookie_nor_a_recovery_is_left(writer: LedgerWriter) -> None:
    add(writer, 1)
    fail(writer, 0, 0)
    writer.on_ensemble_changed({})
    assert writer.present == {1: "b1", 2: "b2"}
    recovering = make(recovery=True)
    for one in (writer, recovering):
        one.on_bookies(frozenset(), {"b0"})
        assert one.start_delayed_change() is None


def test_a_bookie_is_left_only_between_other_changes(writer: LedgerWriter) -> None:
    assert writer.leave({}) is None
    add(writer, 1)
    fail(writer, 0, 0)
    assert writer.leave({1: "b9"}) is None, "a change is under way"
    writer.on_ensemble_changed({0: "b8"})
    ok(writer, 0, 0)
    ok(writer, 0, 1)
    fail(writer, 0, 2)  # it has enough: the change waits for the next add
    assert writer.leave({1: "b9"}) is None, "who has failed is replaced first"
    writer.close()
    assert writer.leave({1: "b9"}) is None
