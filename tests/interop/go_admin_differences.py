"""What our broker answers otherwise than Apache's to Go's administration library, and what it refuses, with reasons.

A key is a call as `go_admin_calls.shown` writes it, or a method (`Topics.GetStats`), or a group (`Functions`).
"""

from typing import Final

_OWN: Final = "each broker tells its own settings, numbers and version"
_NO_CLUSTERS: Final = (
    "the library sends no replication clusters, on which Apache's broker fails with 500; ours makes the namespace in "
    "its own cluster"
)
_MADE: Final = "Apache's broker failed to make the namespace with what the library sends"
_NO_NAMESPACE: Final = "ours says that the namespace is missing"
_NO_INFO: Final = "Apache's broker fails with 500 on a topic that is not there; ours says that it is missing (404)"
_BUNDLE: Final = "ours deletes no bundles, and says so with 501 and the way out"

DIFFERENT: Final[dict[str, str]] = {
    "Tenants.Get u": "a tenant that was made without administrators has [] as its list in ours, null in Apache's",
    "Brokers.GetActiveBrokers none": "ours says that the cluster is another one; Apache's broker answers its own",
    "Brokers.GetDynamicConfigurationNames": _OWN,
    "Brokers.GetOwnedNamespaces": "ours has no namespaces of its own for health checks and heartbeats",
    "Brokers.GetRuntimeConfigurations": _OWN,
    "Brokers.HealthCheckWithTopicVersion V9": "ours makes one health check, whatever version of it is asked for",
    "BrokerStats.GetMetrics": _OWN,
    "BrokerStats.GetTopics": "ours is of this moment; Apache's broker takes a picture once a minute",
    "BrokerStats.GetLoadReport": _OWN,
    "Namespaces.CreateNsWithNumBundles t/bundled 4": _NO_CLUSTERS,
    "Namespaces.CreateNsWithNumBundles t/wrong -1": "ours says what is wrong with the number (412)",
    "Namespaces.CreateNsWithBundlesData": _NO_CLUSTERS,
    "Namespaces.CreateNsWithPolices t/plain {}": _NO_CLUSTERS,
    "Namespaces.GetPolicies t/bundled": _MADE,
    "Namespaces.GetPolicies t/cut": _MADE,
    "Namespaces.GetPolicies t/plain": _MADE,
    "Namespaces.DeleteNamespace t/bundled": _MADE,
    "Namespaces.DeleteNamespace t/cut": _MADE,
    "Namespaces.DeleteNamespace t/plain": _MADE,
    "Namespaces.GetNamespaceAntiAffinityGroup t/nothing": _NO_NAMESPACE,
    "Namespaces.GetNamespaceAntiAffinityGroup nobody/nothing": _NO_NAMESPACE,
    "Namespaces.GetAntiAffinityNamespaces":
        "the library names the tenant by a parameter that Apache's broker does not know; ours then answers for none",
    'Namespaces.GrantNamespacePermission t/n shop ["nonsense"]':
        "ours refuses a permission that does not exist; Apache's broker grants an empty one in place of all others",
    "Namespaces.GetNamespacePermissions t/n": "what Apache's broker made of the permission that does not exist",
    "Topics.GetInternalStats": "our cursors have a ledger of their own only from their first acknowledgement on",
    "Topics.GetProperties persistent://t/n/parted": "a partitioned topic without properties has {} in ours, null in "
        "Apache's",
    "Topics.GetMetadata persistent://t/n/parted-partition-9": "ours says 0 of a partition that is not there, too",
    "Topics.GetInternalInfo persistent://t/n/parted-partition-9": _NO_INFO,
    "Topics.GetInternalInfo persistent://t/n/none": _NO_INFO,
    "Topics.GetBacklogQuotaMap persistent://t/n/top true":
        "ours shows the broker's quota beside the one that is set for the namespace; Apache's shows only the latter",
    "Topics.GetBundleRange persistent://nobody/n/none": _NO_NAMESPACE,
    "Topics.GetMessageID persistent://t/n/top 4000000000000":
        "of a time after the last message ours tells that message, Apache's the place after it",
    "Topics.OffloadStatus": "nothing is offloaded: ours says NOT_RUN, Apache's that it failed, as it was asked before",
    'Schemas.CreateSchemaByPayload': "ours says which type is unknown (422); Apache's broker fails (500)",
    "Schemas.TestCompatibilityWithPostSchemaPayload":
        "ours says that the schema is not compatible; Apache's broker fails with 500",
    "Schemas.DeleteSchema": "ours says that there is no schema to delete; Apache's broker makes a deleted version",
    "Namespaces.DeleteNamespaceBundle": _BUNDLE,
}  # fmt: skip

_FUNCTIONS: Final = "Pulsar Functions are not served"
_NO_JAVA: Final = "ours is no Java process"

_LOOSE: Final = (
    "non-persistent topics have no policies of their own with either broker: ours says so with 501, Apache's with 404"
)
_LOOSE_CALLS: Final = (
    *(f"Topics.Get{name} non-persistent://t/n/loose" for name in (
        "InternalInfo", "MessageTTL", "MaxProducers", "MaxConsumers", "MaxUnackMessagesPerConsumer",
        "MaxUnackMessagesPerSubscription", "Persistence", "DelayedDelivery", "DispatchRate", "PublishRate",
        "DeduplicationStatus", "ReplicationClusters",
    )),
    *(f"Topics.Get{name} non-persistent://t/n/loose {applied}" for applied in ("false", "true") for name in (
        "Retention", "CompactionThreshold", "InactiveTopicPolicies", "BacklogQuotaMap",
    )),
    "Topics.SetMessageTTL non-persistent://t/n/loose 60",
)  # fmt: skip

REFUSED: Final[dict[str, str]] = {
    **dict.fromkeys(_LOOSE_CALLS, _LOOSE),
    'Namespaces.GrantNamespacePermission t/n a role/x ["produce", "consume"]':
        "the library puts the role's slash into the path as it is: neither broker has such a path (405 with Apache's)",
    "BrokerStats.GetMBeans": _NO_JAVA,
    "BrokerStats.GetAllocatorStats": _NO_JAVA,
    "Topics.Offload": "nothing is offloaded",
    "Functions": _FUNCTIONS,
    "FunctionsWorker": _FUNCTIONS,
    "Sources": _FUNCTIONS,
    "Sinks": _FUNCTIONS,
    "Packages": "packages are for Pulsar Functions, which are not served",
}  # fmt: skip
