"""Topics, for programs without an event loop."""

from typing import Any

from magnetar.client.async_topics import AsyncTopics
from magnetar.client.blocking.loop import ClientLoop


class Topics:
    """Topics: create, delete, list, stats; as `AsyncTopics`.

    Example:
        client.topics.create("orders", partitions=4)
        print(client.topics.list("public/default"))
    """

    def __init__(self, loop: ClientLoop, topics: AsyncTopics) -> None:
        self._loop = loop
        self._topics = topics

    def create(self, topic: str, *, partitions: int = 0) -> None:
        """Make a topic. Raises TopicInUse if it exists."""
        self._loop.run(self._topics.create(topic, partitions=partitions))

    def partitions(self, topic: str) -> int:
        """0 for a topic that is not partitioned. Raises TopicDoesNotExist."""
        return self._loop.run(self._topics.partitions(topic))

    def delete(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with its partitions, messages and subscriptions."""
        self._loop.run(self._topics.delete(topic, force=force))

    def list(self, namespace: str = "public/default") -> "list[str]":
        """Full names of the topics of a namespace."""
        return self._loop.run(self._topics.list(namespace))

    def stats(self, topic: str) -> dict[str, Any]:
        """Statistics as Pulsar's admin API gives them."""
        return self._loop.run(self._topics.stats(topic))
