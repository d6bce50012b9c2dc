"""Rates, quotas and modes, as policies and settings name them. No IO."""

from dataclasses import dataclass
from typing import Final

STORAGE: Final = "destination_storage"
AGE: Final = "message_age"
QUOTA_TYPES: Final = (STORAGE, AGE)
"""What a backlog quota limits: bytes, or the age of the oldest message."""

HOLD: Final = "producer_request_hold"
EXCEPTION: Final = "producer_exception"
EVICTION: Final = "consumer_backlog_eviction"
QUOTA_POLICIES: Final = (HOLD, EXCEPTION, EVICTION)
"""What happens to producers, or to the backlog, above a quota."""

NO_SUBSCRIPTIONS: Final = "delete_when_no_subscriptions"
CAUGHT_UP: Final = "delete_when_subscriptions_caught_up"
DELETE_MODES: Final = (NO_SUBSCRIPTIONS, CAUGHT_UP)
"""When a topic that nobody is connected to may be deleted."""


@dataclass(frozen=True, slots=True)
class PublishRate:
    """What the producers of a topic may send together in a second; 0 or less: any amount."""

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DispatchRate:
    """What consumers are given in a period; 0 or less: any amount."""

    messages: int
    bytes: int
    period_s: int
    is_relative: bool = False
    """The rate of publishing is added to these."""


@dataclass(frozen=True, slots=True)
class GroupRates:
    """What all topics of a resource group may take and give together on one broker, in a second."""

    publish: PublishRate
    dispatch: DispatchRate


NO_GROUP_RATES: Final = GroupRates(PublishRate(0, 0), DispatchRate(0, 0, 1))


@dataclass(frozen=True, slots=True)
class SubscribeRate:
    """How often one consumer may subscribe in a period; 0 or less: any number of times."""

    subscribes: int
    period_s: int


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """What may wait for the slowest subscription of a topic, and what happens above it."""

    limit_bytes: int
    """0 or less: any amount. Looked at in a quota of the type `destination_storage`."""
    limit_s: int
    """Age of the oldest message; 0 or less: any. Looked at in a quota of the type `message_age`."""
    policy: str


@dataclass(frozen=True, slots=True)
class InactiveTopics:
    """Whether and when a topic that nobody is connected to is deleted."""

    is_on: bool
    mode: str
    idle_s: int
