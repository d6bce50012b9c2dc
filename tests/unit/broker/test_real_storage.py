"""The broker on managed ledgers and bookies as they are, all in this process."""

import asyncio
import gc
import logging
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.storage.index import MemoryIndex, RocksIndex
from broker.binary.connection import Connection
from broker.broker import Broker
from broker.tenancy.changes import initialise_cluster
from broker.topic.reading.subscription import Subscription
from broker.topic.topic import Topic
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.placing.isolation import Isolation, isolation_in
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.bookies.racks import RackRecords
from magnetar_core.bookkeeper.metadata.ledgers import ledger_store
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import Clock, LoopClock
from magnetar_core.runtime.files import OsFiles
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.ledger import ManagedLedger
from tests.support.manual_clock import ManualClock
from tests.support.sole_owner import SoleOwner
from tests.support.waiting import eventually
from tests.unit.broker.conftest import CONFIG
from tests.unit.broker.raw_client import RawClient

TOPIC = "persistent://public/default/t"
EARLIEST = wire.CommandSubscribe.Earliest


class Cluster:
    """Three bookies and any number of brokers, each of which believes to own everything."""

    def __init__(self, folder: Path | None = None) -> None:
        """The bookies have their disks in *folder*, or in memory."""
        self.folder = folder
        self.clock: Clock = LoopClock()
        self.store = MemoryStore(self.clock)
        self.config = replace(CONFIG, ensemble_size=3, write_quorum=3, ack_quorum=2)
        self.client_config = ClientConfig()
        self.bookies: list[Bookie] = []
        self.brokers: list[tuple[Broker, BookKeeper]] = []

    async def start(self) -> None:
        await ledger_store.initialise_cluster(self.store)
        await initialise_cluster(self.store, self.config)
        root, open_index = str(self.folder or ""), RocksIndex if self.folder else _memory_index
        for number in range(3):
            config = BookieConfig(
                port=0,
                listen_address="127.0.0.1",
                advertised_address="127.0.0.1",
                bookie_id=f"bookie-{number}",
                journal_directories=(f"{root}/journal-{number}",),
                ledger_directories=(f"{root}/ledgers-{number}",),
                journal_preallocation_mib=0,
                stop_wait_ms=0,
            )
            files = OsFiles() if self.folder else MemoryFiles()
            self.bookies.append(Bookie(config, self.store.session(), self.clock, files, open_index=open_index))
        await asyncio.gather(*(bookie.start() for bookie in self.bookies))

    async def broker(self) -> Broker:
        store = self.store.session()
        bookkeeper = BookKeeper(store, self.clock, self.client_config)
        await bookkeeper.open()
        broker = Broker(self.config, store, bookkeeper, self.clock, ownership=SoleOwner())
        await broker.start()
        self.brokers.append((broker, bookkeeper))
        return broker

    async def stop(self) -> None:
        for broker, bookkeeper in self.brokers:
            await broker.close()
            await bookkeeper.close()
        await asyncio.gather(*(bookie.stop() for bookie in self.bookies))


def _memory_index(directory: str, cache_bytes: int) -> MemoryIndex:
    return MemoryIndex()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def publish(client: RawClient, *sequence_ids: int) -> list[int]:
    client.publish(1, *sequence_ids)
    return [(await client.expect(BaseCommand.SEND_RECEIPT)).send_receipt.sequence_id for _ in sequence_ids]


async def test_what_was_confirmed_and_acknowledged_survives_a_restart(cluster: Cluster) -> None:
    first = await cluster.broker()
    client = await RawClient.connect(first.port)
    await client.produce(TOPIC)
    assert await publish(client, *range(10)) == list(range(10))
    await client.subscribe(TOPIC, initialPosition=EARLIEST)
    ids = [(await client.expect(BaseCommand.MESSAGE)).message.message_id for _ in range(10)]
    client.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=[ids[0], ids[1], ids[5]], request_id=9)
    await client.expect(BaseCommand.ACK_RESPONSE)
    await first.opening.unload(TopicName.parse(TOPIC))
    assert {(await client.answer()).type for _ in range(2)} == {BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER}
    second = await cluster.broker()
    other = await RawClient.connect(second.port)
    await other.subscribe(TOPIC)
    got = [(await other.expect(BaseCommand.MESSAGE)).message.message_id.entryId for _ in range(7)]
    assert got == [2, 3, 4, 6, 7, 8, 9]
    client.close()
    other.close()


