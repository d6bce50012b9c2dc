"""Limits of the managed ledger in `docs/limits.md`: what happens beyond them. A limit that is large is made small."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from broker.serving.storage import ledger_config
from broker.settings.config import BrokerConfig
from connectors.spark.task.entries import Chunks, open_entry
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import OutcomeUnknown
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import Corruption
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.errors import ManagedLedgerFenced, RecordInDoubt, StorageUnavailable
from managed_ledger.ledger import OPEN_ATTEMPTS_MAX, ManagedLedger
from managed_ledger.messages import CHUNKED_BYTES_MAX, encode_entry
from managed_ledger.messages_pb2 import LZ4, SNAPPY, ZLIB, ZSTD, MessageMetadata
from managed_ledger.position import EARLIEST, Position
from managed_ledger.records.versioned_record import TRIES_MAX, VersionedRecord
from managed_ledger.schemas.compatibility import Schema, SchemaType, Strategy
from managed_ledger.schemas.registry import ATTEMPTS_MAX, SchemaRegistry
from managed_ledger.writing.appending import SEND_RUN_MAX
from tests.support.faulty_store import FaultyStore
from tests.support.memory_bookkeeper import MemoryBookKeeper
from tests.support.waiting import settle
from tests.unit.managed_ledger.test_ledger_under_faults import CONFIG, RECORD, Broker, FaultyStorage, world

__all__ = ["world"]

# ------------------------------------------------------------------------------------------- cursors


@pytest.mark.parametrize("is_closed_in_order", [True, False])
async def test_holes_beyond_the_limit_are_delivered_again_after_a_restart(
    world: FaultyStorage, is_closed_in_order: bool
) -> None:
    most = ledger_config(BrokerConfig(max_unacked_ranges=3)).cursor_ranges_max
    config = replace(CONFIG, cursor_ranges_max=most)
    broker = await world.open(config)
    await broker.publish(0, 12)
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    positions = [position for position, _ in broker.recorder.appended]
    acknowledged = positions[1::2]
    cursor.delete(acknowledged)
    assert cursor.range_count == 6
    await cursor.flush()
    if is_closed_in_order:
        await broker.factory.close()
    after = (await world.open(config)).ledger.cursors["s"]
    assert [one for one in positions if after.is_deleted(one)] == acknowledged[:3]
    assert after.backlog() == 9


async def test_without_bookies_a_cursor_stores_no_more_holes_either(world: FaultyStorage) -> None:
    """Its state goes into its node then."""
    broker = await world.open(replace(CONFIG, cursor_ranges_max=3))
    await broker.publish(0, 5)
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(5, 12)
    broker.bookkeeper.out_of_bookies = True
    positions = [position for position, _ in broker.recorder.appended]
    cursor.delete(positions[1::2])
    await cursor.flush()
    assert cursor.ledger_id == -1
    assert (cursor.counts.ledger_failures, cursor.counts.node_writes, cursor.counts.ledger_writes) == (1, 1, 0)
    after = (await world.open()).ledger.cursors["s"]
    assert [one for one in positions if after.is_deleted(one)] == positions[1:7:2]


async def test_a_state_that_is_too_large_for_an_entry_is_stored_with_fewer_holes(
    world: FaultyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("managed_ledger.cursors.cursor_store.STATE_BYTES", 120)
    config = replace(CONFIG, cursor_words=False)
    broker = await world.open(config)
    await broker.publish(0, 17)
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    positions = [position for position, _ in broker.recorder.appended]
    cursor.delete(positions[1::2])
    assert cursor.range_count == 8
    await cursor.flush()
    after = (await world.open(config)).ledger.cursors["s"]
    assert [one for one in positions if after.is_deleted(one)] == positions[1:9:2], "half of the holes"


async def test_no_more_batches_in_part_are_stored_than_the_setting_says(world: FaultyStorage) -> None:
    most = ledger_config(BrokerConfig(max_partial_batches=3)).cursor_batches_max
    config = replace(CONFIG, cursor_batches_max=most, rollover=replace(CONFIG.rollover, entries_max=100_000))
    broker = await world.open(config)
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 6)
    positions = large_batches(broker.ledger, cursor, 5, 64)
    await cursor.flush()
    after = (await world.open(config)).ledger.cursors["s"]
    assert [one for one in positions if after.batch_ack_set(one) is not None] == positions[:3]


@pytest.mark.parametrize("threshold", [0, 1_000_000])
async def test_records_above_the_threshold_are_stored_compressed_and_read_again(
    world: FaultyStorage, threshold: int
) -> None:
    config = replace(CONFIG, record_compression_bytes=threshold, cursor_compression_bytes=threshold)
    broker = await world.open(config)
    await broker.publish(0, 12)
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    positions = [position for position, _ in broker.recorder.appended]
    cursor.delete(positions[1::2])
    await broker.factory.close()
    for path in (RECORD, f"{RECORD}/s"):
        node = await world.store.get(path)
        assert node is not None
        assert node.value.startswith(b"\x47\x78") == (threshold == 0), path
    after = (await world.open(config)).ledger.cursors["s"]
    assert [one for one in positions if after.is_deleted(one)] == positions[1::2]


def large_batches(ledger: ManagedLedger, cursor: ManagedCursor, count: int, messages: int) -> list[Position]:
    """Acknowledge every second message of the first entries, each a batch of so many."""
    first = ledger.ledgers.first_position
    every_second = [-0x5555555555555556] * (messages // 64)
    positions = [Position(first.ledger_id, entry_id) for entry_id in range(count)]
    for position in positions:
        cursor.acknowledge_batch(position, every_second, messages)
    return positions


async def test_batches_that_a_node_cannot_hold_are_in_a_ledger_when_the_cursor_is_closed(world: FaultyStorage) -> None:
    config = replace(CONFIG, rollover=replace(CONFIG.rollover, entries_max=100_000))
    broker = await world.open(config)
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 30)
    positions = large_batches(broker.ledger, cursor, 30, 4_096 * 64)
    await broker.ledger.close()
    assert cursor.counts.node_failures == 0
    after = (await world.open(config)).ledger.cursors["s"]
    assert all(after.batch_ack_set(position) is not None for position in positions)


@pytest.mark.parametrize(("has_bookies", "limit"), [(True, "BATCHES_BYTES"), (False, "BATCHES_IN_NODE_BYTES")])
async def test_batches_beyond_the_limit_come_again_whole(
    world: FaultyStorage, monkeypatch: pytest.MonkeyPatch, has_bookies: bool, limit: str
) -> None:
    """Without bookies the state goes into the node."""
    most = 256 * 1024
    monkeypatch.setattr(f"managed_ledger.cursors.cursor_store.{limit}", most)
    config = replace(CONFIG, rollover=replace(CONFIG.rollover, entries_max=100_000))
    broker = await world.open(config)
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 15)
    broker.bookkeeper.out_of_bookies = not has_bookies
    positions = large_batches(broker.ledger, cursor, 15, 4_096 * 64)
    await cursor.flush()
    after = (await world.open(config)).ledger.cursors["s"]
    stored = most // (4_096 * 11 + 40)
    assert 0 < stored < len(positions)
    assert [one for one in positions if after.batch_ack_set(one) is not None] == positions[:stored]


# ------------------------------------------------------------------------------------- appending, opening


async def test_what_gathered_is_handed_to_the_ledger_in_runs(world: FaultyStorage) -> None:
    broker = await world.open(replace(CONFIG, rollover=replace(CONFIG.rollover, entries_max=100_000)))
    handle: Any = broker.bookkeeper.handles[-1]
    taken, runs = handle.append, []

    def append(run: Sequence[bytes]) -> int:
        runs.append(len(run))
        return int(taken(run))

    handle.append = append
    count = 2 * SEND_RUN_MAX + 5
    broker.ledger.append([b"x"] * count, list(range(count)))
    await settle()
    assert runs == [SEND_RUN_MAX, SEND_RUN_MAX, 5]
    assert broker.acknowledged == list(range(count))


@pytest.mark.parametrize("others", [OPEN_ATTEMPTS_MAX - 1, OPEN_ATTEMPTS_MAX])
async def test_an_opening_ends_after_so_many_conflicts(
    world: FaultyStorage, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker writes the record whenever we are about to."""
    monkeypatch.setattr("managed_ledger.ledger.OPEN_RETRY_S", 0.0)
    await world.store.put(RECORD, b"")
    broker = Broker(world, CONFIG)
    world.brokers.append(broker)
    left = 100 * OPEN_ATTEMPTS_MAX if others == OPEN_ATTEMPTS_MAX else others
    met = 0

    async def write_first(what: str, path: str) -> None:
        nonlocal met
        if what == "put" and path == RECORD and met < left:
            met += 1
            await world.store.put(RECORD, b"")

    broker.store.on_step = write_first
    if others < OPEN_ATTEMPTS_MAX:
        await broker.open()
        assert len(world.bookkeeper.ledgers) == 1
    else:
        with pytest.raises(ManagedLedgerFenced, match="was changed by another owner"):
            await broker.open()
        assert world.bookkeeper.ledgers == {}, "no attempt leaves its ledger behind"
    assert met == others
    assert len(world.bookkeeper.deleted) == others


