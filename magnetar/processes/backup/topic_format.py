"""A topic as a stream of bytes. No IO.

    magnetar topic 1\\n
    ┌──────────┬─────────┬──────────┬─────────────────┐
    │ size (4) │ crc (4) │ kind (1) │ body (size - 1) │    one behind the other; big-endian;
    └──────────┴─────────┴──────────┴─────────────────┘    crc is CRC-32C of kind and body
    H   JSON: release, made_ms, topic, partitions, properties, schemas                 the first
    E   partition (4) · entry, as a ledger has it, without what a broker put before it
    T   JSON: entries, bytes                                                           the last

Rules:

1. A stream without its last record, with another checksum or count, or with something behind it, was cut or damaged.
2. Partitions come one after the other, the entries of each in their order. A topic without partitions has partition 0.
3. An entry is what a producer sent, byte for byte: batches, chunks, what is compressed or encrypted.
4. Versions of schemas are those of the topic that was copied. Where a schema got another version at the target, the
   version in the metadata of its entries is changed, and nothing else. A version that has no schema has none there.
"""

import base64
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from magnetar.processes.backup.manifest import BackupRefused
from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.runtime.types import GIB, START_NEWER, Buffer
from managed_ledger.messages import encode_entry, metadata_of, split_entry
from managed_ledger.position import Position
from managed_ledger.schemas.stored import version_bytes, version_of

FORMAT: Final = 1
_NAME: Final = b"magnetar topic "
_FIRST_LINE: Final = b"%b%d\n" % (_NAME, FORMAT)
_RECORD: Final = struct.Struct(">II")
_PARTITION: Final = struct.Struct(">I")
_HEAD: Final = b"H"
_ENTRY: Final = b"E"
_TAIL: Final = b"T"

# Entries have 5 MiB by default; what claims more than this is damaged, and not worth the memory.
RECORD_BYTES_MAX: Final = GIB

# Added to a version that has no schema, where its number means another schema at the target (rule 4).
_WITHOUT_SCHEMA: Final = 1 << 32


class CopiedSchema(NamedTuple):
    """One version of a topic's schema."""

    version: int
    type: int
    """As in Pulsar's protocol."""
    data: bytes
    properties: dict[str, str]


class TopicHead(NamedTuple):
    """The first record."""

    release: str
    made_ms: int
    topic: str
    partitions: int
    """0: the topic has none."""
    properties: dict[str, str]
    schemas: tuple[CopiedSchema, ...]


class TopicTail(NamedTuple):
    """The last record."""

    entries: int
    bytes: int
    """Of all entries."""


class TopicWriter:
    """Makes the records, in their order."""

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0

    def head(self, head: TopicHead) -> bytes:
        schemas = [
            {**schema._asdict(), "data": base64.b64encode(schema.data).decode("ascii")} for schema in head.schemas
        ]
        return _FIRST_LINE + _record(_HEAD, _json({**head._asdict(), "schemas": schemas}))

    def entry(self, partition: int, entry: Buffer) -> tuple[bytes, Buffer]:
        """The record as two buffers."""
        self.entries += 1
        self.bytes += len(entry)
        start = _ENTRY + _PARTITION.pack(partition)
        return _RECORD.pack(len(start) + len(entry), crc32c(entry, crc32c(start))) + start, entry

    def tail(self) -> bytes:
        return _record(_TAIL, _json(TopicTail(self.entries, self.bytes)._asdict()))


