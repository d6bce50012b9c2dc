"""Partitioned topics: one set of steps for whoever makes, grows or deletes one."""

import asyncio
from collections.abc import Iterable

import pytest

from broker.errors import InvalidTopicName, TopicNotFound
from broker.records.json_records import RecordExists, RecordInUse, to_json
from broker.tenancy.partitions import FewerPartitions, Partitions, grown, parse_partitions, partitions_record
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.records.paths import ROOT
from tests.support.manual_clock import ManualClock

TOPIC = TopicName.parse("t")
RECORD = "/admin/partitioned-topics/public/default/persistent/t"
PERSISTENT = f"{ROOT}/public/default/persistent"


class Stored:
    """The ledgers that the store has nodes of."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def exists(self, name: str) -> bool:
        return await self._store.exists(f"{ROOT}/{name}")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


@pytest.fixture
def partitions(store: MemoryStore) -> Partitions:
    return Partitions(store, Stored(store))


def _names(numbers: Iterable[int]) -> list[str]:
    return sorted(f"t-partition-{number}" for number in numbers)


async def test_a_topic_is_made_with_its_partitions(store: MemoryStore, partitions: Partitions) -> None:
    await partitions.create(TOPIC, 3, {"a": "b"})
    node = await store.get(RECORD)
    assert node is not None
    assert node.value == b'{"partitions":3,"deleted":false,"properties":{"a":"b"}}'
    assert await store.children(PERSISTENT) == _names(range(3))
    assert await partitions.count(TOPIC) == 3
    assert await partitions.properties(TOPIC) == {"a": "b"}
    assert await partitions.names("public/default") == ["persistent://public/default/t"]


async def test_a_partition_has_no_partitions_but_belongs_to_its_topic(partitions: Partitions) -> None:
    await partitions.create(TOPIC, 3)
    assert await partitions.count(TOPIC.with_partition(1)) == 0
    assert await partitions.count_of_base(TOPIC.with_partition(1)) == 3
    with pytest.raises(InvalidTopicName, match="-partition-"):
        await partitions.create(TOPIC.with_partition(1), 2)
    assert await partitions.count(TOPIC) == 3


@pytest.mark.parametrize("value", [b'{"partitions":1,"deleted":false}', b'{"partitions":1,"deleted":true}'])
async def test_what_is_there_is_not_made_again(store: MemoryStore, partitions: Partitions, value: bytes) -> None:
    await store.put(RECORD, value)
    with pytest.raises(RecordExists):
        await partitions.create(TOPIC, 3)
    assert await store.children(PERSISTENT) == []


async def test_a_plain_topic_does_not_become_a_partitioned_one(store: MemoryStore, partitions: Partitions) -> None:
    await store.put(f"{PERSISTENT}/t", b"")
    with pytest.raises(RecordExists):
        await partitions.create(TOPIC, 3)
    assert await store.get(RECORD) is None


async def test_a_node_without_a_value_is_no_record(store: MemoryStore, partitions: Partitions) -> None:
    await store.put(RECORD, b"")
    await partitions.create(TOPIC, 3)
    assert await partitions.count(TOPIC) == 3


async def test_of_two_that_make_it_at_once_one_does(partitions: Partitions) -> None:
    results = await asyncio.gather(*(partitions.create(TOPIC, count) for count in (2, 3)), return_exceptions=True)
    assert [type(result) for result in results if result is not None] == [RecordExists]


async def test_partitions_that_are_not_persistent_are_not_stored(store: MemoryStore, partitions: Partitions) -> None:
    topic = TopicName.parse("non-persistent://public/default/t")
    await partitions.create(topic, 3)
    assert await partitions.count(topic) == 3
    assert await store.children(f"{ROOT}/public/default") == []
    await partitions.delete(topic)
    assert await partitions.count(topic) == 0


async def test_a_topic_grows_and_keeps_what_others_wrote(store: MemoryStore, partitions: Partitions) -> None:
    await store.put(RECORD, b'{"partitions":1,"deleted":false,"future":[1]}')
    await partitions.grow(TOPIC, 3)
    node = await store.get(RECORD)
    assert node is not None
    assert node.value == b'{"partitions":3,"deleted":false,"future":[1]}'
    assert await store.children(PERSISTENT) == _names([1, 2])
    await partitions.make_missed(TOPIC)
    assert await store.children(PERSISTENT) == _names(range(3))


async def test_of_two_that_let_it_grow_neither_takes_partitions_away(store: MemoryStore) -> None:
    class Overtaken(MemoryStore):
        async def put(self, path: str, *arguments: object, **more: object) -> int:
            if path == RECORD and arguments[1:] == (0,):  # the other one was faster
                await super().put(RECORD, to_json(partitions_record(8)))
            return await super().put(path, *arguments, **more)  # type: ignore[arg-type]

    store = Overtaken(ManualClock())
    await store.put(RECORD, to_json(partitions_record(4)))
    partitions = Partitions(store, Stored(store))
    with pytest.raises(FewerPartitions):
        await partitions.grow(TOPIC, 6)
    assert await partitions.count(TOPIC) == 8


async def test_only_a_partitioned_topic_grows(partitions: Partitions) -> None:
    with pytest.raises(TopicNotFound):
        await partitions.grow(TOPIC, 3)
    with pytest.raises(TopicNotFound):
        await partitions.make_missed(TOPIC)


async def test_the_record_goes_when_no_partition_is_left(store: MemoryStore, partitions: Partitions) -> None:
    await partitions.create(TOPIC, 2)
    await store.delete(f"{PERSISTENT}/t-partition-0")
    with pytest.raises(RecordInUse, match="t-partition-1; delete that first"):
        await partitions.delete(TOPIC)
    assert await partitions.count(TOPIC) == 2
    await store.delete(f"{PERSISTENT}/t-partition-1")
    await partitions.delete(TOPIC)
    await partitions.delete(TOPIC)
    assert await store.get(RECORD) is None


async def test_properties_change_by_themselves(partitions: Partitions) -> None:
    await partitions.create(TOPIC, 2)
    assert await partitions.properties(TOPIC) == {}
    await partitions.change_properties(TOPIC, lambda old: {**old, "a": "b"})
    assert await partitions.properties(TOPIC) == {"a": "b"}
    assert await partitions.count(TOPIC) == 2


def test_a_record_says_how_many_there_are() -> None:
    assert parse_partitions(to_json(partitions_record(7)), "/p") == 7
    assert parse_partitions(b'{"partitions":7,"deleted":true}', "/p") == 0
    assert parse_partitions(b"", "/p") == 0
    for value in (b"[]", b"?", b'{"partitions":"x"}', b'{"partitions":null}'):
        with pytest.raises(Corruption, match="/p: expected the JSON of a partitioned topic"):
            parse_partitions(value, "/p")


def test_partitions_do_not_become_less() -> None:
    assert grown(partitions_record(3), 3) == partitions_record(3)
    with pytest.raises(FewerPartitions, match="2 can't be less than the current partitions 3"):
        grown(partitions_record(3), 2)
