"""The policies that are in force for topics, and the topics that are open here get them when they change.

namespace (a record) ─┐
topic (events)        ├─▶ over each other ─▶ the topic, its ledger's settings, its resource group
broker's settings    ─┘

Changed policies that cannot be read, or not be applied to a topic, are read again until all topics have them: nobody
else would report them to topics.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, reduce
from typing import Final
from weakref import WeakValueDictionary

from broker.errors import BrokerError, MetadataFailure, TopicNotFound
from broker.policies.namespace import NamespacePolicies
from broker.policies.topic.record import Record, of_system_topic, overlay
from broker.policies.topic.service import TopicPolicies
from broker.serving.non_persistent_topics import NonPersistentTopics
from broker.serving.open_topics import OpenTopics
from broker.serving.storage import ledger_config
from broker.settings.config import BrokerConfig
from broker.settings.groups.topics import IN_METADATA
from broker.system_client import SystemClient
from broker.tenancy.changes import Tenancy
from broker.tenancy.namespaces import Namespaces
from broker.tenancy.resource_groups import ResourceGroups
from broker.topic.non_persistent.topic import NonPersistentTopic
from broker.topic.topic import Topic
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.pauses import GrowingPause
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.topics.topic_name import TopicName

log = logging.getLogger(__name__)

AnyTopic = Topic | NonPersistentTopic

# How long to wait before changed policies are read again; doubles from the first to the last.
RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 30.0


class InForce:
    """The policies of the namespaces and topics of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        clock: Clock,
        tasks: Tasks,
        tenancy: Tenancy,
        system: SystemClient,
        topics: OpenTopics,
        non_persistent: NonPersistentTopics,
        recheck: Callable[[Sequence[AnyTopic]], Awaitable[None]],
    ) -> None:
        """*recheck* is called with topics where rights may have changed."""
        self._config = config
        self._clock = clock
        self._tasks = tasks
        self._topics = topics
        self._non_persistent = non_persistent
        self._recheck = recheck
        self.namespaces = Namespaces(store, tenancy, self._on_namespace_changed)
        uses_nodes = config.topic_policies_service == IN_METADATA
        self.topic_policies = TopicPolicies(
            system,
            store,
            clock,
            config.cluster_name,
            self._on_topic_policies_changed,
            is_on=config.topic_level_policies and (config.system_topics or uses_nodes),
            uses_nodes=uses_nodes,
        )
        self.resource_groups = ResourceGroups(store, clock, self._on_resource_group_changed, tasks)
        self._applied: dict[str, NamespacePolicies] = {}
        """Namespace with open topics → the policies that all of them got at the last change."""
        self._retrying: set[str] = set()
        """Whose policies will be read again: names of namespaces and topics."""
        self._reloading = WeakValueDictionary[str, asyncio.Lock]()
        self._is_stopping = False

    def stop(self) -> None:
        """Changes are not looked at any more."""
        self._is_stopping = True

    async def policies_of(self, name: TopicName) -> NamespacePolicies:
        """The policies in force for a topic. Raises TopicNotFound, NotReady, MetadataFailure."""
        return self.combined(
            name, await self.namespaces.policies(name.namespace), await self.topic_policies.records_of(name)
        )

    async def policies_of_new(self, name: TopicName, policies: NamespacePolicies) -> NamespacePolicies:
        """The same with *policies* for those of its namespace. Raises NotReady, MetadataFailure."""
        return self.combined(name, policies, await self.topic_policies.records_of(name))

    @staticmethod
    def combined(name: TopicName, policies: NamespacePolicies, topic_records: Sequence[Record]) -> NamespacePolicies:
        """*policies* with those of the topic laid over them, the last ones on top. Raises MetadataFailure."""
        if name.is_system:
            return of_system_topic(policies)
        try:
            return reduce(overlay, topic_records, policies)
        except (ValueError, TypeError, AttributeError) as error:
            raise MetadataFailure(f"the policies of {name} cannot be read: {error}") from error

    async def bring_up_to_date(self, topic: Topic, policies: NamespacePolicies) -> None:
        """*policies*: those in force when its opening began. Raises BrokerError."""
        if not policies.is_same_but_for_bundles(await self.policies_of(topic.name)):
            await self._apply(topic, await self.namespaces.policies(topic.name.namespace))

    def join(self, topic: AnyTopic) -> None:
        """Put a topic into the resource group that its policies name; one of the system is in none."""
        topic.join(None if topic.name.is_system else self.resource_groups.get(topic.policies.resource_group))

    async def reload_all(self) -> None:
        """The broker's settings have changed."""
        self._applied.clear()
        for name in {topic.namespace for topic in [*self._topics, *self._non_persistent.by_name]}:
            if not await self._reload_namespace(name):
                self._on_namespace_changed(name)

    def look_again(self, namespace: str) -> None:
        """Its policies were forgotten: what has changed since they were read reaches its topics."""
        self._on_namespace_changed(namespace)

    def _on_namespace_changed(self, name: str) -> None:
        self._follow(name, partial(self._reload_namespace, name))

    def _follow(self, name: str, reload: Callable[[], Awaitable[bool]]) -> None:
        """The policies of *name* have changed. *reload* says whether all topics have them."""
        if not self._is_stopping:
            self._tasks.spawn(self._retry_until_applied(name, reload), f"policies of {name}")

    async def _retry_until_applied(self, name: str, reload: Callable[[], Awaitable[bool]]) -> None:
        pause = GrowingPause(RETRY_FIRST_S, RETRY_LAST_S)
        while not await reload() and name not in self._retrying and not self._is_stopping:
            self._retrying.add(name)
            await self._clock.sleep(pause.next_s())
            self._retrying.discard(name)

    async def _reload_namespace(self, name: str) -> bool:
        """Whether all its topics have what is stored."""
        self.namespaces.forget(name)
        # One after the other: what was read last is what topics have in the end.
        async with self._reloading.setdefault(name, asyncio.Lock()):
            topics = [topic for topic in self._topics.values() if topic.name.namespace == name]
            passing = self._non_persistent.in_namespace(name)
            before = self._applied.pop(name, None)
            try:
                policies = await self.namespaces.policies(name)
                if before is not None and before.is_same_but_for_bundles(policies):
                    self._applied[name] = before  # nothing that topics or clients know of: its bundles were split
                    return True
                failed = 0
                for topic in topics:
                    try:
                        await self._apply(topic, policies)
                    except BrokerError as error:  # it may be ending just now; the others get them all the same
                        failed += 1
                        log.warning("the policies of %s changed and could not be applied: %s", topic.name, error)
                for other in passing:
                    await other.apply_policies(policies)
                    self.join(other)
                if (topics or passing) and not failed:
                    self._applied[name] = policies
            except TopicNotFound:
                return True  # the namespace was deleted, and its topics before it
            except BrokerError as error:
                failed = len(topics) + len(passing)
                log.warning("the policies of %s changed and could not be applied: %s", name, error)
            await self._recheck([*topics, *passing])
            return not failed

    def _on_topic_policies_changed(self, base: TopicName) -> None:
        self._follow(str(base), partial(self._reload_topic, base))

    async def _reload_topic(self, base: TopicName) -> bool:
        """Whether it, or each of its partitions here, has what is stored."""
        failed = 0
        for topic in self._topics.of_base(base):
            try:
                await self._apply(topic, await self.namespaces.policies(base.namespace))
            except BrokerError as error:
                failed += 1
                log.warning("the policies of %s changed and could not be applied: %s", topic.name, error)
        return not failed

    async def _apply(self, topic: Topic, policies: NamespacePolicies) -> None:
        """Raises BrokerError."""
        effective = await self.policies_of_new(topic.name, policies)
        topic.ledger.config = ledger_config(self._config, effective, is_system=topic.name.is_system)
        await topic.apply_policies(effective)
        self.join(topic)

    def _on_resource_group_changed(self, name: str) -> None:
        open_topics: list[AnyTopic] = [*self._topics.values(), *self._non_persistent.by_name.values()]
        for topic in open_topics:
            if topic.policies.resource_group == name:
                self.join(topic)
