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


Named = tuple[api.MessageId, int | None]
"""A message that is acknowledged, and the batch index of the last one behind it that is, too."""


def acks_of(ids: Iterable[Named], batches: PartialBatches) -> Acks:
    """Sort the *ids* of one request into whole entries and parts of batches.

    *batches* notes which messages of its batches are acknowledged by them.
    """
    whole: list[Position] = []
    parts: dict[Position, tuple[int, int]] = {}
    failure: BrokerError | InvalidPosition | ValueError | None = None
    acknowledge = batches.acknowledge
    for named, last in ids:
        try:
            position = named_position(named.ledger_id, named.entry_id)
            if not named.HasField("batch_index"):
                batches.forget(position)
                whole.append(position)
                continue
            left = acknowledge(position, named.batch_index, named.batch_size, last)
        except (BrokerError, InvalidPosition, ValueError) as error:
            failure = failure or error
            continue
        if left is None:
            continue
        if left:
            parts[position] = left, named.batch_size
        else:
            parts.pop(position, None)
            whole.append(position)
    return Acks(whole, parts, failure)


def ack_of(positions: Iterable[Position]) -> wire.CommandAck:
    """The ack of whole entries."""
    command = wire.CommandAck(consumer_id=0, ack_type=wire.CommandAck.Individual)
    for ledger_id, entry_id in positions:
        command.message_id.add(ledgerId=ledger_id & NO_ID, entryId=entry_id & NO_ID)
    return command


def ack_of_parts(parts: Mapping[Position, tuple[int, int]]) -> wire.CommandAck:
    """The ack of batches of which some messages are left."""
    command = wire.CommandAck(consumer_id=0, ack_type=wire.CommandAck.Individual)
    for position, (left, size) in parts.items():
        part = command.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id, batch_size=size)
        part.ack_set.extend(words_of(left, (size + 63) // 64))
    return command


def cumulative_ack_of(position: Position, left: int = 0, size: int = 0) -> wire.CommandAck:
    """The ack of everything up to *position*; of the batch there, with *size* messages, some may be *left* (bits)."""
    assert not left or 0 < left.bit_length() <= size, "what is left of a batch is part of it"
    command = wire.CommandAck(consumer_id=0, ack_type=wire.CommandAck.Cumulative)
    end = command.message_id.add(ledgerId=position.ledger_id & NO_ID, entryId=position.entry_id & NO_ID)
    if left:
        end.batch_size = size
        end.ack_set.extend(words_of(left, (size + 63) // 64))
    return command
