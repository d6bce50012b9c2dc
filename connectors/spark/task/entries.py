"""Stored entries, checked and decompressed; chunks put together to messages. No IO.

Rules (docs/formats/pulsar.md):

1. Markers are left out.
2. A message in chunks is one row, at the place of its last chunk. Chunks that consumers drop are dropped here, too:
   those without a first chunk, or with a gap, or sent again after the message was whole.
3. Transactional messages are refused: whether they were committed is not known here. So are encrypted ones, unless
   their key is there; if it is asked for, such an entry is one row, as it is stored, even if it is a batch.
4. An entry that was read and cannot be understood is a BadEntry, by what stands in it alone: so it is one whenever it
   is read. Entries that nobody gives, or whose digest is wrong at all bookies, are not: they are lost data.
5. What an entry unpacks to is its producer's choice. It is unpacked when its turn comes, if it is not small.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from connectors.spark.options.read import UNPACKED_BYTES
from connectors.spark.task.encryption import Decryption, check_passable
from connectors.spark.values.decoding import describe
from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.runtime.types import MIB, Buffer, Corruption
from managed_ledger.errors import TransactionalTopic
from managed_ledger.messages import (
    CHUNKED_BYTES_MAX,
    batch_problem,
    broker_metadata_of,
    decompress,
    metadata_of,
    payload_of,
    split_entry,
)
from managed_ledger.messages_pb2 import NONE, MessageMetadata

UNPACKED_TIMES: Final = 4
"""A message in chunks may unpack to so many times the bytes of its chunks, which its producer had to send."""

Wants = Callable[[int, int, MessageMetadata], bool]
"""Whether an entry is wanted: (ledger id, entry id, both as in the topic, its metadata) → bool."""


WAYS_ON: Final = "To go on set mode=PERMISSIVE (a row with its bytes and what is wrong), or mode=DROPMALFORMED (no row)"


class BadEntry(Corruption):
    """An entry, or a message in it, cannot be understood. What happens then is the reader's choice."""

    def __init__(
        self,
        topic: str,
        ledger_id: int,
        entry_id: int,
        reason: object,
        metadata: MessageMetadata | None = None,
        stored: Buffer = b"",
    ) -> None:
        """*metadata*: None if they cannot be understood. *stored*: the entry, if it is to be shown."""
        reason = describe(reason)
        super().__init__(f"{topic}, entry {ledger_id}:{entry_id}: {reason}. {WAYS_ON}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.reason = reason
        self.metadata = metadata
        self.stored = stored


class Opened(NamedTuple):
    """An entry that was checked and decompressed; a chunk is as it was sent, since only the whole is compressed."""

    ledger_id: int
    entry_id: int
    metadata: MessageMetadata
    last_index: int | None
    """The broker's number of the entry's last message, if the broker is configured to add one."""
    payload: Buffer
    is_packed: bool = False
    """The payload is still to be decompressed, by `unpacked`."""
    stored: Buffer = b""
    """The entry as it is stored, if it is kept."""

    @property
    def is_chunk(self) -> bool:
        return self.metadata.num_chunks_from_msg > 1


def open_entry(
    topic: str,
    ledger_id: int,
    entry_id: int,
    data: Buffer,
    wants: Wants | None = None,
    *,
    passes_encrypted: bool = False,
    decryption: Decryption | None = None,
    unpacks_max: int = UNPACKED_BYTES,
    bytes_max: int = UNPACKED_BYTES,
    keeps_stored: bool = False,
) -> Opened | None:
    """The entry with its payload; None if it holds no user's messages, or is not a chunk and *wants* does not want it.

    If it *passes_encrypted*, the payload of such an entry is as it is stored; *decryption* decrypts it. One that
    unpacks to more than *unpacks_max* bytes is left packed; *bytes_max* is what it may unpack to at all. Raises
    BadEntry, TransactionalTopic, ConfigurationError.
    """
    known = None
    try:
        parts = split_entry(data)
        if parts.checksum is not None and crc32c(parts.checksummed) != parts.checksum:
            raise Corruption(f"its checksum is not {parts.checksum:08x}, as its producer computed it")
        metadata = metadata_of(parts)
        if not metadata.IsInitialized():
            raise Corruption("its metadata lack a required field")
        known = metadata
        if metadata.HasField("marker_type"):
            return None
        if wants is not None and metadata.num_chunks_from_msg <= 1 and not wants(ledger_id, entry_id, metadata):
            return None
        if decryption is not None and metadata.encryption_keys:
            parts = parts._replace(payload=memoryview(decryption.payload(metadata, parts.payload)))
        check_passable(metadata, is_passed=passes_encrypted)
        if metadata.HasField("txnid_most_bits"):
            raise TransactionalTopic(
                f"{topic}, entry {ledger_id}:{entry_id}: it belongs to the transaction {metadata.txnid_most_bits}:"
                f"{metadata.txnid_least_bits}, of which only Apache's brokers know whether it was aborted. Topics with "
                "messages of transactions are not read, in no mode; read what stands before it with endingOffsets"
            )
        broker = broker_metadata_of(parts)
        index = broker.index if broker is not None and broker.HasField("index") else None
        problem = batch_problem(metadata, len(parts.payload))
        if problem is not None and metadata.num_messages_in_batch and not metadata.encryption_keys:
            raise Corruption(problem)
        is_opaque = metadata.num_chunks_from_msg > 1 or bool(metadata.encryption_keys)
        is_compressed = not is_opaque and metadata.compression != NONE
        if is_compressed:
            check_unpacked(metadata.uncompressed_size, bytes_max)
        is_packed = is_compressed and metadata.uncompressed_size > unpacks_max
        payload = parts.payload if is_opaque or is_packed else payload_of(parts, metadata, bytes_max)
    except Corruption as error:
        raise BadEntry(topic, ledger_id, entry_id, error, known, data if keeps_stored else b"") from None
    return Opened(ledger_id, entry_id, metadata, index, payload, is_packed, data if keeps_stored else b"")


def unpacked(opened: Opened) -> Opened:
    """The entry with its payload decompressed. Raises Corruption."""
    if not opened.is_packed:
        return opened
    metadata = opened.metadata
    size = metadata.uncompressed_size  # within the limit: checked when the entry was opened
    payload = decompress(metadata.compression, opened.payload, size, size)
    return opened._replace(payload=payload, is_packed=False)


class HeadlessChunk(Exception):
    """A chunk of a message whose first chunks were not added: they are further back, or gone."""


class _Unfinished:
    """A message of which some chunks were added."""

    __slots__ = ("first", "payloads", "size_bytes")

    def __init__(self, first: Opened) -> None:
        self.first = first
        self.payloads: list[Buffer] = []
        self.size_bytes = 0


def check_unpacked(size_bytes: int, bytes_max: int) -> None:
    """Check the declared size before anything is decompressed. Raises Corruption if it is above *bytes_max*."""
    if size_bytes > bytes_max:
        raise Corruption(
            f"it unpacks to {size_bytes} bytes, and {bytes_max} is the limit: option maxUnpackedBytes sets it, and "
            "each task needs four times as much of the heap of Spark's JVM"
        )


def check_chunked_bytes(size_bytes: int, uncompressed_size: int = 0) -> None:
    """Raises Corruption if the chunks of one message have, or declare, more bytes than a whole one may have."""
    if uncompressed_size > CHUNKED_BYTES_MAX:
        raise Corruption(f"uncompressed_size {uncompressed_size} is above the limit of {CHUNKED_BYTES_MAX}")
    if size_bytes > CHUNKED_BYTES_MAX:
        raise Corruption(f"the chunks of its message have {size_bytes} bytes, and {CHUNKED_BYTES_MAX} is the limit")


class Chunks:
    """Messages of which not all chunks were added yet, by the id that their chunks share."""

    # Producers have one such message under way each. Above this the oldest is dropped; should its next chunk come
    # after all, its first ones are read again.
    UNFINISHED_BYTES_MAX: Final = 256 * MIB
    # Messages whose further chunks are to be dropped. Only a resend brings any, soon after.
    ENDED_MAX: Final = 1_000

    def __init__(self, bytes_max: int = UNPACKED_BYTES) -> None:
        """*bytes_max*: what a message may unpack to; more if its chunks have a fourth of that."""
        self._bytes_max = bytes_max
        self._unfinished: dict[str, _Unfinished] = {}
        self._bytes = 0
        self._ended: dict[str, None] = {}

    def add(self, chunk: Opened) -> tuple[Opened, Opened] | None:
        """The first chunk, and the last with the payload of the whole, if *chunk* was the last.

        Raises HeadlessChunk: then add its earlier chunks, or `give_up`, and add it again. Raises Corruption.
        """
        metadata = chunk.metadata
        uuid = metadata.uuid
        if metadata.chunk_id == 0:
            self._forget(uuid)
            self._ended.pop(uuid, None)
            self._unfinished[uuid] = _Unfinished(chunk)
        elif uuid in self._ended:
            return None
        elif uuid not in self._unfinished:
            raise HeadlessChunk(uuid)
        message = self._unfinished[uuid]
        payloads = message.payloads
        if metadata.chunk_id < len(payloads):
            return None  # sent again after a lost receipt
        if metadata.chunk_id > len(payloads):
            self.give_up(uuid)
            return None
        payloads.append(chunk.payload)
        message.size_bytes += len(chunk.payload)
        self._bytes += len(chunk.payload)
        try:
            check_chunked_bytes(message.size_bytes, metadata.uncompressed_size)
        except Corruption:
            self.give_up(uuid)
            raise
        if len(payloads) < metadata.num_chunks_from_msg:
            while self._bytes > self.UNFINISHED_BYTES_MAX and len(self._unfinished) > 1:
                self._forget(next(iter(self._unfinished)))
            return None
        self.give_up(uuid)
        size = metadata.uncompressed_size
        if metadata.compression != NONE:
            check_unpacked(size, max(self._bytes_max, UNPACKED_TIMES * message.size_bytes))
        whole = decompress(metadata.compression, b"".join(payloads), size, CHUNKED_BYTES_MAX)
        return message.first, chunk._replace(payload=whole)

    def give_up(self, uuid: str) -> None:
        """Drop the chunks of a message: those that were added, and those that follow."""
        self._forget(uuid)
        self._ended[uuid] = None
        if len(self._ended) > self.ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def _forget(self, uuid: str) -> None:
        message = self._unfinished.pop(uuid, None)
        if message is not None:
            self._bytes -= message.size_bytes
