"""Topics of which an Apache broker has written that they have messages of transactions."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from managed_ledger.compacted.entry import COMPACTED_LEDGER, COMPACTION_CURSOR
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import StorageUnavailable, TransactionalTopic
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import EARLIEST
from managed_ledger.transactions.snapshots import SNAPSHOT_TOPICS, TransactionNotes
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.waiting import eventually

CONFIG = ManagedLedgerConfig(ensemble_size=2, write_quorum=2, ack_quorum=2)
SNAPSHOTS = f"public/default/persistent/{SNAPSHOT_TOPICS[0]}"
TOPIC = "public/default/persistent/t"


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(2) as cluster:
        yield cluster


async def factory_of(cluster: FakeCluster) -> ManagedLedgerFactory:
    return ManagedLedgerFactory(await cluster.client(), cluster._session(), cluster.clock, CONFIG)


async def notes_of(cluster: FakeCluster) -> TransactionNotes:
    return TransactionNotes(cluster._session(), await cluster.client(), b"")


def snapshot(topic: str, value: bytes = b"its state") -> bytes:
    metadata = MessageMetadata(producer_name="b", sequence_id=0, publish_time=1, partition_key=topic)
    if not value:
        metadata.null_value = True
    return encode_entry(metadata, value)


async def write(ledger: ManagedLedger, entry: bytes) -> None:
    before = ledger.ledgers.last_confirmed
    ledger.append([entry], [entry])
    await eventually(lambda: not ledger.pending_count and ledger.ledgers.last_confirmed > before)


@pytest.mark.parametrize("snapshots", SNAPSHOT_TOPICS)
async def test_it_is_refused_until_its_snapshot_is_deleted(cluster: FakeCluster, snapshots: str) -> None:
    ledger = await (await factory_of(cluster)).open(f"public/default/persistent/{snapshots}")
    factory = await factory_of(cluster)
    assert (await factory.open(TOPIC)).is_open, "nothing is noted yet"
    await write(ledger, snapshot("persistent://public/default/t"))
    await write(ledger, snapshot("persistent://public/default/other"))
    factory = await factory_of(cluster)
    with pytest.raises(TransactionalTopic, match=f"^persistent://public/default/t has .*default/{snapshots} has"):
        await factory.open(TOPIC)
    await write(ledger, snapshot("persistent://public/default/t", b""))
    assert (await factory.open(TOPIC)).is_open


async def test_what_compaction_has_kept_counts_and_what_came_since_counts_more(cluster: FakeCluster) -> None:
    ledger = await (await factory_of(cluster)).open(SNAPSHOTS)
    await write(ledger, snapshot("persistent://public/default/old"))
    writer = await ledger.compacted.create("t", -1, ledger.ledgers.last_confirmed)
    for name in ("t", "gone"):
        await writer.add([(ledger.ledgers.last_confirmed, snapshot(f"persistent://public/default/{name}"))])
    await writer.close()
    cursor = await ledger.open_cursor(COMPACTION_CURSOR, EARLIEST)
    cursor.mark_delete(ledger.ledgers.last_confirmed, {COMPACTED_LEDGER: writer.ledger_id})
    await write(ledger, snapshot("persistent://public/default/gone", b""))
    await ledger.close()
    notes = await notes_of(cluster)
    with pytest.raises(TransactionalTopic):
        await notes.check(TOPIC)
    await notes.check("public/default/persistent/gone")


async def test_many_that_ask_at_the_same_time_share_a_reading_that_begins_later(cluster: FakeCluster) -> None:
    ledger = await (await factory_of(cluster)).open(SNAPSHOTS)
    await write(ledger, snapshot("persistent://public/default/other"))
    notes = await notes_of(cluster)
    looks = 0
    look = notes._read_if_stored

    async def counted(snapshots: str) -> frozenset[str]:
        nonlocal looks
        looks += snapshots == SNAPSHOTS
        return await look(snapshots)

    notes._read_if_stored = counted  # type: ignore[method-assign]
    first = asyncio.create_task(notes.check(TOPIC))
    await eventually(lambda: looks == 1)
    await write(ledger, snapshot("persistent://public/default/t"))
    answers = await asyncio.gather(*(notes.check(TOPIC) for _ in range(500)), return_exceptions=True)
    await asyncio.gather(first, return_exceptions=True)
    assert {type(answer) for answer in answers} == {TransactionalTopic}, "what was written before they asked is seen"
    assert looks == 2
    assert not notes._next
    assert not notes._turns


async def test_without_its_bookies_nobody_knows_and_the_topic_is_not_opened(cluster: FakeCluster) -> None:
    ledger = await (await factory_of(cluster)).open(SNAPSHOTS)
    await write(ledger, snapshot("persistent://public/default/other"))
    for bookie_id in list(cluster.bookies):
        await cluster.kill(bookie_id)
    with pytest.raises(StorageUnavailable, match="which topics have transactions cannot be read from"):
        await (await notes_of(cluster)).check(TOPIC)


async def test_system_topics_and_other_namespaces_are_not_asked_about(cluster: FakeCluster) -> None:
    ledger = await (await factory_of(cluster)).open(SNAPSHOTS)
    await write(ledger, snapshot("persistent://public/default/__change_events"))
    notes = await notes_of(cluster)
    await notes.check("public/default/persistent/__change_events")
    await notes.check("public/elsewhere/persistent/t")
    await notes.check("no topic")
