"""The entries of a compacted ledger: what compaction kept of a topic, with the ids that the messages had there. No IO.

    u32 size of the id │ MessageIdData │ u32 size of the entry │ entry as it was stored, from its checksum on

Entries stand in the order of their ids. The ledger's custom metadata name the topic and the last entry of the topic
that was looked at (`pulsar/compactedTo`). A broker's block in front of an entry is cut off.
"""

import struct
from typing import Final

from google.protobuf.message import DecodeError

from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.messages import without_broker_metadata
from managed_ledger.messages_pb2 import MessageIdData
from managed_ledger.position import Position

COMPACTION_CURSOR: Final = "__compaction"
"""The cursor of a topic whose position is the last entry that compaction has looked at."""

COMPACTED_LEDGER: Final = "CompactedTopicLedger"
"""The property of that cursor with the id of the ledger that holds what was kept."""

_U32: Final = struct.Struct(">I")


def encode(position: Position, partition: int, data: Buffer) -> bytes:
    """*data* is the entry of the topic at *position*; *partition* -1: the topic is not a partition."""
    head = MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id, partition=partition)
    packed = head.SerializeToString()
    entry = without_broker_metadata(data)
    return b"".join((_U32.pack(len(packed)), packed, _U32.pack(len(entry)), entry))


def decode(stored: Buffer) -> tuple[Position, memoryview]:
    """The position in the topic, and the entry. Raises Corruption."""
    view = memoryview(stored)
    try:
        (size,) = _U32.unpack_from(view, 0)
        message_id = MessageIdData.FromString(bytes(view[4 : 4 + size]))
        (entry_bytes,) = _U32.unpack_from(view, 4 + size)
    except (struct.error, DecodeError) as error:
        raise Corruption(f"an entry of {len(view)} bytes in a compacted ledger cannot be decoded: {error}") from None
    entry = view[8 + size :]
    if len(entry) != entry_bytes:
        raise Corruption(f"an entry in a compacted ledger says that it holds {entry_bytes} bytes, and has {len(entry)}")
    return Position(message_id.ledgerId, message_id.entryId), entry


def compacted_to(last: Position, partition: int) -> bytes:
    """The value of `pulsar/compactedTo`: the last entry of the topic that compaction has looked at."""
    message_id = MessageIdData(ledgerId=last.ledger_id, entryId=last.entry_id, batch_size=0)
    if partition >= 0:
        message_id.partition = partition
    return message_id.SerializeToString()
