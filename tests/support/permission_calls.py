"""The calls whose permissions were recorded from Apache's broker, and the roles that made them.

`tests/golden/record_permissions.py` makes them of an Apache broker and writes what it answered into
`tests/vectors/permissions`; `tests/golden/test_permissions.py` makes the same ones of ours.
"""

from typing import Any, Final, NamedTuple

from tests.support.policy_calls import namespace_subjects, topic_subjects

ROLES: Final = ("nobody", "anonymous", "producer", "consumer", "boss", "admin")
"""nobody: no token; anonymous: a role without any permission; boss: the tenant's administrator; admin: a super user."""

_NS: Final = "/admin/v2/namespaces/t1/n1"
_TOPIC: Final = "/admin/v2/persistent/t1/n1/top"
_PARTED: Final = "/admin/v2/persistent/t1/n1/parted"


class Call(NamedTuple):
    """One HTTP call."""

    method: str
    path: str
    body: Any = None

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


# Messages, backlogs and statistics.
_MESSAGES: Final = (
    Call("GET", f"{_TOPIC}/subscription/s1/position/1"),
    Call("GET", f"{_TOPIC}/ledger/0/entry/0"),
    Call("GET", f"{_TOPIC}/examinemessage"),
    Call("GET", f"{_TOPIC}/internal-info"),
    Call("GET", f"{_TOPIC}/subscription/s1/properties"),
    Call("PUT", f"{_TOPIC}/subscription/s1/properties", {"a": "b"}),
    Call("POST", f"{_TOPIC}/subscription/s1/analyzeBacklog"),
    Call("PUT", f"{_TOPIC}/backlogSize", {"ledgerId": -1, "entryId": -1}),
    Call("DELETE", f"{_TOPIC}/truncate"),
    Call("POST", f"{_NS}/clearBacklog"),
    Call("POST", f"{_NS}/clearBacklog/s1"),
    Call("POST", f"{_NS}/unsubscribe/s1"),
    Call("POST", f"{_NS}/0x00000000_0xffffffff/clearBacklog"),
    Call("POST", f"{_NS}/0x00000000_0xffffffff/clearBacklog/s1"),
    Call("POST", f"{_NS}/0x00000000_0xffffffff/unsubscribe/s1"),
)
_BROKER_STATS: Final = tuple(
    Call("GET", f"/admin/v2/broker-stats/{name}") for name in ("topics", "metrics", "mbeans", "allocator-stats/default")
)


def world(cluster: str) -> list[Call]:
    """What a super user makes before the calls, and again before each that changes something."""
    return [
        Call("PUT", "/admin/v2/tenants/t1", {"adminRoles": ["boss"], "allowedClusters": [cluster]}),
        Call("PUT", _NS, {"bundles": {"numBundles": 1}}),
        Call("POST", f"{_NS}/permissions/producer", ["produce"]),
        Call("POST", f"{_NS}/permissions/consumer", ["consume"]),
        Call("PUT", _TOPIC),
        Call("PUT", f"{_TOPIC}/subscription/s1"),
        Call("PUT", f"{_PARTED}/partitions", 2),
        Call("POST", "/admin/v2/schemas/t1/n1/top/schema", {"type": "STRING", "schema": "", "properties": {}}),
    ]


def policy_calls(cluster: str) -> list[Call]:
    """Each policy of a namespace and of a topic: read, set, removed."""
    calls = []
    for subject in namespace_subjects(cluster):
        value = subject.values[0] if subject.values else None
        calls.append(Call("GET", f"{_NS}/{subject.name}"))
        calls.append(Call(subject.setter, f"{_NS}/{subject.sets or subject.name}", value))
        calls.append(Call("DELETE", f"{_NS}/{subject.removes or subject.name}"))
    calls.append(Call("GET", f"/admin/v2/namespaces/{cluster}/antiAffinity/group?property=t1"))
    calls.append(Call("POST", "/admin/v2/brokers/configuration/maxTenants/0"))
    calls.append(Call("DELETE", "/admin/v2/brokers/configuration/maxTenants"))
    for subject in topic_subjects(cluster):
        value = subject.values[0] if subject.values else None
        calls.append(Call("GET", f"{_TOPIC}/{subject.name}"))
        calls.append(Call(subject.setter, f"{_TOPIC}/{subject.sets or subject.name}", value))
        calls.append(Call("DELETE", f"{_TOPIC}/{subject.removes or subject.name}"))
    return calls


