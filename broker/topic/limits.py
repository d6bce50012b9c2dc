"""What the broker's settings and the namespace's policies allow in one topic. No IO.

A policy of the namespace wins over the broker's setting; where the namespace has none, the setting counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from broker.policies.namespace import NamespacePolicies
from broker.settings.config import BrokerConfig
from broker.settings.groups.dispatch import SUBSCRIPTION_TYPES
from broker.settings.quotas import HOLD, BacklogQuota, DispatchRate, InactiveTopics, PublishRate, SubscribeRate
from broker.topic.dispatchers.dispatcher import DispatchLimits
from magnetar_core.runtime.types import shared

T = TypeVar("T")

# What holds for the topics of the brokers themselves.
NO_QUOTA: Final = BacklogQuota(-1, -1, HOLD)
NO_PUBLISH_RATE: Final = PublishRate(0, 0)
NO_DISPATCH_RATE: Final = DispatchRate(0, 0, 1)
NO_SUBSCRIBE_RATE: Final = SubscribeRate(0, 30)

# No type of subscription has this name.
_NONE: Final = frozenset({"none"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """Limits of one topic. For counts 0 means any number."""

    producers_max: int
    consumers_max: int
    """All subscriptions together."""
    producers_per_host_max: int
    consumers_per_host_max: int
    """On one topic; 0: any number."""
    creates_subscriptions: bool
    """Whether a consumer may create the subscription that it names."""
    requires_encryption: bool = False
    """Producers that do not encrypt are refused."""
    stops_writes: bool = False
    """All producers are refused for a while: their clients wait and try again."""
    subscription_types: frozenset[str]
    """Empty: all types."""
    deduplicates: bool
    ttl_s: int
    """Entries that are older are passed over; 0: none are."""
    subscriptions_max: int
    message_bytes_max: int
    """The size of an entry; 0: what the broker takes."""
    delay_max_ms: int
    """The longest delay that a message may ask for; 0: any."""
    deduplication_snapshot_s: int
    compaction_threshold_bytes: int
    """0: the topic is not compacted by itself."""
    expiration_minutes: int
    """Subscriptions without consumers for so long are removed; 0: none are."""
    inactive: InactiveTopics
    storage_quota: BacklogQuota
    age_quota: BacklogQuota
    publish_rate: PublishRate
    dispatch_rate: DispatchRate
    subscription_rate: DispatchRate
    subscription_rates: Mapping[str, DispatchRate] = field(hash=False)
    """For single subscriptions."""
    subscribe_rate: SubscribeRate
    dispatch: DispatchLimits


def has_room_for_host(address: str, others: Iterable[str], count_max: int) -> bool:
    """Whether one more client from the host of *address* (`host:port`) may come, beside those at *others*.

    *count_max* 0: any number.
    """
    host = address.rpartition(":")[0]
    return not count_max or sum(other.rpartition(":")[0] == host for other in others) < count_max


def limits_of(config: BrokerConfig, policies: NamespacePolicies, *, is_system: bool) -> TopicLimits:
    """The limits of a topic; *is_system*: it belongs to the broker, and any number of producers may write it."""
    limits = TopicLimits(
        producers_max=0 if is_system else _first(policies.max_producers_per_topic, config.max_producers_per_topic),
        consumers_max=0 if is_system else _first(policies.max_consumers_per_topic, config.max_consumers_per_topic),
        producers_per_host_max=0 if is_system else config.max_producers_per_address,
        consumers_per_host_max=0 if is_system else config.max_consumers_per_address,
        creates_subscriptions=is_system
        or _first(policies.auto_subscription_creation, config.allow_auto_subscription_creation),
        requires_encryption=not is_system and (policies.encryption_required or config.encryption_required),
        stops_writes=not is_system and policies.stops_writes,
        subscription_types=frozenset() if is_system else types_of(config, policies),
        deduplicates=_first(policies.deduplication, config.deduplication),
        ttl_s=0 if is_system else _first(policies.message_ttl_s, config.ttl_s),
        subscriptions_max=0
        if is_system
        else _first(policies.max_subscriptions_per_topic, config.max_subscriptions_per_topic),
        message_bytes_max=policies.max_message_bytes or 0,
        delay_max_ms=_first(policies.delayed_delivery_max_ms, config.delayed_delivery_max_ms),
        deduplication_snapshot_s=policies.deduplication_snapshot_s or config.deduplication_snapshot_s,
        compaction_threshold_bytes=_first(policies.compaction_threshold_bytes, config.compaction_threshold_bytes),
        expiration_minutes=0
        if is_system
        else _first(policies.subscription_expiration_minutes, config.subscription_expiration_minutes),
        inactive=policies.inactive_topics or config.inactive_topics,
        storage_quota=NO_QUOTA if is_system else policies.storage_quota or config.backlog_quota,
        age_quota=NO_QUOTA if is_system else policies.age_quota or config.backlog_quota,
        publish_rate=NO_PUBLISH_RATE if is_system else policies.publish_rate or config.publish_rate,
        dispatch_rate=NO_DISPATCH_RATE if is_system else policies.dispatch_rate or config.dispatch_rate,
        subscription_rate=NO_DISPATCH_RATE
        if is_system
        else policies.subscription_dispatch_rate or config.subscription_dispatch_rate,
        subscription_rates=policies.rates_of_subscriptions,
        subscribe_rate=NO_SUBSCRIBE_RATE if is_system else policies.subscribe_rate or config.subscribe_rate,
        dispatch=DispatchLimits(
            consumers_max=0
            if is_system
            else _first(policies.max_consumers_per_subscription, config.max_consumers_per_subscription),
            read_entries_max=config.max_read_batch_entries,
            read_bytes_max=config.max_read_batch_bytes,
            round_robin_messages=config.round_robin_messages,
            unacked_per_consumer_max=_first(policies.max_unacked_per_consumer, config.max_unacked_per_consumer),
            unacked_per_subscription_max=_first(
                policies.max_unacked_per_subscription, config.max_unacked_per_subscription
            ),
            unstored_ranges_max=config.max_unacked_ranges
            if _first(policies.pause_for_acks, config.pause_for_acks)
            else None,
            throttles_caught_up=config.throttle_caught_up,
            backlogged_entries=config.backlogged_entries,
            batch_index_acks=config.batch_index_acks,
            failover_delay_ms=config.failover_delay_ms,
            delayed_delivery=_first(policies.delayed_delivery, config.delayed_delivery),
            delayed_tick_ms=_first(policies.delayed_delivery_tick_ms, config.delayed_delivery_tick_ms),
            delayed_strict=config.delayed_delivery_strict,
        ),
    )
    return shared(limits)


def types_of(config: BrokerConfig, policies: NamespacePolicies) -> frozenset[str]:
    """The types of subscriptions that consumers may use; empty: all. A policy wins over the setting; Key_Shared is
    refused by its own setting whatever they say."""
    allowed = policies.subscription_types or frozenset(config.subscription_types)
    if not config.key_shared:
        allowed -= {"Key_Shared"}
    return frozenset() if allowed == frozenset(SUBSCRIPTION_TYPES) else allowed or _NONE


def _first(policy: T | None, setting: T) -> T:
    return setting if policy is None else policy
