"""WATCH_TOPIC_LIST by bare frames: the list once, then what comes and goes."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from broker.binary import listing
from broker.binary.admission.guard import Guard
from broker.binary.listing import filter_topics, topics_hash
from broker.binary.watches import WATCHES_MAX
from broker.errors import NotAuthorized
from broker.security.authorization import Need
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient

NS = "public/default"
A, B = f"persistent://{NS}/a-1", f"persistent://{NS}/b-1"


@pytest.fixture
async def raw(world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RawClient]:
    """It is told of a change after a hundredth of a second."""
    monkeypatch.setattr("broker.serving.topic_lists.SETTLE_S", 0.01)
    client = await RawClient.connect(world.broker.port)
    yield client
    client.close()


async def make(world: BrokerInMemory, *topics: str) -> None:
    for topic in topics:
        await world.broker.topic_for_producer(TopicName.parse(topic))


def watch(client: RawClient, pattern: str = f"{NS}/a-.*", *, number: int = 1, hash_: str | None = None) -> None:
    client.send(
        BaseCommand.WATCH_TOPIC_LIST,
        request_id=7,
        watcher_id=number,
        namespace=NS,
        topics_pattern=pattern,
        topics_hash=hash_,
    )


async def watched(client: RawClient) -> wire.CommandWatchTopicListSuccess:
    answer = (await client.expect(BaseCommand.WATCH_TOPIC_LIST_SUCCESS)).watchTopicListSuccess
    assert answer.request_id == 7
    return answer


async def update(client: RawClient) -> tuple[int, list[str], list[str], str]:
    told = (await client.expect(BaseCommand.WATCH_TOPIC_UPDATE)).watchTopicUpdate
    return told.watcher_id, list(told.new_topics), list(told.deleted_topics), told.topics_hash


async def test_a_client_gets_the_list_and_then_what_comes_and_goes(world: BrokerInMemory, raw: RawClient) -> None:
    await make(world, A, B)
    watch(raw, f"persistent://{NS}/a-.*")
    answer = await watched(raw)
    assert (list(answer.topic), answer.topics_hash) == ([A], topics_hash([A]))
    other = f"persistent://{NS}/a-2-partition-0"
    await make(world, other, f"persistent://{NS}/b-2")
    assert await update(raw) == (1, [other], [], topics_hash([A, other]))
    await world.broker.deleting.delete_topic(TopicName.parse(A))
    assert await update(raw) == (1, [], [A], topics_hash([other]))
    await make(world, f"persistent://{NS}/b-3")
    await asyncio.sleep(0.05)
    assert await raw.nothing_came(), "what does not match is not told"


async def test_a_client_that_has_the_list_gets_only_its_hash(world: BrokerInMemory, raw: RawClient) -> None:
    await make(world, A)
    watch(raw, hash_=topics_hash([A]))
    answer = await watched(raw)
    assert (list(answer.topic), answer.topics_hash) == ([], topics_hash([A]))


async def test_the_same_watcher_again_is_answered_with_what_it_knows(world: BrokerInMemory, raw: RawClient) -> None:
    await make(world, A)
    for _ in range(2):
        watch(raw)
        assert list((await watched(raw)).topic) == [A]
    await make(world, f"{A}0")
    assert (await update(raw))[1] == [f"{A}0"]
    await asyncio.sleep(0.05)
    assert await raw.nothing_came(), "there is one watcher, not two"


async def test_a_change_is_looked_through_once_for_all_that_watch_the_same(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await RawClient.connect(world.broker.port)
    for client in (raw, other):
        watch(client)
        await watched(client)
    patterns = list[str]()

    def filtered(topics: Iterable[str], pattern: str, characters_max: int) -> list[str] | None:
        patterns.append(pattern)
        return filter_topics(topics, pattern, characters_max)

    monkeypatch.setattr(listing, "filter_topics", filtered)
    await make(world, A, B)
    for client in (raw, other):
        assert (await update(client))[1:3] == ([A], [])
    assert patterns == [f"{NS}/a-.*"]
    other.close()


async def test_a_closed_watcher_is_told_nothing(world: BrokerInMemory, raw: RawClient) -> None:
    watch(raw)
    await watched(raw)
    raw.send(BaseCommand.WATCH_TOPIC_LIST_CLOSE, request_id=8, watcher_id=1)
    await raw.expect(BaseCommand.SUCCESS)
    await make(world, A)
    await asyncio.sleep(0.05)
    assert await raw.nothing_came()
    assert world.ledgers.by_name.watches == []


async def test_who_may_not_list_the_namespace_any_more_is_told_nothing(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(world, A)
    watch(raw)
    watch(raw, f"{NS}/b-.*", number=2)
    assert list((await watched(raw)).topic) == [A]
    await watched(raw)

    async def refuse(guard: Guard, need: Need) -> None:
        raise NotAuthorized("the right was withdrawn")

    monkeypatch.setattr(Guard, "check", refuse)
    await make(world, f"{A}0", B)
    await eventually(lambda: world.ledgers.by_name.watches == [])
    assert await raw.nothing_came()
    assert world.broker.watched_names.total == 0


async def test_nothing_is_watched_for_a_client_that_is_gone(world: BrokerInMemory) -> None:
    client = await RawClient.connect(world.broker.port)
    watch(client)
    await watched(client)
    watch(client, number=2)
    client.close()  # perhaps before the second one is made
    await eventually(lambda: world.ledgers.by_name.watches == [])


@pytest.mark.parametrize("pattern", ["(a+)+b", f"{NS}/" + "a" * 50])
async def test_a_pattern_that_is_left_to_the_client_is_refused(
    world: BrokerInMemory, raw: RawClient, pattern: str
) -> None:
    watch(raw, pattern)
    assert await raw.refused() == wire.NotAllowedError
    watch(raw)
    await watched(raw)


async def test_a_longer_pattern_may_be_allowed(world: BrokerInMemory) -> None:
    await world.restart(pattern_characters_max=100)
    client = await RawClient.connect(world.broker.port)
    watch(client, f"{NS}/" + "a" * 50)
    await watched(client)
    client.close()


async def test_watching_can_be_switched_off(world: BrokerInMemory) -> None:
    await world.restart(evaluates_patterns=False)
    client = await RawClient.connect(world.broker.port, introduce=False)
    client.send(BaseCommand.CONNECT, client_version="raw", protocol_version=21)
    connected = (await client.expect(BaseCommand.CONNECTED)).connected
    assert not connected.feature_flags.supports_topic_watchers
    watch(client)
    assert await client.refused() == wire.NotAllowedError
    await make(world, A, B)
    client.send(BaseCommand.GET_TOPICS_OF_NAMESPACE, request_id=1, namespace=NS, topics_pattern=f"{NS}/a-.*")
    answer = (await client.expect(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)).getTopicsOfNamespaceResponse
    assert (list(answer.topics), answer.filtered) == ([A, B], False)
    client.close()


@pytest.mark.parametrize("is_on", [True, False])
async def test_watching_alone_can_be_switched_off_and_patterns_stay(world: BrokerInMemory, is_on: bool) -> None:
    await world.restart(watches_topic_lists=is_on)
    client = await RawClient.connect(world.broker.port, introduce=False)
    client.send(BaseCommand.CONNECT, client_version="raw", protocol_version=21)
    flags = (await client.expect(BaseCommand.CONNECTED)).connected.feature_flags
    assert (flags.supports_topic_watchers, flags.supports_topic_watcher_reconcile) == (is_on, is_on)
    await make(world, A, B)
    client.send(BaseCommand.GET_TOPICS_OF_NAMESPACE, request_id=1, namespace=NS, topics_pattern=f"{NS}/a-.*")
    answer = (await client.expect(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)).getTopicsOfNamespaceResponse
    assert answer.filtered
    watch(client)
    if is_on:
        await watched(client)
    else:
        assert await client.refused() == wire.NotAllowedError
    client.close()


async def test_a_namespace_that_is_no_name_is_refused(raw: RawClient) -> None:
    raw.send(BaseCommand.WATCH_TOPIC_LIST, request_id=7, watcher_id=1, namespace="x", topics_pattern="x/.*")
    assert await raw.refused() == wire.InvalidTopicName


async def test_a_connection_watches_so_many_lists(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WATCHES_MAX == 1_000
    monkeypatch.setattr("broker.binary.watches.WATCHES_MAX", 2)
    for number in (1, 2):
        watch(raw, number=number)
        await watched(raw)
    watch(raw, number=3)
    assert await raw.refused() == wire.TooManyRequests


async def test_all_connections_together_watch_so_many_names(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.binary.watches.NAMES_ALL_MAX", 3)
    names = world.broker.watched_names
    await make(world, A, f"{A}0")
    watch(raw)
    await watched(raw)
    assert names.total == 2
    other = await RawClient.connect(world.broker.port)
    watch(other)
    assert await other.refused() == wire.TooManyRequests
    await make(world, f"{A}1")
    await update(raw)
    assert names.total == 3
    await world.broker.deleting.delete_topic(TopicName.parse(A))
    await update(raw)
    assert names.total == 2
    raw.send(BaseCommand.WATCH_TOPIC_LIST_CLOSE, request_id=8, watcher_id=1)
    await raw.expect(BaseCommand.SUCCESS)
    assert names.total == 0
    watch(other)
    await watched(other)
    other.close()
    await eventually(lambda: names.total == 0)
    assert len(world.ledgers.by_name.watches) == 0


async def test_a_client_that_does_not_read_is_told_of_all_at_once_later(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(raw)
    await watched(raw)
    monkeypatch.setattr("broker.binary.watches.OUTBOX_HIGH_BYTES", -1)
    drained = asyncio.Event()
    waiting = 0

    async def until_drained(self: object) -> None:
        nonlocal waiting
        waiting += 1
        await drained.wait()

    monkeypatch.setattr("broker.binary.server.ClientProtocol.until_drained", until_drained)
    await make(world, A)
    await eventually(lambda: waiting == 1)
    await make(world, f"{A}0")
    await world.broker.deleting.delete_topic(TopicName.parse(A))
    (client,) = world.broker.server.clients
    assert client._connection is not None
    watches = client._connection._watches._watches
    assert watches is not None
    await eventually(lambda: watches[1].latest == [f"{A}0"])
    drained.set()
    assert (await update(raw))[1:3] == ([f"{A}0"], [])
    assert waiting == 1
