"""Which topics there are, and how many partitions they have, as the metadata store says."""

import difflib
import json
import re
from typing import Final

from connectors.spark.options.read import TopicsPattern
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import PARTITIONED_TOPICS, PERSISTENT, TopicName, decode
from managed_ledger.records.paths import ROOT


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
    return pattern.names(topic) and (pattern.includes_internal or not is_internal(topic))


_NEAR: Final = 3
"""How many names are proposed."""


async def near_names(store: MetadataStore, topic: TopicName) -> str:
    """What to say of a topic that does not exist: names of its namespace that are like it. Raises MetadataError."""
    everything = TopicsPattern(topic.tenant, topic.namespace_local, ".*")
    there = {other.local.lower(): other.local for other in await topics_like(store, everything)}
    if not there:
        return f"namespace {topic.namespace} has no topics in it"
    near = difflib.get_close_matches(topic.local.lower(), there, _NEAR)
    if near:
        return f"did you mean {' or '.join(there[name] for name in near)}?"
    near_topics = ", ".join(sorted(there.values())[:_NEAR])
    return f"of the {len(there)} topics of namespace {topic.namespace} none is like it: {near_topics}, …"


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
