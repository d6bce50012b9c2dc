"""Shadow topics: Apache's brokers make them without ledgers of their own; they show the ledgers of another topic.

    {"PULSAR.SHADOW_SOURCE": "persistent://tenant/namespace/source"}     among the properties of a topic's record, or of
                                                                          the record of a partitioned topic

They are not served here. One that was opened as an ordinary topic would take messages that its source never had.
"""

from collections.abc import Mapping
from typing import Final

from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.topics.topic_name import TopicName, TopicNameError
from managed_ledger.errors import ShadowTopic, StorageUnavailable

SHADOW_SOURCE: Final = "PULSAR.SHADOW_SOURCE"


def check_no_shadow(name: str, properties: Mapping[str, str]) -> None:
    """Raises ShadowTopic if the topic *name* with these properties is a shadow."""
    source = properties.get(SHADOW_SOURCE)
    if source is not None:
        raise ShadowTopic(f"{name} is a shadow topic of {source}; shadow topics are not served by this broker")


async def check_partition(name: str, store: MetadataStore) -> None:
    """Raises ShadowTopic if the managed ledger *name* is a partition of a shadow; StorageUnavailable.

    Only a partition without ledgers has to be looked up: the partitions of a shadow never have ledgers.
    """
    try:
        topic = TopicName.of_managed_ledger(name)
    except TopicNameError:
        return
    if topic.partition < 0:
        return
    try:
        node = await store.get(topic.base.partitions_path)
    except MetadataError as error:
        raise StorageUnavailable(f"cannot open {name}: {error}") from error
    try:
        record = parse_json(node.value) if node is not None and node.value else {}
        properties = record.get("properties") or {}
    except (ValueError, AttributeError):
        return  # a damaged record; a client that asks for partitions gets the error
    if isinstance(properties, dict):
        check_no_shadow(name, properties)
