"""Asks again about producers and consumers that are there already, after the permissions of their namespace changed."""

import asyncio
import logging
from typing import Any, Final

from broker.errors import BrokerError
from broker.security.access import Access
from broker.security.authorization import Operation, about_topic
from broker.topic.non_persistent.subscription import NonPersistentSubscription
from broker.topic.non_persistent.topic import NonPersistentTopic
from broker.topic.reading.subscription import Subscription
from broker.topic.topic import Topic
from magnetar_core.security.caller import Caller
from magnetar_core.topics.topic_name import TopicName

log = logging.getLogger(__name__)

# Some 10 µs each: a topic may have 10,000.
CLIENTS_PER_TURN: Final = 500


async def recheck(access: Access, topic: Topic | NonPersistentTopic) -> None:
    """Disconnect the clients of *topic* that may not use it any more.

    Their clients come back and are refused; that is how they learn the reason.
    """
    if access.is_open:
        return
    for number, producer in enumerate(list(topic.producers.values()), 1):
        if number % CLIENTS_PER_TURN == 0:
            await asyncio.sleep(0)
        if not await still_may(access, producer.caller, Operation.PRODUCE, topic.name, producer):
            topic.disconnect_producer(producer)
    subscriptions: dict[str, Subscription | NonPersistentSubscription] = {**topic.subscriptions}
    for name, subscription in subscriptions.items():
        for number, consumer in enumerate(list(subscription.consumers), 1):
            if number % CLIENTS_PER_TURN == 0:
                await asyncio.sleep(0)
            if not await still_may(access, consumer.caller, Operation.CONSUME, topic.name, consumer, name):
                topic.disconnect_consumer(consumer)


async def still_may(
    access: Access, caller: Caller, operation: Operation, topic: TopicName, who: Any, subscription: str = ""
) -> bool:
    """Whether *caller* may do *operation* still; logs why not."""
    try:
        await access.check(caller, about_topic(operation, topic, subscription))
    except BrokerError as error:  # also where it cannot be found out: coming back, the client is asked again
        log.info("%s: %s is disconnected: %s", topic, who, error)
        return False
    return True
