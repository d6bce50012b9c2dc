"""A topic as a table: the last value of each key, before and after compaction."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

import pytest

import magnetar
from broker.grpc.service import GrpcServer
from magnetar.client.async_client import AsyncClient
from magnetar.client.async_consumer import AsyncConsumer, AsyncReader
from magnetar.client.errors import ClientClosed, TopicError
from magnetar.client.values import Message, Outgoing
from magnetar.client.views import table
from magnetar.client.views.table import CompactedReader
from magnetar_core.topics import topics_pb2 as api
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door, open_grpc
from tests.unit.broker.test_compacted_topics import broker, cluster, compact
from tests.unit.magnetar.client.test_same import public

__all__ = ["broker", "client", "cluster", "door", "world"]


async def put(client: AsyncClient, topic: str = "t", /, **values: bytes | None) -> None:
    for key, value in values.items():
        await client.producer(topic).send(value, key=key)


@pytest.fixture
async def compacting(broker: Any) -> AsyncIterator[AsyncClient]:
    """A client of a broker with real storage, which `compact` works on."""
    made: Any = type("World", (), {"broker": broker, "doors": []})
    server = await open_grpc(made)
    async with AsyncClient(f"127.0.0.1:{server.port}", operation_timeout_s=30) as opened:
        yield opened
    await server.stop()


async def test_the_last_value_of_each_key_is_there_when_the_view_is_ready(client: AsyncClient) -> None:
    await client.producer("t").send_many(
        [Outgoing(b"%d" % n, key=f"k{n % 3}") for n in range(3000)] + [b"without a key", Outgoing(b"", key="empty")]
    )
    await put(client, k0=b"new", k1=None)
    async with client.table_view("t") as view:
        assert dict(view) == {"k0": b"new", "k2": b"2999", "empty": b""}
        assert (len(view), view["k0"], view.get("k1"), "k2" in view) == (3, b"new", None, True)
        assert (sorted(view.keys()), sorted(view.values())) == (["empty", "k0", "k2"], [b"", b"2999", b"new"])
        assert repr(view) == "AsyncTableView(t, 3 keys)"
        with pytest.raises(KeyError):
            view["k1"]


async def test_ready_waits_for_what_was_sent_before_it(client: AsyncClient) -> None:
    await client.topics.create("p", partitions=3)
    view = await client.table_view("p")
    assert not view
    for n in range(20):
        await put(client, "p", **{f"k{n}": b"%d" % n})
        await view.ready()
        assert view[f"k{n}"] == b"%d" % n
    assert len(view) == 20


async def test_one_goes_through_a_view_that_changes(client: AsyncClient) -> None:
    await put(client, a=b"1", b=b"2")
    async with client.table_view("t") as view:
        seen = []
        for key, value in view.items():
            await put(client, a=None, b=None, c=b"3")
            await view.ready()
            seen.append((key, value))
        assert seen == [("a", b"1"), ("b", b"2")]
        for key in view:
            await put(client, d=b"4")
            await view.ready()
            assert view[key] == b"3"


async def test_changes_come_one_after_the_other(client: AsyncClient) -> None:
    await put(client, a=b"old")
    async with client.table_view("t") as view:
        changes, others = view.changes(), view.changes()
        await put(client, a=b"1", b=b"2")
        first, second = await anext(changes), await anext(changes)
        assert [(first.key, first.payload), (second.key, second.payload)] == [("a", b"1"), ("b", b"2")]
        waiting = asyncio.ensure_future(anext(changes))
        await put(client, b=None, a=b"3")
        assert (await waiting).is_null
        await view.ready()
        left = [await anext(others), await anext(others)]
        assert [(one.key, one.payload) for one in left] == [("b", b""), ("a", b"3")], "only the last of each key"
    assert [one.key async for one in changes] == ["a"]
    assert [one async for one in others] == []


async def test_the_oldest_change_is_at_hand(client: AsyncClient) -> None:
    """A dict looks for its first key past all that were taken: 18 s for the changes of 100,000 keys."""
    async with client.table_view("t") as view:
        assert isinstance(view.changes()._waiting, OrderedDict)


async def test_changes_that_nobody_holds_are_forgotten(client: AsyncClient) -> None:
    async with client.table_view("t") as view:
        view.changes()
        assert not list(view._changes)


async def test_a_view_that_is_not_ready_or_has_ended_says_so(client: AsyncClient) -> None:
    await put(client, a=b"1")
    view = client.table_view("t")
    for use in (lambda: view["a"], lambda: len(view), lambda: list(view), lambda: view.items(), lambda: view.changes()):
        with pytest.raises(TopicError, match=r"not complete yet; `await view.ready\(\)` first"):
            use()
    await view
    changes = view.changes()
    await view.close()
    await view.close()
    with pytest.raises(ClientClosed):
        view["a"]
    with pytest.raises(ClientClosed):
        await view.ready()
    assert [one async for one in changes] == []
    other = await client.table_view("t")
    changes = other.changes()
    other._fail(TopicError("no permission"))
    for call in (other.ready(), anext(changes)):
        with pytest.raises(TopicError, match="no permission"):
            await call
    await client.close()
    with pytest.raises(ClientClosed):
        client.table_view("t")
    assert other._task is not None
    assert other._task.done()


async def test_a_view_goes_on_after_its_connection_broke(client: AsyncClient, world: BrokerInMemory) -> None:
    await put(client, a=b"1", b=b"2")
    async with client.table_view("t") as view:
        await put(client, a=b"3")
        await view.ready()
        (topic,) = world.broker.topics.values()
        for subscription in list(topic.subscriptions.values()):
            for consumer in list(subscription.consumers):
                sink: Any = consumer.sink
                sink.end(None)
        await put(client, b=b"4")
        await view.ready()
        assert dict(view) == {"a": b"3", "b": b"4"}


# -------------------------------------------------------------------------------- compaction


async def test_of_a_compacted_topic_the_view_reads_one_message_a_key(
    compacting: AsyncClient, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(10):
        await put(compacting, a=b"%d" % n, b=b"%d" % n, gone=None if n == 9 else b"x")
    await compact(broker)
    await put(compacting, new=b"1")
    taken = list[Message]()
    take = AsyncConsumer.take

    def noted(reader: AsyncConsumer) -> Message | None:
        message = take(reader)
        taken.extend([] if message is None else [message])
        return message

    monkeypatch.setattr(AsyncConsumer, "take", noted)
    async with compacting.table_view("t") as view:
        assert dict(view) == {"a": b"9", "b": b"9", "new": b"1"}
        assert [one.key for one in taken] == ["a", "b", "new"]


async def test_a_view_is_ready_although_the_last_message_was_compacted_away(
    compacting: AsyncClient, broker: Any
) -> None:
    await put(compacting, a=b"1", gone=b"2")
    await put(compacting, gone=None)
    await compact(broker)
    async with asyncio.timeout(5), compacting.table_view("t") as view:
        assert dict(view) == {"a": b"1"}
        await put(compacting, a=None)
        await compact(broker)
        await view.ready()
        assert dict(view) == {}
    async with asyncio.timeout(5), compacting.table_view("t") as view:
        assert dict(view) == {}


async def test_an_end_that_is_compacted_away_while_ready_waits_for_it_is_asked_for_again(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "PAUSE_S", 0.02)
    await put(client, a=b"1")
    ask = AsyncReader._ask_end
    asked = list[bool]()

    async def far_at_first(reader: CompactedReader, stream: Any) -> None:
        await ask(reader, stream)
        asked.append(True)
        if len(asked) == 1:
            stream.end = magnetar.MessageId(2**40, 0)

    monkeypatch.setattr(AsyncReader, "_ask_end", far_at_first)
    async with asyncio.timeout(2), client.table_view("t") as view:
        assert dict(view) == {"a": b"1"}
    assert len(asked) == 2


async def test_only_one_consumer_at_a_time_reads_what_was_compacted(client: AsyncClient) -> None:
    opening = api.ConsumeRequest.Open(subscription="s", type=api.SHARED, read_compacted=True)
    consumer = AsyncConsumer(client._brokers, "t", opening, 1, lambda _: None)
    with pytest.raises(TopicError, match="read_compacted needs the type EXCLUSIVE or FAILOVER"):
        await consumer.open()


# -------------------------------------------------------------------------------- without await


def test_a_view_has_the_same_names_with_and_without_await() -> None:
    assert public(magnetar.client.client.TableView).keys() == public(table.AsyncTableView).keys()


async def test_the_same_without_await(door: GrpcServer) -> None:
    def scenario() -> None:
        with magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as made:
            producer = made.producer("t")
            producer.send(b"1", key="a")
            with made.table_view("t") as view:
                assert dict(view) == dict(view.items()) == {"a": b"1"}
                assert (list(view), list(view.values()), len(view)) == (["a"], [b"1"], 1)
                assert repr(view) == "TableView(t, 1 keys)"
                changes = view.changes()
                producer.send(b"2", key="b")
                assert view.ready()["b"] == b"2"
                assert next(changes).payload == b"2"
            assert list(changes) == []
            with pytest.raises(ClientClosed):
                view["a"]

    await asyncio.to_thread(scenario)
