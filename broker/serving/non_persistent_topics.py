"""The non-persistent topics that this broker serves. They are open while they are used, and nowhere else to be found.

Rules:

1. A topic is here only while this broker owns its bundle. The caller checks that before, and reports here when the
   bundle is lost (`drop_lost`).
2. A topic that nobody has used for a while is forgotten, as persistent ones are deleted.
"""

import logging

from broker.errors import NotAllowed
from broker.names import BundleSet
from broker.ownership.rules import Ownership
from broker.policies.namespace import NamespacePolicies
from broker.serving.open_topics import in_turns
from broker.settings.config import BrokerConfig
from broker.topic.non_persistent.topic import NonPersistentTopic
from broker.topic.ports import NOT_KNOWN, NextBroker
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import gather_in_turns
from magnetar_core.topics.topic_name import TopicName

log = logging.getLogger(__name__)


class NonPersistentTopics:
    """Non-persistent topics by name."""

    def __init__(self, config: BrokerConfig, clock: Clock, ownership: Ownership) -> None:
        self.by_name: dict[TopicName, NonPersistentTopic] = {}
        self._config = config
        self._clock = clock
        self._ownership = ownership

    def get(self, name: TopicName) -> NonPersistentTopic | None:
        """The topic, if it is open here."""
        return self.by_name.get(name)

    def open(self, name: TopicName, policies: NamespacePolicies) -> NonPersistentTopic:
        """The topic; it is made if it is not there. Raises NotAllowed."""
        if not self._config.enable_non_persistent_topics:
            raise NotAllowed(f"{name}: this broker has enableNonPersistentTopics=false")
        topic = self.by_name.get(name)
        if topic is None:
            topic = self.by_name[name] = NonPersistentTopic(name, self._config, policies, self._clock)
        return topic

    def in_namespace(self, namespace: str) -> list[NonPersistentTopic]:
        """The open topics of `tenant/namespace`."""
        return [topic for name, topic in self.by_name.items() if name.namespace == namespace]

    def names(self, namespace: str, bundle: str | None = None) -> list[str]:
        """The full names of the open topics of `tenant/namespace`, or of one of its bundles, sorted."""
        topics = self.in_namespace(namespace)
        if bundle is not None:
            here = BundleSet([bundle])
            topics = [topic for topic in topics if here.has(topic.name)]
        return sorted(topic.name.full for topic in topics if not topic.name.is_system)

    async def close(self, name: TopicName, next_broker: NextBroker = NOT_KNOWN) -> None:
        """Disconnect the clients of a topic, which go on at *next_broker*, and forget it."""
        topic = self.by_name.pop(name, None)
        if topic is not None:
            await topic.close(next_broker)

    async def close_bundle(self, bundle: str, next_broker: NextBroker = NOT_KNOWN) -> None:
        """Close all topics of `tenant/namespace/range`, as `close`."""
        here = BundleSet([bundle])
        names = [name for name in self.by_name if here.has(name)]
        await gather_in_turns(self.close(name, next_broker) for name in names)

    async def close_all(self) -> None:
        await gather_in_turns(self.close(name) for name in list(self.by_name))

    def drop_lost(self, bundles: BundleSet) -> None:
        """These bundles are not ours any more: the clients of their topics look them up again (rule 1)."""
        for name, topic in list(self.by_name.items()):
            if bundles.has(name) or not self._ownership.owns(name):
                del self.by_name[name]
                topic.disconnect_all()

    async def take_rates(self, now_ms: int) -> None:
        """Work out the rates of the period that ends now."""
        async for topic in in_turns(self.by_name):
            topic.take_rates(now_ms)

    async def forget_idle(self, idle_s: float) -> None:
        """Close the topics that nobody has used for *idle_s* (rule 2)."""
        since_ms = self._clock.wall_ms() - idle_s * 1000
        async for topic in in_turns(self.by_name):
            if not topic.clients and topic.last_active_ms <= since_ms and not topic.name.is_system:
                await self.close(topic.name)
                log.info("%s is closed: nobody used it for %.0f s", topic.name, idle_s)
