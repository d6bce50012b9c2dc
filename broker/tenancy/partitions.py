"""Partitioned topics: the record that says how many partitions a topic has, and the topics that are its partitions.

    /admin/partitioned-topics/<tenant>/<namespace>/persistent/<topic>      {"partitions": 4, "deleted": false}
    /managed-ledgers/<tenant>/<namespace>/persistent/<topic>-partition-0   empty until the partition is opened
                                                            … -partition-3

All callers create, grow and delete partitioned topics here. Rules:

1. A name is either that of a partitioned topic or that of a plain one.
2. The record is created before the partitions and deleted after them. A crash in between leaves a record whose
   partitions are missing (`make_missed` makes them; each is also made when it is used), never partitions without a
   record. Only where new partitions are to have subscriptions these come first (`make_ahead`): a crash leaves some that
   the record does not count yet, and growing again takes them.
3. The number of partitions is never reduced: keys would change their partition, and messages would be lost.
4. Partitions are made at once, so that they are listed and exist for other brokers. Only persistent ones are stored.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol

from broker.errors import InvalidTopicName, TopicNotFound
from broker.records.json_records import JsonRecords, RecordError, RecordExists, RecordInUse
from broker.settings.groups.topics import PARTITIONS_MAX
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE, MetadataStore, NoNode, VersionConflict
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import PARTITIONED_TOPICS, PERSISTENT, TopicName, TopicNameError
from managed_ledger.records.paths import ledger_path

Properties = dict[str, str]
Turn = AbstractAsyncContextManager[None]


class FewerPartitions(RecordError):
    """The number of partitions of a topic cannot be reduced."""


class Ledgers(Protocol):
    """Knows which topics are stored (`managed_ledger.factory.ManagedLedgerFactory`)."""

    async def exists(self, name: str) -> bool: ...


class Partitions:
    """The partitioned topics of a cluster. The caller has checked that the namespace exists.

    All methods raise MetadataError and Corruption besides what they name.
    """

    def __init__(self, store: MetadataStore, ledgers: Ledgers, turn: Callable[[], Turn] = nullcontext) -> None:
        """*turn*: for each record and each partition that is made."""
        self._store = store
        self._ledgers = ledgers
        self._turn = turn
        self._records = JsonRecords(store, "Topic")

    async def count(self, topic: TopicName) -> int:
        """How many partitions *topic* has; 0 if it is not partitioned, or is a partition itself."""
        return 0 if topic.partition >= 0 else await self.count_of_base(topic)

    async def count_of_base(self, topic: TopicName) -> int:
        """How many partitions a topic has; *topic* is its name or that of one of its partitions."""
        node = await self._store.get(topic.base.partitions_path)
        return 0 if node is None else parse_partitions(node.value, node.path)

    async def properties(self, topic: TopicName) -> Properties:
        """The properties of a partitioned topic. Raises NoRecord."""
        record = await self._records.get(topic.partitions_path)
        return record.get("properties") or {}

    async def names(self, namespace: str, domain: str = PERSISTENT) -> list[str]:
        """The full names of the partitioned topics of `tenant/namespace`, sorted."""
        names = await self._store.children(f"{PARTITIONED_TOPICS}/{namespace}/{domain}")
        return sorted(TopicName.of_managed_ledger(f"{namespace}/{domain}/{name}").full for name in names)

    async def create(self, topic: TopicName, count: int, properties: Properties | None = None) -> None:
        """Create a partitioned topic with *count* partitions.

        Raises RecordExists (there is a topic of this name), InvalidTopicName (the name is that of a partition, or that
        of a partition would be too long).
        """
        assert 1 <= count <= PARTITIONS_MAX, "the caller has refused other numbers"
        if topic.partition >= 0:
            raise InvalidTopicName("Partitioned Topic Name should not contain '-partition-'")
        _check_names(topic, count)
        exists = "This topic already exists"
        async with self._turn():
            if topic.is_persistent and await self._ledgers.exists(topic.managed_ledger_name):  # rule 1
                raise RecordExists(exists)
            await self._records.create(topic.partitions_path, partitions_record(count, properties), exists)
        await self._make(topic, 0, count)

    async def make_missed(self, topic: TopicName) -> None:
        """Make the partitions that are missing. Raises TopicNotFound."""
        await self._make(topic, 0, await self._known_count(topic))

    async def make_ahead(self, topic: TopicName, count: int) -> None:
        """Make those partitions that *topic* will have more when it grows to *count*. Raises TopicNotFound,
        InvalidTopicName."""
        _check_names(topic, count)
        await self._make(topic, await self._known_count(topic), count)

    async def grow(self, topic: TopicName, count: int) -> None:
        """Raise the number of partitions of *topic* to *count*. Raises TopicNotFound, FewerPartitions,
        InvalidTopicName."""
        assert 1 <= count <= PARTITIONS_MAX, "the caller has refused other numbers"
        former_count = await self._known_count(topic)
        _check_names(topic, count)
        await self._records.change(topic.partitions_path, lambda record: grown(record, count))
        await self._make(topic, former_count, count)

    async def change_properties(self, topic: TopicName, change: Callable[[Properties], Properties]) -> None:
        """Raises NoRecord."""
        await self._records.change(
            topic.partitions_path, lambda old: {**old, "properties": change(old.get("properties") or {})}
        )

    async def delete(self, topic: TopicName) -> None:
        """Delete the record of *topic*, after its partitions. Raises RecordInUse: a partition still exists."""
        for number in range(await self.count(topic)):
            partition = topic.with_partition(number)
            if topic.is_persistent and await self._ledgers.exists(partition.managed_ledger_name):  # rule 2
                raise RecordInUse(f"{topic} still has {partition}; delete that first")
        try:
            await self._store.delete(topic.partitions_path)
        except NoNode:
            return  # deleted by another request meanwhile

    async def _known_count(self, topic: TopicName) -> int:
        count = await self.count(topic)
        if not count:
            raise TopicNotFound(f"Topic {topic} is not a partitioned topic")
        return count

    async def _make(self, topic: TopicName, first: int, count: int) -> None:
        """Make the partitions from number *first* up to *count* (rule 4)."""
        if not topic.is_persistent:
            return
        for number in range(first, count):
            async with self._turn():
                try:
                    await self._store.put(ledger_path(topic.with_partition(number).managed_ledger_name), b"", NO_NODE)
                except VersionConflict:
                    continue  # the partition exists; its messages stay


def _check_names(topic: TopicName, count: int) -> None:
    """Raises InvalidTopicName if the last of *count* partitions could not be named."""
    try:
        TopicName.parse(topic.with_partition(count - 1).full)
    except TopicNameError as error:
        raise InvalidTopicName(f"Invalid topic name: {error}") from None


def partitions_record(count: int, properties: Properties | None = None) -> dict[str, Any]:
    """The record of a topic with *count* partitions, with Apache's members in Apache's order."""
    return {"partitions": count, "deleted": False, **({"properties": properties} if properties else {})}


def parse_partitions(value: bytes, path: str) -> int:
    """The number of partitions in the node *path*; 0 while the topic is being deleted. Raises Corruption."""
    try:
        raw = parse_json(value) if value else {}
        return 0 if raw.get("deleted") else int(raw.get("partitions", 0))
    except (ValueError, TypeError, AttributeError) as error:
        raise Corruption(f"{path}: expected the JSON of a partitioned topic, found {value[:80]!r}") from error


def grown(record: dict[str, Any], count: int) -> dict[str, Any]:
    """*record* with *count* partitions. Raises FewerPartitions."""
    former_count = int(record.get("partitions", 0))
    if count < former_count:  # rule 3
        raise FewerPartitions(f"Desired partitions {count} can't be less than the current partitions {former_count}.")
    return {**record, "partitions": count}
