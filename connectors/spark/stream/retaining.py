"""A durable cursor at the broker, by which topics keep what a streaming query has not read yet.

One consumer for each partition, which receives nothing: it acknowledges what stands before the last entry that Spark
has committed. That entry is kept: as long as it is there, nothing behind it was removed. Spark never commits the last
batch of a run, so the cursor may be one batch and one entry behind.
"""

import logging
from collections.abc import Mapping
from typing import Any

from connectors.spark.client_access import client_arguments, client_logger, explain
from connectors.spark.options.read import ReadOptions
from connectors.spark.ranges import Position
from magnetar_core.runtime.types import MagnetarError
from magnetar_core.topics.client_log import client_log
from magnetar_core.topics.topic_name import TopicName

log = logging.getLogger(__name__)


class SubscriptionFailed(MagnetarError):
    """The broker did not do what the query needs."""


class Subscription:
    """The cursors of one query, all of one name."""

    def __init__(self, options: ReadOptions, name: str) -> None:
        """Raises SubscriptionFailed, ConfigurationError."""
        import pulsar

        self._name = name
        self._service_url = options.service_url
        arguments = client_arguments(options.broker_options)
        try:
            self._client = pulsar.Client(options.service_url, logger=client_logger(), **arguments)
        except Exception as error:  # the library raises its own and ValueError
            raise SubscriptionFailed(f"service.url={options.service_url}: {error}") from error
        self._consumers: dict[TopicName, Any] = {}
        self._acknowledged: dict[TopicName, Position] = {}

    def keep(self, behind: Mapping[TopicName, Position | None]) -> None:
        """Let partitions keep what stands behind these entries; None: everything. Raises SubscriptionFailed."""
        import pulsar

        for topic, position in behind.items():
            try:
                consumer = self._consumers.get(topic)
                if consumer is None:
                    consumer = self._consumers[topic] = self._client.subscribe(
                        topic.full,
                        self._name,
                        consumer_type=pulsar.ConsumerType.Exclusive,
                        initial_position=pulsar.InitialPosition.Earliest,
                        receiver_queue_size=0,  # nothing is sent
                    )
                    client_log().forget()  # it may have been refused before, as by a broker that was giving it away
                if position is None or position <= self._acknowledged.get(topic, (-1, -1)):
                    continue
                consumer.acknowledge_cumulative(pulsar.MessageId(-1, *position, -1))
                self._acknowledged[topic] = position
            except Exception as error:  # the library has an exception for each of its results
                step = "made" if position is None else f"moved to {position[0]}:{position[1]}"
                is_shared = isinstance(error, pulsar.ConsumerBusy)
                raise SubscriptionFailed(
                    f"subscription {self._name} of {topic} could not be {step} at {self._service_url}: {explain(error)}"
                    f"{'. A query needs a subscription for itself' if is_shared else ''}"
                ) from error

    def close(self) -> None:
        """Close the client; the cursors stay at the broker."""
        try:
            self._client.close()
        except Exception as error:  # nothing is lost: what was acknowledged is acknowledged
            log.info("closing the client of subscription %s: %s", self._name, error)
