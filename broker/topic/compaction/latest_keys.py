"""What compaction keeps of a topic: the last message of each key. No IO.

    first   every entry ──▶ unpacked ──▶ LastOfKeys.note      the last message of each key
    then    every entry ──▶ unpacked ──▶ LastOfKeys.kept      the entry, what is left of a batch, or nothing

Rules (Apache's, but for the last one):

1. A message with a key and an empty payload removes the key. Messages without a key are dropped.
2. Of a batch the messages that are not kept stay as empty ones (`compacted_out`), so that the others keep their index;
   a batch of which nothing is kept is dropped.
3. An encrypted batch cannot be looked into: it counts as one message with the key of the entry.
4. Markers of brokers are dropped.
5. An entry that cannot be understood ends the compaction. It is not known which keys are in it, so nothing may be
   dropped.
6. All chunks of a message that is kept are kept. (Apache keeps the last chunk alone, which no client can use.)
7. A batch may hold a million messages, and stand in a few KB: `note` and `kept` yield after some of them, counted over
   all entries, so that others get their turn. What takes as long as an entry has bytes (`unpacked`, `Kept.entry`) is a
   call of its own, for another thread if they are many.
8. What is remembered of the keys has a limit. A topic with more of them is not compacted: nothing of it may be dropped.
"""

import struct
from collections.abc import Generator
from typing import Final, NamedTuple

from magnetar_core.runtime.types import MIB, Buffer, Corruption, MagnetarError
from managed_ledger.messages import (
    BATCH_MESSAGES_MAX,
    checksum_ok,
    compress,
    encode_entry,
    is_batch,
    iterate_batch,
    metadata_of,
    payload_of,
    split_entry,
    without_broker_metadata,
)
from managed_ledger.messages_pb2 import NONE, MessageMetadata, SingleMessageMetadata
from managed_ledger.position import Position

_U32: Final = struct.Struct(">I")

_NO_INDEX: Final = -1

# Messages after which others have their turn: some 3 µs each.
MESSAGES_PER_TURN: Final = 1_000

_EMPTIED: Final = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()


class Opened(NamedTuple):
    """An entry whose parts are known."""

    position: Position
    data: Buffer
    metadata: MessageMetadata
    payload: Buffer
    """As it is stored; of a batch that was unpacked, its messages."""

    @property
    def is_marker(self) -> bool:
        return self.metadata.HasField("marker_type")

    @property
    def is_readable_batch(self) -> bool:
        return is_batch(self.metadata) and not self.metadata.encryption_keys

    @property
    def unpacked_bytes(self) -> int:
        """How many bytes `unpacked` looks at."""
        return max(len(self.data), self.metadata.uncompressed_size if self.metadata.compression != NONE else 0)

    def unpacked(self) -> "Opened":
        """Checked, and its batch without compression. Raises Corruption (rule 5)."""
        if self.is_marker:
            return self
        try:
            if checksum_ok(self.data) is False:
                raise Corruption("its checksum is wrong")
            if not self.is_readable_batch:
                return self
            return self._replace(payload=payload_of(split_entry(self.data), self.metadata))
        except Corruption as error:
            raise Corruption(f"entry {self.position}: {error}") from None


def opened(position: Position, data: Buffer) -> Opened:
    """An entry of the topic. Raises Corruption (rule 5)."""
    try:
        parts = split_entry(data)
        return Opened(position, data, metadata_of(parts), parts.payload)
    except Corruption as error:
        raise Corruption(f"entry {position}: {error}") from None


class Kept(NamedTuple):
    """What is kept of an entry."""

    metadata: MessageMetadata
    batch: bytes | None
    """The messages of its batch, emptied ones among them; None: the entry is kept as it is."""
    data: Buffer

    def entry(self) -> bytes:
        """As it is stored; a batch is compressed again."""
        if self.batch is None:
            return bytes(without_broker_metadata(self.data))
        return encode_entry(self.metadata, compress(self.metadata.compression, self.batch))


# Indexes that the head of a batch lists; beyond it they would take more of the entry's room than they are worth.
LISTED_MAX: Final = 10_000


class TooManyKeys(MagnetarError):
    """The keys of the topic do not fit into the memory that a compaction may take (rule 8)."""


# What a key takes beside its characters: a text, a number, and a place in a dict that has just grown.
KEY_OVERHEAD: Final = 160


def _cost(text: str) -> int:
    return KEY_OVERHEAD + len(text) * (1 if text.isascii() else 4)


def _place(position: Position, batch_index: int) -> int:
    """A message as one number, which takes a third of what the three take."""
    return (position.ledger_id << 63 | position.entry_id) << 21 | (batch_index + 1)


assert BATCH_MESSAGES_MAX < 1 << 21


