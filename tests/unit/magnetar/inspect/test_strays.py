"""Ledgers without a record: found, given one again, and put into a topic, over bookies and metadata in memory."""

from collections.abc import AsyncIterator, Callable

import pytest

from magnetar.inspect import strays
from magnetar.inspect.inspector import Inspector, KnownBookie
from magnetar.inspect.stray_rules import CannotTell
from magnetar.inspect.strays import StrayLedgers
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import LedgerFenced
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerState, ledger_path
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.records.pulsar_records import decode_ledger_info
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.waiting import eventually
from tests.unit.managed_ledger.ledgers.test_tails import CONFIG, NAME
from tests.unit.managed_ledger.test_ledger import Recorder, read_all

TOPIC = TopicName.of_managed_ledger(NAME)


class StrayWorld:
    def __init__(self, cluster: FakeCluster, client: BookKeeper, inspector: Inspector) -> None:
        self.cluster = cluster
        self.client = client
        self.inspector = inspector
        self.strays = StrayLedgers(inspector)

    async def write(
        self, count: int, sizes: tuple[int, int, int] = (3, 2, 2), *, digest: DigestType = DigestType.CRC32C
    ) -> int:
        """A ledger that is written to still; its record is lost."""
        handle = await self.client.create_ledger(
            ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2], digest_type=digest
        )
        for number in range(count):
            await handle.add(b"%d" % number)
        await self.cluster.store.delete(ledger_path("/ledgers", handle.ledger_id))
        return handle.ledger_id

    async def read(self, ledger_id: int) -> list[bytes]:
        handle = await self.client.open_ledger(ledger_id, recovery=False)
        found = [bytes(one.payload) for one in await handle.read(0, handle.last_add_confirmed)]
        await handle.close()
        return found

    async def topic(self) -> ManagedLedger:
        factory = ManagedLedgerFactory(self.client, self.cluster._session(), self.cluster.clock, CONFIG)
        ledger = await factory.open(NAME)
        ledger.listener = Recorder()
        return ledger

    async def publish(self, *payloads: bytes) -> int:
        """Into a ledger of its own; the topic is closed behind it."""
        ledger = await self.topic()
        ledger.append(payloads, payloads)
        await eventually(lambda: not ledger.pending_count)
        written = ledger.ledgers.last_confirmed.ledger_id
        await ledger.close()
        return written

    async def forget(self, ledger_id: int) -> None:
        """Neither the topic nor the ledger has a record of it."""
        path = f"/managed-ledgers/{NAME}"
        node = await self.cluster.store.get(path)
        assert node is not None
        record = decode_ledger_info(node.value, NAME)
        kept = [one for one in record.ledgerInfo if one.ledgerId != ledger_id]
        del record.ledgerInfo[:]
        record.ledgerInfo.extend(kept)
        await self.cluster.store.put(path, record.SerializeToString())
        await self.cluster.store.delete(ledger_path("/ledgers", ledger_id))


@pytest.fixture
async def world() -> AsyncIterator[StrayWorld]:
    async with fake_cluster(4) as cluster:
        for bookie_id in cluster.bookies:
            await cluster.store.put(f"/ledgers/cookies/{bookie_id}", b"cookie")
        inspector = Inspector(cluster._session(), "/ledgers", cluster.clock)
        await inspector.start()
        try:
            yield StrayWorld(cluster, await cluster.client(), inspector)
        finally:
            await inspector.close()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 2), (3, 2, 2), (3, 3, 2), (4, 2, 1)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 11])
async def test_a_ledger_is_read_again_as_it_was_written(
    world: StrayWorld, sizes: tuple[int, int, int], count: int
) -> None:
    ledger_id = await world.write(count, sizes)
    made = await world.strays.restore(ledger_id)
    assert made.is_new
    assert (made.metadata.state, made.metadata.last_entry_id) == (LedgerState.CLOSED, count - 1)
    assert made.metadata.length == sum(len(b"%d" % number) for number in range(count))
    assert made.metadata.write_quorum == sizes[1]
    assert await world.read(ledger_id) == [b"%d" % number for number in range(count)]
    assert not (await world.strays.restore(ledger_id)).is_new


async def test_what_an_ensemble_change_moved_is_found(world: StrayWorld) -> None:
    handle = await world.client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
    for number in range(7):
        await handle.add(b"%d" % number)
    gone = handle.metadata.last_segment.ensemble[1]
    await world.cluster.kill(gone)
    for number in range(7, 15):
        await handle.add(b"%d" % number)
    await world.cluster.revive(gone)
    await world.cluster.store.delete(ledger_path("/ledgers", handle.ledger_id))
    await eventually(lambda: gone in world.inspector.directory.available)
    made = await world.strays.restore(handle.ledger_id)
    assert len(made.metadata.segments) == 2
    assert await world.read(handle.ledger_id) == [b"%d" % number for number in range(15)]


