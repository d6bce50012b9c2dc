"""What policies do: rates, quotas, limits and what is removed by itself, seen by clients made of bare frames."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from broker.errors import MetadataFailure
from broker.names import DEDUPLICATION_CURSOR
from broker.policies.namespace import NamespacePolicies
from broker.records.json_records import RecordChanged
from broker.serving import deleting, in_force
from broker.settings.config import change_in_use
from broker.topic.rates.throttling import DispatchThrottle
from broker.topic.topic import Topic
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.bookkeeper.metadata.stores.store import StoreUnavailable
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.compacted.entry import COMPACTION_CURSOR
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import EncryptionKeys, MessageMetadata
from managed_ledger.position import EARLIEST
from tests.support.waiting import eventually, take_turns
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.raw_client import RawClient

ADMIN = "/admin/v2"
SPACE = f"{ADMIN}/namespaces/public/default"
TOPIC = f"{ADMIN}/persistent/public/default/t"
NAME = TopicName.parse("persistent://public/default/t")


class Stage:
    """A broker with one topic, and two clients."""

    def __init__(self, world: AdminWorld, side: Side, producer: RawClient, consumer: RawClient) -> None:
        self.world = world
        self.side = side
        self.producer = producer
        self.consumer = consumer

    @property
    def topic(self) -> Topic:
        return self.side.broker.topics[NAME]

    async def call(self, method: str, path: str, body: Any = None, status: int = 204) -> Any:
        found = await self.world.call(self.side, method, path, body)
        assert found.status == status, found.text
        return found

    async def receipts(self, count: int) -> None:
        for _ in range(count):
            await self.producer.expect(BaseCommand.SEND_RECEIPT)

    async def filled(self, count: int, size: int = 1000) -> None:
        """So many entries, and a durable subscription before them."""
        await self.call("PUT", f"{TOPIC}/subscription/s", {"ledgerId": -1, "entryId": -1})
        await self.producer.produce(str(NAME))
        for number in range(count):
            self.producer.publish(1, number, data=entry(number, b"x" * size))
        await self.receipts(count)


def entry(number: int, payload: bytes = b"x", **fields: Any) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1000 + number, **fields)
    return encode_entry(metadata, payload)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        side = await world.side()
        clients = [await RawClient.connect(side.broker.port) for _ in range(2)]
        made = Stage(world, side, *clients)
        await made.call("PUT", TOPIC)
        yield made
        for client in clients:
            client.close()


# ---------------------------------------------------------------------------------------- changes


@pytest.mark.parametrize("level", [SPACE, TOPIC])
async def test_what_changes_while_a_topic_is_being_opened_holds(
    stage: Stage, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = stage.side.broker
    await stage.call("PUT", f"{TOPIC}/unload")
    assert NAME not in broker.topics
    opening, may_open = asyncio.Event(), asyncio.Event()
    opened = broker.ledgers.open

    async def slow(*args: Any, **options: Any) -> Any:
        if args[0] == NAME.managed_ledger_name:
            opening.set()
            await may_open.wait()
        return await opened(*args, **options)

    monkeypatch.setattr(broker.ledgers, "open", slow)
    producing = asyncio.ensure_future(stage.producer.produce(str(NAME)))
    await opening.wait()
    await stage.call("POST", f"{level}/maxConsumers" + ("PerTopic" if level == SPACE else ""), 7)

    async def is_in_force() -> bool:
        return (await broker.in_force.policies_of(NAME)).max_consumers_per_topic == 7

    await eventually(is_in_force)
    may_open.set()
    await producing
    assert stage.topic.policies.max_consumers_per_topic == 7


@pytest.mark.parametrize("level", [SPACE, TOPIC])
async def test_what_could_not_be_read_when_it_changed_is_read_again(
    stage: Stage, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata store does not answer for a moment, and nobody changes the policies once more."""
    monkeypatch.setattr(in_force, "RETRY_FIRST_S", 0.01)
    broker, other = stage.side.broker, await stage.world.side()
    failures = [MetadataFailure("the metadata store does not answer")] * 3
    apply, read = broker.in_force._apply, broker.tenancy.policies

    async def unapplied(topic: Topic, policies: NamespacePolicies) -> None:
        if failures:
            raise failures.pop()
        await apply(topic, policies)

    async def unread(namespace: str) -> NamespacePolicies | None:
        if failures:
            raise StoreUnavailable(str(failures.pop()))
        return await read(namespace)

    if level == SPACE:
        monkeypatch.setattr(broker.tenancy, "policies", unread)
    else:
        monkeypatch.setattr(broker.in_force, "_apply", unapplied)
    found = await stage.world.call(other, "POST", f"{level}/maxConsumers" + ("PerTopic" if level == SPACE else ""), 7)
    assert found.status in (204, 307), found.text
    if found.status == 307:  # the topic's owner is asked
        await stage.call("POST", f"{level}/maxConsumers", 7)
    await eventually(lambda: stage.topic.policies.max_consumers_per_topic == 7)
    assert not failures


async def test_policies_that_change_behind_a_split_that_failed_reach_the_topics(stage: Stage) -> None:
    """The bundles are asked for anew then, when somebody needs them; what else changes until then counts, too."""
    broker, other = stage.side.broker, await stage.world.side()
    await stage.call("POST", f"{SPACE}/maxConsumersPerTopic", 8)
    await eventually(lambda: stage.topic.policies.max_consumers_per_topic == 8)
    now = await broker.bundles_now(NAME.namespace)
    with pytest.raises(RecordChanged):
        await broker.cut_namespace(NAME.namespace, now.cut([7]), now.cut([7, 8]))
    await take_turns()
    found = await stage.world.call(other, "POST", f"{SPACE}/maxConsumersPerTopic", 7)
    assert found.status == 204, found.text
    await eventually(lambda: stage.topic.policies.max_consumers_per_topic == 7)