# ---------------------------------------------------------------------------------------- the record

Change = Callable[[VersionedRecord], Awaitable[None]]


async def write(record: VersionedRecord) -> None:
    await record.write(b"new")


async def delete(record: VersionedRecord) -> None:
    await record.delete()


@pytest.mark.parametrize(("change", "what"), [(write, "put"), (delete, "delete")])
@pytest.mark.parametrize("lost", [TRIES_MAX - 1, TRIES_MAX + 1])
async def test_a_change_whose_answer_is_lost_is_sent_again_so_often(change: Change, what: str, lost: int) -> None:
    tries = 0

    async def lose(kind: str, path: str) -> None:
        nonlocal tries
        if kind == what:
            tries += 1
            if tries <= lost:
                raise OutcomeUnknown("lost")

    store = FaultyStore(MemoryStore(LoopClock()), lose)
    await store.inner.put("/r", b"old")
    record = VersionedRecord(store, "/r")
    assert await record.read() == b"old"
    if lost < TRIES_MAX:
        await change(record)
    else:
        with pytest.raises(StorageUnavailable, match="/r") as error:
            await change(record)
        assert isinstance(error.value, RecordInDoubt) == (what == "put")
    assert tries == TRIES_MAX


# ------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("codec", [LZ4, ZLIB, ZSTD, SNAPPY])
def test_a_message_in_chunks_that_declares_too_much_is_refused_before_it_is_unpacked(codec: Any) -> None:
    """What the chunks hold would be another error if anybody looked at it."""

    def add(size: int) -> None:
        chunks = Chunks()
        for number in range(2):
            metadata = MessageMetadata(
                producer_name="p", sequence_id=0, publish_time=1, uuid="p-0", num_chunks_from_msg=2, chunk_id=number,
                compression=codec, uncompressed_size=size,
            )  # fmt: skip
            opened = open_entry("t", 1, number, encode_entry(metadata, b"\xff" * 10))
            assert opened is not None
            assert chunks.add(opened) is None
            assert size <= CHUNKED_BYTES_MAX, "refused with the first chunk"

    with pytest.raises(Corruption, match=rf"{CHUNKED_BYTES_MAX + 1} is above the limit of {CHUNKED_BYTES_MAX}"):
        add(CHUNKED_BYTES_MAX + 1)
    with pytest.raises(Corruption, match="cannot be unpacked to the 1000 bytes"):
        add(1_000)


