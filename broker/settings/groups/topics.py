"""Topics: which there may be, how they are made and removed; de-duplication; schemas. No IO."""

from dataclasses import dataclass
from typing import Final

from broker.settings.quotas import DELETE_MODES, NO_SUBSCRIPTIONS, InactiveTopics
from magnetar_core.runtime.config import Group, setting
from managed_ledger.schemas.compatibility import Strategy

COMPATIBILITY_STRATEGIES: Final = tuple(strategy.value for strategy in Strategy if strategy is not Strategy.UNDEFINED)

IN_SYSTEM_TOPICS: Final = "org.apache.pulsar.broker.service.SystemTopicBasedTopicPoliciesService"
IN_METADATA: Final = "org.apache.pulsar.broker.service.MetadataStoreTopicPoliciesService"
"""Where the policies of topics are kept."""

# Each partition is a topic with its own ledgers; a number mistyped by two digits would fill the metadata store.
PARTITIONS_MAX: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class Topics(Group):
    """Which topics there may be, how they are made, and when they are removed."""

    enable_persistent_topics: bool = setting("enablePersistentTopics", True, help="serve topics that are stored")
    enable_non_persistent_topics: bool = setting(
        "enableNonPersistentTopics", True, help="serve topics whose messages are not stored"
    )
    allow_auto_topic_creation: bool = setting("allowAutoTopicCreation", True, help="make topics when they are used")
    strict_topic_names: bool = setting(
        "strictTopicNameEnabled",
        False,
        help="new topics have no -partition- in their names, but as partitions, and only letters, digits and _ - = : .",
    )
    auto_topic_creation_type: str = setting(
        "allowAutoTopicCreationType",
        "non-partitioned",
        help="partitioned or non-partitioned",
        choices=("partitioned", "non-partitioned"),
    )
    default_partitions: int = setting(
        "defaultNumPartitions",
        1,
        help="partitions of a topic that is made when it is used",
        most=PARTITIONS_MAX,
        least=1,
    )
    allow_auto_subscription_creation: bool = setting(
        "allowAutoSubscriptionCreation", True, help="make durable subscriptions when they are used"
    )
    delete_inactive_topics: bool = setting(
        "brokerDeleteInactiveTopicsEnabled", True, help="delete topics that nobody uses or subscribes to"
    )
    delete_inactive_partitioned: bool = setting(
        "brokerDeleteInactivePartitionedTopicMetadataEnabled",
        False,
        help="a partitioned topic is deleted when the last of its partitions was",
    )
    delete_inactive_topics_s: int = setting(
        "brokerDeleteInactiveTopicsFrequencySeconds", 60, help="how often such topics are looked for", least=1
    )
    delete_inactive_topics_mode: str = setting(
        "brokerDeleteInactiveTopicsMode",
        NO_SUBSCRIPTIONS,
        help=f"one of {', '.join(DELETE_MODES)}",
        choices=DELETE_MODES,
    )
    delete_inactive_topics_idle_s: int | None = setting(
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        None,
        help="the idle time that is needed; default: brokerDeleteInactiveTopicsFrequencySeconds",
    )
    topic_level_policies: bool = setting(
        "topicLevelPoliciesEnabled", True, help="topics may have policies of their own, kept in __change_events"
    )
    topic_policies_service: str = setting(
        "topicPoliciesServiceClassName",
        IN_SYSTEM_TOPICS,
        help="where they are kept: the system topic, or (5.0) the metadata store for namespaces without one",
        choices=(IN_SYSTEM_TOPICS, IN_METADATA),
    )
    system_topics: bool = setting("systemTopicEnabled", True, help="false: topics have no policies of their own")
    max_topics_per_namespace: int = setting("maxTopicsPerNamespace", 0, help="0 = no limit")
    max_subscriptions_per_topic: int = setting("maxSubscriptionsPerTopic", 0, help="0 = no limit")
    max_partitions_per_topic: int = setting("maxNumPartitionsPerPartitionedTopic", 0, help="0 = no limit")
    encryption_required: bool = setting(
        "encryptionRequireOnProducer", False, help="producers that do not encrypt are refused in all namespaces"
    )
    force_delete_tenants: bool = setting(
        "forceDeleteTenantAllowed", False, help="tenants may be deleted by force, with their namespaces and topics"
    )
    force_delete_namespaces: bool = setting(
        "forceDeleteNamespaceAllowed", False, help="namespaces may be deleted by force, with their topics"
    )
    max_tenants: int = setting("maxTenants", 0, help="0 = no limit")
    max_namespaces_per_tenant: int = setting("maxNamespacesPerTenant", 0, help="0 = no limit")
    compaction_threshold_bytes: int = setting(
        "brokerServiceCompactionThresholdInBytes", 0, help="a topic is compacted when so much is new; 0: when asked for"
    )
    # Eleven million keys of thirty characters; Apache's brokers have no limit.
    compaction_keys_mb: int = setting(
        "compactionKeysMaxMemoryMB",
        2_048,
        help="memory in MiB for the keys of a topic while it is compacted; one with more of them is not compacted",
        least=1,
    )
    compaction_check_s: int = setting(
        "brokerServiceCompactionMonitorIntervalInSeconds", 60, help="how often that is looked at", least=1
    )
    max_producers_per_topic: int = setting("maxProducersPerTopic", 0, help="0 = no limit")
    max_consumers_per_topic: int = setting("maxConsumersPerTopic", 0, help="0 = no limit")
    max_producers_per_address: int = setting(
        "maxSameAddressProducersPerTopic", 0, help="producers of one topic from one host; 0 = no limit"
    )
    max_consumers_per_address: int = setting(
        "maxSameAddressConsumersPerTopic", 0, help="consumers of one topic from one host; 0 = no limit"
    )
    max_consumers_per_subscription: int = setting("maxConsumersPerSubscription", 0, help="0 = no limit")
    max_concurrent_topic_loads: int = setting(
        "maxConcurrentTopicLoadRequest", 5000, help="topics being opened at the same time", least=1
    )
    topic_load_s: int = setting(
        "topicLoadTimeoutSeconds", 60, help="a client is refused if its topic takes longer to open", least=1
    )

    @property
    def partitions_max(self) -> int:
        """How many partitions a topic may have."""
        return min(self.max_partitions_per_topic or PARTITIONS_MAX, PARTITIONS_MAX)

    @property
    def inactive_topics(self) -> InactiveTopics:
        """When unused topics are deleted for which nothing else is said."""
        idle_s = self.delete_inactive_topics_idle_s
        return InactiveTopics(
            self.delete_inactive_topics,
            self.delete_inactive_topics_mode,
            self.delete_inactive_topics_s if idle_s is None else idle_s,
        )


