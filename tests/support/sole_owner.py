"""An ownership in which this broker serves every topic, until a test moves one."""

from collections.abc import Callable

from broker.ownership.rules import BrokerAddress, Located
from magnetar_core.topics.topic_name import TopicName


class SoleOwner:
    """Owns every topic but those in `elsewhere`."""

    def __init__(self) -> None:
        self.elsewhere: dict[TopicName, Located] = {}
        self.acknowledges = True
        self._lost: list[Callable[[list[str]], None]] = []

    async def brokers(self) -> dict[str, BrokerAddress]:
        return {}

    async def locate(self, topic: TopicName, *, authoritative: bool) -> Located:
        return self.elsewhere.get(topic) or Located(True, None)

    def owns(self, topic: TopicName) -> bool:
        return topic not in self.elsewhere

    async def is_coming(self, topic: TopicName) -> bool:
        return self.owns(topic)

    def may_acknowledge(self) -> bool:
        return self.acknowledges

    def watch_lost(self, lost: Callable[[list[str]], None]) -> Callable[[], None]:
        self._lost.append(lost)
        return lambda: self._lost.remove(lost)

    def lose(self, *bundles: str) -> None:
        for lost in self._lost:
            lost(list(bundles))

    def move(self, topic: TopicName, broker: BrokerAddress) -> None:
        """The topic is served by *broker* from now on."""
        self.elsewhere[topic] = Located(False, broker)
