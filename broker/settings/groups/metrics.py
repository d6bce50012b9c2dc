"""What metrics and statistics show. No IO."""

from dataclasses import dataclass

from magnetar_core.runtime.config import Group, setting


@dataclass(frozen=True, kw_only=True)
class ShownMetrics(Group):
    """What metrics and statistics show."""

    stats_update_s: int = setting(
        "statsUpdateFrequencyInSecs", 60, help="the period over which the rates in statistics are averages", least=1
    )
    expose_topic_metrics: bool = setting(
        "exposeTopicLevelMetricsInPrometheus", True, help="metrics for each topic; false: the sums of namespaces"
    )
    expose_consumer_metrics: bool = setting(
        "exposeConsumerLevelMetricsInPrometheus", False, help="metrics for each consumer, where those of topics are"
    )
    expose_producer_metrics: bool = setting(
        "exposeProducerLevelMetricsInPrometheus", False, help="metrics for each producer, where those of topics are"
    )
    split_partition_label: bool = setting(
        "splitTopicAndPartitionLabelInPrometheus",
        False,
        help="partitions have the label topic of their topic and a label partition; -1 for other topics",
    )
    expose_backlog_size: bool = setting(
        "exposeSubscriptionBacklogSizeInPrometheus", False, help="the bytes behind each subscription, estimated"
    )
    expose_ledger_metrics: bool = setting(
        "exposeManagedLedgerMetricsInPrometheus", True, help="metrics of managed ledgers (pulsar_ml_…), by namespace"
    )
    expose_cursor_metrics: bool = setting(
        "exposeManagedCursorMetricsInPrometheus", False, help="metrics of each cursor (pulsar_ml_cursor_…)"
    )
