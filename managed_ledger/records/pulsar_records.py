"""Records in the metadata store, in Pulsar's encoding, compressed or not. No IO.

    ┌─────────┬──────────┬────────────────────┬──────────────────────────────┐
    │ 0x4778  │ size (4) │ compression, sizes │ compressed protobuf          │   above a threshold
    └─────────┴──────────┴────────────────────┴──────────────────────────────┘
    ┌──────────────────────────────────────────────────────────────────────────┐
    │ protobuf                                                                 │   otherwise
    └──────────────────────────────────────────────────────────────────────────┘

A topic's record first exists with no bytes at all: an empty list of ledgers. Fields that we do not know are kept
when a record is written again (the protobuf runtime carries them). (docs/formats/metadata.md)
"""

import itertools
import struct
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.ack_ranges import AckRange
from managed_ledger.messages import compress, decompress
from managed_ledger.position import Position
from managed_ledger.records.records_pb2 import (
    NONE,
    CompressedInfoMetadata,
    CompressionType,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    MessageRange,
    NestedPositionInfo,
    PositionInfo,
)

MAGIC_COMPRESSED: Final = 0x4778
_HEAD: Final = struct.Struct(">HI")

# What a range takes at most of a state, and a word of bits.
_RANGE_SIZE: Final = 30
_WORD_SIZE: Final = 10
_LEDGER: Final = attrgetter("ledger_id")

M = TypeVar("M", bound=Message)


def decode_ledger_info(data: Buffer, name: str) -> ManagedLedgerInfo:
    """The record of a topic. *name* is for the error text. Raises Corruption."""
    return _decode(ManagedLedgerInfo, data, name)


def decode_cursor_info(data: Buffer, name: str) -> ManagedCursorInfo:
    """The record of a cursor. *name* is for the error text. Raises Corruption."""
    return _decode(ManagedCursorInfo, data, name)


def decode_position_info(data: Buffer, name: str) -> PositionInfo:
    """The state of a cursor, from an entry of its ledger. *name* is for the error text. Raises Corruption."""
    return _decode(PositionInfo, data, name)


def encode_record(record: Message, compression: int = NONE, threshold_bytes: int = 0) -> bytes:
    """The bytes of a record, compressed with one of `CompressionType` if it has more than *threshold_bytes*."""
    encoded = record.SerializeToString()
    if compression == NONE or len(encoded) <= threshold_bytes:
        return encoded
    head = CompressedInfoMetadata(
        compressionType=CompressionType.Name(compression), uncompressedSize=len(encoded)
    ).SerializeToString()
    return _HEAD.pack(MAGIC_COMPRESSED, len(head)) + head + compress(compression, encoded)


def position_info(
    mark_delete: Position,
    ranges: Sequence[AckRange],
    properties: Iterable[tuple[str, int]],
    batches: Iterable[tuple[Position, list[int]]],
    *,
    as_words: bool = False,
    idle_since_ms: int = 0,
) -> PositionInfo:
    """A cursor's whole state as an entry of its ledger.

    Acknowledged entries are written as ranges (field 3), which every version of Pulsar reads, or *as_words*: the bits
    of each ledger (field 6, `managedLedgerPersistIndividualAckAsLongArray`), which Pulsar 4 reads, where that is
    shorter. Never both: Apache's brokers read one of the two. *idle_since_ms* 0: a consumer is attached.
    """
    assert mark_delete.entry_id >= -1, mark_delete
    info = PositionInfo(ledgerId=mark_delete.ledger_id, entryId=mark_delete.entry_id)
    if idle_since_ms:
        info.idleSince = idle_since_ms
    if as_words and _are_words_shorter(ranges):
        for ledger_id, of_ledger in itertools.groupby(ranges, key=_LEDGER):
            info.individualDeletedMessageRanges.add(key=ledger_id, values=_words(tuple(of_ledger)))
    else:
        info.individualDeletedMessages.extend(map(_message_range, ranges))
    for name, value in properties:
        info.properties.add(name=name, value=value)
    for position, words in batches:
        info.batchedEntryDeletionIndexInfo.add(position=_nested(position), deleteSet=words)
    return info


