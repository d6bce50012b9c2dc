"""The index goes on over ledgers and owners, whoever of Apache's and ours they are."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from magnetar_core.runtime.types import Corruption
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import DataLost, RecordUnreadable
from managed_ledger.ledger import ManagedLedger
from managed_ledger.messages_pb2 import BrokerEntryMetadata
from managed_ledger.position import Position
from managed_ledger.reading import entry_index
from managed_ledger.reading.entry_index import NO_INDEX, index_in, stored_index
from managed_ledger.reading.reading import Entry
from managed_ledger.records.pulsar_records import decode_ledger_info, encode_record
from tests.support.waiting import settle
from tests.unit.managed_ledger.test_ledger import CONFIG, NAME, Recorder, SharedStorage, world  # noqa: F401

INDEXED = replace(CONFIG, keeps_index=True)
PLAIN = bytes.fromhex("0e01 00000000 00000002 0801 61")


def entry(index: int | None) -> bytes:
    """An entry with an index before it; None: with nothing before it."""
    if index is None:
        return PLAIN
    metadata = BrokerEntryMetadata(index=index).SerializeToString()
    return bytes.fromhex("0e02") + len(metadata).to_bytes(4, "big") + metadata + PLAIN


class Owner(Recorder):
    """As the broker: tells the ledger the index of what is acknowledged. The contexts are the indexes."""

    def __init__(self, ledger: ManagedLedger) -> None:
        super().__init__()
        self.ledger = ledger

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Any]) -> None:
        known = [index for index in contexts if index is not None]
        if known:
            self.ledger.index = known[-1]


async def opened(world: SharedStorage, config: ManagedLedgerConfig = INDEXED) -> ManagedLedger:  # noqa: F811
    ledger, _ = await world.open(config)
    ledger.listener = Owner(ledger)
    return ledger


async def publish(ledger: ManagedLedger, *indexes: int | None) -> None:
    ledger.append([entry(index) for index in indexes], list(indexes))
    await settle()


async def stored_property(world: SharedStorage) -> str | None:  # noqa: F811
    node = await world.store.get("/managed-ledgers/" + NAME)
    assert node is not None
    return {item.key: item.value for item in decode_ledger_info(node.value, NAME).properties}.get("index")


class Entries:
    """The last ledger of a topic, with the index of each entry; `lost`: nobody has it."""

    def __init__(self, *indexes: int | str | None) -> None:
        self.indexes = indexes
        self.reads = 0

    @property
    def last_confirmed(self) -> Position:
        return Position(7, len(self.indexes) - 1)

    def read(self, first: Position, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        self.reads += 1
        index = self.indexes[first.entry_id]
        if isinstance(index, str):
            raise DataLost("gone", first.ledger_id, first.entry_id)
        return [Entry(first.ledger_id, first.entry_id, entry(index))]


async def found(entries: Entries, **properties: str) -> int:
    return await stored_index(entries, entries, properties, NAME)


def test_an_entry_tells_its_index() -> None:
    assert index_in(entry(12)) == 12
    assert index_in(entry(None)) is None
    assert index_in(b"\x0e") is None


async def test_a_topic_without_messages_begins_at_0() -> None:
    assert await found(Entries()) == NO_INDEX


async def test_the_last_entry_counts_where_the_record_is_older() -> None:
    assert await found(Entries(5, 9), index="5") == 9


async def test_the_record_counts_where_the_last_ledger_is_empty_or_older() -> None:
    assert await found(Entries(), index="8") == 8
    assert await found(Entries(5), index="8") == 8


async def test_entries_without_index_and_lost_ones_are_passed_over() -> None:
    assert await found(Entries(4, None, "lost"), index="1") == 4


async def test_only_so_many_entries_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_index, "ENTRIES_LOOKED_MAX", 3)
    entries = Entries(4, None, None, None)
    assert await found(entries, index="1") == 1
    assert entries.reads == 3


async def test_a_property_that_is_no_number_is_named_with_the_way_out() -> None:
    with pytest.raises(Corruption, match=r"'index' of its record is 'many', not a number.*remove the property"):
        await found(Entries(), index="many")


async def test_a_new_owner_knows_the_index_of_its_predecessor(world: SharedStorage) -> None:  # noqa: F811
    old = await opened(world)
    assert old.index == NO_INDEX
    await publish(old, 0, 4, 5)
    new = await opened(world)
    assert new.index == 5


async def test_the_record_has_the_index_before_the_first_entry_of_a_ledger_comes(
    world: SharedStorage,  # noqa: F811
) -> None:
    """Apache's broker reads only the last ledger, which is empty here."""
    old = await opened(world)
    await publish(old, 0, 4, 5)
    assert await stored_property(world) is None
    await world.open(INDEXED)
    assert await stored_property(world) == "5"


async def test_each_ledger_begins_with_the_index_of_what_is_acknowledged(world: SharedStorage) -> None:  # noqa: F811
    ledger = await opened(world)
    for index in range(10):
        await publish(ledger, index)
    await publish(ledger, 10)
    assert await stored_property(world) == "9"
    await ledger.set_properties({"a": "b"})
    assert await stored_property(world) == "10"
    assert ledger.properties["a"] == "b"


async def test_who_keeps_no_index_leaves_the_stored_one_alone(world: SharedStorage) -> None:  # noqa: F811
    ledger = await opened(world)
    await publish(ledger, 0, 1)
    await world.open(INDEXED)
    plain = await opened(world, CONFIG)
    assert plain.index == NO_INDEX
    await publish(plain, None)
    assert await stored_property(world) == "1"
    again = await opened(world)
    assert again.index == 1


async def test_a_topic_whose_index_cannot_be_read_is_not_opened(world: SharedStorage) -> None:  # noqa: F811
    ledger = await opened(world)
    await publish(ledger, 0)
    path = "/managed-ledgers/" + NAME
    node = await world.store.get(path)
    assert node is not None
    record = decode_ledger_info(node.value, NAME)
    record.properties.add(key="index", value="?")
    await world.store.put(path, encode_record(record))
    with pytest.raises(RecordUnreadable, match="not a number"):
        await world.open(INDEXED)
