"""Acks of the topic API as commands of the binary protocol, which subscriptions take. No IO and no clock."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker.errors import BrokerError
from broker.grpc.partial import PartialBatches
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import NO_ID
from magnetar_core.topics import topics_pb2 as api
from managed_ledger.ack_ranges import words_of
from managed_ledger.errors import InvalidPosition
from managed_ledger.position import Position, named_position


class Acks(NamedTuple):
    """What the ids of one request acknowledge."""

    whole: list[Position]
    """Entries all of whose messages are acknowledged."""
    parts: dict[Position, tuple[int, int]]
    """Batches of which some messages are left: which, as bits, and of how many."""
    failure: BrokerError | InvalidPosition | ValueError | None
    """Why the first id that cannot be was passed over. The others count."""


AckedId = tuple[api.MessageId, int | None]
"""A message that is acknowledged, and the batch index of the last message behind it that is acknowledged with it."""


def acks_of(ids: Iterable[AckedId], batches: PartialBatches) -> Acks:
    """Sort the *ids* of one request into whole entries and parts of batches.

    *batches* notes which messages of its batches are acknowledged by them.
    """
    whole: list[Position] = []
    partial_acks: dict[Position, tuple[int, int]] = {}
    failure: BrokerError | InvalidPosition | ValueError | None = None
    acknowledge = batches.acknowledge
    for message_id, last_index in ids:
        try:
            position = named_position(message_id.ledger_id, message_id.entry_id)
            if not message_id.HasField("batch_index"):
                batches.forget_done(position)
                whole.append(position)
                continue
            left_mask = acknowledge(position, message_id.batch_index, message_id.batch_size, last_index)
        except (BrokerError, InvalidPosition, ValueError) as error:
            failure = failure or error
            continue
        if left_mask is None:
            continue
        if left_mask:
            partial_acks[position] = left_mask, message_id.batch_size
        else:
            partial_acks.pop(position, None)
            whole.append(position)
    return Acks(whole, partial_acks, failure)


def ack_of(positions: Iterable[Position]) -> wire.CommandAck:
    """The ack of whole entries."""
    command = wire.CommandAck(consumer_id=0, ack_type=wire.CommandAck.Individual)
    for ledger_id, entry_id in positions:
        command.message_id.add(ledgerId=ledger_id & NO_ID, entryId=entry_id & NO_ID)
    return command


def ack_of_parts(parts: Mapping[Position, tuple[int, int]]) -> wire.CommandAck:
    """The ack of batches of which some messages are left."""
    command = wire.CommandAck(consumer_id=0, ack_type=wire.CommandAck.Individual)
    for position, (left_mask, size) in parts.items():
        part = command.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id, batch_size=size)
        part.ack_set.extend(words_of(left_mask, (size + 63) // 64))
    return command


def cumulative_ack_of(position: Position, left_mask: int = 0, size: int = 0) -> wire.CommandAck:
    """The ack of everything up to *position*.

    A batch there has *size* messages; the bits of *left_mask* are those of them that are not acknowledged yet.
    """
    assert not left_mask or 0 < left_mask.bit_length() <= size, "what is left of a batch is part of it"
    command = wire.CommandAck(consumer_id=0, ack_type=wire.CommandAck.Cumulative)
    end = command.message_id.add(ledgerId=position.ledger_id & NO_ID, entryId=position.entry_id & NO_ID)
    if left_mask:
        end.batch_size = size
        end.ack_set.extend(words_of(left_mask, (size + 63) // 64))
    return command
