"""A journal stays safe when the disk is full or one of its files is damaged."""

import asyncio
import errno
import threading
from typing import Any

import pytest

from bookie.storage.journal import format as fmt
from bookie.storage.journal.format import Mark
from bookie.storage.journal.writer import Item, Journal, NoSpace
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.runtime.types import Buffer, Corruption
from tests.support.bookie_disks import stored_entry
from tests.unit.bookie.storage.journal.test_journal import DIRECTORY, content, records_in, write, writer_on


def records(*entries: bytes) -> list[Buffer]:
    made: list[Buffer] = []
    for entry in entries:
        made += [fmt.LENGTH.pack(len(entry)), entry]
    return made


class FullDisk:
    """Makes the disk refuse chosen writes to the journal."""

    def __init__(self, files: MemoryFiles) -> None:
        self.refuse = 0
        self.after = 0
        self.refused = threading.Event()
        self.seen: list[Any] = []
        files.on_operation.append(self)

    def __call__(self, kind: str, path: str) -> None:
        if kind == "write" and path.endswith(".txn") and self.refuse:
            if self.after:
                self.after -= 1
                return
            self.refuse -= 1
            self.refused.set()
            raise OSError(errno.ENOSPC, "no space left", path)


async def test_nothing_that_was_taken_before_a_refusal_was_known_is_written_behind_it() -> None:
    """The refused group may hold the LEDGER_KEY without which a replay passes over the entries of the next one."""
    files = MemoryFiles()
    disk = FullDisk(files)
    writer = writer_on(files)
    refusals: list[NoSpace] = []
    answers: dict[str, Exception | None] = {}
    journal = Journal(writer, "journal", lambda error: None, refusals.append)
    journal.start()
    disk.refuse = 1
    journal.put(
        records(*fmt.ledger_key_record(1, b"k" * 20)[1:], stored_entry(1, 0)), True, answers.__setitem__, "first"
    )
    assert disk.refused.wait(5)
    # The loop has not heard of it: whoever is here believes that the key is in the journal.
    journal.put(records(stored_entry(1, 1)), True, answers.__setitem__, "second")
    while len(answers) < 2:
        await asyncio.sleep(0.001)
    assert isinstance(answers["first"], NoSpace)
    assert isinstance(answers["second"], NoSpace)
    assert refusals
    # Now everybody knows, and writes the key again.
    journal.put(
        records(*fmt.ledger_key_record(1, b"k" * 20)[1:], stored_entry(1, 1)), True, answers.__setitem__, "third"
    )
    while len(answers) < 3:
        await asyncio.sleep(0.001)
    assert answers["third"] is None
    await journal.stop()
    assert [record.entry_id for record in records_in(files)] == [fmt.LEDGER_KEY, 1]