async def test_topics_are_told_nothing_where_only_bundles_are_split(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int | None] = []
    apply = stage.topic.apply_policies

    async def watched(policies: NamespacePolicies) -> None:
        told.append(policies.max_consumers_per_topic)
        await apply(policies)

    monkeypatch.setattr(stage.topic, "apply_policies", watched)
    await stage.call("POST", f"{SPACE}/maxConsumersPerTopic", 7)
    await eventually(lambda: 7 in told)
    broker, other = stage.side.broker, (await stage.world.side()).broker
    for count in range(17, 20):
        before = await other.bundles_now("public/default")
        await other.tenancy.cut_namespace("public/default", before, before.cut([count]))

        async def is_seen(count: int = count) -> bool:
            return len((await broker.bundles_of("public/default")).ranges) == count

        await eventually(is_seen)
    await stage.call("POST", f"{SPACE}/maxConsumersPerTopic", 8)
    await eventually(lambda: 8 in told)
    assert told.count(7) <= 2, "the change itself may be seen twice"


# ------------------------------------------------------------------------------------------ rates


@pytest.mark.parametrize("level", [SPACE, TOPIC])
async def test_who_publishes_too_fast_is_not_read_for_a_while_and_loses_nothing(stage: Stage, level: str) -> None:
    await stage.call("POST", f"{level}/publishRate", {"publishThrottlingRateInMsg": 20})
    await eventually(lambda: stage.topic.publish_throttle.is_on)
    await stage.producer.produce(str(NAME))
    for number in range(30):
        stage.producer.publish(1, number)
        await asyncio.sleep(0)
    stage.producer.publish(1, 30)
    await stage.receipts(31)
    assert stage.topic.publish_throttle.times > 0
    stats = (await stage.call("GET", f"{TOPIC}/stats", status=200)).json
    assert stats["publishRateLimitedTimes"] == stage.topic.publish_throttle.times


@pytest.mark.parametrize(
    ("messages", "size_bytes", "sizes"), [(20, 0, [10]), (0, 2_000, [100]), (20, 2_000, [10, 200])]
)
async def test_of_what_one_read_of_the_socket_brings_only_so_much_is_stored_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, messages: int, size_bytes: int, sizes: list[int]
) -> None:
    monkeypatch.setattr("broker.binary.held_sends.HOLD_STEP_MS", 5)
    now_ms = stage.world.clock.wall_ms()
    monkeypatch.setattr(stage.world.clock, "wall_ms", lambda: now_ms)
    rate = {"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": size_bytes}
    await stage.call("POST", f"{TOPIC}/publishRate", rate)
    throttle = stage.topic.publish_throttle
    await eventually(lambda: throttle.is_on)
    await stage.producer.produce(str(NAME))
    other = TopicName.parse(f"{NAME}-beside")
    await stage.call("PUT", f"{TOPIC}-beside")
    await stage.producer.produce(str(other), 2)
    sent = [entry(number, bytes(sizes[number % len(sizes)])) for number in range(1_000)]
    for number, one in enumerate(sent):
        stage.producer.publish(1, number, data=one)
    stage.producer.publish(2, 0)
    beside = stage.side.broker.topics[other]

    def seconds(count: int) -> float:
        size = sum(map(len, sent[:count]))
        return max(count / messages if messages else 0, size / size_bytes if size_bytes else 0)

    for second in range(1, 4):
        await eventually(partial(lambda used: seconds(stage.topic.messages_in) > used, second))
        await take_turns()
        assert throttle.times == second
        assert seconds(stage.topic.messages_in - 1) <= second, "the last one has used it up"
        assert beside.messages_in == 1, "another topic of the connection"
        now_ms += 1_000
    await stage.call("DELETE", f"{TOPIC}/publishRate")
    await eventually(lambda: (stage.topic.messages_in, beside.messages_in) == (1_000, 1))


