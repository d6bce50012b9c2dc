"""Opens the managed ledgers and the schemas of a broker with its settings."""

from broker.policies.namespace import NamespacePolicies
from broker.settings.config import BrokerConfig
from broker.settings.groups.ledgers import INDEX_INTERCEPTOR
from broker.wire.frames import FRAME_PADDING_BYTES
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.placing.isolation import Isolation
from magnetar_core.bookkeeper.metadata.damage.reports import OnDamage
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import MIB, shared
from managed_ledger.config import APPEND_TIMEOUT_S, MINUTE_MS, ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.records.records_pb2 import CompressionType
from managed_ledger.retention import RetentionRule, RolloverRule
from managed_ledger.schemas.registry import SchemaRegistry

_DIGESTS = {
    "CRC32": DigestType.CRC32,
    "CRC32C": DigestType.CRC32C,
    "MAC": DigestType.HMAC,
    "DUMMY": DigestType.DUMMY,
}

# The longest time between two writes of a cursor's state. A rate near zero would give a time that no timer takes; and
# after a crash everything acknowledged since the last write is delivered again.
MARK_DELETE_S_MAX = 86_400.0

# Ranges of acknowledgements in a node, whatever the setting says: some 20 bytes each, and a node has a megabyte.
RANGES_IN_NODE_MAX = 10_000


def ledger_config(
    config: BrokerConfig, policies: NamespacePolicies | None = None, *, is_system: bool = False
) -> ManagedLedgerConfig:
    """The settings of a topic's managed ledger; *policies* of its namespace win over those of the broker.

    *is_system*: the topic is one of Pulsar's own.
    """

    def either(own_value: float | None, general_value: float) -> float:
        return general_value if own_value is None or own_value <= 0 else own_value

    ensemble_size, write_quorum, ack_quorum = config.ensemble_size, config.write_quorum, config.ack_quorum
    mark_delete_rate: float = config.mark_delete_rate
    retention_minutes, retention_mbytes = config.retention_minutes, config.retention_mbytes
    if policies is not None:
        ensemble_size = int(either(policies.ensemble_size, ensemble_size))
        write_quorum = int(either(policies.write_quorum, write_quorum))
        ack_quorum = int(either(policies.ack_quorum, ack_quorum))
        mark_delete_rate = either(policies.mark_delete_rate, mark_delete_rate)
        if policies.retention_minutes is not None:
            retention_minutes = policies.retention_minutes
        if policies.retention_mbytes is not None:
            retention_mbytes = policies.retention_mbytes
    bookie_groups = None if policies is None else policies.bookie_groups
    if bookie_groups is None and config.strict_affinity:
        bookie_groups = Isolation("*", "*") if is_system else Isolation("", "")
    settings = ManagedLedgerConfig(
        bookie_groups=bookie_groups,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        digest_type=_DIGESTS[config.digest_type],
        rollover=RolloverRule(
            entries_max=config.max_entries_per_ledger,
            bytes_max=config.max_ledger_mbytes * MIB,
            age_max_ms=config.max_rollover_minutes * MINUTE_MS,
            age_min_ms=config.min_rollover_minutes * MINUTE_MS,
            idle_max_ms=config.inactive_rollover_s * 1000,
        ),
        retention=RetentionRule(
            time_ms=retention_minutes * MINUTE_MS if retention_minutes >= 0 else -1,
            bytes_max=retention_mbytes * MIB if retention_mbytes >= 0 else -1,
        ),
        append_timeout_s=config.append_timeout_s or APPEND_TIMEOUT_S,
        mark_delete_interval_s=min(1 / mark_delete_rate, MARK_DELETE_S_MAX) if mark_delete_rate > 0 else 0.0,
        cursor_ledger_entries_max=config.cursor_ledger_entries,
        cursor_ledger_age_max_s=config.cursor_ledger_s,
        cursor_ranges_in_node_max=min(config.max_ranges_in_metadata, RANGES_IN_NODE_MAX),
        cursor_ranges_max=config.max_unacked_ranges,
        cursor_batches_max=config.max_partial_batches,
        cursor_words=config.acks_as_words,
        record_compression=CompressionType.Value(config.record_compression),
        record_compression_bytes=config.record_compression_bytes,
        cursor_compression=CompressionType.Value(config.cursor_compression),
        cursor_compression_bytes=config.cursor_compression_bytes,
        passes_over_lost=config.skip_lost_data,
        forces_recovery=config.force_recovery,
        keeps_index=INDEX_INTERCEPTOR in config.entry_metadata_interceptors,
    )
    return shared(settings)


def client_config(config: BrokerConfig) -> ClientConfig:
    """How a broker treats bookies. Their nettyMaxFrameSizeBytes must hold maxMessageSize and its padding, as with
    Apache's; with a maxMessageSize below the default larger entries of former times can be read all the same."""
    frame_bytes_max = max(config.max_message_bytes + FRAME_PADDING_BYTES, ClientConfig().frame_bytes_max)
    return ClientConfig(
        timeout_s=config.bookkeeper_timeout_s,
        tls=config.bookie_tls,
        slow_add_ms=config.bookkeeper_slow_add_ms,
        rackaware_policy_enabled=config.bookkeeper_rackaware,
        isolation_groups=config.bookkeeper_groups,
        secondary_isolation_groups=config.bookkeeper_secondary_groups,
        racks_min=config.bookkeeper_racks_min,
        racks_enforced=config.bookkeeper_racks_enforced,
        regionaware_policy_enabled=config.bookkeeper_regionaware,
        regions_to_write=config.bookkeeper_regions,
        regions_min=config.bookkeeper_regions_min,
        regions_bind_replacements=config.bookkeeper_regions_bind_replacements,
        local_host=config.advertised_address or "",
    ).with_frames(frame_bytes_max)


def open_storage(
    config: BrokerConfig, bookkeeper: BookKeeper, store: MetadataStore, clock: Clock, on_damage: OnDamage
) -> tuple[ManagedLedgerFactory, SchemaRegistry]:
    """The managed ledgers (with their maintenance running) and the schemas of a cluster."""
    general = ledger_config(config)
    factory = ManagedLedgerFactory(
        bookkeeper,
        store,
        clock,
        general,
        cache_bytes_max=config.cache_mbytes * MIB,
        maintenance_interval_s=config.retention_check_s,
        on_damage=on_damage,
    )
    factory.start()
    return factory, SchemaRegistry(bookkeeper, store, clock, general)