@pytest.mark.parametrize("digest", [DigestType.CRC32, DigestType.HMAC, DigestType.CRC32C])
async def test_the_digest_is_found(world: StrayWorld, digest: DigestType) -> None:
    ledger_id = await world.write(3, digest=digest)
    assert (await world.strays.restore(ledger_id)).metadata.digest_type is digest
    assert len(await world.read(ledger_id)) == 3


async def test_without_checksums_an_operator_has_to_say_so(world: StrayWorld) -> None:
    ledger_id = await world.write(3, digest=DigestType.DUMMY)
    with pytest.raises(CannotTell, match="no digest fits"):
        await world.strays.restore(ledger_id)
    made = await world.strays.restore(ledger_id, is_unchecked=True)
    assert made.metadata.digest_type is DigestType.DUMMY


async def test_whoever_writes_to_it_is_acknowledged_nothing_more(world: StrayWorld) -> None:
    handle = await world.client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    await handle.add(b"0")
    await world.cluster.store.delete(ledger_path("/ledgers", handle.ledger_id))
    await world.strays.restore(handle.ledger_id)
    with pytest.raises(LedgerFenced):
        await handle.add(b"1")


async def test_a_bookie_that_is_away_may_have_more(world: StrayWorld) -> None:
    ledger_id = await world.write(5, (2, 2, 2))
    (gone, *_) = [one for one, bookie in world.cluster.bookies.items() if ledger_id in bookie.ledgers]
    await world.cluster.kill(gone)
    await eventually(lambda: gone not in world.inspector.directory.available)
    with pytest.raises(CannotTell, match=f"{gone} cannot be asked"):
        await world.strays.restore(ledger_id)
    made = await world.strays.restore(ledger_id, without=(gone,))
    assert made.metadata.last_entry_id == 4
    assert gone not in made.metadata.bookies()


async def test_an_acknowledged_entry_that_nobody_has_is_named(world: StrayWorld) -> None:
    ledger_id = await world.write(6, (2, 2, 2))
    for bookie in world.cluster.bookies.values():
        bookie.ledgers.get(ledger_id, {}).pop(2, None)
    with pytest.raises(CannotTell, match="entry 2 is on no bookie that was asked, and was acknowledged"):
        await world.strays.restore(ledger_id)
    assert await world.cluster.store.get(ledger_path("/ledgers", ledger_id)) is None


async def test_what_was_not_acknowledged_behind_a_hole_is_left_out(world: StrayWorld) -> None:
    ledger_id = await world.write(6, (2, 2, 2))
    for bookie in world.cluster.bookies.values():
        bookie.ledgers.get(ledger_id, {}).pop(5, None)
    made = await world.strays.restore(ledger_id)
    assert made.metadata.last_entry_id == 4
    ledger_id = await world.write(1, (2, 2, 2))
    with pytest.raises(CannotTell, match="nothing to save"):
        await world.strays.restore(ledger_id + 1)


async def test_an_open_record_is_left_to_the_owner(world: StrayWorld) -> None:
    handle = await world.client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    with pytest.raises(CannotTell, match="which is open"):
        await world.strays.restore(handle.ledger_id)


# ------------------------------------------------------------------------------------------- topics


async def test_a_ledger_goes_back_to_its_place_in_a_topic(world: StrayWorld) -> None:
    await world.publish(b"a")
    lost = await world.publish(b"b", b"c")
    await world.publish(b"d")
    await world.forget(lost)
    made = await world.strays.restore(lost, topic=TOPIC)
    assert dict(made.metadata.custom_metadata)["pulsar/managed-ledger"] == NAME.encode()
    assert await world.strays.put_into(TOPIC, lost)
    assert not await world.strays.put_into(TOPIC, lost)
    ledger = await world.topic()
    assert [bytes(one.data) for one in await read_all(ledger)] == [b"a", b"b", b"c", b"d"]
    await ledger.close()


async def test_behind_the_last_ledger_of_a_topic_that_one_is_closed_first(world: StrayWorld) -> None:
    """The old metadata say that it is written to still."""
    ledger = await world.topic()
    ledger.append([b"a", b"b"], [b"a", b"b"])
    await eventually(lambda: not ledger.pending_count)
    path = f"/managed-ledgers/{NAME}"
    before = await world.cluster.store.get(path)
    assert before is not None
    open_record = await world.client.ledgers.read(ledger.ledgers.last_confirmed.ledger_id)
    await ledger.close()
    lost = await world.publish(b"c")
    await world.cluster.store.put(path, before.value)
    found = await world.client.ledgers.read(ledger.ledgers.last_confirmed.ledger_id)
    await world.client.ledgers.write(ledger.ledgers.last_confirmed.ledger_id, open_record.metadata, found.version)
    await world.cluster.store.delete(ledger_path("/ledgers", lost))
    await world.strays.restore(lost, topic=TOPIC)
    assert await world.strays.put_into(TOPIC, lost)
    ledger = await world.topic()
    assert [bytes(one.data) for one in await read_all(ledger)] == [b"a", b"b", b"c"]
    await ledger.close()


