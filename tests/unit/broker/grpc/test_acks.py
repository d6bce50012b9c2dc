"""Ids of the topic API as acks of entries; no subscription."""

import pytest

from broker.errors import BrokerError
from broker.grpc.acks import AckedId, ack_of, ack_of_parts, acks_of, cumulative_ack_of
from broker.grpc.partial import PartialBatches
from broker.wire import pulsar_pb2 as wire
from magnetar_core.topics import topics_pb2 as api
from managed_ledger.errors import InvalidPosition
from managed_ledger.position import Position

ENTRY = Position(1, 7)


def id_of(entry_id: int, index: int | None = None, size: int = 0) -> api.MessageId:
    return api.MessageId(ledger_id=1, entry_id=entry_id, batch_index=index, batch_size=size)


def alone(*ids: api.MessageId) -> list[AckedId]:
    return [(one, None) for one in ids]


@pytest.fixture
def batches() -> PartialBatches:
    made = PartialBatches()
    made.sizes.note(ENTRY, 3)
    return made


def test_an_id_without_an_index_is_a_whole_entry(batches: PartialBatches) -> None:
    assert acks_of(alone(id_of(3), id_of(4)), batches) == ([Position(1, 3), Position(1, 4)], {}, None)


def test_a_batch_is_whole_when_all_its_messages_are(batches: PartialBatches) -> None:
    assert acks_of(alone(id_of(7, 0, 3), id_of(7, 2, 3)), batches) == ([], {ENTRY: (0b010, 3)}, None)
    assert acks_of(alone(id_of(7, 1, 3)), batches) == ([ENTRY], {}, None)
    assert acks_of(alone(*(id_of(7, at, 3) for at in range(3))), batches) == ([ENTRY], {}, None)


def test_a_run_is_as_each_of_its_messages() -> None:
    for size in range(1, 7):
        for first in range(size):
            for last in range(first, size):
                by_run, one_by_one = PartialBatches(), PartialBatches()
                for batches in (by_run, one_by_one):
                    batches.sizes.note(ENTRY, size)
                    if last < size - 1:  # one that is done before
                        acks_of(alone(id_of(7, size - 1, size)), batches)
                each = acks_of(alone(*(id_of(7, at, size) for at in range(first, last + 1))), one_by_one)
                run = acks_of([(id_of(7, first, size), last)], by_run)
                if run.whole:
                    assert each.whole == run.whole
                else:
                    assert each == run
                assert by_run.left(ENTRY, 0) == one_by_one.left(ENTRY, 0)


@pytest.mark.parametrize("last", [-1, 0, 3, 2**31 - 1])
def test_a_run_that_is_none_is_passed_over(batches: PartialBatches, last: int) -> None:
    acks = acks_of([(id_of(7, 1, 3), last), (id_of(3), None)], batches)
    assert acks.whole == [Position(1, 3)]
    assert f"a run of 1 to {last} is none of a batch of 3" in str(acks.failure)


def test_an_entry_that_is_named_as_a_whole_is_no_part_any_more(batches: PartialBatches) -> None:
    acks_of(alone(id_of(7, 0, 3), id_of(7)), batches)
    assert len(batches) == 0


def test_an_impossible_id_is_passed_over_and_the_others_count(batches: PartialBatches) -> None:
    acks = acks_of(alone(id_of(3), id_of(7, 5, 3), id_of(4), api.MessageId(ledger_id=-9)), batches)
    assert (acks.whole, acks.parts) == ([Position(1, 3), Position(1, 4)], {})
    assert isinstance(acks.failure, ValueError | BrokerError | InvalidPosition)
    assert "batch_index 5" in str(acks.failure), "the first of them"


def test_what_is_left_of_a_batch_is_said_as_a_set() -> None:
    command = ack_of_parts({ENTRY: (0b101, 3)})
    (made,) = command.message_id
    assert (made.ledgerId, made.entryId, made.batch_size, list(made.ack_set)) == (1, 7, 3, [0b101])
    assert command.ack_type == wire.CommandAck.Individual
    assert [one.entryId for one in ack_of([Position(1, 3), Position(1, 4)]).message_id] == [3, 4]


def test_a_cumulative_ack_may_end_inside_a_batch() -> None:
    (whole,) = cumulative_ack_of(ENTRY).message_id
    assert (whole.entryId, whole.HasField("batch_size"), list(whole.ack_set)) == (7, False, [])
    command = cumulative_ack_of(ENTRY, 1 << 64, 65)
    (part,) = command.message_id
    assert (part.batch_size, list(part.ack_set)) == (65, [0, 1])
    assert command.ack_type == wire.CommandAck.Cumulative
    with pytest.raises(AssertionError):
        cumulative_ack_of(ENTRY, 0b100, 2)
