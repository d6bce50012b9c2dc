"""What compaction keeps of a topic: the last message of each key. No IO.

    first   every entry ──▶ LastOfKeys.note      the last message of each key
    then    every entry ──▶ LastOfKeys.kept      the entry, what is left of a batch, or nothing

Rules (Apache's, but for the last one):

1. A message with a key and an empty payload removes the key. Messages without a key are dropped.
2. Of a batch the messages that are not kept stay as empty ones (`compacted_out`), so that the others keep their index;
   a batch of which nothing is kept is dropped.
3. An encrypted batch cannot be looked into: it counts as one message with the key of the entry.
4. Markers of brokers are dropped.
5. An entry that cannot be understood ends the compaction. It is not known which keys are in it, so nothing may be
   dropped.
6. All chunks of a message that is kept are kept. (Apache keeps the last chunk alone, which no client can use.)
"""

import struct
from typing import Final, NamedTuple

from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.messages import (
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
from managed_ledger.messages_pb2 import MessageMetadata, SingleMessageMetadata
from managed_ledger.position import Position

_U32: Final = struct.Struct(">I")

_NO_INDEX: Final = -1

_EMPTIED: Final = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()


class _Last(NamedTuple):
    """Where the last message of a key is."""

    ledger_id: int
    entry_id: int
    batch_index: int


class LastOfKeys:
    """The last message of each key of a topic."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}
        self._chunked: dict[str, str] = {}
        """Key → uuid of the message in chunks that is its last one."""
        self.messages = 0
        """Looked at; a message in chunks counts once."""
        self.kept_messages = 0

    def __len__(self) -> int:
        return len(self._last)

    @property
    def removed_messages(self) -> int:
        """Of those looked at; known when `kept` was asked for all of them."""
        return self.messages - self.kept_messages

    def note(self, position: Position, data: Buffer) -> None:
        """Look at an entry; they come in order. Raises Corruption (rule 5)."""
        try:
            self._note(position, data)
        except Corruption as error:
            raise Corruption(f"entry {position}: {error}") from None

    def _note(self, position: Position, data: Buffer) -> None:
        parts = split_entry(data)
        metadata = metadata_of(parts)
        if metadata.HasField("marker_type"):
            return
        if checksum_ok(data) is False:
            raise Corruption("its checksum is wrong")
        if _is_readable_batch(metadata):
            for message in iterate_batch(payload_of(parts, metadata), metadata.num_messages_in_batch):
                single = message.single
                assert single is not None
                if single.compacted_out:
                    continue
                self.messages += 1
                if single.HasField("partition_key"):
                    self._remember(single.partition_key, len(message.payload), position, message.batch_index)
            return
        if _is_chunk(metadata) and metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            return
        self.messages += 1
        if not metadata.HasField("partition_key"):
            return
        size = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(parts.payload)
        self._remember(metadata.partition_key, size, position, _NO_INDEX)
        if _is_chunk(metadata) and metadata.partition_key in self._last:
            self._chunked[metadata.partition_key] = metadata.uuid

    def _remember(self, key: str, payload_bytes: int, position: Position, batch_index: int) -> None:
        self._chunked.pop(key, None)
        if payload_bytes:
            self._last[key] = _Last(position.ledger_id, position.entry_id, batch_index)
        else:
            self._last.pop(key, None)  # rule 1

    def kept(self, position: Position, data: Buffer) -> bytes | None:
        """What is kept of an entry that `note` has seen. Raises Corruption."""
        parts = split_entry(data)
        metadata = metadata_of(parts)
        if metadata.HasField("marker_type"):
            return None
        if _is_readable_batch(metadata):
            return self._kept_of_batch(position, metadata, payload_of(parts, metadata))
        key = metadata.partition_key
        if _is_chunk(metadata):
            is_kept = key in self._chunked and self._chunked[key] == metadata.uuid
            self.kept_messages += is_kept and metadata.chunk_id == metadata.num_chunks_from_msg - 1
        else:
            is_kept = self._is_last(key, position, _NO_INDEX)
            self.kept_messages += is_kept
        return bytes(without_broker_metadata(data)) if is_kept else None

    def _is_last(self, key: str, position: Position, batch_index: int) -> bool:
        return self._last.get(key) == (position.ledger_id, position.entry_id, batch_index)

    def _kept_of_batch(self, position: Position, metadata: MessageMetadata, payload: Buffer) -> bytes | None:
        parts: list[Buffer] = []
        kept = 0
        for message in iterate_batch(payload, metadata.num_messages_in_batch):
            single = message.single
            assert single is not None
            is_kept = single.HasField("partition_key") and self._is_last(
                single.partition_key, position, message.batch_index
            )
            kept += is_kept
            head = single.SerializeToString() if is_kept else _EMPTIED
            parts += [_U32.pack(len(head)), head]
            if is_kept:
                parts.append(message.payload)
        if not kept:
            return None
        self.kept_messages += kept
        batch = b"".join(parts)
        metadata.uncompressed_size = len(batch)
        return encode_entry(metadata, compress(metadata.compression, batch))


def _is_readable_batch(metadata: MessageMetadata) -> bool:
    return is_batch(metadata) and not metadata.encryption_keys


def _is_chunk(metadata: MessageMetadata) -> bool:
    return metadata.num_chunks_from_msg > 1 and metadata.HasField("uuid")
