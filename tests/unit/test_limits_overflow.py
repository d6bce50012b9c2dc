"""Limits of `docs/limits.md` that no other test overflows. A limit that is large is made small first."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, cast

import pytest

from bookie.access import START_TLS_BYTES_MAX, is_start_tls
from bookie.disks.read_only import DETAIL_CHARS_MAX, Reason, Reasons
from bookie.maintenance.rebuild.digests import _FAILURES_MAX, MetadataDigests
from bookie.serving.cold_reads import ColdRead, _read_all
from bookie.storage.entry_log.files import EntryLogs
from bookie.storage.entry_log.format import LOG_ID_MAX
from bookie.storage.ledger_storage import RESULT_BYTES_MAX
from broker.binary.connection import Connection
from broker.binary.listing import filter_topics
from broker.binary.server import WRITE_BUFFER_MAX_BYTES
from broker.errors import InvalidTopicName, TooManyRequests
from broker.grpc.consume_call import NACK_DELAY_MS_MAX, ConsumeCall
from broker.grpc.publishing.grouping import Run
from broker.grpc.publishing.stream import COPIES, ROLE_SHARE, Share, Stream
from broker.memory_budget import LOOK_S, MemoryBudget
from broker.names import parse_topic
from broker.serving.storage import MARK_DELETE_S_MAX, ledger_config
from broker.settings.config import BrokerConfig, load_broker_config
from broker.settings.groups.cluster import BUNDLES_MAX
from broker.settings.groups.connections import MESSAGE_BYTES_MAX
from broker.settings.groups.topics import PARTITIONS_MAX
from broker.tenancy.administrators import TenantAdmins
from broker.topic.clients.consumer import PERMITS_MAX
from broker.topic.dispatchers.replay_set import ReplaySet
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar.client.async_client import AsyncClient
from magnetar.client.errors import TopicError
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.bookkeeper.client.deciding.add_stages import AddWatch
from magnetar_core.bookkeeper.metadata.stores.store import StoreUnavailable
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.runtime.files import replace_file
from magnetar_core.runtime.types import MIB, ConfigurationError
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import _LOCAL_NAME_BYTES_MAX, TopicName
from managed_ledger.errors import IncompatibleSchema
from managed_ledger.position import Position
from managed_ledger.reading.entry_cache import _OVERHEAD_BYTES, EntryCache
from managed_ledger.schemas.avro import DEPTH_MAX
from managed_ledger.schemas.compatibility import cannot_read
from tests.support.bookie_disks import stored_entry
from tests.support.manual_clock import ManualClock
from tests.support.serving import BookieMachines, Wire
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.topic.dispatching import EXCLUSIVE, KEY_SHARED, SHARED, Bench, entry

__all__ = ["client", "door", "world"]

TOPIC = "persistent://public/default/t"


@pytest.fixture
async def raw(world: BrokerInMemory) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(world.broker.port)
    yield client
    client.close()


# ------------------------------------------------------------------------------------ settings and names


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("defaultNumberOfNamespaceBundles", BUNDLES_MAX),
        ("defaultNumPartitions", PARTITIONS_MAX),
        ("maxMessageSize", MESSAGE_BYTES_MAX),
        ("subscriptionKeySharedConsistentHashingReplicaPoints", 10_000),
    ],
)
def test_a_number_above_its_most_is_refused_with_its_bounds(name: str, most: int) -> None:
    load_broker_config({name: str(most)})
    with pytest.raises(ConfigurationError, match=rf"{name} \({most + 1}\) must be .* to {most}"):
        load_broker_config({name: str(most + 1)})


def test_a_cursor_is_stored_once_a_day_however_small_its_rate() -> None:
    config = ledger_config(BrokerConfig(mark_delete_rate=1e-12))
    assert config.mark_delete_interval_s == MARK_DELETE_S_MAX


def test_a_local_name_has_a_limit() -> None:
    longest = "ü" * (_LOCAL_NAME_BYTES_MAX // 2)
    assert TopicName.parse(longest).local == longest
    with pytest.raises(InvalidTopicName, match="empty or too long"):
        parse_topic(longest + "x")


def test_a_long_pattern_is_left_to_the_client() -> None:
    most = BrokerConfig().pattern_characters_max
    pattern = "public/default/".ljust(most, "x")
    topic = f"persistent://{pattern}"
    assert filter_topics([topic], pattern, most) == [topic]
    assert filter_topics([topic + "x"], pattern + "x", most) is None


# ------------------------------------------------------------------------------------ a subscription


async def test_permits_do_not_grow_for_ever() -> None:
    bench = Bench()
    bench.join(1, SHARED)
    for _ in range(3):
        bench.flow(1, 2**31 - 1)
    assert bench.consumers[1].permits == PERMITS_MAX


async def test_one_event_causes_so_many_reads_and_the_rest_come_in_other_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.topic.reading.pump.READS_PER_EVENT_MAX", 3)
    bench = Bench(read_entries_max=2)
    await bench.append(*map(entry, range(20)))
    peer = bench.join(1, EXCLUSIVE, permits=100)
    assert peer.got == list(range(6))
    bench.pass_time(1)
    assert peer.got == list(range(20))


async def test_while_too_many_delayed_messages_wait_nothing_new_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.topic.dispatchers.shared.DELAYED_MAX", 2)
    bench = Bench(read_entries_max=1, delayed_strict=True)
    at_ms = bench.host.now_ms() + 5_000
    await bench.append(*(entry(number, deliver_at_ms=at_ms) for number in range(4)), entry(4))
    peer = bench.join(1, SHARED, permits=10)
    assert peer.got == []
    bench.pass_time(5)
    assert sorted(peer.got) == list(range(5))


async def test_of_delayed_messages_that_come_at_one_time_so_many_are_read_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.topic.dispatchers.shared.WOKEN_MAX", 3)
    most = 0
    add = ReplaySet.add

    def noting(replay: ReplaySet, position: Position, hash_: int = 0) -> None:
        nonlocal most
        add(replay, position, hash_)
        most = max(most, len(replay))

    monkeypatch.setattr(ReplaySet, "add", noting)
    bench = Bench(delayed_strict=True)
    at_ms = bench.host.now_ms() + 5_000
    await bench.append(*(entry(number, deliver_at_ms=at_ms) for number in range(50)))
    peer = bench.join(1, SHARED, permits=100)
    bench.pass_time(6)
    assert (sorted(peer.got), most) == (list(range(50)), 3)


@pytest.mark.parametrize("limit", ["LOOK_AHEAD_PER_CONSUMER", "LOOK_AHEAD_MAX"])
async def test_keys_that_wait_are_looked_past_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"broker.topic.dispatchers.key_shared.{limit}", 1)
    bench = Bench(read_entries_max=1)
    first, second = bench.join(1, KEY_SHARED), bench.join(2, KEY_SHARED, permits=100)
    await bench.append(*(entry(number, key=f"k{number}") for number in range(60)))
    assert len(second.got) < 30, "the entries of the one who waits stop the reading"
    bench.flow(1, 100)
    bench.pass_time(1)
    assert sorted(first.got + second.got) == list(range(60))


# ------------------------------------------------------------------------------------ a connection


async def test_requests_that_wait_stop_the_reading(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.binary.flow.ARRIVALS_MAX", 4)
    monkeypatch.setattr("broker.binary.flow.REQUESTS_MAX", 4)
    world.ledgers.hold_opening = asyncio.Event()
    for number in range(8):
        raw.send(BaseCommand.PRODUCER, topic=f"{TOPIC}{number}", producer_id=number, request_id=number)
        await raw.writer.drain()
        await asyncio.sleep(0.02)
    raw.send(BaseCommand.PING)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await raw.answer()
    world.ledgers.hold_opening.set()
    answers = [(await raw.answer()).type for _ in range(9)]
    assert sorted(answers) == sorted([BaseCommand.PRODUCER_SUCCESS] * 8 + [BaseCommand.PONG])


async def test_too_many_ids_to_redeliver_mean_all_that_is_open(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.binary.consumers.REDELIVERED_IDS_MAX", 2)
    await raw.produce(TOPIC)
    await raw.subscribe(TOPIC, subType=wire.CommandSubscribe.Shared)
    raw.publish(1, *range(5))
    answers = [await raw.answer() for _ in range(10)]
    ids = [one.message.message_id for one in answers if one.type == BaseCommand.MESSAGE]
    for named, comes_again in ((ids[:2], 2), (ids[:3], 5)):
        raw.send(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=named)
        for _ in range(comes_again):
            await raw.expect(BaseCommand.MESSAGE)
        assert await raw.nothing_came()


async def test_frames_of_one_chunk_are_worked_on_in_turns(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    on_frames = Connection.on_frames

    def noting(connection: Connection, frames: Any, *more: Any) -> int:
        done = on_frames(connection, frames, *more)
        turns.append(done)
        return done

    monkeypatch.setattr("broker.binary.server.FRAMES_PER_TURN", 3)
    monkeypatch.setattr(Connection, "on_frames", noting)
    for _ in range(10):
        raw.send(BaseCommand.PING)
    for _ in range(10):
        await raw.expect(BaseCommand.PONG)
    assert (sum(turns), max(turns)) == (10, 3)


async def test_who_leaves_an_immense_answer_unread_is_disconnected(world: BrokerInMemory, raw: RawClient) -> None:
    (client,) = world.broker.server.clients
    client.write(bytes(WRITE_BUFFER_MAX_BYTES + 32 * 1024 * 1024))
    async with asyncio.timeout(20):
        while world.broker.server.clients:
            await asyncio.sleep(0.01)


async def test_topics_are_opened_so_many_at_a_time(world: BrokerInMemory) -> None:
    await world.restart(max_concurrent_topic_loads=2)
    world.ledgers.opened.clear()
    world.ledgers.hold_opening = asyncio.Event()
    names = [TopicName.parse(f"{TOPIC}{number}") for number in range(5)]
    opening = [asyncio.create_task(world.broker.topic_for_producer(name)) for name in names]
    await asyncio.sleep(0.1)
    assert len(world.ledgers.opened) == 2
    world.ledgers.hold_opening.set()
    assert [topic.name for topic in await asyncio.gather(*opening)] == names


async def test_topics_are_closed_so_many_at_a_time(world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.broker.CLOSING_MAX", 2)
    for number in range(6):
        await world.broker.topic_for_producer(TopicName.parse(f"{TOPIC}{number}"))
    closing, most = 0, 0
    unload = world.broker.opening.unload

    async def noting(name: TopicName) -> None:
        nonlocal closing, most
        closing += 1
        most = max(most, closing)
        await asyncio.sleep(0.01)
        await unload(name)
        closing -= 1

    broker = world.broker
    monkeypatch.setattr(broker.opening, "unload", noting)
    await world.restart()
    assert (most, broker.topics) == (2, {})


@pytest.mark.parametrize("limit", ["STREAM_MESSAGES_MAX", "STREAM_BYTES_MAX"])
def test_a_publish_call_is_not_read_while_too_much_is_unanswered(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"broker.grpc.publishing.stream.{limit}", 10)
    stream = Stream(b"", False, -1, Share(MemoryBudget(1 << 20, ManualClock().call_later)), lambda: None)
    stream.on_taken(10, 10)
    assert stream.may_read()
    stream.on_taken(1, 1)
    assert not stream.may_read()
    stream.on_stored(Run(stream, 0, 6, 6), None)
    assert not stream.may_read()
    stream.on_stored(Run(stream, 6, 1, 1), None)
    assert stream.may_read()


def test_a_publish_call_is_not_read_while_its_client_reads_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused, or was stored before, is under way no longer; the answer is."""
    monkeypatch.setattr("broker.grpc.publishing.stream.RECEIPTS_PER_ANSWER", 1)
    monkeypatch.setattr("broker.grpc.publishing.stream.ANSWERS_MAX", 2)
    stream = Stream(b"", False, -1, Share(MemoryBudget(1 << 20, ManualClock().call_later)), lambda: None)
    stream.refuse(0, "too large")
    stream.duplicate(1, 1)
    assert stream.may_read()
    stream.refuse(2, "too large")
    assert not stream.may_read()
    stream.out.popleft()
    assert stream.may_read()


