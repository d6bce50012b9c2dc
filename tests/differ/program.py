"""Which program a seed is. Pure: the same seed gives the same program on any Python.

While it draws, it keeps a rough model of the topics: who is there, and how many messages at least wait for a
subscription. The model judges nothing; it only says for how many messages a step waits, and keeps away from races.

What is a race at Apache's broker is not drawn, or its outcome is brought into an order (`normal`):

1. Who of several Shared consumers gets a message: they are asked together, until nothing comes any more.
2. In which order redelivered messages come between new ones: the same.
3. To which partition a message without a key goes: in a partitioned topic each has a key. In which order messages of
   several partitions come: all that wait are received at once.
4. What a client does that is thrown out for good (a topic deleted by force): only when nobody is there.
5. When messages expire by a policy, a ledger is trimmed or a compaction starts by itself: policies are set and read
   back; expiry and compaction are asked for, and waited for.
6. A negative acknowledgement of an Exclusive or Failover consumer brings everything back that is not acknowledged: it
   is drawn when everything was received.

Each program has tastes of its own: it does some things often and others never, so that rare things meet.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.differ.events import Event, Program, event
from tests.differ.schemas import schema_pairs

KINDS: Final = ("Exclusive", "Shared", "Failover", "KeyShared")
ALONE: Final = ("Exclusive", "Failover")
SCHEMAS: Final = ("json-0", "json-1", "json-2", "avro-0", "avro-1", "avro-2", "string")
COMPATIBILITIES: Final = (
    "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE", "FULL_TRANSITIVE",
)  # fmt: skip

# What can be set for a namespace and read back: the path, and values of which one is drawn.
NAMESPACE_POLICIES: Final[dict[str, tuple[Any, ...]]] = {
    "retention": (
        {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1}, {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    ),
    "messageTTL": (0, 3600, -1),
    "deduplication": (True, False),
    "compactionThreshold": (0, 1_000_000, -1),
    "maxProducersPerTopic": (1, 5, -1),
    "maxConsumersPerSubscription": (1, 2),
    "maxSubscriptionsPerTopic": (1, 3),
    "subscriptionExpirationTime": (0, 5, -1),
    "isAllowAutoUpdateSchema": (True, False),
    "schemaValidationEnforced": (True, False),
    "schemaCompatibilityStrategy": COMPATIBILITIES,
    "delayedDelivery": (
        {"tickTime": 200, "active": True, "maxDeliveryDelayInMillis": 0},
        {"tickTime": 200, "active": False, "maxDeliveryDelayInMillis": 0},
    ),
    "autoTopicCreation": (
        {"allowAutoTopicCreation": False},
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2},
    ),
    "autoSubscriptionCreation": ({"allowAutoSubscriptionCreation": False},),
    "subscriptionTypesEnabled": (["Shared"], ["Exclusive", "Failover", "Key_Shared"], ["shared"]),
}  # fmt: skip
# Those that change what a program meets come later: a namespace that forbids everything shows little.
_HARMLESS: Final = ("retention", "messageTTL", "compactionThreshold", "subscriptionExpirationTime")

TOPIC_POLICIES: Final[dict[str, tuple[Any, ...]]] = {
    "retention": (
        {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1}, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5},
    ),
    "messageTTL": (0, 3600),
    "deduplicationEnabled": (True, False),
    "compactionThreshold": (0, 1_000_000),
    "maxProducers": (1, 2, 0),
    "maxConsumers": (1, 2, 0),
    "maxConsumersPerSubscription": (1, 0),
    "maxSubscriptionsPerTopic": (1, 2),
    "maxMessageSize": (100, 0),
    "maxUnackedMessagesOnConsumer": (2, 0),
    "maxUnackedMessagesOnSubscription": (3, 0),
    "subscriptionTypesEnabled": (["Shared"], ["Exclusive", "Key_Shared"]),
    "schemaCompatibilityStrategy": COMPATIBILITIES,
    "delayedDelivery": ({"tickTime": 200, "active": False, "maxDeliveryDelayInMillis": 0},),
    "publishRate": ({"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": -1},),
    "subscribeRate": ({"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30},),
    "persistence": (
        {
            "bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 1.0,
        },
    ),
}  # fmt: skip


# What a program may like more or less, or never do; the rest it does as often as usual.
_TASTES: Final = (
    "namespace_policy", "mark", "read", "view", "unload", "compact", "delete", "policy", "look", "grow", "close",
    "administrate", "refuse", "redeliver", "seek", "unsubscribe", "make_topic",
)  # fmt: skip


@dataclass
class _Subscription:
    topic: str
    name: str
    kind: str
    consumers: list[str] = field(default_factory=list)
    waiting: int = 0
    """So many messages come at least."""
    held: int = 0
    """Received, not acknowledged."""
    is_clean: bool = True
    """What comes next comes in order, and to the only consumer."""
    schema: str | None = None
    """Of all its consumers: which of several gets a message, and can decode it, is a race."""

    @property
    def path(self) -> str:
        return f"{self.topic}/{self.name}"

    def again(self) -> None:
        """What is held comes again."""
        self.waiting, self.held, self.is_clean = self.waiting + self.held, 0, False


@dataclass
class _Topic:
    name: str
    partitions: int = 0
    messages: int = 0
    is_ended: bool = False
    has_delays: bool = False
    """Shared subscriptions get messages in another order."""
    producers: list[str] = field(default_factory=list)
    subscriptions: dict[str, _Subscription] = field(default_factory=dict)
    readers: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """Of the messages that may be looked for."""


class _Draw:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.events: list[Event] = []
        self.topics: dict[str, _Topic] = {}
        self.subscription_of: dict[str, _Subscription] = {}
        self.topic_of: dict[str, _Topic] = {}
        self.sequence_ids: dict[str, int] = {}
        self.marks: list[str] = []
        self.counts: dict[str, int] = {}
        self.number = 0
        self.tastes = {name: self.one_of((0.0, 0.3, 1.0, 1.0, 3.0)) for name in _TASTES}
        self.has_schemas = self.one_of((0.0, 0.0, 0.2, 0.8))
        self.has_batches = self.one_of((0.0, 0.4, 0.9))
        self.has_names = self.one_of((0.0, 0.3, 0.8))
        self.has_keys = self.one_of((0.1, 0.5, 1.0))

    # ---------------------------------------------------------------------------------- helpers

    def new(self, letter: str) -> str:
        self.counts[letter] = self.counts.get(letter, -1) + 1
        return f"{letter}{self.counts[letter]}"

    def add(self, who: str, what: str, **given: Any) -> None:
        self.events.append(event(who, what, **{name: value for name, value in given.items() if value is not None}))

    def chance(self, part: float) -> bool:
        return self.rng.random() < part

    def one_of(self, choices: Any) -> Any:
        choices = list(choices)
        return choices[self.rng.randrange(len(choices))]

    def maybe(self, part: float, *choices: Any) -> Any:
        """One of *choices*, or None, which leaves the option out."""
        return self.one_of(choices) if self.chance(part) else None

    def subscriptions(self) -> list[_Subscription]:
        return [one for topic in self.topics.values() for one in topic.subscriptions.values()]

    # ----------------------------------------------------------------------------------- topics

    def make_topic(self) -> None:
        topic = _Topic(self.new("t"), self.one_of((0, 0, 0, 2, 3)))
        if topic.partitions or self.chance(0.5):
            self.add(topic.name, "create", partitions=topic.partitions)
        self.topics[topic.name] = topic

    def grow(self, topic: _Topic) -> None:
        to = topic.partitions + self.one_of((-1, 0, 1, 2))
        self.add(topic.name, "grow", partitions=to)
        # Who is there learns of new partitions after a minute: what it does until then is a race.
        consumers = [name for one in topic.subscriptions.values() for name in one.consumers]
        for name in [*topic.producers, *topic.readers, *consumers]:
            self.close(name)
        topic.partitions = max(topic.partitions, to)

    def unload(self, topic: _Topic) -> None:
        self.add(topic.name, "unload")
        for subscription in topic.subscriptions.values():
            subscription.again()

    def end(self, topic: _Topic) -> None:
        self.add(topic.name, "terminate")
        topic.is_ended = True

    def compact(self, topic: _Topic) -> None:
        self.add(topic.name, "compact")

    def delete(self, topic: _Topic) -> None:
        is_used = bool(topic.producers or topic.readers or any(s.consumers for s in topic.subscriptions.values()))
        self.add(topic.name, "delete", force=True if not is_used and self.chance(0.5) else None)
        if is_used or (topic.subscriptions and self.events[-1].get("force") is None):
            return  # refused
        self.topics[topic.name] = _Topic(topic.name)

    def policy(self, topic: _Topic) -> None:
        name = self.one_of(TOPIC_POLICIES)
        self.add(topic.name, "set", policy=name, value=self.one_of(TOPIC_POLICIES[name]))

    def no_policy(self, topic: _Topic) -> None:
        self.add(topic.name, "unset", policy=self.one_of(TOPIC_POLICIES))

    def namespace_policy(self) -> None:
        name = self.one_of(_HARMLESS if self.chance(0.3) else NAMESPACE_POLICIES)
        self.add("n", "set", policy=name, value=self.one_of(NAMESPACE_POLICIES[name]))

    def look(self, topic: _Topic) -> None:
        what = self.one_of(("stats", "stats", "subscriptions", "last_id", "schema", "partitions", "at_time"))
        if what != "at_time":
            self.add(topic.name, what)
        elif self.marks and not topic.partitions:
            self.add(topic.name, what, to=self.one_of(self.marks))

    def mark(self) -> None:
        name = self.new("m")
        self.add("n", "mark", name=name)
        self.marks.append(name)

    # -------------------------------------------------------------------------------- producers

    def produce(self, topic: _Topic) -> None:
        name = self.new("p")
        mode = self.maybe(0.2, "Exclusive", "ExclusiveWithFencing")
        batching = self.maybe(self.has_batches, 2, 3, 5, 100)
        if not topic.producers and mode is None:
            mode = self.maybe(0.1, "WaitForExclusive")
        self.add(
            name, "produce", topic=topic.name, name=self.maybe(self.has_names, "one", "two"), batching=batching,
            by_key=True if batching and self.chance(0.2) else None, access=mode,
            chunking=True if not batching and self.chance(0.1) else None,
            compression=self.maybe(0.3, "LZ4", "ZLib", "ZSTD", "SNAPPY"),
            initial_sequence_id=self.maybe(0.2, 0, 41), schema=self.maybe(self.has_schemas, *SCHEMAS),
        )  # fmt: skip
        if mode == "ExclusiveWithFencing":
            for other in topic.producers:
                self.topic_of.pop(other, None)
            topic.producers = []
        topic.producers.append(name)
        self.topic_of[name] = topic

    def send(self, name: str) -> None:
        topic, count = self.topic_of[name], self.rng.randrange(1, 9)
        sequence_id = None
        if self.chance(0.3 if self.has_names > 0.5 else 0.1):
            sequence_id = self.sequence_ids.get(name, 0) + self.one_of((-1, 0, 1, 10))
            sequence_id = max(sequence_id, 1)  # 0 counts as none in Python
            self.sequence_ids[name] = sequence_id + count
        self.add(
            name, "send", first=self.number, count=count,
            keys=self.one_of((1, 2, 3)) if topic.partitions or self.chance(self.has_keys) else None,
            ordering=self.maybe(0.1, "o"), properties=self.maybe(0.15, {"a": "1"}, {"": "", "ü": "ß"}),
            event_time=self.maybe(0.1, 1, 1_700_000_000_000), delay_ms=self.maybe(0.07, 700, 1_500),
            null=self.maybe(0.08, True), sequence_id=sequence_id, size=self.maybe(0.1, 0, 120, 3_000),
        )  # fmt: skip
        topic.numbers += range(self.number, self.number + count)
        self.number += count
        if self.events[-1].get("delay_ms"):
            topic.has_delays = True
        if not topic.is_ended:
            topic.messages += count
            for subscription in topic.subscriptions.values():
                subscription.waiting += count

    # -------------------------------------------------------------------------------- consumers

    def subscribe(self, topic: _Topic) -> None:
        name = f"s{self.rng.randrange(3)}"
        subscription = topic.subscriptions.get(name)
        initial = self.maybe(0.7, "Earliest")
        if subscription is None:
            waiting = topic.messages if initial == "Earliest" else 0
            subscription = _Subscription(topic.name, name, self.one_of(KINDS), waiting=waiting)
        kind = subscription.kind
        if self.chance(0.15):
            kind = self.one_of(KINDS)
        consumer = self.new("c")
        schema = self.maybe(self.has_schemas * 0.7, *SCHEMAS)
        if not subscription.consumers:
            subscription.schema = schema
        self.add(
            consumer, "subscribe", topic=topic.name, subscription=name, kind=kind, initial=initial,
            schema=subscription.schema, batch_index=self.maybe(0.5, True),
            inclusive=self.maybe(0.3, True), compacted=self.maybe(0.1, True), queue=self.maybe(0.15, 1, 3),
        )  # fmt: skip
        if subscription.consumers and (kind != subscription.kind or kind == "Exclusive"):
            return  # refused
        if not subscription.consumers:
            subscription.kind = kind
        topic.subscriptions[name] = subscription
        subscription.is_clean &= not subscription.consumers
        subscription.consumers.append(consumer)
        self.subscription_of[consumer] = subscription

    def receive(self, subscription: _Subscription) -> None:
        count = subscription.waiting
        topic = self.topics[subscription.topic]
        is_clean = subscription.is_clean and not topic.partitions and not topic.has_delays
        if is_clean and not self.chance(0.15):
            count = self.rng.randrange(1, count + 1)
            self.add(subscription.path, "receive", count=count)
        else:
            self.add(subscription.path, "drain", count=count)
        subscription.waiting -= count
        subscription.held += count

    def acknowledge(self, subscription: _Subscription) -> None:
        if self.chance(0.3):
            self.add(subscription.path, "ack_up_to", pick=self.one_of(("last", "middle", "first")))
            if subscription.kind in ALONE:
                subscription.held //= 2
            return
        pick = self.one_of(("all", "all", "even", "odd", "first", "last"))
        self.add(subscription.path, "ack", pick=pick)
        left = {"all": 0, "even": subscription.held // 2, "odd": subscription.held // 2}
        subscription.held = left.get(pick, max(subscription.held - 1, 0))

    def refuse(self, subscription: _Subscription) -> None:
        pick = self.one_of(("all", "even", "first"))
        self.add(subscription.path, "nack", pick=pick)
        subscription.again()

    def redeliver(self, subscription: _Subscription) -> None:
        self.add(subscription.path, "redeliver")
        subscription.again()

    def seek(self, subscription: _Subscription) -> None:
        topic = self.topics[subscription.topic]
        to = self._place(topic)
        self.add(subscription.consumers[0], "seek", to=to)
        subscription.again()
        subscription.waiting = 0 if to == "latest" else topic.messages if to == "earliest" else 1

    def _place(self, topic: _Topic) -> str | int:
        places: list[Any] = ["earliest", "earliest", "latest", *self.marks[-2:]]
        if topic.numbers and not topic.partitions:
            places += [self.one_of(topic.numbers) for _ in range(3)]
        place: str | int = self.one_of(places)
        return place

    def unsubscribe(self, subscription: _Subscription) -> None:
        self.add(subscription.consumers[0], "unsubscribe")
        if len(subscription.consumers) == 1:
            self._forget(subscription)

    def _forget(self, subscription: _Subscription) -> None:
        for consumer in subscription.consumers:
            self.subscription_of.pop(consumer, None)
        self.topics[subscription.topic].subscriptions.pop(subscription.name, None)

    def administrate(self, subscription: _Subscription) -> None:
        """What the admin API does to a subscription. Where consumers are there, it is done under them."""
        what = self.one_of(("skip", "clear", "reset", "reset", "expire", "remove", "peek", "make", "analyze"))
        if what == "skip":
            self.add(subscription.path, "skip", count=self.one_of((1, 2, 5)))
        elif what == "clear":
            self.add(subscription.path, "clear")
        elif what == "expire":
            self.add(subscription.path, "expire")
        elif what == "analyze":
            self.add(subscription.path, "analyze")
            return
        elif what == "peek":
            self.add(subscription.path, "peek", at=self.one_of((1, 2, 9)))
            return
        elif what == "make":
            self.add(f"{subscription.topic}/s{self.rng.randrange(3)}", "make", to=self.maybe(0.5, "earliest"))
            return
        elif what == "reset":
            if subscription.consumers or not self.marks:
                self.mark()
                return
            self.add(subscription.path, "reset", to=self.one_of(self.marks))
        else:
            self.add(subscription.path, "remove")
            if not subscription.consumers:
                self._forget(subscription)
            return
        # With consumers that have messages in their queues the rest is theirs.
        subscription.waiting, subscription.held, subscription.is_clean = 0, 0, False

    def close(self, name: str) -> None:
        self.add(name, "close")
        if (subscription := self.subscription_of.pop(name, None)) is not None:
            subscription.consumers.remove(name)
            subscription.again()
            if subscription.consumers:
                subscription.waiting = 0
            else:
                subscription.is_clean = subscription.kind in ALONE
        elif (topic := self.topic_of.pop(name, None)) is not None:
            for names in (topic.producers, topic.readers):
                if name in names:
                    names.remove(name)

    # ------------------------------------------------------------------------- readers and views

    def read(self, topic: _Topic) -> None:
        name = self.new("r")
        self.add(
            name, "read_from", topic=topic.name, start=self._start(topic), inclusive=self.maybe(0.3, True),
            compacted=self.maybe(0.2, True),
        )  # fmt: skip
        self.add(name, "read")
        topic.readers.append(name)
        self.topic_of[name] = topic

    def _start(self, topic: _Topic) -> str | int:
        place = self._place(topic)
        return "earliest" if place in self.marks else place

    def read_on(self, name: str) -> None:
        if self.chance(0.3):
            self.add(name, "seek", to=self._place(self.topic_of[name]))
        self.add(name, "read")

    def view(self, topic: _Topic) -> None:
        self.add(self.new("v"), "view", topic=topic.name)

    # ------------------------------------------------------------------------------ all together

    def moves(self) -> list[tuple[float, Callable[[], None]]]:
        """What may be next, with the weights."""
        found: list[tuple[float, Callable[[], None]]] = []

        def offer(weight: float, move: Callable[..., None], *given: Any) -> None:
            found.append((weight * self.tastes.get(move.__name__, 1.0), lambda: move(*given)))

        if len(self.topics) < 2:
            offer(0.3, self.make_topic)
        offer(0.4, self.namespace_policy)
        offer(0.5, self.mark)
        for topic in self.topics.values():
            offer(4.0 if not topic.producers else 0.7, self.produce, topic)
            offer(4.0 if not topic.subscriptions else 1.0, self.subscribe, topic)
            for weight, move in ((0.6, self.read), (0.2, self.view), (0.5, self.unload), (0.05, self.end),
                                 (0.2, self.compact), (0.2, self.delete), (0.3, self.policy), (0.1, self.no_policy),
                                 (1.0, self.look)):  # fmt: skip
                offer(weight, move, topic)
            if topic.partitions:
                offer(0.3, self.grow, topic)
            for name in topic.producers:
                offer(3.0, self.send, name)
                offer(0.3, self.close, name)
            for name in topic.readers:
                offer(0.8, self.read_on, name)
                offer(0.2, self.close, name)
        for subscription in self.subscriptions():
            offer(0.4 if subscription.consumers else 0.8, self.administrate, subscription)
            if not subscription.consumers:
                continue
            if subscription.waiting:
                offer(3.0, self.receive, subscription)
            if subscription.held:
                offer(3.0, self.acknowledge, subscription)
                if subscription.kind not in ALONE or not subscription.waiting:
                    offer(0.8, self.refuse, subscription)
                if not subscription.waiting:  # else it is a race which messages the broker has sent
                    offer(0.5, self.redeliver, subscription)
            if len(subscription.consumers) == 1:
                offer(0.7, self.seek, subscription)
            offer(0.2, self.unsubscribe, subscription)
            for consumer in subscription.consumers:
                offer(0.5, self.close, consumer)
        return found

    def finish(self) -> None:
        """What is left is received, and looked at."""
        for subscription in self.subscriptions():
            if subscription.consumers:
                self.add(subscription.path, "drain", count=subscription.waiting)
        for topic in self.topics.values():
            self.add(topic.name, "stats")


def _schema_program(draw: _Draw) -> Program:
    """Pairs of definitions, and whether the one may follow the other: by the admin API alone."""
    draw.add("n", "set", policy="schemaCompatibilityStrategy", value=draw.one_of(COMPATIBILITIES[2:]))
    for kind, old, news in schema_pairs(draw.rng, 6):
        topic = draw.new("t")
        draw.add(topic, "put_schema", kind=kind, definition=old)
        for new in news:
            draw.add(topic, "compatible", kind=kind, definition=new)
        if draw.chance(0.4):
            draw.add(topic, "put_schema", kind=kind, definition=news[0])
            draw.add(topic, "compatible", kind=kind, definition=old)
    return tuple(draw.events)


def program_of_seed(seed: int) -> Program:
    draw = _Draw(seed)
    if draw.chance(0.15):
        return _schema_program(draw)
    if draw.chance(0.2):
        draw.add("n", "set", policy="deduplication", value=True)
    if draw.has_schemas and draw.chance(0.7):
        draw.add("n", "set", policy="schemaCompatibilityStrategy", value=draw.one_of(COMPATIBILITIES))
    draw.make_topic()
    length = draw.rng.randrange(8, 30)
    while len(draw.events) < length:
        moves = draw.moves()
        at = draw.rng.random() * sum(weight for weight, _ in moves)
        for weight, move in moves:  # noqa: B007 # the last one, where rounding leaves a rest
            at -= weight
            if at < 0:
                break
        move()
    draw.finish()
    return tuple(draw.events)
