"""Policies of topics and namespaces for which nothing else is said. No IO."""

from dataclasses import dataclass

from broker.settings.quotas import HOLD, QUOTA_POLICIES, BacklogQuota, DispatchRate, PublishRate, SubscribeRate
from magnetar_core.runtime.config import Group, setting
from magnetar_core.runtime.types import MIB


@dataclass(frozen=True, kw_only=True)
class DefaultPolicies(Group):
    """What topics have whose policies say nothing else."""

    # Messages that nobody takes.
    ttl_s: int = setting(
        "ttlDurationDefaultInSeconds", 0, help="older messages are passed over by all subscriptions; 0: none are"
    )
    expiry_check_minutes: int = setting(
        "messageExpiryCheckIntervalInMinutes", 5, help="how often messages are looked for that are too old", least=1
    )

    # Backlogs.
    backlog_quota_checks: bool = setting("backlogQuotaCheckEnabled", True, help="backlog quotas are kept")
    backlog_quota_check_s: int = setting(
        "backlogQuotaCheckIntervalInSeconds", 60, help="how often backlogs are compared with their quotas", least=1
    )
    backlog_quota_gbytes: float = setting(
        "backlogQuotaDefaultLimitGB", -1.0, help="the largest backlog of a topic, GiB; 0 or less: any", least=-1
    )
    backlog_quota_bytes: int = setting(
        "backlogQuotaDefaultLimitBytes",
        -1,
        help="the same in bytes; 0 or less: backlogQuotaDefaultLimitGB counts",
        least=-1,
    )
    backlog_quota_s: int = setting(
        "backlogQuotaDefaultLimitSecond", -1, help="the greatest age of the oldest message; 0 or less: any", least=-1
    )
    backlog_quota_policy: str = setting(
        "backlogQuotaDefaultRetentionPolicy",
        HOLD,
        help=f"above the quota: {', '.join(QUOTA_POLICIES)}",
        choices=QUOTA_POLICIES,
    )
    subscription_expiration_minutes: int = setting(
        "subscriptionExpirationTimeMinutes", 0, help="subscriptions without consumers for so long are removed; 0: never"
    )
    subscription_expiry_check_minutes: int = setting(
        "subscriptionExpiryCheckIntervalInMinutes", 5, help="how often such subscriptions are looked for", least=1
    )

    # Rates; 0 or less: no limit.
    publish_rate_messages: int = setting(
        "maxPublishRatePerTopicInMessages", 0, help="messages a second into a topic", least=-1
    )
    publish_rate_bytes: int = setting("maxPublishRatePerTopicInBytes", 0, help="bytes a second into a topic", least=-1)
    broker_publish_messages: int = setting(
        "brokerPublisherThrottlingMaxMessageRate", 0, help="messages a second into the broker", least=-1
    )
    broker_publish_bytes: int = setting(
        "brokerPublisherThrottlingMaxByteRate", 0, help="bytes a second into the broker", least=-1
    )
    dispatch_rate_messages: int = setting(
        "dispatchThrottlingRatePerTopicInMsg", 0, help="messages a second out of a topic", least=-1
    )
    dispatch_rate_bytes: int = setting(
        "dispatchThrottlingRatePerTopicInByte", 0, help="bytes a second out of a topic", least=-1
    )
    subscription_dispatch_messages: int = setting(
        "dispatchThrottlingRatePerSubscriptionInMsg", 0, help="messages a second to a subscription", least=-1
    )
    subscription_dispatch_bytes: int = setting(
        "dispatchThrottlingRatePerSubscriptionInByte", 0, help="bytes a second to a subscription", least=-1
    )
    throttle_caught_up: bool = setting(
        "dispatchThrottlingOnNonBacklogConsumerEnabled",
        True,
        help="these rates hold for all subscriptions; false: not for those that are about at the end of the topic",
    )
    backlogged_entries: int = setting(
        "managedLedgerCursorBackloggedThreshold",
        1_000,
        help="entries to be read above which a subscription is not about at the end",
    )
    subscribe_rate_count: int = setting(
        "subscribeThrottlingRatePerConsumer", 0, help="times that a consumer may subscribe in the period", least=-1
    )
    subscribe_rate_period_s: int = setting("subscribeRatePeriodPerConsumerInSecond", 30, help="that period", least=1)

    backlog_scan_entries_max: int = setting(
        "subscriptionBacklogScanMaxEntries", 10_000, help="entries that one analysis of a backlog looks at", least=1
    )
    backlog_scan_ms_max: int = setting(
        "subscriptionBacklogScanMaxTimeMs", 120_000, help="how long one analysis of a backlog may take", least=1
    )

    @property
    def backlog_quota(self) -> BacklogQuota:
        """The quota of topics for which nothing else is said."""
        gib = int(self.backlog_quota_gbytes * 1024 * MIB) if self.backlog_quota_gbytes > 0 else -1
        size = self.backlog_quota_bytes if self.backlog_quota_bytes > 0 else gib
        return BacklogQuota(size, self.backlog_quota_s, self.backlog_quota_policy)

    @property
    def publish_rate(self) -> PublishRate:
        return PublishRate(self.publish_rate_messages, self.publish_rate_bytes)

    @property
    def broker_publish_rate(self) -> PublishRate:
        """The limit of all topics together."""
        return PublishRate(self.broker_publish_messages, self.broker_publish_bytes)

    @property
    def dispatch_rate(self) -> DispatchRate:
        return DispatchRate(self.dispatch_rate_messages, self.dispatch_rate_bytes, 1)

    @property
    def subscription_dispatch_rate(self) -> DispatchRate:
        return DispatchRate(self.subscription_dispatch_messages, self.subscription_dispatch_bytes, 1)

    @property
    def subscribe_rate(self) -> SubscribeRate:
        return SubscribeRate(self.subscribe_rate_count, self.subscribe_rate_period_s)