async def test_a_rate_that_is_taken_back_lets_a_producer_go_on_that_would_wait_for_hours(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.binary.held_sends.HOLD_STEP_MS", 10)
    await stage.call("POST", f"{TOPIC}/publishRate", {"publishThrottlingRateInByte": 1})
    await eventually(lambda: stage.topic.publish_throttle.is_on)
    await stage.producer.produce(str(NAME))
    stage.producer.publish(1, 0, data=entry(0, b"x" * 100_000))
    await stage.receipts(1)
    stage.producer.publish(1, 1)
    await stage.call("DELETE", f"{TOPIC}/publishRate")
    await stage.receipts(1)


# ------------------------------------------------------------------------------- what is set aside


class Frozen:
    """A topic whose rate lets 20 messages a second in (and the one that uses it up), and a clock that stands still."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage = stage
        self.now_ms = stage.world.clock.wall_ms()
        monkeypatch.setattr(stage.world.clock, "wall_ms", lambda: self.now_ms)
        monkeypatch.setattr("broker.binary.held_sends.HOLD_STEP_MS", 5)
        monkeypatch.setattr("broker.binary.flow.HOLD_STEP_MS", 5)

    async def begin(self, count: int) -> None:
        stage = self.stage
        await stage.call("POST", f"{TOPIC}/publishRate", {"publishThrottlingRateInMsg": 20})
        await eventually(lambda: stage.topic.publish_throttle.is_on)
        await stage.producer.produce(str(NAME))
        for number in range(count):
            stage.producer.publish(1, number, data=entry(number))
        await stage.receipts(min(count, 21))

    @property
    def held_bytes(self) -> int:
        return self.stage.side.broker.set_aside.used_bytes


@pytest.fixture
def frozen(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Frozen:
    return Frozen(stage, monkeypatch)


async def test_a_producer_is_closed_behind_what_it_has_sent(frozen: Frozen) -> None:
    await frozen.begin(30)
    client = frozen.stage.producer
    client.send(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=77)
    await take_turns()
    assert frozen.stage.topic.producers, "nine of its messages wait"
    frozen.now_ms += 1_000
    await frozen.stage.receipts(9)
    assert (await client.expect(BaseCommand.SUCCESS)).success.request_id == 77
    assert frozen.held_bytes == 0


async def test_a_message_behind_them_is_refused_when_it_is_its_turn(frozen: Frozen) -> None:
    await frozen.begin(25)
    client = frozen.stage.producer
    client.publish(1, 25, data=b"\0\0\0\xffx")
    client.publish(1, 26, data=entry(26))
    assert await client.nothing_came()
    frozen.now_ms += 1_000
    answers = [await client.answer() for _ in range(6)]
    assert [one.send_error.sequence_id for one in answers if one.type == BaseCommand.SEND_ERROR] == [25]
    receipts = [one.send_receipt.sequence_id for one in answers if one.type == BaseCommand.SEND_RECEIPT]
    assert receipts == [21, 22, 23, 24, 26]


async def test_what_a_producer_sends_again_is_stored_once(frozen: Frozen) -> None:
    await frozen.begin(25)
    client = frozen.stage.producer
    client.send(
        BaseCommand.PRODUCER, topic=str(NAME), producer_id=1, request_id=78, epoch=1,
        producer_name="p", user_provided_producer_name=False,
    )  # fmt: skip
    await client.expect(BaseCommand.PRODUCER_SUCCESS)
    assert frozen.held_bytes == 0
    for number in range(21, 25):
        client.publish(1, number, data=entry(number))
    await take_turns()
    frozen.now_ms += 1_000
    await frozen.stage.receipts(4)
    assert frozen.stage.topic.messages_in == 25


async def test_what_is_set_aside_goes_with_its_connection(frozen: Frozen) -> None:
    await frozen.begin(30)
    await eventually(lambda: frozen.held_bytes > 0)
    frozen.stage.producer.close()
    await eventually(lambda: frozen.held_bytes == 0)
    frozen.now_ms += 1_000
    await asyncio.sleep(0.02)
    assert frozen.stage.topic.messages_in == 21


async def test_where_a_rate_is_taken_back_what_was_set_aside_goes_on_in_turns(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.binary.held_sends.ITEMS_PER_TURN", 10)
    await frozen.begin(60)
    topic, runs = frozen.stage.topic, list[int]()
    publish = topic.publish

    def counted(run: Any) -> None:
        runs.append(len(run))
        publish(run)

    monkeypatch.setattr(topic, "publish", counted)
    await frozen.stage.call("DELETE", f"{TOPIC}/publishRate")
    received = [(await frozen.stage.producer.expect(BaseCommand.SEND_RECEIPT)).send_receipt for _ in range(39)]
    assert [one.sequence_id for one in received] == list(range(21, 60))
    assert runs == [10, 10, 10, 9]


@pytest.mark.parametrize("limit", ["number", "bytes", "bytes of all"])
async def test_above_the_limit_the_socket_is_not_read_and_all_comes_in_order(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    if limit == "number":
        monkeypatch.setattr("broker.binary.held_sends.HELD_MAX", 50)
    elif limit == "bytes":
        monkeypatch.setattr("broker.binary.held_sends.HELD_BYTES_MAX", 50 * 520)
    else:
        frozen.stage.side.broker.set_aside.limit_bytes = 50 * 520
    await frozen.begin(21)
    client = frozen.stage.producer
    for number in range(21, 101):
        client.publish(1, number, data=entry(number))
    await take_turns()
    assert frozen.held_bytes < 52 * 600, "the others are not read yet"
    assert frozen.stage.side.broker.publishes.used_bytes == 0, "what waits for a rate keeps nobody from storage"
    received: list[int] = []
    for _ in range(4):
        frozen.now_ms += 1_000
        for _ in range(20):
            received.append((await client.expect(BaseCommand.SEND_RECEIPT)).send_receipt.sequence_id)
    assert received == list(range(21, 101))


def throttles(stage: Stage) -> list[DispatchThrottle]:
    rates = stage.topic.subscriptions["s"].pump.rates
    return [rates.of_topic, rates.own]


@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate", "s/dispatchRate"])
async def test_consumers_get_no_more_than_the_rate_and_everything_in_the_end(stage: Stage, policy: str) -> None:
    await stage.call("POST", f"{TOPIC}/{policy}", {"dispatchThrottlingRateInMsg": 50, "ratePeriodInSecond": 1})
    await stage.filled(60, size=1)
    await stage.consumer.subscribe(str(NAME), subscription="s", subType=wire.CommandSubscribe.Shared)
    for number in range(60):
        message = (await stage.consumer.expect(BaseCommand.MESSAGE)).message
        assert message.message_id.entryId == number
    assert sum(one.by_messages for one in throttles(stage)) > 0
    told = (await stage.call("GET", f"{TOPIC}/stats", status=200)).json["subscriptions"]["s"]
    assert sum(value for name, value in told.items() if name.startswith("dispatchThrottledMsg")) > 0


@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate", "s/dispatchRate"])
async def test_a_rate_that_is_taken_back_lets_consumers_go_on_that_would_wait_for_hours(
    stage: Stage, policy: str
) -> None:
    await stage.filled(3, size=1)
    await stage.call("POST", f"{TOPIC}/{policy}", {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 3600})
    await eventually(lambda: any(one.is_on for one in throttles(stage)))
    await stage.consumer.subscribe(str(NAME), subscription="s", subType=wire.CommandSubscribe.Shared)
    await stage.consumer.expect(BaseCommand.MESSAGE)
    await stage.call("DELETE", f"{TOPIC}/{policy}")
    for _ in range(2):
        await stage.consumer.expect(BaseCommand.MESSAGE)


@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate", "s/dispatchRate"])
async def test_a_rate_that_is_relative_grows_by_what_is_published(stage: Stage, policy: str) -> None:
    rate = {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 3600, "relativeToPublishRate": True}
    await stage.filled(10, size=1)
    await stage.call("POST", f"{TOPIC}/{policy}", rate)
    await eventually(lambda: any(one.is_on for one in throttles(stage)))
    began_ms = stage.side.broker.clock.wall_ms()
    stage.topic.take_rates(began_ms + 1_000)
    messages = max(one.room(began_ms + 10_000_000)[0] or 0 for one in throttles(stage))
    assert messages == 1 + int(stage.topic.rates.values[0] * 3600) > 1_000


async def test_a_consumer_that_subscribes_too_often_is_refused(stage: Stage) -> None:
    rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 3600}
    await stage.call("POST", f"{TOPIC}/subscribeRate", rate)
    await eventually(lambda: stage.topic.limits.subscribe_rate.subscribes == 2)
    for _ in range(2):
        await stage.consumer.subscribe(str(NAME), consumer_name="c")
        stage.consumer.send(BaseCommand.CLOSE_CONSUMER, consumer_id=1, request_id=5)
        await stage.consumer.expect(BaseCommand.SUCCESS)
    stage.consumer.send(
        BaseCommand.SUBSCRIBE, topic=str(NAME), subscription="s", consumer_id=1, request_id=3, consumer_name="c",
        subType=wire.CommandSubscribe.Exclusive,
    )  # fmt: skip
    assert await stage.consumer.refused() == wire.NotAllowedError


# ----------------------------------------------------------------------------------------- quotas


async def refusal(stage: Stage) -> int:
    other = await RawClient.connect(stage.side.broker.port)
    other.send(BaseCommand.PRODUCER, topic=str(NAME), producer_id=9, request_id=9)
    code = await other.refused()
    other.close()
    return code


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("producer_request_hold", wire.ProducerBlockedQuotaExceededError),
        ("producer_exception", wire.ProducerBlockedQuotaExceededException),
    ],
)
@pytest.mark.parametrize(
    ("kind", "limit"), [("destination_storage", {"limitSize": 3000}), ("message_age", {"limitTime": 60})]
)
async def test_above_a_quota_producers_are_disconnected_and_refused_until_the_backlog_is_gone(
    stage: Stage, policy: str, code: int, kind: str, limit: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.filled(5)
    monkeypatch.setattr(stage.topic.ledger, "begun_ms", lambda ledger_id: 0)  # long ago, as its messages say
    await stage.topic.keep_quotas()
    assert stage.topic.producers
    await stage.call("POST", f"{TOPIC}/backlogQuota?backlogQuotaType={kind}", {**limit, "policy": policy})
    await eventually(lambda: stage.topic.policies.storage_quota or stage.topic.policies.age_quota)
    await stage.topic.keep_quotas()
    await stage.producer.expect(BaseCommand.CLOSE_PRODUCER)
    assert await refusal(stage) == code
    await stage.call("POST", f"{TOPIC}/subscription/s/skip_all")
    await stage.producer.produce(str(NAME))


@pytest.mark.parametrize(
    ("kind", "limit", "left"), [("destination_storage", {"limitSize": 3000}, 2), ("message_age", {"limitTime": 60}, 0)]
)
async def test_eviction_passes_over_the_oldest_messages_and_lets_producers_write(
    stage: Stage, kind: str, limit: dict[str, int], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.filled(8)
    monkeypatch.setattr(stage.topic.ledger, "begun_ms", lambda ledger_id: 0)  # long ago, as its messages say
    quota = {**limit, "policy": "consumer_backlog_eviction"}
    await stage.call("POST", f"{TOPIC}/backlogQuota?backlogQuotaType={kind}", quota)
    await eventually(lambda: stage.topic.policies.storage_quota or stage.topic.policies.age_quota)
    await stage.topic.keep_quotas()
    assert stage.topic.subscriptions["s"].cursor.backlog() == left
    assert stage.topic.producers


async def test_messages_that_are_dated_back_are_no_older_than_their_ledger(stage: Stage) -> None:
    await stage.filled(5)
    quota = {"limitTime": 60, "policy": "consumer_backlog_eviction"}
    await stage.call("POST", f"{TOPIC}/backlogQuota?backlogQuotaType=message_age", quota)
    await eventually(lambda: stage.topic.policies.age_quota)
    await stage.topic.keep_quotas()
    assert stage.topic.subscriptions["s"].cursor.backlog() == 5


async def test_of_several_subscriptions_the_slowest_one_decides(stage: Stage) -> None:
    await stage.consumer.subscribe(str(NAME), consumer_id=2, subscription="ahead")
    await stage.filled(5)
    await stage.call("POST", f"{TOPIC}/subscription/ahead/skip_all")
    quota = {"limitSize": 3000, "policy": "producer_exception"}
    await stage.call("POST", f"{TOPIC}/backlogQuota", quota)
    await eventually(lambda: stage.topic.policies.storage_quota)
    await stage.topic.keep_quotas()
    await stage.producer.expect(BaseCommand.CLOSE_PRODUCER)
    await stage.call("POST", f"{TOPIC}/subscription/s/skip_all")
    await stage.producer.produce(str(NAME))


async def test_a_topic_without_subscriptions_has_no_backlog(stage: Stage) -> None:
    await stage.call("POST", f"{SPACE}/backlogQuota", {"limitSize": 1, "policy": "producer_exception"})
    await eventually(lambda: stage.topic.policies.storage_quota)
    await stage.producer.produce(str(NAME))
    stage.producer.publish(1, 0)
    await stage.receipts(1)
    await stage.topic.keep_quotas()
    assert stage.topic.producers


# ----------------------------------------------------------------------------------------- limits


async def test_the_cursor_of_compaction_comes_with_a_threshold_and_goes_with_it_if_nothing_was_compacted(
    stage: Stage,
) -> None:
    def cursors() -> set[str]:
        return set(stage.topic.ledger.cursors)

    await stage.filled(3)
    await stage.call("PUT", f"{SPACE}/compactionThreshold", 5000)
    await eventually(lambda: cursors() == {"s", COMPACTION_CURSOR})
    assert stage.topic.ledger.cursors[COMPACTION_CURSOR].backlog() == 3
    await stage.call("DELETE", f"{SPACE}/compactionThreshold")
    await eventually(lambda: cursors() == {"s"})
    assert stage.topic.compactor.start()
    await eventually(lambda: stage.topic.compactor.facts.succeeded_ms > 0)
    await stage.call("PUT", f"{SPACE}/compactionThreshold", 5000)
    await stage.call("DELETE", f"{SPACE}/compactionThreshold")
    await eventually(lambda: not stage.topic.limits.compaction_threshold_bytes)
    assert cursors() == {"s", COMPACTION_CURSOR}


@pytest.mark.parametrize("level", ["topic", "namespace", "setting"])
async def test_delivery_pauses_while_more_is_acknowledged_than_can_be_stored_where_it_is_switched_on(
    level: str, stage: Stage
) -> None:
    change_in_use(stage.side.broker.config, {"max_unacked_ranges": 1})
    policy = "dispatcherPauseOnAckStatePersistent"
    await stage.filled(6)
    if level == "setting":
        await stage.call("POST", f"{ADMIN}/brokers/configuration/{policy}Enabled/true", status=200)
    else:
        await stage.call("POST", f"{TOPIC if level == 'topic' else SPACE}/{policy}")
    await eventually(lambda: stage.topic.limits.dispatch.unstored_ranges_max == 1)
    await stage.consumer.subscribe(str(NAME), permits=4, subType=wire.CommandSubscribe.Shared)
    got = [(await stage.consumer.expect(BaseCommand.MESSAGE)).message.message_id for _ in range(4)]
    for index in (1, 3):
        stage.consumer.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=[got[index]])
    stage.consumer.send(BaseCommand.FLOW, consumer_id=1, messagePermits=10)
    stage.consumer.send(BaseCommand.CONSUMER_STATS, consumer_id=1, request_id=9)
    told = await stage.consumer.answer()
    assert told.type == BaseCommand.CONSUMER_STATS_RESPONSE, "nothing was delivered before"
    if level != "setting":
        await stage.call("DELETE", f"{TOPIC if level == 'topic' else SPACE}/{policy}")
    else:
        await stage.call("DELETE", f"{ADMIN}/brokers/configuration/{policy}Enabled", status=200)
    for number in (4, 5):
        message = (await stage.consumer.expect(BaseCommand.MESSAGE)).message
        assert message.message_id.entryId == got[0].entryId + number


async def test_producers_that_do_not_encrypt_are_disconnected_when_that_is_required(stage: Stage) -> None:
    await stage.producer.produce(str(NAME))
    await stage.consumer.produce(str(NAME), encrypted=True)
    await stage.call("POST", f"{SPACE}/encryptionRequired", True)
    await stage.producer.expect(BaseCommand.CLOSE_PRODUCER)
    stage.producer.send(BaseCommand.PRODUCER, topic=str(NAME), producer_id=2, request_id=2)
    assert await stage.producer.refused() == wire.MetadataError
    assert await stage.consumer.nothing_came()
    await stage.call("POST", f"{SPACE}/encryptionRequired", False)
    await eventually(lambda: not stage.topic.limits.requires_encryption)
    await stage.producer.produce(str(NAME), producer_id=3)


async def test_a_message_that_is_not_encrypted_is_refused_where_that_is_required(stage: Stage) -> None:
    await stage.call("POST", f"{SPACE}/encryptionRequired", True)
    await stage.producer.produce(str(NAME), encrypted=True)
    keys = [EncryptionKeys(key="k", value=b"v")]
    stage.producer.publish(1, 0, data=entry(0, encryption_keys=keys))
    stage.producer.publish(1, 1, data=entry(1))
    stage.producer.publish(1, 2, data=entry(2, encryption_keys=keys))
    answers = [await stage.producer.answer() for _ in range(3)]
    refused = next(one.send_error for one in answers if one.type == BaseCommand.SEND_ERROR)
    assert (refused.sequence_id, refused.error) == (1, wire.MetadataError)
    assert refused.message == "Messages must be encrypted"
    assert [one.send_receipt.sequence_id for one in answers if one.type == BaseCommand.SEND_RECEIPT] == [0, 2]


async def test_a_message_above_the_topic_s_limit_is_refused_by_itself(stage: Stage) -> None:
    await stage.call("POST", f"{TOPIC}/maxMessageSize", 500)
    await eventually(lambda: stage.topic.limits.message_bytes_max == 500)
    await stage.producer.produce(str(NAME))
    stage.producer.publish(1, 0, data=entry(0))
    stage.producer.publish(1, 1, data=entry(1, b"x" * 500))
    stage.producer.publish(1, 2, data=entry(2))
    answers = [await stage.producer.answer() for _ in range(3)]
    refused = next(one.send_error for one in answers if one.type == BaseCommand.SEND_ERROR)
    assert (refused.sequence_id, refused.error) == (1, wire.NotAllowedError)
    assert [one.send_receipt.sequence_id for one in answers if one.type == BaseCommand.SEND_RECEIPT] == [0, 2]


async def test_a_delay_above_the_limit_is_refused(stage: Stage) -> None:
    policy = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 1000}
    await stage.call("POST", f"{TOPIC}/delayedDelivery", policy)
    await eventually(lambda: stage.topic.limits.delay_max_ms == 1000)
    await stage.producer.produce(str(NAME))
    now_ms = stage.side.broker.now_ms()
    stage.producer.publish(1, 0, data=entry(0, deliver_at_time=now_ms + 60_000))
    assert (await stage.producer.expect(BaseCommand.SEND_ERROR)).send_error.error == wire.NotAllowedError
    stage.producer.publish(1, 1, data=entry(1, deliver_at_time=now_ms + 500))
    await stage.receipts(1)


async def test_so_many_subscriptions_a_topic(stage: Stage) -> None:
    await stage.call("POST", f"{SPACE}/maxSubscriptionsPerTopic", 2)
    await eventually(lambda: stage.topic.limits.subscriptions_max == 2)
    for name in ("a", "b", "a"):
        await stage.world.call(stage.side, "PUT", f"{TOPIC}/subscription/{name}")
    found = await stage.call("PUT", f"{TOPIC}/subscription/c", status=409)
    assert "maximum number of subscriptions" in found.reason
    await stage.consumer.subscribe(str(NAME), subscription="a")
    stage.consumer.send(
        BaseCommand.SUBSCRIBE, topic=str(NAME), subscription="reader", consumer_id=2, request_id=2, durable=False,
        subType=wire.CommandSubscribe.Exclusive,
    )  # fmt: skip
    assert await stage.consumer.refused() == wire.NotAllowedError
    await stage.call("POST", f"{SPACE}/maxSubscriptionsPerTopic", 3)
    await eventually(lambda: stage.topic.limits.subscriptions_max == 3)
    await stage.consumer.subscribe(str(NAME), subscription="reader", consumer_id=2, durable=False)
    await stage.call("PUT", f"{TOPIC}/subscription/c", status=409)  # that of the reader counts


async def test_so_many_topics_a_namespace(stage: Stage) -> None:
    await stage.call("POST", f"{SPACE}/maxTopicsPerNamespace", 2)
    await stage.call("PUT", f"{TOPIC}2")
    assert "maximum number of topics" in (await stage.call("PUT", f"{TOPIC}3", status=412)).reason
    await stage.call("PUT", f"{TOPIC}4/partitions", 1, status=412)
    await stage.call("GET", "/lookup/v2/topic/persistent/public/default/t5", status=200)
    stage.producer.send(BaseCommand.PRODUCER, topic=f"{NAME}5", producer_id=1, request_id=1)
    assert await stage.producer.refused() == wire.NotAllowedError
    await stage.producer.produce(str(NAME))


async def test_so_many_tenants_namespaces_and_partitions() -> None:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        side = await world.side(max_tenants=3, max_namespaces_per_tenant=1, max_partitions_per_topic=2)
        cluster = side.broker.config.cluster_name
        tenant = {"allowedClusters": [cluster], "adminRoles": []}
        assert (await world.call(side, "PUT", f"{ADMIN}/tenants/one", tenant)).status == 204
        refused = await world.call(side, "PUT", f"{ADMIN}/tenants/two", tenant)
        assert (refused.status, "maxTenants" in refused.reason) == (412, True)
        assert (await world.call(side, "PUT", f"{ADMIN}/namespaces/one/a", {})).status == 204
        refused = await world.call(side, "PUT", f"{ADMIN}/namespaces/one/b", {})
        assert (refused.status, "maxNamespacesPerTenant" in refused.reason) == (412, True)
        assert (await world.call(side, "PUT", f"{TOPIC}/partitions", 3)).status == 406
        assert (await world.call(side, "PUT", f"{TOPIC}/partitions", 2)).status == 204
        assert (await world.call(side, "POST", f"{TOPIC}/partitions", 3)).status == 406


async def test_a_topic_that_makes_itself_has_no_more_partitions_than_topics_may_have() -> None:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        side = await world.side(
            max_partitions_per_topic=2, default_partitions=3, auto_topic_creation_type="partitioned"
        )
        asked = f"{TOPIC}/partitions?checkAllowAutoCreation=true"
        refused = await world.call(side, "GET", asked)
        assert (refused.status, "set it to 1 to 2" in refused.reason) == (412, True)
        change_in_use(side.broker.config, {"default_partitions": 2})
        assert (await world.call(side, "GET", asked)).json["partitions"] == 2


# ------------------------------------------------------------------------------------------ other clusters


@pytest.mark.parametrize("level", [SPACE, TOPIC])
async def test_other_clusters_are_refused_by_name(stage: Stage, level: str) -> None:
    own = stage.side.broker.config.cluster_name
    await stage.call("PUT", f"{ADMIN}/clusters/east", {}, status=200)
    await stage.call("POST", f"{ADMIN}/tenants/public", {"allowedClusters": [own, "east"], "adminRoles": []})
    refused = await stage.call("POST", f"{level}/replication", [own, "east"], status=412)
    assert "Replication between clusters is not served by this broker: east" in refused.reason
    await stage.call("POST", f"{level}/replication", [own, "nowhere"], status=403)
    await stage.call("POST", f"{level}/replication", [own], status=200 if level == SPACE else 204)


# ------------------------------------------------------------------------------------------ schemas


def schema_of(*names: str) -> dict[str, Any]:
    fields = [{"name": name, "type": "int"} for name in names]
    return {"type": "AVRO", "schema": json.dumps({"type": "record", "name": "r", "fields": fields}), "properties": {}}


@pytest.mark.parametrize("what", ["_schema_rules.forget", "topic_policies.forget", "tenancy.forget_topic_permissions"])
async def test_what_is_stored_beside_a_deleted_topic_goes_when_the_metadata_store_answers_again(
    stage: Stage, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later topic of that name would have it."""
    monkeypatch.setattr(deleting, "PAUSES_S", (0.001, 0.001, 0.001))
    part, _, name = what.partition(".")
    owner = getattr(stage.side.broker, part)
    forget, failures, gone = getattr(owner, name), [MetadataFailure("the metadata store does not answer")] * 2, []

    async def failing(topic: TopicName, **options: Any) -> None:
        if failures:
            raise failures.pop()
        await forget(topic, **options)
        gone.append(topic)

    monkeypatch.setattr(owner, name, failing)
    await stage.call("POST", f"{ADMIN}/schemas/public/default/t/schema", schema_of("a"), status=200)
    await stage.call("DELETE", TOPIC)
    assert gone == [NAME]
    assert not failures


async def test_the_strategy_of_a_topic_counts_for_schemas_that_are_uploaded(stage: Stage) -> None:
    schemas = f"{ADMIN}/schemas/public/default/t"
    await stage.call("POST", f"{schemas}/schema", schema_of("a"), status=200)
    await stage.call("POST", f"{schemas}/schema", schema_of("b"), status=409)
    asked = (await stage.call("POST", f"{schemas}/compatibility", schema_of("b"), status=202)).json
    assert asked == {"schemaCompatibilityStrategy": "FULL", "compatibility": False}
    await stage.call("PUT", f"{TOPIC}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    await eventually(lambda: stage.topic.policies.schema_strategy == "ALWAYS_COMPATIBLE")
    asked = (await stage.call("POST", f"{schemas}/compatibility", schema_of("b"), status=202)).json
    assert asked == {"schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE", "compatibility": True}
    await stage.call("POST", f"{schemas}/schema", schema_of("b"), status=200)


async def test_no_version_of_a_deleted_schema_is_found(stage: Stage) -> None:
    schemas = f"{ADMIN}/schemas/public/default/t"
    await stage.call("POST", f"{schemas}/schema", schema_of("a"), status=200)
    await stage.call("GET", f"{schemas}/schema/0", status=200)
    await stage.call("DELETE", f"{schemas}/schema", status=200)
    await stage.call("GET", f"{schemas}/schema/0", status=404)
    stage.producer.send(BaseCommand.GET_SCHEMA, topic=str(NAME), request_id=1, schema_version=bytes(8))
    answer = await stage.producer.expect(BaseCommand.GET_SCHEMA_RESPONSE)
    assert answer.getSchemaResponse.error_code == wire.TopicNotFound


@pytest.mark.parametrize("partitions", ["", "/partitions"])
async def test_a_topic_that_is_made_again_begins_without_a_schema(stage: Stage, partitions: str) -> None:
    topic = f"{ADMIN}/persistent/public/default/made"
    schemas = f"{ADMIN}/schemas/public/default/made/schema"
    for number in range(2):
        await stage.call("PUT", f"{topic}{partitions}", 2 if partitions else None)
        await stage.call("GET", schemas, status=404)
        posted = await stage.call(
            "POST", schemas, schema_of(f"f{number}"), status=200
        )  # none is compatible with another
        assert posted.json["version"]["version"] == 0
        if partitions:  # one of them is not the topic
            await stage.call("DELETE", f"{topic}-partition-1")
            await stage.call("GET", schemas, status=200)
        await stage.call("DELETE", f"{topic}{partitions}")
    assert not await stage.side.broker.store.exists("/schemas/public/default/made")


# ------------------------------------------------------------------------------ what goes by itself


async def test_a_topic_s_own_idle_time_counts(stage: Stage) -> None:
    await stage.side.broker.periodic.delete_inactive_topics()
    assert NAME in stage.side.broker.topics
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 0,
        "deleteWhileInactive": True,
    }
    await stage.call("POST", f"{TOPIC}/inactiveTopicPolicies", policy)
    await eventually(lambda: stage.topic.limits.inactive.idle_s == 0)
    await asyncio.sleep(0.01)
    await stage.side.broker.periodic.delete_inactive_topics()
    assert NAME not in stage.side.broker.topics


@pytest.mark.parametrize("minutes", [-1, 5])
async def test_a_topic_that_nobody_uses_stays_as_long_as_its_messages_are_retained(stage: Stage, minutes: int) -> None:
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 0,
        "deleteWhileInactive": True,
    }
    await stage.call("POST", f"{SPACE}/retention", {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1})
    await stage.call("POST", f"{TOPIC}/inactiveTopicPolicies", policy)
    await eventually(lambda: stage.topic.limits.inactive.idle_s == 0)
    await asyncio.sleep(0.01)
    await stage.side.broker.periodic.delete_inactive_topics()
    assert NAME in stage.side.broker.topics
    assert stage.topic.is_idle(stage.topic.last_active_ms + 5 * 60_000 + 1) == (minutes > 0)
    await stage.call("DELETE", f"{SPACE}/retention")
    await eventually(lambda: not stage.topic.ledger.config.retention.time_ms)
    await stage.side.broker.periodic.delete_inactive_topics()
    assert NAME not in stage.side.broker.topics


