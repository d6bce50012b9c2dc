"""What the broker's settings and the namespace's policies allow in one topic. No IO.

A policy of the namespace wins over the broker's setting; where the namespace has none, the setting counts.
"""

from dataclasses import dataclass
from typing import TypeVar

from broker.config import BrokerConfig
from broker.policies import NamespacePolicies
from broker.topic.dispatchers.dispatcher import DispatchLimits

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """Limits of one topic. For counts 0 means any number."""

    producers_max: int
    consumers_max: int
    """Of all subscriptions together."""
    consumers_per_subscription_max: int
    creates_subscriptions: bool
    """Whether a consumer may create the subscription that it names."""
    subscription_types: frozenset[str]
    """Empty: all types."""
    deduplicates: bool
    ttl_s: int
    """Entries that are older are passed over; 0: none are."""
    dispatch: DispatchLimits


def limits_of(config: BrokerConfig, policies: NamespacePolicies, *, is_system: bool) -> TopicLimits:
    """The limits of a topic; *is_system*: it belongs to the broker, and any number of producers may write it."""
    return TopicLimits(
        producers_max=0 if is_system else _first(policies.max_producers_per_topic, config.max_producers_per_topic),
        consumers_max=_first(policies.max_consumers_per_topic, config.max_consumers_per_topic),
        consumers_per_subscription_max=_first(
            policies.max_consumers_per_subscription, config.max_consumers_per_subscription
        ),
        creates_subscriptions=_first(policies.auto_subscription_creation, config.allow_auto_subscription_creation),
        subscription_types=policies.subscription_types,
        deduplicates=_first(policies.deduplication, config.deduplication),
        ttl_s=0 if is_system else _first(policies.message_ttl_s, config.ttl_s),
        dispatch=DispatchLimits(
            read_entries_max=config.max_read_batch_entries,
            read_bytes_max=config.max_read_batch_bytes,
            round_robin_messages=config.round_robin_messages,
            unacked_per_consumer_max=_first(policies.max_unacked_per_consumer, config.max_unacked_per_consumer),
            unacked_per_subscription_max=_first(
                policies.max_unacked_per_subscription, config.max_unacked_per_subscription
            ),
            batch_index_acks=config.batch_index_acks,
            failover_delay_ms=config.failover_delay_ms,
            delayed_delivery=_first(policies.delayed_delivery, config.delayed_delivery),
            delayed_tick_ms=_first(policies.delayed_delivery_tick_ms, config.delayed_delivery_tick_ms),
            delayed_strict=config.delayed_delivery_strict,
        ),
    )


def _first(policy: T | None, setting: T) -> T:
    return setting if policy is None else policy
