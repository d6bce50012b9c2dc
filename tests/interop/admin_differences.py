"""What our broker answers otherwise than Apache's to `pulsar-admin`, and what it refuses, with the reasons.

A key is a line (`topics subscriptions t/n/top`), a command (`topics subscriptions`) or a group (`functions`).
"""

from typing import Final

_CURSORS: Final = "our cursors have a ledger of their own only from their first acknowledgement on; ids differ"
_COMPACTION: Final = (
    "Apache's broker keeps the cursor of compaction when the threshold is removed; ours goes with the threshold if "
    "nothing was compacted: it holds back trimming"
)

DIFFERENT: Final[dict[str, str]] = {
    "clusters delete": "once its migration was set, which ours refuses, Apache's broker cannot delete it (500)",
    "clusters get-cluster-migration": "after it was set, which ours refuses, Apache's broker tells it",
    "clusters list": "the cluster that Apache's broker could not delete is still there",
    "brokers namespaces": "ours has no namespaces of its own for health checks and heartbeats",
    "brokers version": "each broker names its own version",
    "brokers get-runtime-config": "the settings of each broker are its own",
    "brokers list-dynamic-config": "ours lists what may change while it runs; Apache's list has settings of Java's too",
    "brokers update-dynamic-config --config maxTenants --value many": "ours refuses a value that is no number",
    "broker-stats topics": "ours is of this moment; Apache's broker takes a picture once a minute",
    "broker-stats monitoring-metrics": "the numbers of Java's memory, threads and caches are Apache's only",
    "broker-stats load-report": "the machine's memory is the limit of ours, the settings of Java that of Apache's",
    "namespaces get-topic-positions": "ours shows non-persistent topics too, and `__change_events` once it is there",
    "namespaces clear-backlog t/other --bundle 0x00000000_0x40000000 --force":
        "ours takes an unowned bundle over first; Apache's broker fails",
    "topicPolicies get-offload-policies": "the offloading that `--applied` shows beside what was set is that of "
        "Apache's offloaders, which ours does not have",
    "schemas compatibility": "ours says that the schema is not compatible; Apache's broker fails with 500",
    "topics subscriptions": _COMPACTION,
    "topics stats": _COMPACTION,
    "topics info-internal": _COMPACTION,
    "topics partitioned-stats": _COMPACTION,
    "topics stats-internal": f"{_CURSORS}; {_COMPACTION}",
    "topics partitioned-stats-internal": f"{_CURSORS}; {_COMPACTION}",
    "topics peek-messages t/n/top --subscription none":
        "Apache's broker makes the missing subscription and shows its messages; ours makes none",
    "topics expire-messages t/n/top --subscription none --expireTime 3600":
        "ours says that the subscription is missing; Apache's broker made it at the peek before",
    "topics clear-backlog t/n/top --subscription none":
        "ours says that the subscription is missing; Apache's broker made it at the peek before",
    "topics get-shadow-topics": "ours has none, and the tool fails on that",
}  # fmt: skip

_MIGRATION: Final = "clusters are not migrated by this broker"
_FUNCTIONS: Final = "Pulsar Functions are not served"
_SHADOWS: Final = "shadow topics are not served"
_NO_JAVA: Final = "ours is no Java process"
_ENTRY_FILTERS: Final = "entry filters are Java classes"

REFUSED: Final[dict[str, str]] = {
    "clusters update-cluster-migration": _MIGRATION,
    "broker-stats mbeans": _NO_JAVA,
    "broker-stats allocator-stats": _NO_JAVA,
    "namespaces set-entry-filters": _ENTRY_FILTERS,
    "namespaces update-migration-state": _MIGRATION,
    "topicPolicies set-entry-filters-per-topic": _ENTRY_FILTERS,
    "topics offload": "nothing is offloaded",
    "topics create-shadow-topic": _SHADOWS,
    "topics set-shadow-topics": _SHADOWS,
    "functions": _FUNCTIONS,
    "functions-worker": _FUNCTIONS,
    "sources": _FUNCTIONS,
    "sinks": _FUNCTIONS,
    "packages": "packages are for Pulsar Functions, which are not served",
    "transactions": "transactions are not served",
}  # fmt: skip
