import random

import pytest

from bookie.storage.journal import format as fmt
from bookie.storage.journal.format import Mark, Record, Scan
from bookie.storage.journal.replay import replay
from bookie.storage.journal.writer import Item, JournalSettings, JournalWriter
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.runtime.types import Buffer, Corruption
from tests.support.bookie_disks import KEY, stored_entry

DIRECTORY = "/j"


def writer_on(files: MemoryFiles, first_id: int = 16, preallocation_bytes: int = 0) -> JournalWriter:
    files.make_directories(DIRECTORY)
    settings = JournalSettings(alignment_bytes=512, preallocation_bytes=preallocation_bytes)
    return JournalWriter(files, DIRECTORY, settings, first_id)


def write(writer: JournalWriter, *entries: bytes, sync: bool = True) -> None:
    records: list[Buffer] = []
    for entry in entries:
        records += [fmt.LENGTH.pack(len(entry)), entry]
    item: Item = (records, sync, lambda argument, error: None, None)
    assert writer.write([item]) is None


def records_in(files: MemoryFiles, mark: Mark = fmt.START) -> list[Record]:
    found: list[Record] = []
    replay(files, DIRECTORY, mark, found.append)
    return found


def scan_of(data: bytes, file_id: int = 16) -> tuple[list[bytes], str | None]:
    header = fmt.decode_header(data[:512], "journal")
    assert header is not None
    scan = Scan(lambda offset, size: data[offset : offset + size], header, file_id, "journal")
    return [record.data for record in scan], scan.torn


def content(files: MemoryFiles, name: str = "10.txn") -> bytes:
    return files.open(f"{DIRECTORY}/{name}").read_at(0, 1 << 30)


def test_the_header_is_upstreams_with_a_note_in_its_zeros() -> None:
    data = fmt.encode_header(6)
    assert data[:8].hex() == "424b4c4700000006"
    assert len(data) == 512
    assert data[16:] == bytes(496)
    assert fmt.decode_header(data, "x") == (6, 512, True)
    assert fmt.decode_header(data[:8] + bytes(504), "x") == (6, 512, False)
    assert fmt.decode_header(b"BKLG\0\0\0\4", "x") == (4, 8, False)


def test_records_about_ledgers_are_golden() -> None:
    assert b"".join(fmt.ledger_key_record(1, KEY)).hex() == (
        "000000280000000000000001fffffffffffff00000000014" + KEY.hex()
    )
    assert b"".join(fmt.fence_record(2)).hex() == "000000100000000000000002ffffffffffffe000"
    assert b"".join(fmt.explicit_lac_record(3, b"blob")).hex() == (
        "000000180000000000000003ffffffffffff800000000004626c6f62"
    )


def test_upstreams_rules_find_the_records_of_a_sealed_file() -> None:
    files = MemoryFiles()
    writer = writer_on(files)
    entries = [stored_entry(1, n, b"x" * (n * 37)) for n in range(20)]
    for entry in entries:
        write(writer, entry)
    data = content(files)
    # The scan as upstream has it: length words, padding passed over, the end at a zero.
    found, at = [], 512
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], signed=True)
        if length == -256:
            at += 8 + int.from_bytes(data[at + 4 : at + 8])
            assert at % 512 == 0
            continue
        found.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    assert found == entries


@pytest.mark.parametrize("alignment", [512, 4096])
def test_groups_end_at_the_alignment_whatever_their_length(alignment: int) -> None:
    for length in range(alignment + 80):
        start = 512 if alignment == 512 else 4096
        seal = fmt.seal_of(1, start, start, bytes(length), alignment)
        assert (start + length + len(seal)) % alignment == 0
        assert 36 <= len(seal) < alignment + 36


def test_a_group_of_every_length_is_read_back() -> None:
    for length in range(460, 560):
        files = MemoryFiles()
        writer = writer_on(files)
        entries = [stored_entry(1, 0, bytes(length)), stored_entry(1, 1, b"next")]
        for entry in entries:
            write(writer, entry)
        assert [record.data for record in records_in(files)] == entries


def test_a_file_cut_anywhere_gives_whole_groups_only() -> None:
    files = MemoryFiles()
    writer = writer_on(files)
    groups = [[stored_entry(1, 2 * n, b"a" * 90 * n), stored_entry(1, 2 * n + 1, b"b")] for n in range(4)]
    ends = []
    for group in groups:
        write(writer, *group)
        ends.append(writer.mark.offset)
    data = content(files)
    for cut in range(512, len(data)):
        whole = [entry for group, end in zip(groups, ends, strict=True) if end <= cut for entry in group]
        found, _ = scan_of(data[:cut])
        # The zeros at the end of a group's padding do not matter.
        assert found[: len(whole)] == whole
        assert len(found) - len(whole) in (0, 2)
        assert scan_of(data[:cut] + bytes(2000))[0] == found


