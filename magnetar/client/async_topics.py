"""Topics over the topic API: create, delete, list, statistics; and the partitions that a topic consists of."""

import asyncio
from typing import Any, Final

from magnetar.client.base.arguments import check_flag, check_text, check_whole
from magnetar.client.brokers import Brokers, garbage
from magnetar.client.errors import TopicDoesNotExist, TopicError
from magnetar.client.values import INT32
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName, TopicNameError

# How often a partitioned topic is deleted by force while somebody keeps making its partitions again, and the pause in
# between: clients that were disconnected come back at once, then after 100 ms and more.
DELETE_ROUNDS: Final = 5
DELETE_PAUSE_S: Final = 0.1

# As brokers have it. A client keeps a name and a call for each.
PARTITIONS_MAX: Final = 10_000


async def topics_of(brokers: Brokers, topic: str, timeout_s: float | None = None) -> list[str]:
    """The full name of *topic*, or the full names of its partitions. Makes the topic if there is none, where that is
    allowed. Raises TopicError, also after *timeout_s* (by default that of operations)."""
    request = api.GetTopicRequest(topic=topic, create=True)
    answer = await _ask(brokers, request, timeout_s)
    return partition_names(answer.topic, answer.partitions) or [answer.topic]


def partition_names(topic: str, count: int) -> list[str]:
    """The full names of the *count* partitions of *topic*, a full name."""
    return [f"{topic}-partition-{number}" for number in range(count)]


async def _ask(brokers: Brokers, request: Any, timeout_s: float | None = None) -> Any:
    """Ask any broker for a topic: its name and its partitions. Raises TopicError."""
    answer = await brokers.ask_any("GetTopic", request, api.GetTopicResponse, timeout_s)
    if not (0 <= answer.partitions <= PARTITIONS_MAX and _is_name(answer.topic)):
        raise garbage(f"the broker that was asked for {request.topic}")
    return answer


def _is_name(topic: str) -> bool:
    try:
        TopicName.parse(topic)
    except TopicNameError:
        return False
    return True


class AsyncTopics:
    """Topics: create, delete, list, stats.

    Example:
        await client.topics.create("orders", partitions=4)
        print(await client.topics.list("public/default"))
    """

    def __init__(self, brokers: Brokers, owner: object = None) -> None:
        """*owner* ends the brokers when nobody uses it any more."""
        self._brokers = brokers
        self._owner = owner

    async def create(self, topic: str, *, partitions: int = 0) -> None:
        """Make a topic. Raises TopicInUse if it exists."""
        check_text("topic", topic)
        check_whole("partitions", partitions, 0, INT32)
        request = api.CreateTopicRequest(topic=topic, partitions=partitions)
        if partitions:
            await self._brokers.ask_any("CreateTopic", request, api.CreateTopicResponse)
        else:
            await self._brokers.ask_owner(topic, "CreateTopic", request, api.CreateTopicResponse)

    async def partitions(self, topic: str) -> int:
        """0 for a topic that is not partitioned. Raises TopicDoesNotExist."""
        check_text("topic", topic)
        return int((await _ask(self._brokers, api.GetTopicRequest(topic=topic))).partitions)

    async def delete(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with its partitions, messages and subscriptions.

        Without *force* a topic with clients or subscriptions is left alone. With it, producers that are open may make
        partitions again while others are deleted: these are deleted again, a few times. Raises TopicDoesNotExist.
        """
        check_flag("force", force)
        for left in reversed(range(DELETE_ROUNDS if force else 1)):
            try:
                await self._delete(topic, force)
                return
            except TopicError as error:
                if error.code != "FAILED_PRECONDITION" or not left:
                    raise
            await asyncio.sleep(DELETE_PAUSE_S)

    async def _delete(self, topic: str, force: bool) -> None:
        partitions = await self.partitions(topic)
        for number in range(partitions):
            name = f"{topic}-partition-{number}"
            request = api.DeleteTopicRequest(topic=name, force=force)
            try:
                await self._brokers.ask_owner(name, "DeleteTopic", request, api.DeleteTopicResponse)
            except TopicDoesNotExist:
                continue
        request = api.DeleteTopicRequest(topic=topic, force=force)
        if partitions:
            await self._brokers.ask_any("DeleteTopic", request, api.DeleteTopicResponse)
        else:
            await self._brokers.ask_owner(topic, "DeleteTopic", request, api.DeleteTopicResponse)

    async def list(self, namespace: str = "public/default") -> "list[str]":  # the name is this method here
        """Full names of the topics of a namespace, each partition for itself."""
        check_text("namespace", namespace)
        request = api.ListTopicsRequest(namespace=namespace)
        answer = await self._brokers.ask_any("ListTopics", request, api.ListTopicsResponse)
        return [str(name) for name in answer.topics]

    async def stats(self, topic: str) -> dict[str, Any]:
        """Statistics as Pulsar's admin API gives them; of a partitioned topic, {"partitions": {name: statistics}}."""
        partitions = await self.partitions(topic)
        if partitions:
            names = [f"{topic}-partition-{number}" for number in range(partitions)]
            return {"partitions": {name: await self._stats(name) for name in names}}
        return await self._stats(topic)

    async def _stats(self, topic: str) -> dict[str, Any]:
        request = api.GetTopicStatsRequest(topic=topic)
        answer = await self._brokers.ask_owner(topic, "GetTopicStats", request, api.GetTopicStatsResponse)
        try:
            stats: dict[str, Any] = parse_json(answer.json)
        except ValueError:
            raise garbage(f"the broker that serves {topic}") from None
        return stats
