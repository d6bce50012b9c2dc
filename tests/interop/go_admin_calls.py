"""What is asked of both brokers with Go's administration library: a group, then its calls in order.

A call is the library's method and its arguments. The calls of all groups run one after the other against one broker,
in the world that `WORLD` makes and the calls before have left. Texts in braces are filled in:

    {files}  a folder with a package             {broker} the broker's lookup name, host:port
    {ledger} and {entry}, as numbers, say where a message lies in t/n/top; a text that is only a number becomes one
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Call = tuple[Any, ...]

_NS: Final = "t/n"
_TOP: Final = "persistent://t/n/top"
_RULED: Final = "persistent://t/n/ruled"
_SPARE: Final = "persistent://t/n/spare"
_PARTED: Final = "persistent://t/n/parted"
_LOOSE: Final = "non-persistent://t/n/loose"
_ODD: Final = "persistent://t/n/a b%c?d#e"
_NONE: Final = "persistent://t/n/none"
_NO_TENANT: Final = "persistent://nobody/n/none"
_NO_NS: Final = "persistent://t/nothing/none"

_CLUSTER: Final = {
    "Name": "far",
    "serviceUrl": "http://far:8080",
    "brokerServiceUrl": "pulsar://far:6650",
}
_DOMAIN: Final = {"ClusterName": "local", "DomainName": "d", "brokers": ["{broker}"]}
_RATE: Final = {
    "dispatchThrottlingRateInMsg": 1000,
    "dispatchThrottlingRateInByte": 100000,
    "ratePeriodInSecond": 1,
}
_PERSISTENCE: Final = {
    "bookkeeperEnsemble": 1,
    "bookkeeperWriteQuorum": 1,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 1.0,
}
_QUOTA: Final = {"limitTime": 600, "limitSize": 1000000, "policy": "producer_exception"}
_INACTIVE: Final = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 600,
    "deleteWhileInactive": True,
}
_RESOURCES: Final = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100000.0,
    "bandwidthOut": 300000.0,
    "memory": 80.0,
    "dynamic": True,
}
_ISOLATION: Final = {
    "namespaces": ["t/x.*"],
    "primary": ["127.*"],
    "secondary": [],
    "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}},
}
_FIELDS: Final = {"type": "record", "name": "A", "fields": [{"name": "a", "type": "string"}]}
_SCHEMA: Final = {"type": "AVRO", "schema": json.dumps(_FIELDS), "properties": {"by": "hand"}}
_OTHER: Final = {**_SCHEMA, "schema": json.dumps({**_FIELDS, "fields": [{"name": "a", "type": "int"}]})}
_INFO: Final = {
    "name": "spare",
    "type": "AVRO",
    "schema": base64.b64encode(json.dumps(_FIELDS).encode()).decode(),
    "properties": {"by": "hand"},
}
_OPTIONS: Final = {
    "get_precise_backlog": True,
    "subscription_backlog_size": True,
    "get_earliest_time_in_backlog": False,
    "exclude_publishers": True,
    "exclude_consumers": True,
}

_POLICIES: Final = {
    "replication_clusters": ["local"],
    "offload_threshold": -1,
    "subscription_auth_mode": "None",
    "schema_auto_update_compatibility_strategy": "Full",
}

WORLD: Final[Sequence[Call]] = (
    ("Tenants.Create", {"Name": "t", "adminRoles": ["boss"], "allowedClusters": ["local"]}),
    ("Namespaces.CreateNsWithPolices", "t/n", {**_POLICIES, "bundles": {"numBundles": 1}}),
    ("Namespaces.CreateNsWithPolices", "t/other", {**_POLICIES, "bundles": {"numBundles": 4}}),
    ("Topics.Create", _TOP, 0),
    ("Topics.Create", _RULED, 0),
    ("Topics.Create", _SPARE, 0),
    ("Topics.Create", _PARTED, 2),
    ("Topics.Create", _LOOSE, 0),
    ("Subscriptions.Create", _TOP, "s", "earliest"),
    ("Subscriptions.Create", _TOP, "s2", "earliest"),
)
"""What is there before the first call; ten messages are then sent to t/n/top."""


def _subjects(group: str, place: str, subjects: Mapping[str, Any], *, removed: Sequence[str] = ()) -> tuple[Call, ...]:
    """Each policy that is read, set, read, and, if it is in *removed*, removed and read again."""
    calls: list[Call] = []
    for subject, value in subjects.items():
        read: Call = (f"{group}.Get{subject}", place)
        calls += [read, (f"{group}.Set{subject}", place, value), read]
        if subject in removed:
            calls += [(f"{group}.Remove{subject}", place), read]
    return tuple(calls)


def _instances(group: str, noun: str) -> tuple[Call, ...]:
    """What all kinds of functions have in common."""
    one = ("t", "n", "f")
    config = {"tenant": "t", "namespace": "n", "name": "f"}
    options = {"updateAuthData": True}
    calls: list[Call] = []
    for verb in ("Stop", "Start", "Restart"):
        calls += [(f"{group}.{verb}{noun}", *one), (f"{group}.{verb}{noun}WithID", *one, 0)]
    for verb, more in (("Create", ()), ("Update", (options,))):
        short = "Func" if noun == "Function" and verb == "Create" else noun
        calls += [
            (f"{group}.{verb}{short}", config, "{files}/code.jar", *more),
            (f"{group}.{verb}{short}WithURL", config, "file:/none.jar", *more),
        ]
    with_id = "WithInstanceID" if noun == "Function" else "WithID"
    return (
        *calls,
        (f"{group}.Get{noun}", *one),
        (f"{group}.Get{noun}Status", *one),
        (f"{group}.Get{noun}Status{with_id}", *one, 0),
        (f"{group}.Delete{noun}", *one),
    )


_NS_NUMBERS: Final = {
    "SubscriptionExpirationTime": 60,
    "OffloadDeleteLag": 1000,
    "OffloadThreshold": 1000000,
    "OffloadThresholdInSeconds": 600,
    "CompactionThreshold": 100000,
    "MaxConsumersPerSubscription": 10,
    "MaxConsumersPerTopic": 10,
    "MaxProducersPerTopic": 10,
}
_NS_READ: Final = (
    "NamespaceMessageTTL", "Retention", "BacklogQuotaMap", "TopicAutoCreation", "SchemaValidationEnforced",
    "SchemaAutoUpdateCompatibilityStrategy", *_NS_NUMBERS, "NamespaceReplicationClusters",
    "NamespaceAntiAffinityGroup", "Persistence", "BookieAffinityGroup", "NamespacePermissions", "SubPermissions",
    "ReplicatorDispatchRate", "SubscriptionDispatchRate", "SubscribeRate", "DispatchRate", "PublishRate",
    "IsAllowAutoUpdateSchema", "InactiveTopicPolicies", "Policies", "Topics",
)  # fmt: skip
_TOPIC_READ: Final = (
    "Properties", "Metadata", "InternalInfo", "Permissions", "LastMessageID", "Stats", "InternalStats", "MessageTTL",
    "MaxProducers", "MaxConsumers", "MaxUnackMessagesPerConsumer", "MaxUnackMessagesPerSubscription", "Persistence",
    "DelayedDelivery", "DispatchRate", "PublishRate", "DeduplicationStatus", "ReplicationClusters",
)  # fmt: skip
_APPLIED: Final = {
    "Retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100},
    "CompactionThreshold": 100000,
    "InactiveTopicPolicies": _INACTIVE,
}

GROUPS: Final[Mapping[str, Sequence[Call]]] = {
    "Clusters": (
        ("Clusters.List",),
        ("Clusters.Get", "local"),
        ("Clusters.Get", "none"),
        ("Clusters.Create", _CLUSTER),
        ("Clusters.Create", _CLUSTER),
        ("Clusters.Create", {**_CLUSTER, "Name": "a name"}),
        ("Clusters.Get", "far"),
        ("Clusters.Update", {**_CLUSTER, "serviceUrl": "http://farther:8080"}),
        ("Clusters.Update", {**_CLUSTER, "Name": "none"}),
        ("Clusters.Get", "far"),
        ("Clusters.GetPeerClusters", "far"),
        ("Clusters.UpdatePeerClusters", "far", ["local"]),
        ("Clusters.UpdatePeerClusters", "far", ["far"]),
        ("Clusters.UpdatePeerClusters", "far", ["none"]),
        ("Clusters.GetPeerClusters", "far"),
        ("Clusters.GetPeerClusters", "none"),
        ("Clusters.ListFailureDomains", "local"),
        ("Clusters.GetFailureDomain", "local", "d"),
        ("Clusters.CreateFailureDomain", _DOMAIN),
        ("Clusters.GetFailureDomain", "local", "d"),
        ("Clusters.UpdateFailureDomain", {**_DOMAIN, "brokers": ["127.0.0.1:1"]}),
        ("Clusters.ListFailureDomains", "local"),
        ("Clusters.ListFailureDomains", "none"),
        ("Clusters.DeleteFailureDomain", _DOMAIN),
        ("Clusters.DeleteFailureDomain", _DOMAIN),
        ("Clusters.Delete", "far"),
        ("Clusters.Delete", "far"),
        ("Clusters.List",),
    ),
    "NsIsolationPolicy": (
        ("NsIsolationPolicy.GetNamespaceIsolationPolicies", "local"),
        ("NsIsolationPolicy.GetNamespaceIsolationPolicies", "none"),
        ("NsIsolationPolicy.GetNamespaceIsolationPolicy", "local", "p"),
        ("NsIsolationPolicy.GetBrokersWithNamespaceIsolationPolicy", "local"),
        ("NsIsolationPolicy.CreateNamespaceIsolationPolicy", "local", "p", _ISOLATION),
        ("NsIsolationPolicy.CreateNamespaceIsolationPolicy", "none", "p", _ISOLATION),
        ("NsIsolationPolicy.CreateNamespaceIsolationPolicy", "local", "q", {**_ISOLATION, "namespaces": []}),
        ("NsIsolationPolicy.GetNamespaceIsolationPolicy", "local", "p"),
        ("NsIsolationPolicy.GetNamespaceIsolationPolicies", "local"),
        ("NsIsolationPolicy.GetBrokersWithNamespaceIsolationPolicy", "local"),
        ("NsIsolationPolicy.GetBrokerWithNamespaceIsolationPolicy", "local", "{broker}"),
        ("NsIsolationPolicy.GetBrokerWithNamespaceIsolationPolicy", "local", "127.0.0.1:1"),
        ("NsIsolationPolicy.DeleteNamespaceIsolationPolicy", "local", "p"),
        ("NsIsolationPolicy.DeleteNamespaceIsolationPolicy", "local", "p"),
        ("NsIsolationPolicy.GetNamespaceIsolationPolicies", "local"),
    ),
    "Tenants": (
        ("Tenants.List",),
        ("Tenants.Get", "t"),
        ("Tenants.Get", "none"),
        ("Tenants.Create", {"Name": "u"}),
        ("Tenants.Create", {"Name": "u", "allowedClusters": ["local"]}),
        ("Tenants.Create", {"Name": "v", "adminRoles": ["a", "b"], "allowedClusters": ["local"]}),
        ("Tenants.Create", {"Name": "v", "adminRoles": ["a", "b"], "allowedClusters": ["local"]}),
        ("Tenants.Create", {"Name": "w", "allowedClusters": ["none"]}),
        ("Tenants.Create", {"Name": "a name", "allowedClusters": ["local"]}),
        ("Tenants.Get", "u"),
        ("Tenants.Update", {"Name": "v", "adminRoles": ["c"], "allowedClusters": ["local"]}),
        ("Tenants.Update", {"Name": "none", "adminRoles": ["c"], "allowedClusters": ["local"]}),
        ("Tenants.Get", "v"),
        ("Tenants.List",),
        ("Tenants.Delete", "u"),
        ("Tenants.Delete", "v"),
        ("Tenants.Delete", "v"),
        ("Tenants.Delete", "t"),
    ),
    "Brokers": (
        ("Brokers.GetListActiveBrokers",),
        ("Brokers.GetActiveBrokers", "local"),
        ("Brokers.GetActiveBrokers", "none"),
        ("Brokers.GetDynamicConfigurationNames",),
        ("Brokers.GetOwnedNamespaces", "local", "{broker}"),
        ("Brokers.GetAllDynamicConfigurations",),
        ("Brokers.UpdateDynamicConfiguration", "maxTenants", "100"),
        ("Brokers.UpdateDynamicConfiguration", "nonsense", "1"),
        ("Brokers.GetAllDynamicConfigurations",),
        ("Brokers.DeleteDynamicConfiguration", "maxTenants"),
        ("Brokers.DeleteDynamicConfiguration", "nonsense"),
        ("Brokers.GetAllDynamicConfigurations",),
        ("Brokers.GetRuntimeConfigurations",),
        ("Brokers.GetInternalConfigurationData",),
        ("Brokers.HealthCheck",),
        ("Brokers.HealthCheckWithTopicVersion", "V2"),
        ("Brokers.HealthCheckWithTopicVersion", "V9"),
        ("Brokers.GetLeaderBroker",),
    ),
    "BrokerStats": (
        ("BrokerStats.GetMetrics",),
        ("BrokerStats.GetMBeans",),
        ("BrokerStats.GetTopics",),
        ("BrokerStats.GetLoadReport",),
        ("BrokerStats.GetAllocatorStats", "default"),
    ),
    "ResourceQuotas": (
        ("ResourceQuotas.GetDefaultResourceQuota",),
        ("ResourceQuotas.SetDefaultResourceQuota", _RESOURCES),
        ("ResourceQuotas.GetDefaultResourceQuota",),
        ("ResourceQuotas.GetNamespaceBundleResourceQuota", "t/n", "0x00000000_0xffffffff"),
        ("ResourceQuotas.SetNamespaceBundleResourceQuota", "t/n", "0x00000000_0xffffffff", _RESOURCES),
        ("ResourceQuotas.GetNamespaceBundleResourceQuota", "t/n", "0x00000000_0xffffffff"),
        ("ResourceQuotas.ResetNamespaceBundleResourceQuota", "t/n", "0x00000000_0xffffffff"),
        ("ResourceQuotas.GetNamespaceBundleResourceQuota", "t/n", "0x00000000_0x00000001"),
        ("ResourceQuotas.GetNamespaceBundleResourceQuota", "t/nothing", "0x00000000_0xffffffff"),
    ),
    "Namespaces": (
        ("Namespaces.GetNamespaces", "t"),
        ("Namespaces.GetNamespaces", "nobody"),
        ("Namespaces.CreateNamespace", "t/made"),
        ("Namespaces.CreateNamespace", "t/made"),
        ("Namespaces.CreateNamespace", "nobody/made"),
        ("Namespaces.CreateNamespace", "t"),
        ("Namespaces.CreateNsWithNumBundles", "t/bundled", 4),
        ("Namespaces.CreateNsWithNumBundles", "t/wrong", -1),
        ("Namespaces.CreateNsWithBundlesData", "t/cut",
         {"boundaries": ["0x00000000", "0x40000000", "0xffffffff"], "numBundles": 2}),
        ("Namespaces.CreateNsWithPolices", "t/ready", {**_POLICIES, "message_ttl_in_seconds": 60}),
        ("Namespaces.CreateNsWithPolices", "t/plain", {}),
        *(("Namespaces.GetPolicies", f"t/{name}") for name in ("made", "bundled", "cut", "ready", "plain")),
        ("Namespaces.GetTopics", "t"),
        *((f"Namespaces.Get{name}", "t/made") for name in _NS_READ),
        *((f"Namespaces.Get{name}", "t/nothing") for name in _NS_READ),
        *((f"Namespaces.Get{name}", "nobody/nothing") for name in _NS_READ),
        *(("Namespaces.DeleteNamespace", f"t/{name}") for name in ("bundled", "cut", "ready", "plain", "nothing")),
        ("Namespaces.DeleteNamespace", "t/n"),
        ("Namespaces.DeleteNamespace", "t/made"),
        ("Namespaces.GetNamespaces", "t"),
    ),
    "Policies of namespaces": (
        *_subjects("Namespaces", _NS, {
            "NamespaceMessageTTL": 3600,
            "Retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100},
            "TopicAutoCreation": {"allowAutoTopicCreation": True, "topicType": "partitioned",
                                  "defaultNumPartitions": 2},
            "SchemaValidationEnforced": True,
            "SchemaAutoUpdateCompatibilityStrategy": "Forward",
            **_NS_NUMBERS,
            "NamespaceReplicationClusters": ["local"],
            "NamespaceAntiAffinityGroup": "apart",
            "Persistence": _PERSISTENCE,
            "BookieAffinityGroup": {"bookkeeperAffinityGroupPrimary": "p", "bookkeeperAffinityGroupSecondary": "s"},
            "ReplicatorDispatchRate": _RATE,
            "SubscriptionDispatchRate": _RATE,
            "SubscribeRate": {"subscribeThrottlingRatePerConsumer": 100, "ratePeriodInSecond": 30},
            "DispatchRate": _RATE,
            "PublishRate": {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 1000000},
            "IsAllowAutoUpdateSchema": False,
            "InactiveTopicPolicies": _INACTIVE,
        }, removed=("TopicAutoCreation", "SubscriptionExpirationTime", "InactiveTopicPolicies")),
        ("Namespaces.ClearOffloadDeleteLag", _NS),
        ("Namespaces.GetOffloadDeleteLag", _NS),
        ("Namespaces.GetAntiAffinityNamespaces", "t", "local", "apart"),
        ("Namespaces.DeleteNamespaceAntiAffinityGroup", _NS),
        ("Namespaces.GetNamespaceAntiAffinityGroup", _NS),
        ("Namespaces.DeleteBookieAffinityGroup", _NS),
        ("Namespaces.GetBookieAffinityGroup", _NS),
        ("Namespaces.GetBacklogQuotaMap", _NS),
        ("Namespaces.SetBacklogQuota", _NS, _QUOTA, "destination_storage"),
        ("Namespaces.SetBacklogQuota", _NS, _QUOTA, "message_age"),
        ("Namespaces.SetBacklogQuota", _NS, {**_QUOTA, "policy": "nonsense"}, "message_age"),
        ("Namespaces.SetBacklogQuota", _NS, _QUOTA, "nonsense"),
        ("Namespaces.GetBacklogQuotaMap", _NS),
        ("Namespaces.RemoveBacklogQuota", _NS),
        ("Namespaces.GetBacklogQuotaMap", _NS),
        ("Namespaces.SetDeduplicationStatus", _NS, True),
        ("Namespaces.SetEncryptionRequiredStatus", _NS, True),
        ("Namespaces.SetSubscriptionAuthMode", _NS, "Prefix"),
        ("Namespaces.GetPolicies", _NS),
        ("Namespaces.SetEncryptionRequiredStatus", _NS, False),
        ("Namespaces.SetSubscriptionAuthMode", _NS, "None"),
        ("Namespaces.SetSchemaValidationEnforced", _NS, False),
        ("Namespaces.SetIsAllowAutoUpdateSchema", _NS, True),
        ("Namespaces.GetNamespacePermissions", _NS),
        ("Namespaces.GrantNamespacePermission", _NS, "a role/x", ["produce", "consume"]),
        ("Namespaces.GrantNamespacePermission", _NS, "shop", ["produce", "packages"]),
        ("Namespaces.GrantNamespacePermission", _NS, "shop", ["nonsense"]),
        ("Namespaces.GetNamespacePermissions", _NS),
        ("Namespaces.RevokeNamespacePermission", _NS, "shop"),
        ("Namespaces.RevokeNamespacePermission", _NS, "none"),
        ("Namespaces.GetNamespacePermissions", _NS),
        ("Namespaces.GetSubPermissions", _NS),
        ("Namespaces.GrantSubPermission", _NS, "s", ["a", "b"]),
        ("Namespaces.GetSubPermissions", _NS),
        ("Namespaces.RevokeSubPermission", _NS, "s", "a"),
        ("Namespaces.SetNamespaceMessageTTL", _NS, -1),
        ("Namespaces.SetMaxProducersPerTopic", _NS, -1),
        ("Namespaces.SetNamespaceReplicationClusters", _NS, ["none"]),
        ("Namespaces.SetNamespaceReplicationClusters", _NS, []),
        ("Namespaces.SetPersistence", _NS, {**_PERSISTENCE, "bookkeeperAckQuorum": 2}),
        ("Namespaces.SetRetention", "t/nothing", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}),
        ("Namespaces.SetRetention", _NS, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 100}),
    ),
    "Topics": (
        ("Topics.List", _NS),
        ("Topics.List", "t/other"),
        ("Topics.List", "t/nothing"),
        ("Topics.Create", _TOP, 0),
        ("Topics.Create", _PARTED, 2),
        ("Topics.Create", _NO_TENANT, 0),
        ("Topics.Create", _NO_NS, 0),
        ("Topics.Create", _NO_NS, 2),
        ("Topics.Create", "persistent://t/n/minus", -1),
        ("Topics.Create", _ODD, 0),
        ("Topics.Create", "non-persistent://t/n/loose parted", 2),
        ("Topics.CreateWithProperties", "persistent://t/n/told", 0, {"a": "b"}),
        ("Topics.CreateWithProperties", "persistent://t/n/told parted", 2, {"a": "b"}),
        ("Topics.CreateWithProperties", "persistent://t/n/told parted x", 2, None),
        ("Topics.GetProperties", "persistent://t/n/told"),
        ("Topics.GetProperties", "persistent://t/n/told parted"),
        ("Topics.Update", _PARTED, 3),
        ("Topics.Update", _PARTED, 1),
        ("Topics.Update", _TOP, 2),
        ("Topics.Update", _NONE, 2),
        *((f"Topics.Get{name}", topic) for topic in
          (_TOP, _PARTED, f"{_PARTED}-partition-0", f"{_PARTED}-partition-9", _LOOSE, _ODD, _NONE, _NO_NS)
          for name in _TOPIC_READ),
        *((f"Topics.Get{name}", topic, applied) for topic in (_TOP, _LOOSE, _NONE) for applied in (False, True)
          for name in (*_APPLIED, "BacklogQuotaMap")),
        *((f"Topics.{name}", topic) for topic in (_TOP, _PARTED, _LOOSE, _ODD, _NONE, _NO_TENANT)
          for name in ("Lookup", "GetBundleRange")),
        ("Topics.GetMessageID", _TOP, 0),
        ("Topics.GetMessageID", _TOP, 4000000000000),
        ("Topics.GetMessageID", _NONE, 0),
        ("Topics.GetStatsWithOption", _TOP, _OPTIONS),
        ("Topics.GetStatsWithOption", _NONE, _OPTIONS),
        *(("Topics.GetPartitionedStats", topic, each) for topic in (_PARTED, _TOP, _NONE) for each in (False, True)),
        ("Topics.GetPartitionedStatsWithOption", _PARTED, True, _OPTIONS),
        ("Topics.GrantPermission", _TOP, "shop", ["produce"]),
        ("Topics.GrantPermission", _NO_TENANT, "shop", ["produce"]),
        ("Topics.GetPermissions", _TOP),
        ("Topics.RevokePermission", _TOP, "shop"),
        ("Topics.RevokePermission", _TOP, "shop"),
        ("Topics.Offload", _TOP, "{ledger}:{entry}"),
        ("Topics.OffloadStatus", _TOP),
        ("Topics.CompactStatus", _TOP),
        ("Topics.CompactStatus", _NONE),
        ("Topics.Compact", _SPARE),
        ("Topics.Compact", _NONE),
        ("Topics.Unload", _TOP),
        ("Topics.Unload", _PARTED),
        ("Topics.Unload", _NONE),
        ("Topics.Terminate", "persistent://t/n/told"),
        ("Topics.Terminate", "persistent://t/n/told parted"),
        ("Topics.Terminate", _LOOSE),
        ("Topics.Terminate", _NONE),
        ("Topics.GetInternalInfo", "persistent://t/n/told"),
        ("Topics.Delete", _TOP, False, False),
        ("Topics.Delete", "persistent://t/n/told", True, True),
        ("Topics.Delete", "persistent://t/n/told parted", False, False),
        ("Topics.Delete", "persistent://t/n/told parted x", True, False),
        ("Topics.Delete", "non-persistent://t/n/loose parted", False, False),
        ("Topics.Delete", _ODD, False, True),
        ("Topics.Delete", _NONE, False, True),
        ("Topics.Delete", _NONE, False, False),
        ("Topics.Delete", _NO_NS, True, True),
    ),
    "Policies of topics": (
        *_subjects("Topics", _RULED, (_RULES := {
            "MessageTTL": 3600,
            "MaxProducers": 10,
            "MaxConsumers": 10,
            "MaxUnackMessagesPerConsumer": 10,
            "MaxUnackMessagesPerSubscription": 10,
            "Persistence": _PERSISTENCE,
            "DelayedDelivery": {"tickTime": 1000.0, "active": True},
            "DispatchRate": {**_RATE, "relativeToPublishRate": False},
            "PublishRate": {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 1000000},
            "DeduplicationStatus": True,
        }), removed=tuple(_RULES)),
        *(("Topics.Set" + name, _NO_NS, value) for name, value in {**_RULES, **_APPLIED}.items()),
        *(("Topics.Set" + name, _NONE, value) for name, value in {**_RULES, **_APPLIED}.items()),
        *(("Topics.Remove" + name, _NO_NS) for name in {**_RULES, **_APPLIED}),
        *(
            call
            for name, value in _APPLIED.items()
            for call in (
                (f"Topics.Set{name}", _RULED, value),
                (f"Topics.Get{name}", _RULED, False),
                (f"Topics.Remove{name}", _RULED),
                (f"Topics.Get{name}", _RULED, False),
            )
        ),
        ("Topics.SetBacklogQuota", _RULED, _QUOTA, "destination_storage"),
        ("Topics.SetBacklogQuota", _RULED, _QUOTA, "message_age"),
        ("Topics.SetBacklogQuota", _RULED, _QUOTA, "nonsense"),
        ("Topics.GetBacklogQuotaMap", _RULED, False),
        ("Topics.GetBacklogQuotaMap", _RULED, True),
        ("Topics.RemoveBacklogQuota", _RULED, "message_age"),
        ("Topics.GetBacklogQuotaMap", _RULED, False),
        ("Topics.SetReplicationClusters", _RULED, ["local"]),
        ("Topics.SetReplicationClusters", _RULED, ["none"]),
        ("Topics.GetReplicationClusters", _RULED),
        ("Topics.SetMessageTTL", _RULED, -1),
        ("Topics.SetMaxProducers", _RULED, -1),
        ("Topics.SetPersistence", _RULED, {**_PERSISTENCE, "bookkeeperAckQuorum": 2}),
        ("Topics.SetMessageTTL", _LOOSE, 60),
    ),
    "Subscriptions": (
        ("Subscriptions.List", _TOP),
        ("Subscriptions.List", _PARTED),
        ("Subscriptions.List", _LOOSE),
        ("Subscriptions.List", _NONE),
        ("Subscriptions.Create", _TOP, "s", "earliest"),
        ("Subscriptions.Create", _TOP, "late", "latest"),
        ("Subscriptions.Create", _TOP, "mid", "{ledger}:{entry}"),
        ("Subscriptions.Create", _TOP, "a b/c%d", "earliest"),
        ("Subscriptions.Create", _PARTED, "s", "earliest"),
        ("Subscriptions.Create", _LOOSE, "s", "earliest"),
        ("Subscriptions.Create", "persistent://t/other/none", "s", "earliest"),
        ("Subscriptions.Create", _NO_NS, "s", "earliest"),
        ("Subscriptions.List", _TOP),
        ("Subscriptions.List", _PARTED),
        ("Subscriptions.PeekMessages", _TOP, "s", 2),
        ("Subscriptions.PeekMessages", _TOP, "s", 20),
        ("Subscriptions.PeekMessages", _NO_NS, "s", 2),
        ("Subscriptions.GetMessageByID", _TOP, "{ledger}", "{entry}"),
        ("Subscriptions.GetMessagesByID", _TOP, "{ledger}", "{entry}"),
        ("Subscriptions.GetMessagesByID", _TOP, 999999, 0),
        ("Subscriptions.GetMessagesByID", _NONE, 0, 0),
        ("Subscriptions.SkipMessages", _TOP, "s", 2),
        ("Subscriptions.SkipMessages", _TOP, "nothing", 2),
        ("Topics.GetStats", _TOP),
        ("Subscriptions.ResetCursorToMessageID", _TOP, "s", "{ledger}:{entry}"),
        ("Subscriptions.ResetCursorToMessageID", _TOP, "s", "earliest"),
        ("Subscriptions.ResetCursorToMessageID", _TOP, "nothing", "earliest"),
        ("Subscriptions.ResetCursorToTimestamp", _TOP, "s", 0),
        ("Subscriptions.ResetCursorToTimestamp", _TOP, "nothing", 0),
        ("Subscriptions.ResetCursorToTimestamp", _PARTED, "s", 0),
        ("Subscriptions.ExpireMessages", _TOP, "s", 3600),
        ("Subscriptions.ExpireMessages", _TOP, "nothing", 3600),
        ("Subscriptions.ExpireAllMessages", _TOP, 3600),
        ("Subscriptions.ExpireAllMessages", _NONE, 3600),
        ("Subscriptions.ClearBacklog", _TOP, "a b/c%d"),
        ("Subscriptions.ClearBacklog", _TOP, "nothing"),
        ("Subscriptions.Delete", _TOP, "late"),
        ("Subscriptions.Delete", _TOP, "nothing"),
        ("Subscriptions.Delete", _NONE, "s"),
        ("Subscriptions.ForceDelete", _TOP, "a b/c%d"),
        ("Subscriptions.ForceDelete", _TOP, "nothing"),
        ("Subscriptions.List", _TOP),
        ("Topics.GetStats", _TOP),
    ),
    "Schemas": (
        ("Schemas.GetSchemaInfo", _SPARE),
        ("Schemas.GetSchemaInfoWithVersion", _SPARE),
        ("Schemas.GetSchemaInfoByVersion", _SPARE, 0),
        ("Schemas.GetAllSchemas", _SPARE),
        ("Schemas.TestCompatibilityWithPostSchemaPayload", _SPARE, _SCHEMA),
        ("Schemas.CreateSchemaByPayload", _SPARE, _SCHEMA),
        ("Schemas.CreateSchemaByPayload", _SPARE, {**_SCHEMA, "type": "NONSENSE"}),
        ("Schemas.CreateSchemaByPayload", _SPARE, {**_SCHEMA, "schema": "nonsense"}),
        ("Schemas.CreateSchemaByPayload", _NO_NS, _SCHEMA),
        ("Schemas.CreateSchemaBySchemaInfo", _SPARE, _INFO),
        ("Schemas.GetSchemaInfo", _SPARE),
        ("Schemas.GetSchemaInfoWithVersion", _SPARE),
        ("Schemas.GetSchemaInfoByVersion", _SPARE, 0),
        ("Schemas.GetSchemaInfoByVersion", _SPARE, 9),
        ("Schemas.GetAllSchemas", _SPARE),
        ("Schemas.GetVersionBySchemaInfo", _SPARE, _INFO),
        ("Schemas.GetVersionByPayload", _SPARE, _SCHEMA),
        ("Schemas.GetVersionByPayload", _SPARE, _OTHER),
        ("Schemas.TestCompatibilityWithSchemaInfo", _SPARE, _INFO),
        ("Schemas.TestCompatibilityWithPostSchemaPayload", _SPARE, _OTHER),
        ("Schemas.GetSchemaInfo", _NO_NS),
        ("Schemas.DeleteSchema", _SPARE),
        ("Schemas.GetSchemaInfo", _SPARE),
        ("Schemas.ForceDeleteSchema", _SPARE),
        ("Schemas.DeleteSchema", _NO_NS),
    ),
    "Backlogs and bundles": (
        ("Namespaces.ClearNamespaceBacklogForSubscription", "t/other", "s"),
        ("Namespaces.ClearNamespaceBacklog", _NS),
        ("Namespaces.ClearNamespaceBacklog", "t/nothing"),
        ("Namespaces.ClearNamespaceBundleBacklog", _NS, "0x00000000_0xffffffff"),
        ("Namespaces.ClearNamespaceBundleBacklog", _NS, "0x00000000_0x00000001"),
        ("Namespaces.ClearNamespaceBundleBacklogForSubscription", "t/other", "0x00000000_0x40000000", "s"),
        ("Namespaces.UnsubscribeNamespace", _NS, "mid"),
        ("Namespaces.UnsubscribeNamespace", "t/nothing", "s2"),
        ("Namespaces.UnsubscribeNamespaceBundle", _NS, "0x00000000_0xffffffff", "s2"),
        ("Subscriptions.List", _TOP),
        ("Namespaces.Unload", _NS),
        ("Namespaces.Unload", "t/nothing"),
        ("Namespaces.UnloadNamespaceBundle", _NS, "0x00000000_0xffffffff"),
        ("Namespaces.UnloadNamespaceBundle", _NS, "0x00000000_0x00000001"),
        ("Namespaces.SplitNamespaceBundle", _NS, "0x00000000_0x00000001", True),
        ("Namespaces.SplitNamespaceBundle", _NS, "0x00000000_0xffffffff", True),
        ("Namespaces.GetPolicies", _NS),
        ("Namespaces.DeleteNamespaceBundle", "t/other", "0x00000000_0x40000000"),
        ("Namespaces.DeleteNamespaceBundle", _NS, "0x00000000_0x00000001"),
    ),
    "Functions": (
        *_instances("Functions", "Function"),
        ("Functions.GetFunctions", "t", "n"),
        ("Functions.GetFunctionStats", "t", "n", "f"),
        ("Functions.GetFunctionStatsWithInstanceID", "t", "n", "f", 0),
        ("Functions.GetFunctionState", "t", "n", "f", "k"),
        ("Functions.PutFunctionState", "t", "n", "f", {"key": "k", "stringValue": "v"}),
        ("Functions.TriggerFunction", "t", "n", "f", "persistent://t/n/top", "value", ""),
        ("Functions.DownloadFunction", "none", "{files}/got"),
        ("Functions.DownloadFunctionByNs", "{files}/got", "t", "n", "f"),
        ("Functions.Upload", "{files}/code.jar", "none"),
    ),
    "FunctionsWorker": (
        ("FunctionsWorker.GetFunctionsStats",),
        ("FunctionsWorker.GetMetrics",),
        ("FunctionsWorker.GetCluster",),
        ("FunctionsWorker.GetClusterLeader",),
        ("FunctionsWorker.GetAssignments",),
    ),
    "Sources": (
        *_instances("Sources", "Source"),
        ("Sources.ListSources", "t", "n"),
        ("Sources.GetBuiltInSources",),
        ("Sources.ReloadBuiltInSources",),
    ),
    "Sinks": (
        *_instances("Sinks", "Sink"),
        ("Sinks.ListSinks", "t", "n"),
        ("Sinks.GetBuiltInSinks",),
        ("Sinks.ReloadBuiltInSinks",),
    ),
    "Packages": (
        ("Packages.Upload", "function://t/n/f@1", "{files}/code.jar", "told", "me", {"a": "b"}),
        ("Packages.Download", "function://t/n/f@1", "{files}/got"),
        ("Packages.List", "function", "t/n"),
        ("Packages.ListVersions", "function://t/n/f"),
        ("Packages.GetMetadata", "function://t/n/f@1"),
        ("Packages.UpdateMetadata", "function://t/n/f@1", "told", "me", {"a": "b"}),
        ("Packages.Delete", "function://t/n/f@1"),
    ),
}  # fmt: skip


def shown(call: Call) -> str:
    """The call as one line, which names it in the lists of differences."""
    return " ".join([call[0], *(each if isinstance(each, str) else json.dumps(each) for each in call[1:])])