def test_no_changed_byte_becomes_a_record() -> None:
    files = MemoryFiles()
    writer = writer_on(files)
    entry = stored_entry(1, 0, b"payload")
    write(writer, entry)
    data = content(files)
    for at in range(512, 512 + 4 + len(entry) + 36):
        for bit in (1, 128):
            damaged = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            assert scan_of(damaged)[0] in ([], [entry])


def test_damage_before_what_was_durable_is_no_torn_end() -> None:
    files = MemoryFiles()
    writer = writer_on(files)
    for n in range(3):
        write(writer, stored_entry(1, n, b"x" * 700))
    data = bytearray(content(files))
    data[600] ^= 1
    with pytest.raises(Corruption, match="offset 512: a group whose checksum is wrong"):
        scan_of(bytes(data))
    data[512:516] = bytes(4)  # a hole where the first group began
    with pytest.raises(Corruption, match="offset 512: no record"):
        scan_of(bytes(data))


def test_a_flipped_bit_anywhere_before_the_last_group_is_damage_or_changes_nothing() -> None:
    files = MemoryFiles()
    writer = writer_on(files)
    entries = [stored_entry(1, n, b"x" * 40 * n) for n in range(4)]
    for entry in entries:
        write(writer, entry)
        last = writer.mark.offset
    data = content(files)
    last -= 512  # the last group is smaller than a block
    refused = 0
    for at in range(512, last):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                found, torn = scan_of(bytes(damaged))
            except Corruption:
                refused += 1
            else:
                assert (found, torn) == (entries, None), (at, bit)
    assert refused > 8 * sum(map(len, entries[:-1]))


def test_damage_among_unsynced_groups_is_a_torn_end() -> None:
    files = MemoryFiles()
    writer = writer_on(files)
    write(writer, stored_entry(1, 0, b"kept"))
    write(writer, stored_entry(1, 1, b"x" * 700), sync=False)
    torn_at = writer.mark.offset - 600
    write(writer, stored_entry(1, 2, b"x" * 700), sync=False)
    data = bytearray(content(files))
    data[torn_at] ^= 1
    found, torn = scan_of(bytes(data))
    assert found == [stored_entry(1, 0, b"kept")]
    assert torn is not None


def test_a_torn_end_with_records_in_a_later_file_is_damage() -> None:
    files = MemoryFiles()
    writer = writer_on(files)
    write(writer, stored_entry(1, 0, b"x" * 700))
    files.open("/j/10.txn", writable=True).write_at(600, b"!")
    second = writer_on(files, 17)
    assert records_in(files) == []  # the second one is empty: it was made by a start that was cut short
    write(second, stored_entry(1, 1))
    with pytest.raises(Corruption, match=r"10.txn.*11.txn has records"):
        records_in(files)


def test_a_missing_file_is_damage() -> None:
    files = MemoryFiles()
    for file_id in (16, 17, 19):
        write(writer_on(files, file_id), stored_entry(1, file_id))
    with pytest.raises(Corruption, match=r"between 11.txn and 13.txn"):
        records_in(files)
    assert len(records_in(files, Mark(19, 512))) == 1
    with pytest.raises(Corruption, match=r"the journal file 12.txn that lastMark names"):
        records_in(files, Mark(18, 512))


def test_replay_starts_at_the_mark() -> None:
    files = MemoryFiles()
    writer = writer_on(files)
    marks = []
    for n in range(5):
        marks.append(writer.mark)
        write(writer, stored_entry(1, n))
    for n, mark in enumerate(marks):
        assert [record.entry_id for record in records_in(files, mark)] == list(range(n, 5))


def test_large_groups_are_written_in_slices_and_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1 << 16
    slice_bytes = 4 * size
    monkeypatch.setattr("bookie.storage.journal.writer.SLICE_BYTES", slice_bytes)
    files = MemoryFiles()
    writer = writer_on(files, preallocation_bytes=size)
    entries = [stored_entry(1, n, random.Random(n).randbytes(size)) for n in range(11)]
    write(writer, *entries)
    assert writer.syncs == 1
    assert writer.mark.offset > 2 * slice_bytes
    assert [record.data for record in records_in(files)] == entries


def test_a_future_version_is_refused() -> None:
    with pytest.raises(Corruption, match="version 7"):
        fmt.decode_header(b"BKLG\0\0\0\7".ljust(512, b"\0"), "x")


def test_marks_are_golden() -> None:
    assert fmt.encode_mark(Mark(0x1A1FCC09811, 352256)).hex() == "000001a1fcc098110000000000056000"
    with pytest.raises(Corruption):
        fmt.decode_mark(b"short", "lastMark")
