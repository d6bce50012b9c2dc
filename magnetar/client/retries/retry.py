"""How often, and when, a failed message is tried again, and how its copies are marked. No IO.

    topic ──nack──▶ retry topic ──nack, nack …──▶ dead letter topic
       └──── delivered more than `max` times again ──────▲

The names of topics and properties are those of Pulsar's clients, which may share the subscription:

    RECONSUMETIMES        how often the message has failed, in the retry topic
    DELAY_TIME            milliseconds for which this copy was held back
    REAL_TOPIC            where the message was first; without the number of a partition
    ORIGIN_MESSAGE_ID     the id that it had there
    REAL_SUBSCRIPTION     the subscription in which it failed
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar.client.base.arguments import check_seconds, check_text, check_whole, wrong
from magnetar.client.values import INT32, Message, copy_to_api
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName

Backoff = float | Sequence[float] | Callable[[int], float]
"""Seconds until a message is tried again: always the same, by the number of its failures (the last one stays), or a
function of that number, which is 1 for the first."""

RECONSUME_TIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
# As older clients of Java wrote it; newer ones write both.
_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_IDY_TIME"

_TAKEN: Final = "seconds, a list of seconds, or a function that returns them"


@dataclass(frozen=True, slots=True)
class Retry:
    """What a consumer does with messages that fail: `nack` is told so, or their worker dies.

    A message is tried *max* times again, then it goes to *dead_letter_topic*. Between two attempts are the seconds of
    *backoff*: a number, a list for the first, second … failure, or a function of the number of failures.

    A failed message waits as a copy in *retry_topic*, which the consumer reads, too. With None it stays in its topic,
    and is delivered again there. Empty names are those of Pulsar's clients: `<topic>-<subscription>-RETRY` and `-DLQ`,
    of several topics by the first in the order of their names.
    *dead_letter_subscription* is made with the first dead letter, so that none is deleted before somebody reads it.

    Example:
        retry = magnetar.Retry(max=5, backoff=[1, 10, 60], dead_letter_subscription="inspection")
        async with client.consumer("orders", "billing", type="shared", retry=retry) as consumer:
            async for message in consumer:
                try:
                    handle(message)
                except Exception:
                    await consumer.nack(message)
                else:
                    consumer.ack(message)
    """

    max: int = 16
    backoff: Backoff = (1, 2, 4, 8, 16, 32, 64)
    retry_topic: str | None = ""
    dead_letter_topic: str = ""
    dead_letter_subscription: str = ""

    def __post_init__(self) -> None:
        check_whole("max of a Retry", self.max, 1, INT32)
        if self.retry_topic is not None:
            check_text("retry_topic", self.retry_topic, may_be_empty=True)
        check_text("dead_letter_topic", self.dead_letter_topic, may_be_empty=True)
        check_text("dead_letter_subscription", self.dead_letter_subscription, may_be_empty=True)
        backoff = self.backoff
        if callable(backoff):
            return
        if isinstance(backoff, str | bytes) or not isinstance(backoff, int | float | Sequence):
            raise wrong("backoff", backoff, _TAKEN)
        if isinstance(backoff, Sequence) and not backoff:
            raise ValueError(f"backoff is empty; it takes {_TAKEN}")
        for seconds in backoff if isinstance(backoff, Sequence) else [backoff]:
            check_seconds("backoff", seconds, may_be_zero=True)

    def delay_s(self, failures: int) -> float:
        """How long a message waits that has failed so often. Raises TypeError, ValueError for what a function gave."""
        backoff = self.backoff
        if callable(backoff):
            seconds = backoff(failures)
            check_seconds("what backoff returned", seconds, may_be_zero=True)
            return seconds
        if isinstance(backoff, Sequence):
            return backoff[min(failures, len(backoff)) - 1]
        return backoff

    def named(self, topics: Sequence[str], subscription: str) -> "Retry":
        """This, for a consumer of *topics* (none: of a pattern), with the names that it leaves out: by the first of the
        topics in the order of their names, as Java's clients have it (`ConsumerBuilderImpl`, 4.0.8). Raises ValueError
        for what is no name of a topic, and where it has to say the names itself."""
        if not topics and "" in (self.retry_topic, self.dead_letter_topic):
            raise ValueError(
                "a pattern has no topic that gives names: set retry_topic and dead_letter_topic of its Retry"
            )
        if len(topics) > 1 and self.retry_topic is None and not self.dead_letter_topic:
            raise ValueError(
                "several topics without a retry_topic: set the dead_letter_topic, or each would have another"
            )
        stem = f"{TopicName.parse(min(topics)).full}-{subscription}" if topics else ""
        retry_topic = None if self.retry_topic is None else self.retry_topic or f"{stem}-RETRY"
        dead_letter_topic = self.dead_letter_topic or f"{stem}-DLQ"
        names = [TopicName.parse(name).base for name in (retry_topic, dead_letter_topic) if name is not None]
        names += {TopicName.parse(topic).base for topic in topics}
        if len(set(names)) < len(names):
            raise ValueError(f"{', '.join(topics)}: topic, retry_topic and dead_letter_topic are different ones")
        return Retry(self.max, self.backoff, retry_topic, dead_letter_topic, self.dead_letter_subscription)

    def failures(self, message: Message[Any]) -> int:
        """How often *message* has failed, this time included."""
        if self.retry_topic is None:
            return message.redelivery_count + 1
        return reconsume_times(message.properties) + 1


def reconsume_times(properties: Mapping[str, str]) -> int:
    """How often a message has come through the retry topic; 0 for what is no number."""
    text = properties.get(RECONSUME_TIMES, "0")
    return min(int(text), INT32 - 1) if text.isascii() and text.isdigit() and len(text) <= len(str(INT32)) else 0


def letter_of(message: Message[Any], subscription: str, marks: Mapping[str, str]) -> api.Message:
    """The copy of *message* for another topic, with *marks* among its properties."""
    letter = copy_to_api(message)
    properties: Any = letter.properties
    id_ = message.id
    origin = f"{id_.ledger_id}:{id_.entry_id}:{id_.partition}"  # as Java's clients write it
    if id_.batch_index >= 0:
        origin += f":{id_.batch_index}"
    for name, text in (
        (REAL_TOPIC, TopicName.parse(message.topic).base.full),
        (ORIGIN_MESSAGE_ID, origin),
        (_ORIGIN_MESSAGE_ID, origin),
        (REAL_SUBSCRIPTION, subscription),
    ):
        if name not in properties:
            properties[name] = text
    properties.update(marks)
    return letter