def http_calls(cluster: str) -> list[Call]:
    """At least one call of each route of `broker/admin`."""
    given = {"type": "STRING", "schema": "", "properties": {}}
    lookup = "/lookup/v2/topic/persistent/t1/n1/top"
    bundle = f"{_NS}/0x00000000_0xffffffff"
    read = [
        "/metrics", "/metrics/", "/status.html",
        "/admin/v2/clusters", f"/admin/v2/clusters/{cluster}",
        "/admin/v2/brokers", f"/admin/v2/brokers/{cluster}", "/admin/v2/brokers/health", "/admin/v2/brokers/ready",
        "/admin/v2/brokers/version", "/admin/v2/brokers/leaderBroker", "/admin/v2/brokers/internal-configuration",
        "/admin/v2/brokers/configuration", "/admin/v2/brokers/configuration/runtime",
        "/admin/v2/brokers/configuration/values", "/admin/v2/brokers/backlog-quota-check",
        f"/admin/v2/brokers/{cluster}/BROKER/ownedNamespaces",
        "/admin/v2/bookies/all", "/admin/v2/bookies/racks-info", "/admin/v2/bookies/racks-info/10.0.0.1:3181",
        "/admin/v2/tenants", "/admin/v2/tenants/t1", "/admin/v2/namespaces/t1",
        _NS, f"{_NS}/topics", f"{_NS}/bundles", f"{_NS}/permissions", f"{_NS}/permissions/subscription",
        f"{_NS}/retention", f"{_NS}/persistence", f"{_NS}/deduplication", f"{_NS}/schemaCompatibilityStrategy",
        f"{_NS}/isAllowAutoUpdateSchema", f"{_NS}/schemaValidationEnforced", f"{_NS}/autoTopicCreation",
        f"{_NS}/autoSubscriptionCreation", f"{_NS}/delayedDelivery", f"{_NS}/maxProducersPerTopic",
        f"{_NS}/maxConsumersPerTopic", f"{_NS}/maxConsumersPerSubscription", f"{_NS}/maxUnackedMessagesPerConsumer",
        f"{_NS}/maxUnackedMessagesPerSubscription", f"{_NS}/subscriptionTypesEnabled", f"{_NS}/replication",
        f"{_NS}/properties", f"{_NS}/encryptionRequired", f"{_NS}/subscriptionAuthMode",
        "/admin/v2/persistent/t1/n1", "/admin/v2/non-persistent/t1/n1", "/admin/v2/persistent/t1/n1/partitioned",
        "/admin/v2/non-persistent/t1/n1/partitioned",
        f"{_TOPIC}/stats", f"{_TOPIC}/internalStats", f"{_TOPIC}/properties", f"{_TOPIC}/messageid/0",
        f"{_TOPIC}/lastMessageId", f"{_TOPIC}/compaction", f"{_TOPIC}/permissions", f"{_TOPIC}/partitions",
        f"{_TOPIC}/subscriptions",
        f"{_PARTED}/partitions", f"{_PARTED}/partitioned-stats", f"{_PARTED}/partitioned-internalStats",
        f"{_PARTED}/subscriptions",
        "/admin/v2/schemas/t1/n1/top/schema", "/admin/v2/schemas/t1/n1/top/schema/0",
        "/admin/v2/schemas/t1/n1/top/schemas",
        lookup, f"{lookup}/bundle",
        # What does not exist: whether it does is told to nobody who may not know.
        "/admin/v2/tenants/nope", "/admin/v2/namespaces/t1/nope", "/admin/v2/persistent/t1/n1/nope/stats",
        "/admin/v2/persistent/t1/n1/nope/subscriptions", "/lookup/v2/topic/persistent/t1/nope/top",
        "/admin/v2/persistent/nope/nope/nope/stats",
    ]  # fmt: skip
    write = [
        Call("PUT", "/admin/v2/clusters/east", {"serviceUrl": "http://127.0.0.1:1"}),
        Call("POST", "/admin/v2/clusters/east", {"serviceUrl": "http://127.0.0.1:2"}),
        Call("DELETE", "/admin/v2/clusters/east"),
        Call("POST", "/admin/v2/bookies/racks-info/10.0.0.1:3181?group=default", {"rack": "/r1"}),
        Call("DELETE", "/admin/v2/bookies/racks-info/10.0.0.1:3181"),
        Call("PUT", "/admin/v2/tenants/t2", {"adminRoles": [], "allowedClusters": [cluster]}),
        Call("POST", "/admin/v2/tenants/t2", {"adminRoles": [], "allowedClusters": [cluster]}),
        Call("DELETE", "/admin/v2/tenants/t2"),
        Call("PUT", "/admin/v2/namespaces/t1/n2", {"bundles": {"numBundles": 1}}),
        Call("DELETE", "/admin/v2/namespaces/t1/n2"),
        Call("POST", f"{_NS}/permissions/eve", ["produce"]),
        Call("DELETE", f"{_NS}/permissions/eve"),
        Call("POST", f"{_NS}/permissions/subscription/s9", ["eve"]),
        Call("DELETE", f"{_NS}/permissions/s9/eve"),
        Call("POST", f"{_NS}/subscriptionAuthMode", "None"),
        Call("POST", f"{_NS}/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}),
        Call("DELETE", f"{_NS}/retention"),
        Call("POST", f"{_NS}/persistence", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1,
                                            "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 1.0}),
        Call("DELETE", f"{_NS}/persistence"),
        Call("POST", f"{_NS}/deduplication", False),
        Call("DELETE", f"{_NS}/deduplication"),
        Call("PUT", f"{_NS}/schemaCompatibilityStrategy", "FULL"),
        Call("POST", f"{_NS}/isAllowAutoUpdateSchema", True),
        Call("POST", f"{_NS}/schemaValidationEnforced", False),
        Call("POST", f"{_NS}/encryptionRequired", False),
        Call("POST", f"{_NS}/autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}),
        Call("DELETE", f"{_NS}/autoTopicCreation"),
        Call("POST", f"{_NS}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": True}),
        Call("DELETE", f"{_NS}/autoSubscriptionCreation"),
        Call("POST", f"{_NS}/delayedDelivery", {"active": True, "tickTime": 1000}),
        Call("DELETE", f"{_NS}/delayedDelivery"),
        Call("POST", f"{_NS}/maxProducersPerTopic", 100),
        Call("DELETE", f"{_NS}/maxProducersPerTopic"),
        Call("POST", f"{_NS}/subscriptionTypesEnabled", ["Shared", "Exclusive", "Failover", "Key_Shared"]),
        Call("POST", f"{_NS}/replication", [cluster]),
        Call("PUT", f"{_NS}/properties", {"a": "b"}),
        Call("DELETE", f"{_NS}/properties"),
        Call("PUT", f"{_NS}/unload"),
        Call("PUT", f"{bundle}/unload"),
        Call("PUT", f"{_TOPIC}2"),
        Call("DELETE", f"{_TOPIC}2"),
        Call("PUT", f"{_TOPIC}/properties", {"a": "b"}),
        Call("DELETE", f"{_TOPIC}/properties?key=a"),
        Call("POST", f"{_TOPIC}/permissions/eve", ["consume"]),
        Call("DELETE", f"{_TOPIC}/permissions/eve"),
        Call("PUT", f"{_TOPIC}/unload"),
        Call("PUT", f"{_PARTED}2/partitions", 1),
        Call("POST", f"{_PARTED}2/partitions", 2),
        Call("POST", f"{_PARTED}2/createMissedPartitions"),
        Call("DELETE", f"{_PARTED}2/partitions"),
        Call("PUT", f"{_TOPIC}/subscription/s2"),
        Call("POST", f"{_TOPIC}/subscription/s1/skip_all"),
        Call("POST", f"{_TOPIC}/subscription/s1/skip/1"),
        Call("POST", f"{_TOPIC}/subscription/s1/expireMessages/1"),
        Call("POST", f"{_TOPIC}/all_subscription/expireMessages/1"),
        Call("POST", f"{_TOPIC}/subscription/s1/resetcursor/0"),
        Call("POST", f"{_TOPIC}/subscription/s1/resetcursor", {"ledgerId": -1, "entryId": -1}),
        Call("DELETE", f"{_TOPIC}/subscription/s2"),
        Call("POST", "/admin/v2/schemas/t1/n1/top/schema", given),
        Call("POST", "/admin/v2/schemas/t1/n1/top/compatibility", given),
        Call("POST", "/admin/v2/schemas/t1/n1/top/version", given),
        Call("DELETE", "/admin/v2/schemas/t1/n1/top3/schema"),
        Call("PUT", f"{_TOPIC}4"),
        Call("PUT", f"{_TOPIC}4/compaction"),
        Call("POST", f"{_TOPIC}4/terminate"),
        Call("DELETE", f"{_NS}nope/retention"),
    ]  # fmt: skip
    calls = [
        *(Call("GET", path) for path in read), *write, *_MESSAGES, *_BROKER_STATS, *_NON_PERSISTENT, *_BUNDLES,
        *_TOPIC_CALLS, *cluster_calls(cluster), *RESOURCE_GROUP_CALLS, *OFFLOAD_CALLS, EXPIRE_CALL,
    ]  # fmt: skip
    known = {call.name for call in calls}
    return calls + [call for call in policy_calls(cluster) if call.name not in known]


_PASSING: Final = "/admin/v2/non-persistent/t1/n1"
_NON_PERSISTENT: Final = (
    Call("PUT", f"{_PASSING}/np"),
    Call("GET", f"{_PASSING}/0x00000000_0xffffffff"),
    Call("GET", f"{_PASSING}/np/stats"),
    Call("GET", f"{_PASSING}/np/internalStats"),
    Call("GET", f"{_PASSING}/np/subscriptions"),
    Call("DELETE", f"{_PASSING}/np/subscription/s1"),
    Call("GET", f"{_PASSING}/np/permissions"),
    Call("POST", f"{_PASSING}/np/permissions/eve", ["consume"]),
    Call("DELETE", f"{_PASSING}/np/permissions/eve"),
    Call("PUT", f"{_PASSING}/np/unload"),
    Call("DELETE", f"{_PASSING}/np"),
    Call("PUT", f"{_PASSING}/parted/partitions", 1),
    Call("GET", f"{_PASSING}/parted/partitions"),
    Call("POST", f"{_PASSING}/parted/partitions", 2),
    Call("POST", f"{_PASSING}/parted/createMissedPartitions"),
    Call("GET", f"{_PASSING}/parted/partitioned-stats"),
    Call("GET", f"{_PASSING}/parted/partitioned-internalStats"),
    Call("DELETE", f"{_PASSING}/parted/partitions"),
)


_BUNDLES: Final = (
    Call("GET", f"{_NS}/0x00000000_0xffffffff/topicHashPositions"),
    Call("PUT", f"{_NS}/0x00000000_0xffffffff/unload?destinationBroker=BROKER"),
    # Cut where there is no place to: the namespace keeps its one bundle for the calls of the next role.
    Call("PUT", f"{_NS}/0x00000000_0xffffffff/split?splitAlgorithmName=specified_positions_divide", [0]),
    Call("GET", "/admin/v2/broker-stats/load-report"),
    Call("GET", "/admin/v2/resource-quotas"),
    Call("POST", "/admin/v2/resource-quotas", {"memory": 80.0}),
    Call("GET", "/admin/v2/resource-quotas/t1/n1/0x00000000_0xffffffff"),
    Call("POST", "/admin/v2/resource-quotas/t1/n1/0x00000000_0xffffffff", {"memory": 80.0}),
    Call("DELETE", "/admin/v2/resource-quotas/t1/n1/0x00000000_0xffffffff"),
)

_STATUS: Final = "replicatedSubscriptionStatus"
_TOPIC_CALLS: Final = (
    Call("POST", f"{_TOPIC}/trim"),
    Call("PUT", f"{_PARTED}5/partitions", 1),
    Call("POST", f"{_PARTED}5/terminate/partitions"),
    Call("DELETE", f"{_PARTED}5/partitions"),
    Call("GET", "/admin/v2/schemas/t1/n1/top/metadata"),
    Call("DELETE", f"{_TOPIC}/policies"),
    Call("GET", f"{_PASSING}/np/backlog"),
    Call("GET", f"{_TOPIC}/subscription/s1/{_STATUS}"),
    Call("POST", f"{_TOPIC}/subscription/s1/{_STATUS}", False),
)

# Apache's PersistentTopicsBase asks for the operation OFFLOAD, which administrators have. Younger than the recording.
OFFLOAD_CALLS: Final = (Call("GET", f"{_TOPIC}/offload"), Call("PUT", f"{_TOPIC}/offload"))

# As the call by age, which was recorded.
EXPIRE_CALL: Final = Call(
    "POST", f"{_TOPIC}/subscription/s1/expireMessages", {"ledgerId": 0, "entryId": 0, "partitionIndex": -1}
)

# Apache's ResourceGroupsBase asks for a super user at each of them. The recording is older than they are.
RESOURCE_GROUP_CALLS: Final = (
    Call("PUT", "/admin/v2/resourcegroups/one", {"publishRateInMsgs": 10}),
    Call("GET", "/admin/v2/resourcegroups"),
    Call("GET", "/admin/v2/resourcegroups/one"),
    Call("DELETE", "/admin/v2/resourcegroups/one"),
)

ISOLATION: Final = {
    "namespaces": ["nowhere/.*"],
    "primary": ["127.0.0.1.*"],
    "secondary": [],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}


def cluster_calls(cluster: str) -> list[Call]:
    """What is kept beside the record of a cluster."""
    one = f"/admin/v2/clusters/{cluster}"
    policies, domains = f"{one}/namespaceIsolationPolicies", f"{one}/failureDomains"
    return [
        Call("GET", f"/admin/namespaces/{cluster}/antiAffinity/group?property=t1"),
        Call("GET", f"{one}/peers"),
        Call("POST", f"{one}/peers", []),
        Call("GET", f"{one}/migrate"),
        Call("GET", domains),
        Call("POST", f"{domains}/d", {"brokers": ["10.0.0.1:8080"]}),
        Call("GET", f"{domains}/d"),
        Call("DELETE", f"{domains}/d"),
        Call("POST", f"{policies}/p", ISOLATION),
        Call("GET", policies),
        Call("GET", f"{policies}/p"),
        Call("GET", f"{policies}/brokers"),
        Call("GET", f"{policies}/brokers/10.0.0.1:8080"),
        Call("DELETE", f"{policies}/p"),
    ]