async def test_a_topic_whose_record_is_gone_is_made_anew(world: StrayWorld) -> None:
    lost = await world.publish(b"a", b"b")
    await world.forget(lost)
    await world.cluster.store.delete(f"/managed-ledgers/{NAME}")
    await world.strays.restore(lost, topic=TOPIC)
    assert await world.strays.put_into(TOPIC, lost)
    ledger = await world.topic()
    assert [bytes(one.data) for one in await read_all(ledger)] == [b"a", b"b"]
    await ledger.close()


async def test_while_brokers_are_there_no_topic_is_changed(world: StrayWorld) -> None:
    lost = await world.publish(b"a")
    await world.cluster.store.put("/loadbalance/brokers/b1:8080", b"{}")
    with pytest.raises(CannotTell, match="stop the brokers first: b1:8080"):
        await world.strays.put_into(TOPIC, lost)


async def test_a_topic_with_partitions_has_no_ledgers_of_its_own(world: StrayWorld) -> None:
    lost = await world.publish(b"a")
    await world.cluster.store.put(TOPIC.partitions_path, b'{"partitions": 4}')
    for refused in (world.strays.check_may_get_ledgers(TOPIC), world.strays.put_into(TOPIC, lost)):
        with pytest.raises(CannotTell, match=f"{TOPIC.local} has partitions: name one of them, as {TOPIC}-partition-0"):
            await refused


@pytest.mark.parametrize("says_topic", [True, False])
async def test_a_ledger_is_in_one_topic_only(world: StrayWorld, says_topic: bool) -> None:
    """The topic that is deleted first would take it from the other one."""
    lost = await world.publish(b"a")
    await world.forget(lost)
    await world.strays.restore(lost, topic=TOPIC if says_topic else None)
    assert await world.strays.put_into(TOPIC, lost)
    made = (await world.client.ledgers.read(lost)).metadata
    assert dict(made.custom_metadata)["pulsar/managed-ledger"] == NAME.encode()
    other = TopicName.parse(f"{TOPIC}-partition-0")
    with pytest.raises(CannotTell, match=f"ledger {lost} stands in {TOPIC} already"):
        await world.strays.put_into(other, lost)
    await world.cluster.store.delete(f"/managed-ledgers/{NAME}")
    assert await world.strays.put_into(other, lost), "that topic was deleted, or never had it"


# ------------------------------------------------------------------------------------------- the list


async def test_strays_are_listed_with_what_their_first_message_says(
    world: StrayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1_795_000_000_000)
    handle = await world.client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    await handle.add(encode_entry(metadata, b"hello"))
    await world.cluster.store.delete(ledger_path("/ledgers", handle.ledger_id))
    plain = await world.write(4, (2, 2, 2))
    known = await world.client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    await known.add(b"x")
    ports = {f"http://127.0.0.1:{one.port}": one for one in world.cluster.bookies.values()}
    _with_http(world, monkeypatch, lambda url, bookie_id: sorted(ports[url].ledgers))
    found = await world.strays.find(10)
    assert [(one.ledger_id, one.entries, one.producer, one.published_ms) for one in found.ledgers] == [
        (handle.ledger_id, 1, "p", 1_795_000_000_000),
        (plain, 4, "", 0),
    ]
    assert set(found.ledgers[0].bookies) == set(handle.metadata.bookies())
    assert (found.left, found.silent) == (0, {})
    assert (await world.strays.find(1)).left == 1


def _with_http(world: StrayWorld, monkeypatch: pytest.MonkeyPatch, ask: Callable[[str, str], list[int]]) -> None:
    bookies = world.inspector.bookies

    async def with_http() -> list[KnownBookie]:
        return [one._replace(http=f"http://{one.address}") for one in await bookies()]

    monkeypatch.setattr(world.inspector, "bookies", with_http)
    monkeypatch.setattr(strays, "ledgers_of", ask)


async def test_bookies_that_cannot_be_asked_are_named(world: StrayWorld) -> None:
    found = await world.strays.find(10)
    assert found.ledgers == ()
    assert set(found.silent) == set(world.cluster.bookies)
    assert "httpServerEnabled" in found.silent["bookie-0"]
