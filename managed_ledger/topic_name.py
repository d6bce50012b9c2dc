"""A topic's name, and the paths that follow from it: `magnetar_core.topics.topic_name`, as servers know it. No IO.

Clients take it from there: a program that has a module `managed_ledger` of its own can use them all the same.
"""

from magnetar_core.topics.topic_name import (
    ENTITY_CHARS_MAX,
    NON_PERSISTENT,
    PARTITIONED_TOPICS,
    PERSISTENT,
    TopicName,
    TopicNameError,
    is_entity_name,
)

__all__ = [
    "ENTITY_CHARS_MAX",
    "NON_PERSISTENT",
    "PARTITIONED_TOPICS",
    "PERSISTENT",
    "TopicName",
    "TopicNameError",
    "is_entity_name",
]