def test_publish_calls_of_a_role_leave_memory_to_others() -> None:
    budget = MemoryBudget(1_000, ManualClock().call_later)
    share = Share(budget)
    woken: list[int] = []
    one, same, other = (
        Stream(b"", False, -1, of, partial(woken.append, number))
        for number, of in enumerate((share, share, Share(budget)))
    )
    half = int(ROLE_SHARE * 1_000) // COPIES
    one.on_taken(1, half + 1)
    assert not one.may_read()
    assert not same.may_read(), "nor is a call that has nothing under way itself"
    assert other.may_read()
    assert woken == []
    one.on_refused(Run(one, 0, 1, half + 1), "")
    assert set(woken) == {0, 1}
    assert one.may_read()
    assert same.may_read()
    same.on_taken(1, half + 1)
    assert not one.may_read()
    woken.clear()
    same.end(None)
    assert set(woken) == {0, 1}
    assert one.may_read()
    assert same.may_read(), "it is over, and who waits has to see that"
    assert budget.used_bytes == 0


def test_a_publish_call_is_not_read_while_all_clients_have_too_much_under_way() -> None:
    clock = ManualClock()
    budget = MemoryBudget(1_000, clock.call_later)
    budget.take(1_000)  # for clients of the binary port
    woken: list[None] = []
    stream = Stream(b"", False, -1, Share(budget), lambda: woken.append(None))
    assert not stream.may_read(), "a call that has nothing under way would bring one more"
    budget.give(1_000)
    assert not stream.may_read(), "others may wait before it"
    clock.advance(LOOK_S)
    assert woken == [None]
    assert stream.may_read()
    budget.take(1_000)
    assert not stream.may_read(), "its turn was for one request"


