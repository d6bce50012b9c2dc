"""What the metrics of topics, subscriptions and their clients mean, for people who read `/metrics`."""

from collections.abc import Mapping
from typing import Final

# Apache's broker says what is a counter by the name's ending alone; all else is a gauge.
HELP: Final[Mapping[str, str]] = {
    "pulsar_subscriptions_count": "subscriptions",
    "pulsar_producers_count": "producers attached",
    "pulsar_consumers_count": "consumers attached",
    "pulsar_rate_in": "messages published a second",
    "pulsar_rate_out": "messages delivered a second",
    "pulsar_throughput_in": "bytes published a second",
    "pulsar_throughput_out": "bytes delivered a second",
    "pulsar_average_msg_size": "bytes of a message, on average",
    "pulsar_storage_size": "bytes stored, all copies",
    "pulsar_storage_logical_size": "bytes stored, without copies",
    "pulsar_storage_backlog_age_seconds": "seconds since the oldest of them was published, in a closed ledger; else -1",
    "pulsar_storage_backlog_size": "bytes that some subscription has not acknowledged, estimated",
    "pulsar_storage_write_rate": "entries stored a second",
    "pulsar_storage_read_rate": "entries read by subscriptions a second",
    "pulsar_storage_read_cache_misses_rate": "those of them that came from bookies",
    "pulsar_msg_backlog": "entries that subscriptions have not acknowledged",
    "pulsar_in_messages_total": "messages published",
    "pulsar_in_bytes_total": "bytes published",
    "pulsar_out_messages_total": "messages delivered",
    "pulsar_out_bytes_total": "bytes delivered",
    "pulsar_subscription_back_log": "entries not acknowledged",
    "pulsar_subscription_back_log_no_delayed": "entries not acknowledged, without those that wait for their time",
    "pulsar_subscription_delayed": "entries that wait for their time",
    "pulsar_subscription_unacked_messages": "messages delivered and not acknowledged",
    "pulsar_subscription_blocked_on_unacked_messages": "1: nothing is delivered until some are acknowledged",
    "magnetar_subscription_blocked_consumers": "consumers that get nothing until they acknowledge some",
    "pulsar_subscription_msg_rate_out": "messages delivered a second",
    "pulsar_subscription_msg_throughput_out": "bytes delivered a second",
    "pulsar_subscription_msg_rate_redeliver": "messages delivered again a second",
    "pulsar_subscription_msg_ack_rate": "messages acknowledged a second",
    "pulsar_subscription_consumers_count": "consumers attached",
    "pulsar_subscription_last_acked_timestamp": "wall clock, ms",
    "pulsar_subscription_last_consumed_timestamp": "wall clock, ms",
    "pulsar_subscription_last_consumed_flow_timestamp": "wall clock, ms",
    "pulsar_subscription_last_expire_timestamp": "wall clock, ms",
    "pulsar_subscription_msg_rate_expired": "entries that were too old, a second",
    "pulsar_subscription_in_replay": "entries that were read and wait for a consumer",
    "pulsar_subscription_last_mark_delete_advanced_timestamp": "wall clock, ms",
    "pulsar_subscription_total_msg_expired": "entries that were too old",
    "pulsar_publish_rate_limit_times": "how often producers had to wait for the rate of their topic",
    "pulsar_storage_backlog_quota_limit": "the largest backlog, bytes; 0 or less: any",
    "pulsar_storage_backlog_quota_limit_time": "the greatest age of the oldest message, seconds; 0 or less: any",
    "pulsar_storage_backlog_quota_exceeded_evictions_total": "how often messages were passed over for a quota",
    "pulsar_delayed_message_index_size_bytes": "memory for entries that wait for their time",
    "pulsar_subscription_delayed_message_index_size_bytes": "memory for entries that wait for their time",
    "pulsar_subscription_dispatch_throttled_msg_events": "how often the rate of messages let consumers wait",
    "pulsar_subscription_dispatch_throttled_bytes_events": "how often the rate of bytes let consumers wait",
    "pulsar_subscription_msg_drop_rate": "messages a second that no consumer could take",
    "pulsar_consumer_msg_rate_redeliver": "messages delivered again a second",
    "pulsar_consumer_unacked_messages": "messages delivered and not acknowledged",
    "pulsar_consumer_blocked_on_unacked_messages": "1: nothing is delivered until some are acknowledged",
    "pulsar_consumer_msg_rate_out": "messages delivered a second",
    "pulsar_consumer_msg_ack_rate": "messages acknowledged a second",
    "pulsar_consumer_msg_throughput_out": "bytes delivered a second",
    "pulsar_consumer_available_permits": "messages that it may be sent now",
    "pulsar_producer_msg_rate_in": "messages published a second",
    "pulsar_producer_msg_throughput_in": "bytes published a second",
    "pulsar_producer_msg_average_Size": "bytes of a message, on average",
    "magnetar_publish_drop_rate": "messages a second that were above the limit of their connection",
    "magnetar_subscription_back_log_size": "bytes not acknowledged, estimated",
    "magnetar_subscription_unread_bytes": "bytes that wait where nobody consumes, estimated; else 0",
    "pulsar_replication_backlog": "entries that wait for another cluster; this broker sends none",
    "magnetar_replication_backlog_size": "bytes that wait for another cluster and keep their ledgers, estimated",
    "magnetar_lost_entries_skipped_total": "lost entries that count as acknowledged for a subscription",
    "pulsar_compaction_removed_event_count": "messages that the last compaction left out",
    "pulsar_compaction_compacted_entries_count": "messages that the last compaction looked at",
    "pulsar_compaction_duration_time_in_mills": "how long the last compaction took",
}

# By the beginning of their names.
_PERIODS: Final[Mapping[str, str]] = {
    "pulsar_entry_size_": "entries of the last period by their bytes, each in one bucket",
    "pulsar_storage_write_latency_": "entries of the last period by milliseconds until they were stored; sum: µs",
    "pulsar_storage_ledger_write_latency_": "the same, without the time for which they waited for a ledger",
}


def help_of(name: str) -> str:
    """The text of the metric *name*."""
    for beginning, text in _PERIODS.items():
        if name.startswith(beginning):
            return text
    return HELP.get(name, "topics that this broker has open")