async def test_a_topic_goes_when_its_subscriptions_have_caught_up(stage: Stage) -> None:
    policy = {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 0,
        "deleteWhileInactive": True,
    }
    await stage.call("POST", f"{SPACE}/inactiveTopicPolicies", policy)
    await stage.filled(1)
    await eventually(lambda: stage.topic.limits.inactive.idle_s == 0)
    stage.producer.send(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=9)
    await stage.producer.expect(BaseCommand.SUCCESS)
    await asyncio.sleep(0.01)
    await stage.side.broker.periodic.delete_inactive_topics()
    assert NAME in stage.side.broker.topics
    await stage.call("POST", f"{TOPIC}/subscription/s/skip_all")
    await asyncio.sleep(0.01)
    await stage.side.broker.periodic.delete_inactive_topics()
    assert NAME not in stage.side.broker.topics


async def test_a_consumer_that_has_everything_keeps_no_topic_that_goes_when_all_have_caught_up(stage: Stage) -> None:
    policy = {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 100,
        "deleteWhileInactive": True,
    }
    await stage.call("POST", f"{TOPIC}/inactiveTopicPolicies", policy)
    await eventually(lambda: stage.topic.limits.inactive.idle_s == 100)
    await stage.filled(1)
    await stage.consumer.subscribe(str(NAME), subscription="s")
    message = (await stage.consumer.expect(BaseCommand.MESSAGE)).message
    now_ms = stage.side.broker.now_ms()
    assert not stage.topic.is_idle(now_ms + 1_000_000), "its producer is there"
    stage.producer.send(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=9)
    await stage.producer.expect(BaseCommand.SUCCESS)
    assert not stage.topic.is_idle(now_ms + 2_000_000), "the message is not acknowledged"
    stage.consumer.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=[message.message_id])
    await eventually(lambda: not stage.topic.subscriptions["s"].cursor.backlog())
    assert not stage.topic.is_idle(now_ms + 2_099_999), "the time begins when it was last seen in use"
    assert stage.topic.is_idle(now_ms + 2_100_000)
    await stage.call("POST", f"{TOPIC}/inactiveTopicPolicies", {**policy, "maxInactiveDurationSeconds": 0})
    await eventually(lambda: stage.topic.limits.inactive.idle_s == 0)
    stage.topic._used_ms = 0
    await asyncio.sleep(0.01)
    await stage.side.broker.periodic.delete_inactive_topics()
    assert NAME not in stage.side.broker.topics
    await stage.consumer.expect(BaseCommand.CLOSE_CONSUMER)


