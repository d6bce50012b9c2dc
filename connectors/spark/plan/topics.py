"""Which topics there are, and how many partitions they have, as the metadata store says."""

import json
import re
from typing import Final

from connectors.spark.options.read import TopicsPattern
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.types import Corruption
from managed_ledger.records.paths import ROOT, decode
from managed_ledger.topic_name import PARTITIONED_TOPICS, PERSISTENT, TopicName


def listings(pattern: TopicsPattern) -> tuple[str, str]:
    """The nodes whose children are the topics of a namespace: those with ledgers, and those with partitions."""
    stem = f"{pattern.tenant}/{pattern.namespace}/{PERSISTENT}"
    return f"{ROOT}/{stem}", f"{PARTITIONED_TOPICS}/{stem}"


async def topics_like(store: MetadataStore, pattern: TopicsPattern) -> list[TopicName]:
    """The topics whose names match, in order; a partitioned topic stands for its partitions. Raises MetadataError."""
    with_ledgers, with_partitions = listings(pattern)

    def named(child: str) -> TopicName:
        return TopicName(PERSISTENT, pattern.tenant, pattern.namespace, decode(child))

    partitioned = {named(child) for child in await store.children(with_partitions)}
    plain = {named(child) for child in await store.children(with_ledgers)}
    all_topics = partitioned | {topic for topic in plain if topic.base not in partitioned}
    return sorted(topic for topic in all_topics if is_like(topic, pattern))


def is_like(topic: TopicName, pattern: TopicsPattern) -> bool:
    """Whether its name matches."""
    is_there = topic.namespace == f"{pattern.tenant}/{pattern.namespace}"
    is_meant = re.fullmatch(pattern.local, topic.local) is not None
    return is_there and is_meant and (pattern.includes_internal or not is_internal(topic))


_INTERNAL: Final = re.compile(r"__.*")


def is_internal(topic: TopicName) -> bool:
    """Whether the topic is not one of users': brokers' own, and those whose names begin with `__`."""
    return topic.is_system or _INTERNAL.fullmatch(topic.local) is not None


async def partition_count(store: MetadataStore, topic: TopicName) -> int | None:
    """None: the topic has no partitions. Raises Corruption, MetadataError."""
    node = await store.get(topic.partitions_path)
    if node is None:
        return None
    try:
        count = json.loads(node.value)["partitions"]
    except (ValueError, LookupError, TypeError):
        count = None
    if not isinstance(count, int) or count < 0:
        raise Corruption(f"the record of {topic}'s partitions is {node.value[:100]!r}")
    return count or None