def put_state_into(
    info: ManagedCursorInfo,
    ranges: Iterable[AckRange],
    properties: Iterable[tuple[str, int]],
    batches: Iterable[tuple[Position, list[int]]],
) -> None:
    """Put the same state into a cursor's record in the metadata store: for a cursor that is closed in order."""
    info.individualDeletedMessages.extend(map(_message_range, ranges))
    for name, value in properties:
        info.properties.add(name=name, value=value)
    for position, words in batches:
        info.batchedEntryDeletionIndexInfo.add(position=_nested(position), deleteSet=words)


def ranges_bytes(ranges: Iterable[AckRange]) -> int:
    """How many bytes these ranges take in a stored state."""
    return sum(_message_range(item).ByteSize() for item in ranges)


def ranges_in(info: PositionInfo | ManagedCursorInfo) -> Iterable[AckRange]:
    """Acknowledged entries of a stored state; both forms that Pulsar 4 writes are read.

    A stored range is open below and closed above and stays inside one ledger when Pulsar writes it; one that spans
    ledgers is read as far as it can be understood: the entries of its upper ledger.
    """
    for stored in info.individualDeletedMessages:
        lower, upper = stored.lowerEndpoint, stored.upperEndpoint
        first = lower.entryId + 1 if lower.ledgerId == upper.ledgerId else 0
        if first <= upper.entryId:
            yield AckRange(upper.ledgerId, first, upper.entryId)
    if isinstance(info, PositionInfo):
        for ledger in info.individualDeletedMessageRanges:
            yield from _ranges_of_words(ledger.key, ledger.values)


def batches_in(info: PositionInfo | ManagedCursorInfo) -> Iterable[tuple[Position, list[int]]]:
    """Positions of batches that are partly acknowledged, each with the bits of the messages that remain, as words."""
    for stored in info.batchedEntryDeletionIndexInfo:
        yield Position(stored.position.ledgerId, stored.position.entryId), list(stored.deleteSet)


def _are_words_shorter(ranges: Sequence[AckRange]) -> bool:
    """Whether the bits of the ledgers take less than their *ranges*, which are in order."""
    last_of = {item.ledger_id: item.last for item in ranges}
    words = sum(last // 64 + 1 for last in last_of.values())
    return words * _WORD_SIZE < len(ranges) * _RANGE_SIZE


def _words(ranges: Sequence[AckRange]) -> tuple[int, ...]:
    """The bits of the entries in *ranges* of one ledger, as words of 64 (signed): bit i of word w is entry 64 w + i."""
    count = ranges[-1].last // 64 + 1
    bits = bytearray(b"0" * (64 * count))
    for _, first, last in ranges:
        bits[first : last + 1] = b"1" * (last + 1 - first)
    bits.reverse()  # the last entry is the highest bit
    return struct.unpack(f"<{count}q", int(bits, 2).to_bytes(8 * count, "little"))


def _ranges_of_words(ledger_id: int, words: Iterable[int]) -> Iterable[AckRange]:
    """The runs of set bits; bit n of the words stands for entry n."""
    first = None
    index = 0
    for word in words:
        for bit in range(64):
            if word >> bit & 1:
                if first is None:
                    first = index + bit
            elif first is not None:
                yield AckRange(ledger_id, first, index + bit - 1)
                first = None
        index += 64
    if first is not None:
        yield AckRange(ledger_id, first, index - 1)


def _nested(position: Position) -> NestedPositionInfo:
    return NestedPositionInfo(ledgerId=position.ledger_id, entryId=position.entry_id)


def _message_range(item: AckRange) -> MessageRange:
    return MessageRange(
        lowerEndpoint=NestedPositionInfo(ledgerId=item.ledger_id, entryId=item.first - 1),
        upperEndpoint=NestedPositionInfo(ledgerId=item.ledger_id, entryId=item.last),
    )


def _decode(kind: type[M], data: Buffer, name: str) -> M:
    """A record, which may be compressed. Raises Corruption."""
    try:
        raw = bytes(data)
        if len(raw) >= _HEAD.size and _HEAD.unpack_from(raw)[0] == MAGIC_COMPRESSED:
            size = _HEAD.unpack_from(raw)[1]
            head = CompressedInfoMetadata.FromString(raw[_HEAD.size : _HEAD.size + size])
            raw = bytes(decompress(head.compressionType, raw[_HEAD.size + size :], head.uncompressedSize))
        return kind.FromString(raw)
    except (DecodeError, Corruption) as error:
        raise Corruption(f"{kind.DESCRIPTOR.name} of {name} ({len(data)} bytes) cannot be decoded: {error}") from None