async def test_a_nack_waits_a_day_at_most(client: AsyncClient) -> None:
    async with client.consumer("t", "s", type="shared") as consumer:
        await client.producer("t").send(b"x")
        message = await consumer.receive(5)
        with pytest.raises(TopicError, match=f"0 to {NACK_DELAY_MS_MAX} ms"):
            await consumer.nack(message, delay_s=NACK_DELAY_MS_MAX / 1000 + 1)
        await consumer.nack(message, delay_s=NACK_DELAY_MS_MAX / 1000)


async def test_delayed_nacks_of_a_call_are_limited(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.grpc.consume_call.NACKS_MAX", 2)
    async with client.consumer("t", "s", type="shared") as consumer:
        await client.producer("t").send(b"x")
        message = await consumer.receive(5)
        for _ in range(2):
            await consumer.nack(message, delay_s=60)
        with pytest.raises(TopicError, match="2 requests with delayed nacks are under way"):
            await consumer.nack(message, delay_s=60)


def consume_call(world: BrokerInMemory) -> ConsumeCall:
    (attached,) = world.broker.topics[TopicName.parse("t")].subscriptions["s"].consumers
    assert isinstance(attached.sink, ConsumeCall)
    return attached.sink


async def test_entries_of_delayed_nacks_are_limited_and_gone_with_their_call(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the consumer does not have are passed over: an id is 20 bytes on the wire, and waits a day."""
    monkeypatch.setattr("broker.grpc.consume_call.NACKED_ENTRIES_MAX", 3)
    async with client.consumer("t", "s", type="shared") as consumer:
        for _ in range(2):
            await client.producer("t").send(b"x")
        messages = [await consumer.receive(5) for _ in range(2)]
        call = consume_call(world)
        others = api.ConsumeRequest()
        others.nack.delay_ms = NACK_DELAY_MS_MAX
        for entry_id in range(10_000):
            others.nack.ids.add(ledger_id=10**9, entry_id=entry_id)
        await call.handle(others)
        await consumer.nack(messages, delay_s=60)
        await consumer.nack(messages[0], delay_s=60)
        assert len(call._nacks) == 2
        with pytest.raises(TopicError, match="nacks of 3 entries are under way, and 3 may be"):
            await consumer.nack(messages[1], delay_s=60)
        timers = list(cast(Any, call._nacks))
        assert not any(timer.cancelled() for timer in timers)
    await eventually(lambda: all(timer.cancelled() for timer in timers))


async def test_a_consume_call_is_not_read_while_its_client_reads_no_answers(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.grpc.consume_call.ANSWERS_MAX", 2)
    async with client.consumer("t", "s"):
        call = consume_call(world)
        may_read = []
        for number in range(1, 4):  # nobody else has a turn meanwhile
            await call.handle(api.ConsumeRequest(request_id=number))
            may_read.append(call.may_read.is_set())
        assert may_read == [True, True, False]
        await asyncio.wait_for(call.may_read.wait(), 5)
        assert call._answers <= 2


@pytest.mark.parametrize(("limit", "most"), [("PENDING_MESSAGES_MAX", 4), ("PENDING_BYTES_MAX", 4 * 164)])
async def test_send_waits_while_too_much_is_not_acknowledged(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(f"magnetar.client.publishing.{limit}", most)
    async with client.producer("t") as producer:
        await producer.send(bytes(100))
        ledger = world.ledger(TOPIC)
        ledger.hold = True
        sending = [asyncio.create_task(producer.send(bytes(100))) for _ in range(20)]
        await asyncio.sleep(0.1)
        (stream,) = producer._streams
        assert 4 < stream._pending_messages < 10
        ledger.hold = False
        ledger.release()
        ids = await asyncio.gather(*sending)
        assert len(set(ids)) == 20


async def test_lookups_under_way_are_limited(world: BrokerInMemory) -> None:
    await world.restart(max_concurrent_lookups=1)
    is_held = asyncio.Event()
    locate = world.ownership.locate

    async def slow(*arguments: Any, **named: Any) -> Any:
        await is_held.wait()
        return await locate(*arguments, **named)

    cast(Any, world.ownership).locate = slow
    name = TopicName.parse(TOPIC)
    first = asyncio.create_task(world.broker.lookup(name, authoritative=False, listener=""))
    await asyncio.sleep(0.01)
    with pytest.raises(TooManyRequests, match="too many pending lookup requests"):
        await world.broker.lookup(name, authoritative=False, listener="")
    is_held.set()
    assert await first


async def refuse_one_more(raw: RawClient) -> None:
    raw.send(
        BaseCommand.SUBSCRIBE,
        topic=TOPIC,
        consumer_id=9,
        request_id=9,
        subscription="s",
        subType=wire.CommandSubscribe.Shared,
    )
    answer = await raw.answer()
    while answer.type == BaseCommand.PING:  # the broker looks whether those in the way are alive
        raw.send(BaseCommand.PONG)
        answer = await raw.answer()
    assert answer.error.error == wire.ConsumerBusy


@pytest.mark.parametrize("setting", ["max_consumers_per_topic", "max_consumers_per_subscription"])
async def test_consumers_are_limited(world: BrokerInMemory, setting: str) -> None:
    await world.restart(**{setting: 2})
    raw = await RawClient.connect(world.broker.port)
    for number in range(2):
        await raw.subscribe(TOPIC, consumer_id=number, subType=wire.CommandSubscribe.Shared)
    await refuse_one_more(raw)
    raw.close()


@pytest.mark.parametrize("policy", ["max_consumers_per_topic", "max_consumers_per_subscription"])
async def test_a_limit_of_consumers_holds_where_some_are_already(
    world: BrokerInMemory, raw: RawClient, policy: str
) -> None:
    await raw.subscribe(TOPIC, subType=wire.CommandSubscribe.Shared)
    topic = world.broker.topics[TopicName.parse(TOPIC)]
    await world.set_policies("public/default", **{policy: 1})
    async with asyncio.timeout(5):
        while getattr(topic.policies, policy) != 1:
            await asyncio.sleep(0.01)
    await refuse_one_more(raw)


async def test_producers_of_a_topic_are_limited(world: BrokerInMemory) -> None:
    await world.restart(max_producers_per_topic=1)
    raw = await RawClient.connect(world.broker.port)
    await raw.produce(TOPIC)
    raw.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=2, request_id=9)
    assert await raw.refused() == wire.ProducerBusy
    raw.close()


async def test_the_namespace_not_used_for_longest_is_forgotten(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.tenancy.namespaces.NAMESPACES_MAX", 2)
    names = [f"public/n{number}" for number in range(4)]
    for name in names:
        await world.set_policies(name)
        await world.broker.namespace(name)
    assert world.broker.namespaces.names == names[2:]
    assert await world.broker.namespace(names[0])


async def test_the_tenant_not_asked_about_for_longest_is_forgotten(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.tenancy.administrators.TENANTS_MAX", 2)
    admins = TenantAdmins(world.store, lambda _: None)
    for number in range(4):
        await world.store.put(f"/admin/policies/t{number}", b'{"adminRoles":["boss"]}')
        assert await admins.admins_of(f"t{number}") == frozenset(("boss",))
    assert admins.names == ["t2", "t3"]
    for number in range(4, 8):
        assert await admins.admins_of(f"t{number}") is None, "there is no such tenant"
    assert admins.names == ["t2", "t3"], "names that anybody can invent push nobody out"
    assert await admins.admins_of("t0") == frozenset(("boss",))
    admins.close()


# ------------------------------------------------------------------------------------ the managed ledger


def test_the_oldest_entries_leave_a_full_cache() -> None:
    size = 30 + _OVERHEAD_BYTES  # what Python needs for it counts, too
    cache = EntryCache(3 * size + 20)
    cache.put_run(1, 0, [bytes(30)] * 5)
    assert cache.bytes_used == 3 * size
    assert cache.get_run(1, 0, 4, 1_000) == []
    assert len(cache.get_run(1, 2, 4, 1_000)) == 3


def test_a_schema_nests_to_a_limit() -> None:
    def nested(depth: int) -> Any:
        schema: Any = "int"
        for _ in range(depth):
            schema = {"type": "array", "items": schema}
        return schema

    assert cannot_read(nested(DEPTH_MAX - 1), nested(DEPTH_MAX - 1)) == []
    with pytest.raises(IncompatibleSchema, match=f"deeper than {DEPTH_MAX} levels"):
        cannot_read(nested(DEPTH_MAX + 1), "int")


# ------------------------------------------------------------------------------------ the client of the bookies


def test_answers_of_a_bookie_that_is_ahead_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar_core.bookkeeper.client.deciding.add_stages.ANSWERS_MAX", 3)
    watch = AddWatch(2, False, 1.0)
    watch.appended(100, 0.0)
    for number in range(10):
        watch.answered(0, number, float(number))
    assert [entry_id for entry_id, _ in watch._answers[0]] == [7, 8, 9]


# ------------------------------------------------------------------------------------ the bookie


def test_a_job_of_reads_ends_when_its_results_have_become_large() -> None:
    def reading(size: int) -> ColdRead:
        return ColdRead(lambda _: (size, size), lambda *_: None)

    third = RESULT_BYTES_MAX // 3 + 1
    assert [result for result, _ in _read_all([reading(third)] * 9)] == [third] * 3
    assert len(_read_all([reading(100)] * 9)) == 9


def test_start_tls_has_a_limit() -> None:
    def asking(context: int) -> memoryview:
        made = v3.request(v3.START_TLS, 7)
        made.startTLSRequest.SetInParent()
        made.requestContext.add(key="k", value="v" * context)
        return memoryview(v3.frame_of(made))[4:]

    assert is_start_tls(asking(START_TLS_BYTES_MAX // 2)) == 7
    assert is_start_tls(asking(START_TLS_BYTES_MAX)) is None


async def test_long_polls_beyond_the_limit_are_answered_at_once() -> None:
    async with BookieMachines().serving() as bookie:
        bookie.server.limits = bookie.server.limits._replace(long_polls=2)
        assert await (await Wire.connect(bookie)).add(stored_entry(1, 0)) == 0
        wire = await Wire.connect(bookie)
        polls = [v3.read_request(number, 1, -1, previous_lac=5, timeout_ms=60_000, piggyback=True) for number in (1, 2)]
        wire.send(*polls)
        async with asyncio.timeout(5):
            while bookie.server.long_polls < 2:
                await asyncio.sleep(0.01)
        third = await wire.ask_v3(v3.read_request(3, 1, -1, previous_lac=5, timeout_ms=60_000, piggyback=True))
        assert (third.header.txnId, bookie.server.long_polls) == (3, 2)


async def test_an_answer_to_a_batch_read_ends_at_the_bookies_limit_too() -> None:
    entries = [stored_entry(1, entry_id, bytes(100)) for entry_id in range(10)]
    three = 36 + 3 * (len(entries[0]) + 4)
    for limit, expected in ((5 * MIB, 10), (three, 3), (three - 1, 2)):
        async with BookieMachines().serving(batch_read_bytes_max=limit) as bookie:
            wire = await Wire.connect(bookie)
            for one in entries:
                assert await wire.add(one) == 0
            _, rc, _, _, found, _ = await wire.ask(v2.batch_read_request(1, 0, 7, 0, MIB))
            assert rc == 0
            assert isinstance(found, list)
            assert len(found) == expected


def test_what_an_operator_says_is_cut() -> None:
    reasons = Reasons()
    reasons.set(Reason.OPERATOR, "x" * DETAIL_CHARS_MAX + "y")
    assert reasons.held[Reason.OPERATOR] == "x" * DETAIL_CHARS_MAX


async def test_a_store_that_does_not_answer_is_asked_so_often() -> None:
    asked = 0

    class Silent:
        async def read(self, ledger_id: int) -> Any:
            nonlocal asked
            asked += 1
            raise StoreUnavailable("nobody answers")

    digests = MetadataDigests(cast(Any, Silent()))
    for ledger_id in range(10):
        assert await asyncio.to_thread(digests, ledger_id) is None
    assert asked == _FAILURES_MAX


def entry_logs(files: MemoryFiles, count: int) -> tuple[EntryLogs, list[int]]:
    """Logs of an entry each, and where those entries are."""
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 4096)
    located = logs.append([(1, number, stored_entry(1, number, bytes(3000))) for number in range(count)])
    logs.sync()
    return logs, [location for _, _, location in located]


def test_so_many_logs_are_open_for_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.storage.entry_log.files.OPEN_LOGS_MAX", 3)
    monkeypatch.setattr("bookie.storage.entry_log.files.RETIRED_LOGS_MAX", 2)
    logs, locations = entry_logs(MemoryFiles(), 9)
    assert len({location >> 32 for location in locations}) == 9
    for _ in range(2):
        for entry_id, location in enumerate(locations):
            assert logs.read(location, 1, entry_id) == stored_entry(1, entry_id, bytes(3000))
            assert len(logs._open) <= 3
            assert len(logs._retired) <= 2


def test_the_ids_of_entry_logs_end() -> None:
    files = MemoryFiles()
    files.make_directories("/l")
    replace_file(files, "/l/lastId", f"{LOG_ID_MAX - 1:x}\n".encode())
    logs = EntryLogs(files, "/l", 4096)
    assert logs.next_log_id() == LOG_ID_MAX
    with pytest.raises(OSError, match="entry log ids are used up in /l"):
        logs.next_log_id()
