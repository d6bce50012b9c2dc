"""Topics are deleted, with all that must not be there for a later topic of the same name.

A topic that is made later under that name takes any schema, begins without policies, and is not open to roles that were
granted the former one. Where the metadata store does not answer, what is stored beside a topic is removed again: the
topic is gone, and nobody else would do it. Until its schema has gone no topic is made here under that name.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from broker.errors import (
    BrokerError,
    MetadataFailure,
    NotAllowed,
    NotReady,
    StorageFailure,
    TopicNotFound,
    TopicUnreadable,
    storage_errors,
)
from broker.policies.topic.service import TopicPolicies
from broker.records.json_records import RecordError
from broker.serving.creation import Creation
from broker.serving.non_persistent_topics import NonPersistentTopics
from broker.serving.open_topics import OpenTopics
from broker.serving.opening import Ledgers, Opening
from broker.serving.schemas import SchemaRules
from broker.tenancy.changes import Tenancy
from broker.tenancy.partitions import Partitions
from broker.topic.topic import Topic
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName

log = logging.getLogger(__name__)

# Seconds between attempts to remove what is stored beside a topic: together more than most sessions last, with which
# the broker would lose its topics anyway.
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)

_PASSING: Final = (MetadataError, MetadataFailure, NotReady, StorageFailure)
"""Failures of the moment. The others stay: a record that cannot be read, a namespace that has gone."""


class Deleting:
    """Deletes the topics of one broker."""

    def __init__(
        self,
        ledgers: Ledgers,
        opening: Opening,
        creation: Creation,
        topics: OpenTopics,
        non_persistent: NonPersistentTopics,
        schema_rules: SchemaRules,
        topic_policies: TopicPolicies,
        tenancy: Tenancy,
        partitioned: Partitions,
        clock: Clock,
    ) -> None:
        self._ledgers = ledgers
        self._opening = opening
        self._creation = creation
        self._topics = topics
        self._non_persistent = non_persistent
        self._schema_rules = schema_rules
        self._topic_policies = topic_policies
        self._tenancy = tenancy
        self._partitioned = partitioned
        self._clock = clock

    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with its data and subscriptions. Raises TopicNotFound, NotAllowed (it is in use)."""
        if name not in self._topics and not await self._opening.exists(name):
            raise TopicNotFound(f"Topic {name} does not exist")
        try:
            topic = await self._opening.persistent(name)
        except TopicUnreadable as error:
            if not force:
                raise TopicUnreadable(f"{error}; it can only be deleted by force") from error
            await self._discard(name)
            await self._forget_schema(name)
            await self._forget_permissions(name)
            await self._forget_policies(name)
            return
        if not force and (topic.is_in_use or topic.has_subscriptions):
            raise NotAllowed(
                f"Topic {name} has connected clients or subscriptions; use force",
                way_out="or close its clients and remove its subscriptions first",
            )
        self._topics.pop(name, None)
        self._creation.forget(name)
        await self._opening.end(name, self._delete(topic), "delete")
        await self._forget_permissions(name)
        await self._forget_policies(name)

    async def _delete(self, topic: Topic) -> None:
        """Delete a topic and its schema, before a producer may make it again with another one. Raises BrokerError."""
        await topic.delete()
        await self._forget_schema(topic.name)

    async def delete_partitioned(self, name: TopicName) -> None:
        """Delete what is stored of a partitioned topic whose partitions are deleted.

        Raises RecordInUse (one is not), MetadataError, Corruption.
        """
        await self._partitioned.delete(name)
        await self._forget_schema(name)
        await self._forget_permissions(name, with_partitions=True)
        await self._forget_policies(name)

    async def _forget_schema(self, name: TopicName) -> None:
        """A partition has the schema of its topic."""
        if name.partition < 0:
            await self._remove_with_retries(f"{name} was deleted; its schema", lambda: self._schema_rules.forget(name))

    async def _forget_policies(self, name: TopicName) -> None:
        """A topic that is made later under the same name begins without policies."""
        await self._remove_with_retries(f"{name} was deleted; its policies", lambda: self._topic_policies.forget(name))

    async def _forget_permissions(self, name: TopicName, *, with_partitions: bool = False) -> None:
        """A topic that is made later under the same name must not be open to roles that were granted this one."""
        await self._remove_with_retries(
            f"{name} was deleted; what was granted on it",
            lambda: self._tenancy.forget_topic_permissions(name, with_partitions=with_partitions),
        )

    async def _remove_with_retries(self, what: str, remove: Callable[[], Awaitable[object]]) -> None:
        """Call *remove* until it succeeds, a few times; never raises. *what* is removed, for the log."""
        for pause_s in (*PAUSES_S, 0.0):
            try:
                await remove()
                return
            except (BrokerError, RecordError, MetadataError, Corruption) as error:
                is_tried_again = pause_s > 0 and isinstance(error, _PASSING)
                log.warning("%s could not be removed%s: %s", what, "; trying again" if is_tried_again else "", error)
                if not is_tried_again:
                    return
                await self._clock.sleep(pause_s)

    async def _discard(self, name: TopicName) -> None:
        log.warning("%s cannot be opened and is deleted by force", name)
        with storage_errors():
            await self._ledgers.discard(name.managed_ledger_name)

    async def delete_non_persistent(self, topic: TopicName) -> None:
        """Disconnect the clients of a non-persistent topic and forget it, with what was granted on it."""
        await self._non_persistent.close(topic)
        await self._forget_permissions(topic)