async def test_a_subscription_without_consumers_is_removed_after_its_time(stage: Stage) -> None:
    await stage.call("POST", f"{SPACE}/subscriptionExpirationTime", 1)
    await stage.filled(1)
    await stage.consumer.subscribe(str(NAME), subscription="used")
    await stage.topic.expire_subscriptions()
    assert set(stage.topic.subscriptions) == {"s", "used"}
    for subscription in stage.topic.subscriptions.values():
        subscription.last_active_ms -= 60_001
    await stage.topic.expire_subscriptions()
    assert set(stage.topic.subscriptions) == {"used"}


async def test_a_consumer_whose_subscription_may_not_be_created_leaves_no_schema(stage: Stage) -> None:
    """As Apache's broker: the subscription is looked at first (`make differ`, seed 1796063835)."""
    await stage.call("POST", f"{SPACE}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    text = wire.Schema(name="", type=wire.Schema.String, schema_data=b"")
    stage.consumer.send(
        BaseCommand.SUBSCRIBE, topic=str(NAME), consumer_id=1, request_id=2, subscription="new",
        subType=wire.CommandSubscribe.Exclusive, schema=text,
    )  # fmt: skip
    assert (await stage.consumer.expect(BaseCommand.ERROR)).error.error == wire.SubscriptionNotFound
    number = wire.Schema(name="", type=wire.Schema.Int32, schema_data=b"")
    await stage.producer.produce(str(NAME), schema=number)
    stage.consumer.send(
        BaseCommand.SUBSCRIBE, topic=str(NAME), consumer_id=2, request_id=3, subscription="reader", durable=False,
        subType=wire.CommandSubscribe.Exclusive, schema=text,
    )  # fmt: skip
    assert (await stage.consumer.expect(BaseCommand.ERROR)).error.error == wire.IncompatibleSchema


async def test_the_time_without_consumers_begins_when_the_broker_disconnects_them(stage: Stage) -> None:
    """They come back after a seek, but not before its time is checked."""
    await stage.call("POST", f"{SPACE}/subscriptionExpirationTime", 1)
    await stage.filled(1)
    await stage.consumer.subscribe(str(NAME), subscription="used")
    used = stage.topic.subscriptions["used"]
    used.last_active_ms -= 60_001
    await stage.topic.seek(used, EARLIEST)
    assert not used.consumers
    await stage.topic.expire_subscriptions()
    assert "used" in stage.topic.subscriptions


async def test_the_time_without_consumers_goes_on_where_the_topic_is_opened_again(stage: Stage) -> None:
    """As 5.0's brokers; with those before it, a subscription of a topic that moves often never expires."""
    await stage.filled(1)
    await stage.consumer.subscribe(str(NAME), subscription="used")
    stage.topic.subscriptions["s"].cursor.mark_idle(7_000)
    came_ms = stage.topic.subscriptions["used"].last_active_ms
    await stage.call("PUT", f"{TOPIC}/unload")
    await stage.producer.expect(BaseCommand.CLOSE_PRODUCER)
    await stage.consumer.expect(BaseCommand.CLOSE_CONSUMER)
    await stage.producer.produce(str(NAME), producer_id=2)
    subscriptions = stage.topic.subscriptions
    assert subscriptions["s"].last_active_ms == 7_000
    assert subscriptions["used"].last_active_ms >= came_ms
    assert subscriptions["used"].cursor.idle_since_ms == subscriptions["used"].last_active_ms
    await stage.consumer.subscribe(str(NAME), subscription="s", consumer_id=3)
    assert subscriptions["s"].cursor.idle_since_ms == 0
    await stage.consumer.expect(BaseCommand.MESSAGE)
    stage.consumer.send(BaseCommand.CLOSE_CONSUMER, consumer_id=3, request_id=9)
    await stage.consumer.expect(BaseCommand.SUCCESS)
    assert subscriptions["s"].cursor.idle_since_ms == subscriptions["s"].last_active_ms > 7_000


async def test_a_subscription_of_several_clusters_is_not_removed_after_its_time(stage: Stage) -> None:
    """It may have consumers in another one."""
    await stage.call("POST", f"{SPACE}/subscriptionExpirationTime", 1)
    await stage.filled(1)
    await stage.topic.set_subscription_replicated("s", is_replicated=True)
    stage.topic.subscriptions["s"].last_active_ms -= 60_001
    await stage.topic.expire_subscriptions()
    assert set(stage.topic.subscriptions) == {"s"}


async def test_subscriptions_that_went_while_others_are_removed_are_passed_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.call("POST", f"{SPACE}/subscriptionExpirationTime", 1)
    await stage.filled(1)
    topic = stage.topic
    for name in ("gone", "renewed", "unused"):
        await topic.create_subscription(name, EARLIEST)
    for subscription in topic.subscriptions.values():
        subscription.last_active_ms -= 60_001
    delete = topic._subscriptions.delete

    async def slow(name: str, *, force: bool) -> None:
        await delete(name, force=force)
        if name == "s":
            await delete("gone", force=False)
            await delete("renewed", force=False)
            await topic.create_subscription("renewed", EARLIEST)

    monkeypatch.setattr(topic._subscriptions, "delete", slow)
    await topic.expire_subscriptions()
    assert set(topic.subscriptions) == {"renewed"}


async def test_truncating_a_topic_stores_the_sequence_ids_of_what_is_not_replayed_any_more(stage: Stage) -> None:
    await stage.call("POST", f"{SPACE}/deduplication", True)
    await eventually(lambda: stage.topic.deduplication_enabled)
    await stage.producer.produce(str(NAME), producer_name="p")
    stage.producer.publish(1, 7)
    await stage.receipts(1)
    await stage.call("DELETE", f"{TOPIC}/truncate")
    cursor = stage.topic.ledger.cursors[DEDUPLICATION_CURSOR]
    assert (cursor.mark_delete_position, cursor.properties) == (stage.topic.ledger.ledgers.last_confirmed, {"p": 7})


async def test_a_topic_is_compacted_when_more_than_the_threshold_is_new(stage: Stage) -> None:
    await stage.call("POST", f"{TOPIC}/compactionThreshold", 5000)
    await eventually(lambda: stage.topic.limits.compaction_threshold_bytes == 5000)
    await stage.producer.produce(str(NAME))
    for number in range(10):
        stage.producer.publish(1, number, data=entry(number, b"x" * 1000, partition_key="k"))
        await stage.receipts(1)
        stage.topic.compact_if_due()
    await eventually(lambda: stage.topic.compactor.horizon is not None)
    assert stage.topic.compactor.facts.removed_messages > 0