def _record(kind: bytes, body: bytes) -> bytes:
    return _RECORD.pack(1 + len(body), crc32c(kind + body)) + kind + body


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class TopicReader:
    """Takes a stream apart. `head` is there at once; `entries` gives the rest, once."""

    def __init__(self, read: Callable[[int], bytes], source: str) -> None:
        """*read(count)* has so many bytes, less at the end only. Raises BackupRefused."""
        self._read = read
        self._source = source
        self.bytes = 0
        """How much of the stream was read."""
        self._check_first_line()
        kind, body = self._record()
        try:
            facts = json.loads(bytes(body)) if kind == _HEAD else {}
            schemas = tuple(
                CopiedSchema(**{**schema, "data": base64.b64decode(schema["data"])}) for schema in facts.pop("schemas")
            )
            self.head = TopicHead(**facts, schemas=schemas)
        except (ValueError, TypeError, KeyError):
            raise BackupRefused(f"{source} is damaged: its first record does not say what it is") from None

    def _check_first_line(self) -> None:
        line = self._read_counted(len(_FIRST_LINE))
        if line == _FIRST_LINE:
            return
        number = line.removeprefix(_NAME).split(b"\n")[0]
        if line.startswith(_NAME) and number.isdigit() and int(number) > FORMAT:
            raise BackupRefused(f"{self._source} has format {int(number)}, and {FORMAT} is known; {START_NEWER}")
        raise BackupRefused(f"{self._source} is not what `magnetar topics export` writes")

    def entries(self) -> Iterator[tuple[int, memoryview]]:
        """(partition, entry) of each. Raises BackupRefused, at the end too (rule 1)."""
        count, size_bytes, last = 0, 0, 0
        while True:
            kind, body = self._record()
            if kind == _ENTRY and len(body) >= _PARTITION.size:
                (partition,) = _PARTITION.unpack_from(body)
                if not last <= partition < max(self.head.partitions, 1):
                    raise self._damaged(f"an entry of partition {partition} behind partition {last}")
                entry = body[_PARTITION.size :]
                count, size_bytes, last = count + 1, size_bytes + len(entry), partition
                yield partition, entry
            elif kind == _TAIL:
                break
            else:
                raise self._damaged(f"a record of kind {kind!r}")
        try:
            tail = TopicTail(**json.loads(bytes(body)))
        except (ValueError, TypeError):
            raise self._damaged("a last record that cannot be read") from None
        if tail != (count, size_bytes):
            raise self._damaged(f"{count} entries of {size_bytes} bytes, and it says {tail.entries} of {tail.bytes}")
        if self._read(1):
            raise self._damaged("something behind its end")

    def _record(self) -> tuple[bytes, memoryview]:
        """(kind, body)"""
        size, checksum = _RECORD.unpack(self._read_exactly(_RECORD.size))
        if not 1 <= size <= RECORD_BYTES_MAX:
            raise self._damaged(f"a record of {size} bytes")
        data = self._read_exactly(size)
        if crc32c(data) != checksum:
            raise self._damaged(f"a record of {size} bytes without its checksum {checksum:08x}")
        return data[:1], memoryview(data)[1:]

    def _read_exactly(self, size: int) -> bytes:
        data = self._read_counted(size)
        if len(data) < size:
            raise BackupRefused(f"{self._source} was cut after {self.bytes} bytes: it has no end")
        return data

    def _read_counted(self, size: int) -> bytes:
        data = self._read(size)
        self.bytes += len(data)
        return data

    def _damaged(self, what: str) -> BackupRefused:
        return BackupRefused(f"{self._source} is damaged before byte {self.bytes}: it has {what}")


class Versions:
    """Which version a schema has at the target (rule 4)."""

    def __init__(self, versions: Mapping[int, int]) -> None:
        """*versions*: that in the stream → that of the same schema at the target."""
        taken = set(versions.values())
        self._versions = {before: now for before, now in versions.items() if before != now}
        self._versions |= {version: version + _WITHOUT_SCHEMA for version in taken if version not in versions}

    def apply(self, entry: Buffer) -> Buffer:
        """*entry* as it is to be stored at the target. Raises Corruption."""
        if not self._versions:
            return entry
        parts = split_entry(entry)
        metadata = metadata_of(parts)
        version = version_of(metadata.schema_version)
        if version is None or version not in self._versions:
            return entry
        metadata.schema_version = version_bytes(self._versions[version])
        return encode_entry(metadata, parts.payload)


def between(
    before: Position | None, position: Position, ledgers: Sequence[tuple[int, int | None]]
) -> Iterator[Position]:
    """The entries of a topic after *before* (None: from its first) that come before *position*.

    *ledgers*: (id, number of entries) of each in their order; the number is None of the one that was being written.
    """
    for ledger_id, count in ledgers:
        if (before is not None and ledger_id < before.ledger_id) or ledger_id > position.ledger_id:
            continue
        start = before.entry_id + 1 if before is not None and ledger_id == before.ledger_id else 0
        end = position.entry_id if ledger_id == position.ledger_id else count
        for entry_id in range(start, start if end is None else end):
            yield Position(ledger_id, entry_id)
