"""Makes ready to serve the topics of a broker that does not answer, while its session with the metadata store lasts.

a client asks for a topic ──▶ its owner does not answer ──▶ what opening it needs is prepared
                                                      … the session ends, the bundle is ours ──▶ it is opened
"""

import logging

from broker.broker import Broker
from broker.errors import BrokerError
from broker.ownership.ownership import BundleOwnership
from magnetar_core.runtime.tasks import Tasks
from managed_ledger.topic_name import TopicName

log = logging.getLogger(__name__)


class Takeovers:
    """For one broker. Whatever fails here costs time at the takeover and nothing else."""

    def __init__(self, broker: Broker, ownership: BundleOwnership) -> None:
        self._broker = broker
        self._ownership = ownership
        self._tasks = Tasks("takeovers")
        self._preparing: set[TopicName] = set()

    def start(self) -> None:
        self._ownership.on_awaited = self.prepare

    async def stop(self) -> None:
        self._ownership.on_awaited = lambda topic: None
        await self._tasks.cancel()

    def prepare(self, topic: TopicName) -> None:
        """Begin to prepare a topic that will be ours. Does not wait."""
        if topic not in self._preparing:
            self._preparing.add(topic)
            self._tasks.spawn(self._prepare(topic), f"prepare {topic}")

    async def _prepare(self, topic: TopicName) -> None:
        try:
            await self._broker.prepare(topic)
        except BrokerError as error:
            log.info("%s is not prepared: %s", topic, error)
        finally:
            self._preparing.discard(topic)
