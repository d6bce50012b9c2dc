"""Ledgers that Apache's brokers have moved to tiered storage: there, not readable here, never lost."""

from collections.abc import AsyncIterator, Sequence

import pytest

from magnetar_core.bookkeeper.client.errors import NoSuchLedger
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import OffloadedLedger
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.pulsar_records import decode_ledger_info, encode_record
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from managed_ledger.retention import RetentionRule
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.waiting import eventually

NAME = "public/default/persistent/t"
CONFIG = ManagedLedgerConfig(
    ensemble_size=2, write_quorum=2, ack_quorum=2, passes_over_lost=True, retention=RetentionRule()
)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(2) as cluster:
        yield cluster


async def opened(cluster: FakeCluster) -> ManagedLedger:
    factory = ManagedLedgerFactory(
        await cluster.client(), cluster._session(), cluster.clock, CONFIG, on_damage=lambda *_: pytest.fail("no damage")
    )
    return await factory.open(NAME)


async def record_of(cluster: FakeCluster) -> ManagedLedgerInfo:
    node = await cluster.store.get(ledger_path(NAME))
    assert node is not None
    return decode_ledger_info(node.value, NAME)


async def settled(ledger: ManagedLedger) -> None:
    await eventually(lambda: not ledger.pending_count)


async def offloaded(cluster: FakeCluster, count: int, moved: int) -> list[int]:
    """A topic of *count* ledgers with two entries each, of which an Apache broker has moved the first *moved*; returns
    their ids."""
    for number in range(count):
        ledger = await opened(cluster)
        if not number:
            await ledger.open_cursor("s", EARLIEST)
        for payload in (b"%d:0" % number, b"%d:1" % number):
            ledger.append([payload], [payload])
        await settled(ledger)
        await ledger.close()
    record = await record_of(cluster)
    ids = [info.ledgerId for info in record.ledgerInfo]
    assert len(ids) == count
    client = await cluster.client()
    for info in record.ledgerInfo[:moved]:
        info.entries, info.size, info.timestamp = 2, 6, info.timestamp or 1
        context = info.offloadContext
        context.complete = context.bookkeeperDeleted = True
        context.uidMsb, context.uidLsb = -1, info.ledgerId
        context.driverMetadata.name = "aws-s3"
        context.driverMetadata.properties.add(key="bucket", value="cold")
        await client.delete_ledger(info.ledgerId)
    await cluster.store.put(ledger_path(NAME), encode_record(record))
    return ids


def objects(ids: Sequence[int]) -> list[str]:
    return [f"aws-s3, bucket cold, object ffffffff-ffff-ffff-0000-{id_:012x}-ledger-{id_}" for id_ in ids]


async def test_a_read_names_the_object_and_never_says_that_it_is_lost(cluster: FakeCluster) -> None:
    ids = await offloaded(cluster, 3, 2)
    ledger = await opened(cluster)
    with pytest.raises(OffloadedLedger, match=f"{objects(ids)[0]}.* It is not lost"):
        await ledger.read(EARLIEST, 10, 1000)  # type: ignore[misc]
    cursor = ledger.cursors["s"]
    for _ in range(2):
        with pytest.raises(OffloadedLedger):
            await cursor.read(10, 1000)  # type: ignore[misc]
    assert cursor.backlog() == 6, "autoSkipNonRecoverableData passes over what is lost, and not over this"
    entries = await ledger.read(Position(ids[2], 0), 10, 1000)  # type: ignore[misc]
    assert [bytes(entry.data) for entry in entries] == [b"2:0", b"2:1"]
    assert [shown["offloaded"] for shown in ledger.stats()["ledgers"][:3]] == [True, True, False]


async def test_a_topic_whose_last_ledger_was_moved_keeps_it(cluster: FakeCluster) -> None:
    ids = await offloaded(cluster, 2, 2)
    ledger = await opened(cluster)
    assert [info.ledgerId for info in (await record_of(cluster)).ledgerInfo][:2] == ids
    assert ledger.cursors["s"].backlog() == 4
    ledger.append([b"new"], [b"new"])
    await settled(ledger)
    assert ledger.cursors["s"].backlog() == 5


@pytest.mark.parametrize("way", ["trim", "delete"])
async def test_what_stays_in_the_bucket_is_said(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    ids = await offloaded(cluster, 3, 2)
    ledger = await opened(cluster)
    if way == "trim":
        cursor = ledger.cursors["s"]
        cursor.mark_delete(ledger.ledgers.last_confirmed)
        await cursor.flush()
        await ledger.trim()
        assert not {info.ledgerId for info in (await record_of(cluster)).ledgerInfo} & set(ids)
    else:
        await ledger.delete()
        assert await cluster.store.get(ledger_path(NAME)) is None
    said = [record.message for record in caplog.records if "offloaded of" in record.message]
    assert [text.partition("stays there: ")[2] for text in said] == objects(ids[:2])
    client = await cluster.client()
    for ledger_id in ids:
        with pytest.raises(NoSuchLedger):
            await client.read_metadata(ledger_id)