def test_the_mark_does_not_pass_a_group_that_is_cut_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that saw it would persist a place behind records that are written later."""
    slice_bytes = 1 << 18
    monkeypatch.setattr("bookie.storage.journal.writer.SLICE_BYTES", slice_bytes)
    files = MemoryFiles()
    disk = FullDisk(files)
    writer = writer_on(files)
    write(writer, stored_entry(1, 0))
    before = writer.mark
    marks: list[Mark] = []
    files.on_operation.append(lambda kind, path: marks.append(writer.mark))
    disk.refuse, disk.after = 1, 2
    entries = [stored_entry(1, n, bytes(slice_bytes // 4)) for n in range(1, 14)]
    item: Item = (records(*entries), True, lambda argument, error: None, None)
    assert sum(map(len, entries)) > 3 * slice_bytes
    assert isinstance(writer.write([item]), NoSpace)
    assert set(marks) == {before}
    assert writer.mark == before
    write(writer, stored_entry(1, 1))
    assert [record.entry_id for record in records_in(files)] == [0, 1]


def test_a_file_system_that_is_read_only_refuses_until_what_it_left_can_be_cut_off() -> None:
    """Its last slice may be there: nothing is written behind it, and it is removed first."""
    files = MemoryFiles()
    writer = writer_on(files)
    write(writer, stored_entry(1, 0))
    mark, left = writer.mark, [1, 1]

    def refuse(kind: str, path: str) -> None:
        if left and left.pop():
            return
        raise OSError(errno.EROFS, "Read-only file system", path)

    files.on_operation.append(refuse)
    item: Item = (records(stored_entry(1, 1)), True, lambda argument, error: None, None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("bookie.storage.journal.writer.SLICE_BYTES", 1)  # two slices are written
        several: Item = (records(*(stored_entry(1, n) for n in range(1, 9))), True, item[2], None)
        assert isinstance(writer.write([several]), NoSpace)
    assert not left
    assert [record.entry_id for record in records_in(files)] != [0], "something is left there"
    for _ in range(3):
        refusal = writer.write([item])
        assert isinstance(refusal, NoSpace)
        assert "Read-only file system" in str(refusal)
    assert writer.mark == writer.durable_mark == mark
    files.on_operation.remove(refuse)
    write(writer, stored_entry(1, 9))
    assert [record.entry_id for record in records_in(files)] == [0, 9]


def test_a_journal_whose_end_cannot_be_cut_off_for_another_reason_ends() -> None:
    files = MemoryFiles()
    writer = writer_on(files)
    write(writer, stored_entry(1, 0))

    failures = [errno.EIO, errno.EROFS]  # of the truncation, and before it of the write

    def break_down(kind: str, path: str) -> None:
        raise OSError(failures.pop(), "broken", path)

    files.on_operation.append(break_down)
    with pytest.raises(OSError, match="broken") as raised:
        writer.write([(records(stored_entry(1, 1)), True, lambda argument, error: None, None)])
    assert raised.value.errno == errno.EIO


def test_a_file_whose_header_is_gone_is_damage_and_not_empty() -> None:
    """I40: a sector of zeros inside a file must not hide the acknowledged records behind it."""
    files = MemoryFiles()
    for file_id in (16, 17):
        write(writer_on(files, file_id), stored_entry(1, file_id))
    files.open(f"{DIRECTORY}/11.txn", writable=True).write_at(0, bytes(512))
    with pytest.raises(Corruption, match=r"11.txn.*header"):
        records_in(files)


def test_a_file_without_a_header_before_one_with_records_is_damage() -> None:
    files = MemoryFiles()
    for file_id in (16, 17, 18):
        write(writer_on(files, file_id), stored_entry(1, file_id))
    files.open(f"{DIRECTORY}/11.txn", writable=True).truncate(0)
    with pytest.raises(Corruption, match=r"11.txn.*header"):
        records_in(files)


def test_the_marked_file_has_a_header() -> None:
    files = MemoryFiles()
    writer = writer_on(files)
    write(writer, stored_entry(1, 0))
    mark = writer.mark
    write(writer, stored_entry(1, 1))
    files.open(f"{DIRECTORY}/10.txn", writable=True).truncate(100)
    with pytest.raises(Corruption, match=r"10.txn.*header"):
        records_in(files, mark)


@pytest.mark.parametrize("left", [0, 3, 100, 511])
def test_a_new_file_that_a_crash_left_without_its_header_is_empty(left: int) -> None:
    files = MemoryFiles()
    write(writer_on(files, 16), stored_entry(1, 0))
    writer_on(files, 17)
    files.remove(f"{DIRECTORY}/{fmt.PLACE_FILE}")  # the crash came before the header was synced, so before this
    files.open(f"{DIRECTORY}/11.txn", writable=True).truncate(left)
    assert [record.entry_id for record in records_in(files)] == [0]
    files.open(f"{DIRECTORY}/11.txn", writable=True).write_at(0, bytes(1 << 21))  # upstream's preallocation
    assert [record.entry_id for record in records_in(files)] == [0]
    files.open(f"{DIRECTORY}/11.txn", writable=True).truncate(left)
    assert len(content(files, "11.txn")) == left


def test_a_mark_that_apaches_bookie_left_in_our_file_names_any_place() -> None:
    """BookKeeper 4.18 marks the place behind the length of zero that it takes for the end of our file."""
    files = MemoryFiles()
    writer = writer_on(files, 16)
    for entry_id in range(3):
        write(writer, stored_entry(1, entry_id))
    end = writer.durable_mark.offset
    theirs = fmt.HEADER_BYTES + 512
    ours = content(files, "10.txn")
    # A file of theirs: the same header without the mark of seals, and a record.
    entry = stored_entry(1, 7)
    made = files.create(f"{DIRECTORY}/11.txn")
    made.write_at(0, ours[:8] + bytes(fmt.HEADER_BYTES - 8) + fmt.LENGTH.pack(len(entry)) + entry + bytes(theirs))
    for offset in (end + 4, end + 100, fmt.HEADER_BYTES + 5):
        assert [record.entry_id for record in records_in(files, Mark(16, offset))] == [7]
    assert [record.entry_id for record in records_in(files, Mark(16, end))] == [7]
    assert [record.entry_id for record in records_in(files)] == [0, 1, 2, 7], "before a mark of theirs all counts"
    # A file of which a crash left nothing says nothing of who had the folder.
    made.truncate(0)
    with pytest.raises(Corruption, match="lastMark says"):
        records_in(files, Mark(16, end + 4))


def test_a_mark_is_the_end_of_a_group_of_its_file_or_the_journal_is_refused() -> None:
    files = MemoryFiles()
    writer = writer_on(files, 16)
    ends = {fmt.HEADER_BYTES}
    for entry_id in range(4):
        # A payload that looks like a seal is none.
        write(writer, stored_entry(1, entry_id, content(files, "10.txn")[-fmt.ALIGNMENT_MIN :]))
        ends.add(writer.durable_mark.offset)
    last = max(ends)
    files.remove(f"{DIRECTORY}/{fmt.PLACE_FILE}")
    for offset in range(fmt.HEADER_BYTES, last + 600):
        if offset in ends:
            assert len(records_in(files, Mark(16, offset))) == len([end for end in ends if end > offset])
        else:
            with pytest.raises(Corruption, match=rf"lastMark says that it was written up to {offset}"):
                records_in(files, Mark(16, offset))
    another = MemoryFiles()
    other = writer_on(another, 17)
    for entry_id in range(4):
        write(other, stored_entry(1, entry_id, bytes(fmt.ALIGNMENT_MIN)))
    files.open(f"{DIRECTORY}/10.txn", writable=True).write_at(0, content(another, "11.txn"))
    for offset in ends - {fmt.HEADER_BYTES}:
        with pytest.raises(Corruption, match="lastMark says"):
            records_in(files, Mark(16, offset))
