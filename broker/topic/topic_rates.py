"""What passes a topic and who is connected to it, as the load of its broker is counted. No IO and no clock."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from broker.topic.clients.consumer import Consumer
from broker.topic.clients.producer import Producer
from broker.topic.rates.averages import BYTE_RATE, MESSAGE_RATE


class TopicRates(NamedTuple):
    """Messages and bytes a second, in and out, over the last period; producers and consumers now."""

    messages_in: float
    bytes_in: float
    messages_out: float
    bytes_out: float
    producers: int
    consumers: int

    @property
    def of_bundle(self) -> tuple[float, float, float, float, int, int]:
        """In the order of `broker.ownership.load.report.BundleLoad`."""
        return (*self[:4], self.consumers, self.producers)

    @property
    def bytes_rate(self) -> float:
        return self.bytes_in + self.bytes_out


NO_RATES: Final = TopicRates(0.0, 0.0, 0.0, 0.0, 0, 0)


class _Subscription(Protocol):
    @property
    def consumers(self) -> list[Consumer]: ...


class RatedTopic(Protocol):
    """A topic, persistent or not."""

    @property
    def producers(self) -> dict[str, Producer]: ...

    @property
    def subscriptions(self) -> Mapping[str, _Subscription]: ...


def rates_of(topic: RatedTopic) -> TopicRates:
    producers = list(topic.producers.values())
    consumers = [consumer for subscription in topic.subscriptions.values() for consumer in subscription.consumers]
    return TopicRates(
        sum((producer.rates.values[MESSAGE_RATE] for producer in producers), 0.0),
        sum((producer.rates.values[BYTE_RATE] for producer in producers), 0.0),
        sum((consumer.rates.values[MESSAGE_RATE] for consumer in consumers), 0.0),
        sum((consumer.rates.values[BYTE_RATE] for consumer in consumers), 0.0),
        len(producers),
        len(consumers),
    )


def sum_rates(all_rates: Iterable[TopicRates]) -> TopicRates:
    """The rates of several topics together."""
    rates = list(all_rates)
    return TopicRates(*(sum(column) for column in zip(*rates, strict=True))) if rates else NO_RATES