class LastOfKeys:
    """The last message of each key of a topic."""

    def __init__(self, bytes_max: int) -> None:
        """*bytes_max*: what it may remember (rule 8)."""
        self._bytes_max = bytes_max
        self.bytes = 0
        """Taken by what is remembered."""
        self._last: dict[str, int] = {}
        self._chunked: dict[str, str] = {}
        """Key → uuid of the message in chunks that is its last one."""
        self.messages = 0
        """Messages that were looked at; one in chunks counts once."""
        self.kept_messages = 0
        self._in_turn = 0
        """Messages since others had their turn (rule 7)."""

    def __len__(self) -> int:
        return len(self._last)

    @property
    def removed_messages(self) -> int:
        """Messages that were looked at and are not kept; known when `kept` was asked for all of them."""
        return self.messages - self.kept_messages

    def note(self, entry: Opened) -> Generator[None, None, None]:
        """Look at an entry; they come in order. Raises Corruption (rule 5), TooManyKeys (rule 8)."""
        metadata = entry.metadata
        if entry.is_marker:
            return
        if entry.is_readable_batch:
            yield from self._note_batch(entry.position, entry.payload, metadata.num_messages_in_batch)
            return
        if self._is_turn_over():
            yield
        if _is_chunk(metadata) and metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            return
        self.messages += 1
        if not metadata.HasField("partition_key"):
            return
        size = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(entry.payload)
        self._remember(metadata.partition_key, size, entry.position, _NO_INDEX)
        if _is_chunk(metadata) and metadata.partition_key in self._last:
            self._chunked[metadata.partition_key] = metadata.uuid
            self._take(_cost(metadata.uuid), entry.position)

    def _note_batch(self, position: Position, batch: Buffer, count: int) -> Generator[None, None, None]:
        """Remember the key of each message in a batch. Raises Corruption."""
        try:
            for message in iterate_batch(batch, count):
                if self._is_turn_over():
                    yield
                single = message.single
                assert single is not None
                if single.compacted_out:
                    continue
                self.messages += 1
                if single.HasField("partition_key"):
                    self._remember(single.partition_key, len(message.payload), position, message.batch_index)
        except Corruption as error:
            raise Corruption(f"entry {position}: {error}") from None

    def _is_turn_over(self) -> bool:
        self._in_turn += 1
        if self._in_turn < MESSAGES_PER_TURN:
            return False
        self._in_turn = 0
        return True

    def _remember(self, key: str, payload_bytes: int, position: Position, batch_index: int) -> None:
        """This message is the last one of its key by now; an empty one deletes the key (rule 1)."""
        if (uuid := self._chunked.pop(key, None)) is not None:
            self.bytes -= _cost(uuid)
        if payload_bytes:
            if key not in self._last:
                self._take(_cost(key), position)
            self._last[key] = _place(position, batch_index)
        elif self._last.pop(key, None) is not None:  # rule 1
            self.bytes -= _cost(key)

    def _take(self, size_bytes: int, position: Position) -> None:
        self.bytes += size_bytes
        if self.bytes > self._bytes_max:
            raise TooManyKeys(
                f"the {len(self._last)} different keys before {position} are all that fit into "
                f"{self._bytes_max // MIB} MiB; raise compactionKeysMaxMemoryMB, or use fewer keys"
            )

    def kept(self, entry: Opened) -> Generator[None, None, Kept | None]:
        """What is kept of an entry that `note` has seen. Raises Corruption."""
        metadata, position = entry.metadata, entry.position
        if entry.is_marker:
            return None
        if entry.is_readable_batch:
            return (yield from self._kept_of_batch(entry))
        if self._is_turn_over():
            yield
        key = metadata.partition_key
        if _is_chunk(metadata):
            is_kept = key in self._chunked and self._chunked[key] == metadata.uuid
            self.kept_messages += is_kept and metadata.chunk_id == metadata.num_chunks_from_msg - 1
        else:
            is_kept = self._is_last(key, position, _NO_INDEX)
            self.kept_messages += is_kept
        return Kept(metadata, None, entry.data) if is_kept else None

    def _is_last(self, key: str, position: Position, batch_index: int) -> bool:
        return self._last.get(key) == _place(position, batch_index)

    def _kept_of_batch(self, entry: Opened) -> Generator[None, None, Kept | None]:
        """The batch with its last messages alone: the others stay as empty messages, so that indexes in the batch stay
        true."""
        payload = bytearray()
        kept: list[int] = []
        for message in iterate_batch(entry.payload, entry.metadata.num_messages_in_batch):
            if self._is_turn_over():
                yield
            single = message.single
            assert single is not None
            is_kept = single.HasField("partition_key") and self._is_last(
                single.partition_key, entry.position, message.batch_index
            )
            if is_kept:
                kept.append(message.batch_index)
            head = single.SerializeToString() if is_kept else _EMPTIED
            payload += _U32.pack(len(head))
            payload += head
            if is_kept:
                payload += message.payload
        if not kept:
            return None
        self.kept_messages += len(kept)
        entry.metadata.uncompressed_size = len(payload)
        entry.metadata.ClearField("compacted_batch_indexes")
        if len(kept) <= LISTED_MAX:
            entry.metadata.compacted_batch_indexes.extend(kept)
        return Kept(entry.metadata, bytes(payload), entry.data)


def _is_chunk(metadata: MessageMetadata) -> bool:
    return metadata.num_chunks_from_msg > 1 and metadata.HasField("uuid")