# -------------------------------------------------------------------------------------------- schemas


def avro(name: str) -> Schema:
    return Schema(SchemaType.AVRO, json.dumps({"type": "record", "name": name, "fields": []}).encode())


async def test_when_too_many_schemas_are_kept_all_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managed_ledger.schemas.registry.CACHED_MAX", 3)
    bookkeeper = MemoryBookKeeper()
    registry = SchemaRegistry(bookkeeper.client, MemoryStore(LoopClock()), LoopClock())
    for name in "abcd":
        await registry.put_if_absent(f"t/n/{name}", avro(name), Strategy.FULL)

    async def reads_of(names: str) -> int:
        before = bookkeeper.reads
        for name in names:
            found = await registry.get(f"t/n/{name}")
            assert found is not None
            assert found.schema == avro(name)
        return bookkeeper.reads - before

    assert await reads_of("abc") == 3
    assert await reads_of("abcabc") == 0
    assert await reads_of("d") == 1
    assert await reads_of("d") == 0
    assert await reads_of("ab") == 2


Registering = Callable[[SchemaRegistry], Awaitable[object]]


@pytest.mark.parametrize(
    ("change", "step"),
    [
        (lambda registry: registry.put_if_absent("t/n/x", avro("second"), Strategy.ALWAYS_COMPATIBLE), "put"),
        (lambda registry: registry.delete("t/n/x"), "put"),
        (lambda registry: registry.delete("t/n/x", force=True), "delete"),
    ],
    ids=["put", "tombstone", "force"],
)
async def test_a_registration_ends_after_so_many_conflicts(change: Registering, step: str) -> None:
    store, bookkeeper, clock = FaultyStore(MemoryStore(LoopClock())), MemoryBookKeeper(), LoopClock()
    registry = SchemaRegistry(bookkeeper.client, store, clock)
    await registry.put_if_absent("t/n/x", avro("first"), Strategy.FULL)
    left, met = 100 * ATTEMPTS_MAX, 0

    async def write_first(what: str, path: str) -> None:
        nonlocal met
        if what == step and met < left:
            met += 1
            node = await store.inner.get(path)
            assert node is not None
            await store.inner.put(path, node.value)

    store.on_step = write_first
    with pytest.raises(StorageUnavailable, match="t/n/x is being changed by others all the time"):
        await change(registry)
    assert met == ATTEMPTS_MAX
    assert len(bookkeeper.ledgers) == 1, "what was written in vain is deleted"
    left, met = ATTEMPTS_MAX - 1, 0
    await change(registry)
    assert met == ATTEMPTS_MAX - 1
