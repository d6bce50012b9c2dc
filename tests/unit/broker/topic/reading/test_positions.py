"""Where a reader begins, where a time is, and what the last message is."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from broker.errors import StorageFailure
from broker.topic.ports import EntryLike
from broker.topic.reading.positions import SearchedLedger, last_message, position_at_ms, reader_start
from managed_ledger.errors import StorageUnavailable
from managed_ledger.ledger_list import LedgerList
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.reading.reading import Entry
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from tests.support.batches import plain_batch

LAST = Position(5, 9)


@pytest.mark.parametrize(
    ("wanted", "earliest", "begins"),
    [
        (None, True, EARLIEST),
        (None, False, LATEST),
        (LATEST, True, EARLIEST),
        (Position(5, 3), False, Position(5, 3)),
        (LAST, False, LAST),
        (LATEST, False, LATEST),
        (Position(LATEST.ledger_id, 2**31 - 1), False, LATEST),  # of old C++ clients
        (EARLIEST, False, EARLIEST),
        (Position(-1, 7), False, EARLIEST),
        (Position(5, 10), False, LATEST),
        (Position(5, 10), True, EARLIEST),
        (Position(6, 0), False, LATEST),
    ],
)
def test_where_a_reader_begins(wanted: Position | None, earliest: bool, begins: Position) -> None:
    assert reader_start(wanted, earliest=earliest, last_confirmed=LAST) == begins


def message(publish_time: int, batch: int | None = None) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=publish_time)
    if batch is not None:
        metadata.num_messages_in_batch = batch
    return encode_entry(metadata, b"x" if batch is None else plain_batch(batch))


def marker(kind: int) -> bytes:
    """As brokers write them for replicated subscriptions (10 to 13) and transactions (20 to 22)."""
    return encode_entry(MessageMetadata(producer_name="", sequence_id=0, publish_time=1, marker_type=kind), b"")


class Stored:
    """A ledger that is looked through from its first entry on."""

    def __init__(self, *entries: bytes, error: StorageUnavailable | None = None) -> None:
        self.entries = [Entry(1, number, data) for number, data in enumerate(entries)]
        self.error = error
        self.ledgers = LedgerList()
        self.ledgers.add(ManagedLedgerInfo.LedgerInfo(ledgerId=1, entries=len(entries)))

    def read(self, first: Position, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        if self.error is not None:
            raise self.error
        return self.entries[first.entry_id : first.entry_id + max_entries]

    async def find_first(self, predicate: object) -> Position | None:
        if self.error is not None:
            raise self.error
        assert callable(predicate)
        return next((one.position for one in self.entries if predicate(cast(EntryLike, one))), None)


def ledger(*entries: bytes, error: StorageUnavailable | None = None) -> SearchedLedger:
    return cast(SearchedLedger, Stored(*entries, error=error))


@pytest.mark.parametrize(
    ("time_ms", "found"), [(0, Position(1, 0)), (10, Position(1, 0)), (11, Position(1, 2)), (21, LATEST)]
)
async def test_the_first_entry_at_a_time_or_later_and_a_damaged_one_is_old(time_ms: int, found: Position) -> None:
    stored = ledger(message(10), b"\xff damaged", message(20))
    assert await position_at_ms(stored, time_ms) == found


@pytest.mark.parametrize(
    ("entries", "last"),
    [
        ((), (EARLIEST, -1)),
        ((message(1), message(2)), (Position(1, 1), -1)),
        ((message(1, batch=3),), (Position(1, 0), 2)),
        ((b"\xff damaged",), (Position(1, 0), -1)),
        ((message(1), message(2, batch=3), marker(10), marker(22)), (Position(1, 1), 2)),
        ((message(1), *(marker(12) for _ in range(250))), (Position(1, 0), -1)),
        ((marker(10), marker(21)), (EARLIEST, -1)),
    ],
)
async def test_the_last_message(entries: tuple[bytes, ...], last: tuple[Position, int]) -> None:
    assert await last_message(ledger(*entries), lambda: asyncio.sleep(0)) == last


async def test_without_storage_the_client_is_told_so() -> None:
    stored = ledger(message(1), error=StorageUnavailable("no bookies"))
    with pytest.raises(StorageFailure):
        await position_at_ms(stored, 1)
    with pytest.raises(StorageFailure):
        await last_message(stored, lambda: asyncio.sleep(0))
