"""What consumers get, and when. No IO."""

from dataclasses import dataclass
from typing import Final

from magnetar_core.runtime.config import Group, setting

SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")


@dataclass(frozen=True, kw_only=True)
class Dispatch(Group):
    """What consumers get, and when."""

    max_unacked_per_consumer: int = setting(
        "maxUnackedMessagesPerConsumer", 50_000, help="messages without an ack before a consumer waits; 0 = any"
    )
    max_unacked_per_subscription: int = setting(
        "maxUnackedMessagesPerSubscription", 200_000, help="the same for a whole subscription; 0 = any"
    )
    max_unacked_per_broker: int = setting(
        "maxUnackedMessagesPerBroker",
        0,
        help="the same for all Shared subscriptions of the broker: those with more than their part wait; 0 = any",
    )
    max_unacked_part: float = setting(
        "maxUnackedMessagesPerSubscriptionOnBrokerBlocked",
        0.16,
        help="that part, of maxUnackedMessagesPerBroker; 0: none waits",
        most=1,
    )
    max_read_batch_entries: int = setting("dispatcherMaxReadBatchSize", 500, help="entries read at once", least=1)
    max_read_batch_bytes: int = setting(
        "dispatcherMaxReadSizeBytes", 5 * 1024 * 1024, help="bytes read at once", least=1
    )
    round_robin_messages: int = setting(
        "dispatcherMaxRoundRobinBatchSize",
        20,
        help="messages a Shared consumer gets before the next one's turn",
        least=1,
    )
    batch_index_acks: bool = setting(
        "acknowledgmentAtBatchIndexLevelEnabled", True, help="acks of single messages inside a batch"
    )
    failover_delay_ms: int = setting(
        "activeConsumerFailoverDelayTimeMillis", 1000, help="wait before another consumer becomes active"
    )
    subscription_types: tuple[str, ...] = setting(
        "subscriptionTypesEnabled",
        SUBSCRIPTION_TYPES,
        help="the types of subscriptions that consumers may use",
        choices=SUBSCRIPTION_TYPES,
    )
    key_shared: bool = setting(
        "subscriptionKeySharedEnable", True, help="Key_Shared subscriptions are allowed (see subscriptionTypesEnabled)"
    )
    key_shared_consistent_hashing: bool = setting(
        "subscriptionKeySharedUseConsistentHashing", True, help="hash ring for Key_Shared; false: ranges are halved"
    )
    key_shared_points: int = setting(
        "subscriptionKeySharedConsistentHashingReplicaPoints",
        100,
        help="points of a consumer on the hash ring",
        least=1,
        most=10_000,  # there are 65,536 hashes
    )
    delayed_delivery: bool = setting("delayedDeliveryEnabled", True, help="hold messages until their time")
    delayed_delivery_tick_ms: int = setting(
        "delayedDeliveryTickTimeMillis",
        1000,
        help="how late delayed messages may come; how early too, with isDelayedDeliveryDeliverAtTimeStrict=false",
        least=1,
    )
    delayed_delivery_max_ms: int = setting(
        "delayedDeliveryMaxDelayInMillis", 0, help="a message that asks for more is refused; 0: any delay"
    )
    delayed_delivery_strict: bool = setting(
        "isDelayedDeliveryDeliverAtTimeStrict",
        True,
        help="delayed messages are never delivered too early; false: up to a tick too early, as Apache's default",
    )
    active_consumer_probe_ms: int = setting(
        "connectionLivenessCheckTimeoutMillis",
        5000,
        help="wait for a PONG before a silent client is disconnected, whose name or place another wants; 0: never",
    )