async def test_the_old_owner_confirms_nothing_after_another_broker_took_over(cluster: Cluster) -> None:
    old, new = await cluster.broker(), await cluster.broker()
    at_old, at_new = await RawClient.connect(old.port), await RawClient.connect(new.port)
    await at_old.produce(TOPIC)
    await publish(at_old, 0, 1, 2)
    await at_new.produce(TOPIC)  # fences the old owner's ledger; nobody asked him
    at_old.publish(1, 3, 4)
    await at_old.expect(BaseCommand.CLOSE_PRODUCER)
    assert await at_old.nothing_came()
    await publish(at_new, 3, 4)
    await at_new.subscribe(TOPIC, initialPosition=EARLIEST)
    ids = [(await at_new.expect(BaseCommand.MESSAGE)).message.message_id for _ in range(5)]
    assert len({one.ledgerId for one in ids}) == 2
    assert [one.entryId for one in ids] == [0, 1, 2, 0, 1]
    at_old.close()
    at_new.close()


async def test_a_topic_rolls_over_under_load_and_keeps_its_order(cluster: Cluster) -> None:
    cluster.config = replace(cluster.config, max_entries_per_ledger=7, min_rollover_minutes=0)
    broker = await cluster.broker()
    client = await RawClient.connect(broker.port)
    await client.produce(TOPIC)
    consumer = await RawClient.connect(broker.port)
    await consumer.subscribe(TOPIC, permits=1000)
    assert await publish(client, *range(100)) == list(range(100))
    ids: list[tuple[int, int]] = []
    while len(ids) < 100:
        message = (await consumer.expect(BaseCommand.MESSAGE)).message.message_id
        ids.append((message.ledgerId, message.entryId))
    assert ids == sorted(set(ids))
    assert len({ledger_id for ledger_id, _ in ids}) >= 10
    await asyncio.sleep(0)
    client.close()
    consumer.close()