@dataclass(frozen=True, kw_only=True)
class Deduplication(Group):
    """Messages that producers send twice."""

    deduplication: bool = setting("brokerDeduplicationEnabled", False, help="drop messages that a producer sends twice")
    deduplication_entries: int = setting(
        "brokerDeduplicationEntriesInterval", 1000, help="entries between two snapshots of the sequence ids", least=1
    )
    deduplication_snapshot_s: int = setting(
        "brokerDeduplicationSnapshotIntervalSeconds", 120, help="time between two snapshots of the sequence ids"
    )
    deduplication_producers: int = setting(
        "brokerDeduplicationMaxNumberOfProducers", 10_000, help="producers of a topic that are remembered", least=1
    )
    deduplication_inactivity_minutes: int = setting(
        "brokerDeduplicationProducerInactivityTimeoutMinutes", 360, help="producers away this long are forgotten"
    )


@dataclass(frozen=True, kw_only=True)
class Schemas(Group):
    """Schemas."""

    schema_strategy: str = setting(
        "schemaCompatibilityStrategy",
        "FULL",
        help=", ".join(COMPATIBILITY_STRATEGIES),
        choices=COMPATIBILITY_STRATEGIES,
    )
    schema_validation: bool = setting(
        "isSchemaValidationEnforced", False, help="refuse producers without a schema on topics with one"
    )
    schema_auto_update: bool = setting(
        "isAllowAutoUpdateSchemaEnabled", True, help="producers may bring new versions of a schema"
    )
