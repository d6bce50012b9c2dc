"""A topic as a stream: what is written is read, and what was cut, changed or made by a newer release is named."""

import io
import struct

import pytest

from magnetar.processes.backup.manifest import BackupRefused
from magnetar.processes.backup.topic_format import (
    CopiedSchema,
    TopicHead,
    TopicReader,
    TopicWriter,
    Versions,
    between,
)
from magnetar_core.bookkeeper.wire.checksum import crc32c
from managed_ledger.messages import checksum_ok, encode_entry, metadata_of, parse_metadata, split_entry
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import Position
from managed_ledger.schemas.stored import version_bytes, version_of

HEAD = TopicHead("0.1.0", 5, "persistent://t/n/x", 2, {"team": "ü"}, (CopiedSchema(3, 2, b"\x00\xff", {"a": "b"}),))
ENTRIES = ((0, b""), (0, bytes(range(256))), (1, b"\n" * 70_000))


def stream_of(head: TopicHead = HEAD, entries: tuple[tuple[int, bytes], ...] = ENTRIES) -> bytes:
    writer = TopicWriter()
    pieces = [writer.head(head), *(b"".join(writer.entry(*entry)) for entry in entries), writer.tail()]
    return b"".join(pieces)


def read(data: bytes) -> tuple[TopicHead, list[tuple[int, bytes]]]:
    reader = TopicReader(io.BytesIO(data).read, "the file")
    return reader.head, [(partition, bytes(entry)) for partition, entry in reader.entries()]


def test_what_is_written_is_read() -> None:
    assert read(stream_of()) == (HEAD, list(ENTRIES))
    assert read(stream_of(HEAD._replace(partitions=0, schemas=()), ()))[1] == []


def test_the_bytes_of_a_record_are_these() -> None:
    writer = TopicWriter()
    assert b"".join(writer.entry(1, b"ab")).hex() == "00000007bae848944500000001" + b"ab".hex()
    assert writer.head(HEAD).startswith(b"magnetar topic 1\n\x00\x00")
    assert writer.tail().endswith(b'T{"entries":1,"bytes":2}')


def test_a_stream_that_was_cut_anywhere_is_named() -> None:
    data = stream_of(entries=((0, b"a"), (1, b"bc")))
    for end in range(len(data)):
        with pytest.raises(BackupRefused, match=r"was cut after|is not what"):
            read(data[:end])


def test_a_byte_that_changed_anywhere_is_named() -> None:
    data = stream_of(entries=((0, b"a"), (1, b"bc")))
    for at in range(len(data)):
        with pytest.raises(BackupRefused):
            read(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_what_stands_behind_the_end_is_named() -> None:
    with pytest.raises(BackupRefused, match="something behind its end"):
        read(stream_of() + b"\n")


def test_an_entry_that_is_left_out_or_given_twice_is_named() -> None:
    writer = TopicWriter()
    head, one, two = writer.head(HEAD), b"".join(writer.entry(0, b"a")), b"".join(writer.entry(0, b"a"))
    tail = writer.tail()
    assert len(read(head + one + two + tail)[1]) == 2
    for records in (one, one + two + two):
        with pytest.raises(BackupRefused, match=r"entries of . bytes, and it says 2 of 2"):
            read(head + records + tail)


@pytest.mark.parametrize("entries", [((1, b""), (0, b"")), ((2, b""),)])
def test_partitions_come_in_their_order(entries: tuple[tuple[int, bytes], ...]) -> None:
    with pytest.raises(BackupRefused, match="an entry of partition"):
        read(stream_of(entries=entries))


def test_a_newer_format_and_another_file_are_named() -> None:
    with pytest.raises(BackupRefused, match="the file has format 2, and 1 is known; start the newer release"):
        read(stream_of().replace(b"topic 1\n", b"topic 2\n", 1))
    with pytest.raises(BackupRefused, match="format 12"):
        read(stream_of().replace(b"topic 1\n", b"topic 12\n", 1))
    with pytest.raises(BackupRefused, match="not what `magnetar topics export` writes"):
        read(b"PK" + stream_of())


def test_a_record_without_an_end_takes_no_memory() -> None:
    huge = struct.pack(">II", 2**32 - 1, 0)
    with pytest.raises(BackupRefused, match="a record of 4294967295 bytes"):
        read(TopicWriter().head(HEAD) + huge)


def test_a_head_that_says_something_else_is_named() -> None:
    for body in (b"H[]", b"H{}", b"Hx", b'H{"schemas":[{}]}', b"T{}"):
        with pytest.raises(BackupRefused, match="first record"):
            read(b"magnetar topic 1\n" + struct.pack(">II", len(body), crc32c(body)) + body)


# ------------------------------------------------------------------------------------------ versions


def entry_of(version: bytes, payload: bytes = b"p") -> bytes:
    metadata = MessageMetadata(producer_name="x", sequence_id=4, publish_time=1)
    if version:
        metadata.schema_version = version
    return encode_entry(metadata, payload)


def test_an_entry_stays_as_it_is_where_versions_are_equal() -> None:
    entry = entry_of(version_bytes(1))
    assert Versions({0: 0, 1: 1}).apply(entry) is entry
    assert Versions({0: 0, 1: 7}).apply(entry_of(version_bytes(0))) == entry_of(version_bytes(0))
    assert Versions({0: 5}).apply(entry_of(b"")) == entry_of(b"")


def test_a_version_that_changed_is_the_only_change() -> None:
    changed = Versions({0: 1, 1: 0}).apply(entry_of(version_bytes(1)))
    assert changed == entry_of(version_bytes(0))
    assert checksum_ok(changed)


def test_fields_that_are_not_known_here_stay() -> None:
    parts = split_entry(entry_of(version_bytes(1)))
    encoded = bytes(parts.metadata) + b"\xfa\x3f\x03abc"  # field 1023
    rest = struct.pack(">I", len(encoded)) + encoded + b"p"
    entry = struct.pack(">HI", 0x0E01, crc32c(rest)) + rest
    changed = split_entry(Versions({1: 2}).apply(entry))
    assert b"\xfa\x3f\x03abc" in bytes(changed.metadata)
    assert metadata_of(changed).schema_version == version_bytes(2)


def test_a_version_that_had_no_schema_has_none_at_the_target() -> None:
    """Version 0 was deleted; at the target the schema of version 1 has its number."""
    versions = Versions({1: 0})
    assert version_of(parse_metadata(versions.apply(entry_of(version_bytes(0)))).schema_version) == 1 << 32
    assert versions.apply(entry_of(version_bytes(9))) == entry_of(version_bytes(9))


# ---------------------------------------------------------------------------------------------- gaps


LEDGERS = ((3, 2), (5, 0), (8, 3), (9, None))


@pytest.mark.parametrize(
    ("before", "position", "missing"),
    [
        (None, (3, 0), []),
        (None, (3, 1), [(3, 0)]),
        ((3, 0), (3, 1), []),
        ((3, 1), (8, 0), []),
        ((3, 0), (8, 1), [(3, 1), (8, 0)]),
        (None, (9, 1), [(3, 0), (3, 1), (8, 0), (8, 1), (8, 2), (9, 0)]),
        ((9, 4), (9, 7), [(9, 5), (9, 6)]),
        ((9, 4), (11, 0), []),  # that ledger began after the list was made
    ],
)
def test_what_a_broker_did_not_give_is_known(
    before: tuple[int, int] | None, position: tuple[int, int], missing: list[tuple[int, int]]
) -> None:
    first = None if before is None else Position(*before)
    assert list(between(first, Position(*position), LEDGERS)) == missing