# ------------------------------------------------------------------------------- what is left of what has ended


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What was there before is not looked through, now and later (`tests.support.memory`)."""
    gc.disable()
    gc.collect()
    gc.freeze()
    logging.disable()  # pytest keeps what is logged, errors with their frames among it
    yield
    logging.disable(logging.NOTSET)
    gc.enable()


@pytest.fixture
async def clock() -> AsyncIterator[ManualClock]:
    """One that goes on like the real one, and can be moved."""
    made = ManualClock()

    async def go_on() -> None:
        while True:
            await asyncio.sleep(0.01)
            made.advance(0.01)

    going = asyncio.ensure_future(go_on())
    yield made
    going.cancel()


# What matters in memory: everything else that a topic has is held by one of these.
HELD = {Topic, Subscription, Connection, ManagedLedger, ManagedCursor, LedgerWriteHandle, LedgerReadHandle}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("how", ["unload", "delete", "take over"])
async def test_what_a_topic_and_its_clients_held_goes_without_the_collector(
    clock: ManualClock, cluster: Cluster, how: str
) -> None:
    """A server lives for months, and its collector comes by seldom: what has ended must not wait for it."""
    cluster.config = replace(cluster.config, max_entries_per_ledger=7, min_rollover_minutes=0, deduplication=True)
    cluster.clock = clock
    cluster.client_config = ClientConfig(timeout_s=2.0)  # so long a handle is known for its entries' deadlines
    broker, other = await cluster.broker(), await cluster.broker()
    client = await RawClient.connect(broker.port)
    await client.produce(TOPIC)
    for number, kind in enumerate(wire.CommandSubscribe.SubType.values()):
        await client.subscribe(TOPIC, consumer_id=number, subscription=f"s{number}", subType=kind, permits=100)
    client.publish(1, *range(20))
    received = dict.fromkeys(range(4), 0)
    while min(received.values()) < 20:
        answer = await client.answer()
        if answer.type == BaseCommand.MESSAGE:
            number, one = answer.message.consumer_id, answer.message.message_id
            received[number] += 1
            if received[number] % 2:
                client.send(BaseCommand.ACK, consumer_id=number, ack_type=0, message_id=[one])
    client.send(BaseCommand.PING)
    await client.expect(BaseCommand.PONG)
    living = [weakref.ref(one) for one in gc.get_objects() if type(one) in HELD]
    assert {type(one()) for one in living} >= HELD - {LedgerReadHandle}
    client.close()
    if how == "unload":
        await broker.opening.unload(TopicName.parse(TOPIC))
    elif how == "delete":
        await broker.deleting.delete_topic(TopicName.parse(TOPIC), force=True)
    else:
        theirs = await RawClient.connect(other.port)
        await theirs.produce(TOPIC)
        at_old = await RawClient.connect(broker.port)
        await at_old.produce(TOPIC, producer_id=7)
        # Nobody tells the old owner: it learns of the other when it writes. A cursor may have been first; then the
        # topic was opened anew for this producer.
        at_old.publish(7, 0)
        assert (await at_old.answer()).type in (BaseCommand.CLOSE_PRODUCER, BaseCommand.SEND_RECEIPT)
        theirs.close()
        at_old.close()

    def left() -> Counter[str]:
        return Counter(type(one()).__name__ for one in living if one() is not None)

    advances = iter(range(3))  # and not until other timers come

    def nothing_is_left() -> None:
        if next(advances, None) is not None:
            clock.advance(cluster.client_config.timeout_s)
        assert not left()

    await eventually(nothing_is_left)


async def test_the_ledgers_of_a_namespace_are_on_the_bookies_of_its_group(cluster: Cluster) -> None:
    records = RackRecords(cluster.store)
    for number, group in enumerate(("one", "two", "two")):
        await records.put(group, f"bookie-{number}", {"rack": f"/r{number}"})
    cluster.config = replace(cluster.config, ensemble_size=1, write_quorum=1, ack_quorum=1, mark_delete_rate=0)
    broker = await cluster.broker()
    affinity = {"bookkeeperAffinityGroupPrimary": "two", "bookkeeperAffinityGroupSecondary": "one"}
    await broker.tenancy.set_local_policy("public/default", "bookieAffinityGroup", affinity)
    client = await RawClient.connect(broker.port)
    for number in range(4):
        topic = f"{TOPIC}{number}"
        await client.produce(topic, producer_id=number)
        client.publish(number, 0)
        await client.expect(BaseCommand.SEND_RECEIPT)
        await client.subscribe(topic, consumer_id=number, initialPosition=EARLIEST)
        message_id = (await client.expect(BaseCommand.MESSAGE)).message.message_id
        client.send(BaseCommand.ACK, consumer_id=number, ack_type=0, message_id=[message_id], request_id=9)
        await client.expect(BaseCommand.ACK_RESPONSE)
    ledgers = cluster.brokers[0][1].ledgers

    async def of_cursors() -> list[LedgerMetadata]:
        every = [(await ledgers.read(one)).metadata async for one in ledgers.list()]
        return [one for one in every if "pulsar/cursor" in dict(one.custom_metadata)]

    while len(await of_cursors()) < 4:
        await asyncio.sleep(0.01)
    found = [(await ledgers.read(one)).metadata async for one in ledgers.list()]
    assert len(found) == 8
    for metadata in found:
        assert isolation_in(metadata.custom_metadata) == Isolation("two", "one")
        assert set(metadata.last_segment.ensemble) <= {"bookie-1", "bookie-2"}
    await broker.tenancy.set_local_policy("public/default", "bookieAffinityGroup", None)
    await eventually(lambda: all(one.ledger.config.bookie_groups is None for one in broker.topics.values()))
    client.close()


async def test_with_strict_affinity_a_namespace_without_a_group_is_on_bookies_without_one(cluster: Cluster) -> None:
    await RackRecords(cluster.store).put("one", "bookie-0", {"rack": "/r0"})
    await RackRecords(cluster.store).put("two", "bookie-2", {"rack": "/r2"})
    cluster.config = replace(cluster.config, ensemble_size=1, write_quorum=1, ack_quorum=1, strict_affinity=True)
    broker = await cluster.broker()
    client = await RawClient.connect(broker.port)
    for number in range(5):
        await client.produce(f"{TOPIC}{number}", producer_id=number)
    ledgers = cluster.brokers[0][1].ledgers
    ensembles = [(await ledgers.read(one)).metadata.last_segment.ensemble async for one in ledgers.list()]
    assert ensembles == [("bookie-1",)] * 5
    client.close()
