"""The calls on policies that were recorded from Apache's broker: of a namespace, of a topic, of the broker's settings.

`tests/golden/record_policies.py` makes them of an Apache broker and writes what it answered into
`tests/vectors/policies`; `tests/golden/test_policies.py` makes the same ones of ours, in the same order.
"""

from typing import Any, Final, NamedTuple

NAMESPACE: Final = "/admin/v2/namespaces/t1/n1"
TOPIC: Final = "/admin/v2/persistent/t1/n1/top"
ABSENT: Final = "/admin/v2/namespaces/t1/nope"
BROKERS: Final = "/admin/v2/brokers/configuration"


class Step(NamedTuple):
    """One call."""

    method: str
    path: str
    body: Any = None


class Subject(NamedTuple):
    """One policy: what is set, and what is refused."""

    name: str
    """The last part of its path."""
    values: tuple[Any, ...] = ()
    refused: tuple[Any, ...] = ()
    setter: str = "POST"
    """The method that sets it."""
    sets: str = ""
    """The path that sets it, where that is not *name*."""
    removes: str = ""
    """The path that removes it, where that is not *name*."""


def made(cluster: str) -> list[Step]:
    """What is there before."""
    return [
        Step("PUT", "/admin/v2/tenants/t1", {"adminRoles": [], "allowedClusters": [cluster]}),
        Step("PUT", NAMESPACE, {"bundles": {"numBundles": 4}}),
        Step("PUT", TOPIC),
    ]


_RATE: Final = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": 1000,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 2,
}
_OFFLOAD: Final = {
    "managedLedgerOffloadDriver": "aws-s3",
    "managedLedgerOffloadBucket": "bucket",
    "s3ManagedLedgerOffloadRegion": "us-west-2",
    "managedLedgerOffloadThresholdInBytes": 1000,
    "managedLedgerOffloadDeletionLagInMillis": 60000,
}
_SIZE_QUOTA: Final = {"limitSize": 1000, "policy": "producer_exception"}
_TIME_QUOTA: Final = {"limitTime": 60, "policy": "consumer_backlog_eviction"}
_INACTIVE: Final = {
    "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
    "maxInactiveDurationSeconds": 100,
    "deleteWhileInactive": False,
}
_PERSISTENCE: Final = {
    "bookkeeperEnsemble": 1,
    "bookkeeperWriteQuorum": 1,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 2.5,
}


def namespace_subjects(cluster: str) -> list[Subject]:
    """The policies of a namespace."""
    return [
        Subject("replication", ([cluster],), ([], ["elsewhere"], "x")),
        Subject("messageTTL", (60, 0), (-1, "x")),
        Subject("subscriptionExpirationTime", (5, 0), (-1,)),
        Subject("deduplication", (True, False)),
        Subject(
            "autoTopicCreation",
            (
                {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
                {"allowAutoTopicCreation": False},
                {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
            ),
            (
                {"allowAutoTopicCreation": True, "topicType": "strange"},
                {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0},
                {"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 3},
            ),
        ),
        Subject("autoSubscriptionCreation", ({"allowAutoSubscriptionCreation": False},)),
        Subject(
            "publishRate",
            ({"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 1000},),
        ),
        Subject("dispatchRate", (_RATE,)),
        Subject("subscriptionDispatchRate", (_RATE,)),
        Subject("replicatorDispatchRate", (_RATE,)),
        Subject("subscribeRate", ({"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 10},)),
        Subject(
            "backlogQuotaMap",
            (_SIZE_QUOTA,),
            ({"limitSize": -5, "policy": "producer_exception"}, {"limitSize": 1000, "policy": "strange"}),
            sets="backlogQuota",
            removes="backlogQuota",
        ),
        Subject(
            "backlogQuotaMap",
            (_TIME_QUOTA,),
            (),
            sets="backlogQuota?backlogQuotaType=message_age",
            removes="backlogQuota?backlogQuotaType=message_age",
        ),
        Subject(
            "retention",
            (
                {"retentionTimeInMinutes": 100, "retentionSizeInMB": 100},
                {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
                {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
            ),
            (
                {"retentionTimeInMinutes": 0, "retentionSizeInMB": 10},
                {"retentionTimeInMinutes": 10, "retentionSizeInMB": 0},
                {"retentionTimeInMinutes": -2, "retentionSizeInMB": 10},
            ),
        ),
        Subject(
            "persistence",
            (_PERSISTENCE,),
            ({**_PERSISTENCE, "bookkeeperWriteQuorum": 2}, {**_PERSISTENCE, "managedLedgerMaxMarkDeleteRate": -1}),
        ),
        Subject(
            "persistence/bookieAffinity",
            ({"bookkeeperAffinityGroupPrimary": "one", "bookkeeperAffinityGroupSecondary": "two"},),
        ),
        Subject("subscriptionAuthMode", ("Prefix", "None")),
        Subject("encryptionRequired", (True, False)),
        Subject(
            "delayedDelivery",
            ({"tickTime": 500, "active": True, "maxDeliveryDelayInMillis": 1000},),
        ),
        Subject("inactiveTopicPolicies", (_INACTIVE,), ({**_INACTIVE, "maxInactiveDurationSeconds": -1},)),
        Subject("maxProducersPerTopic", (3, 0), (-1,)),
        Subject("maxConsumersPerTopic", (3,), (-1,)),
        Subject("maxConsumersPerSubscription", (3,), (-1,)),
        Subject("maxUnackedMessagesPerConsumer", (3,), (-1,)),
        Subject("maxUnackedMessagesPerSubscription", (3,), (-1,)),
        Subject("maxSubscriptionsPerTopic", (3,), (-1,)),
        Subject("maxTopicsPerNamespace", (3,), (-1,)),
        Subject("deduplicationSnapshotInterval", (30,), (-1,)),
        Subject("antiAffinity", ("group",)),
        Subject("compactionThreshold", (1000, 0), (-1,), setter="PUT"),
        Subject("offloadThreshold", (1000,), (-2,), setter="PUT"),
        Subject("offloadThresholdInSeconds", (1000,), (-2,), setter="PUT"),
        Subject("offloadDeletionLagMs", (1000,), (-2,), setter="PUT"),
        Subject("offloadPolicies", (_OFFLOAD,), ({"managedLedgerOffloadDriver": "strange"},),
                removes="removeOffloadPolicies"),
        Subject("schemaAutoUpdateCompatibilityStrategy", ("Backward", "Full"), setter="PUT"),
        Subject("schemaCompatibilityStrategy", ("BACKWARD", "UNDEFINED"), ("strange",), setter="PUT"),
        Subject("isAllowAutoUpdateSchema", (False, True)),
        Subject("schemaValidationEnforced", (True, False)),
        Subject("subscriptionTypesEnabled", (["Shared", "Exclusive"], []), (["Strange"],)),
        Subject("properties", ({"a": "1", "b": "2"},), setter="PUT"),
        Subject("property/c", (), (), setter="PUT", sets="property/c/3"),
        Subject("entryFilters", ({"entryFilterNames": "one,two"},)),
        Subject("dispatcherPauseOnAckStatePersistent", (None,)),
        Subject("resourcegroup", (), (), sets="resourcegroup/one"),
        Subject("allowedClusters", ([cluster],), (["elsewhere"],)),
    ]  # fmt: skip


def topic_subjects(cluster: str) -> list[Subject]:
    """The policies of a topic."""
    return [
        Subject("maxProducers", (3, 0), (-1,)),
        Subject("maxConsumers", (3, 0), (-1,)),
        Subject("maxConsumersPerSubscription", (3,), (-1,)),
        Subject("maxSubscriptionsPerTopic", (3,), (-1,)),
        Subject("maxMessageSize", (1000,), (-1, 2**31 - 1)),
        Subject("maxUnackedMessagesOnConsumer", (3,), (-1,)),
        Subject("maxUnackedMessagesOnSubscription", (3,), (-1,)),
        Subject("messageTTL", (), (), sets="messageTTL?messageTTL=60", removes="messageTTL?messageTTL=0"),
        Subject("messageTTL", (), (), sets="messageTTL?messageTTL=-1", removes="messageTTL"),
        Subject(
            "retention",
            ({"retentionTimeInMinutes": 100, "retentionSizeInMB": 100},),
            ({"retentionTimeInMinutes": 0, "retentionSizeInMB": 10},),
        ),
        Subject(
            "persistence",
            (_PERSISTENCE,),
            ({**_PERSISTENCE, "bookkeeperWriteQuorum": 2}, {**_PERSISTENCE, "managedLedgerMaxMarkDeleteRate": -1}),
        ),
        Subject("publishRate", ({"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 1000},)),
        Subject("dispatchRate", (_RATE,)),
        Subject("subscriptionDispatchRate", (_RATE,)),
        Subject("sub1/dispatchRate", (_RATE,)),
        Subject("replicatorDispatchRate", (_RATE,)),
        Subject("subscribeRate", ({"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 10},)),
        Subject("delayedDelivery", ({"tickTime": 500, "active": True, "maxDeliveryDelayInMillis": 1000},)),
        Subject("deduplicationEnabled", (True, False)),
        Subject("deduplicationSnapshotInterval", (30,), (-1,)),
        Subject("inactiveTopicPolicies", (_INACTIVE,)),
        Subject("compactionThreshold", (1000,), (-1,), setter="PUT"),
        Subject("compactionThreshold", (1000,), (-1,)),
        Subject("offloadPolicies", (_OFFLOAD,)),
        Subject(
            "backlogQuotaMap",
            (_SIZE_QUOTA,),
            ({"limitSize": 1000, "policy": "strange"},),
            sets="backlogQuota",
            removes="backlogQuota",
        ),
        Subject(
            "backlogQuotaMap",
            (_TIME_QUOTA,),
            (),
            sets="backlogQuota?backlogQuotaType=message_age",
            removes="backlogQuota?backlogQuotaType=message_age",
        ),
        Subject("schemaCompatibilityStrategy", ("BACKWARD",), ("strange",), setter="PUT"),
        Subject("schemaValidationEnforced", (True, False)),
        Subject("replication", ([cluster],), (["elsewhere"], [])),
        Subject("autoSubscriptionCreation", ({"allowAutoSubscriptionCreation": False},)),
        Subject("subscriptionTypesEnabled", (["Shared", "Exclusive"], []), (["Strange"],)),
        Subject("entryFilters", ({"entryFilterNames": "one,two"},)),
        Subject("dispatcherPauseOnAckStatePersistent", (None,)),
        Subject("shadowTopics", (["persistent://t1/n1/shadow"],), setter="PUT"),
    ]


def namespace_steps(cluster: str) -> list[Step]:
    """Each policy of a namespace: not set, set, read, refused, removed; the record after each change."""
    steps = [Step("GET", NAMESPACE)]
    for subject in namespace_subjects(cluster):
        path = f"{NAMESPACE}/{subject.name}"
        sets = f"{NAMESPACE}/{subject.sets or subject.name}"
        steps.append(Step("GET", path))
        for value in subject.values or ((None,) if subject.sets else ()):
            steps += [Step(subject.setter, sets, value), Step("GET", path), Step("GET", NAMESPACE)]
        for value in subject.refused:
            steps += [Step(subject.setter, sets, value), Step("GET", path)]
        removes = f"{NAMESPACE}/{subject.removes or subject.name}"
        steps += [Step("DELETE", removes), Step("GET", path), Step("GET", NAMESPACE)]
        steps += [Step("GET", f"{ABSENT}/{subject.name}")]
        if subject.values:
            steps += [Step(subject.setter, sets.replace(NAMESPACE, ABSENT), subject.values[0])]
    return steps


def topic_steps(cluster: str) -> list[Step]:
    """Each policy of a topic: not set, set, read, refused, removed; and what is in force."""
    steps = []
    for subject in topic_subjects(cluster):
        path, sets = f"{TOPIC}/{subject.name}", f"{TOPIC}/{subject.sets or subject.name}"
        read = [Step("GET", path), Step("GET", f"{path}?applied=true")]
        steps += read
        for value in subject.values or ((None,) if subject.sets else ()):
            steps += [Step(subject.setter, sets, value), *read]
        for value in subject.refused:
            steps += [Step(subject.setter, sets, value), Step("GET", path)]
        steps += [Step("DELETE", f"{TOPIC}/{subject.removes or subject.name}"), *read]
        steps += [Step("GET", path.replace("/top/", "/absent/"))]
    return steps


def inherited_steps() -> list[Step]:
    """What a topic has in force when only its namespace says something, and when both do."""
    steps = []
    for name, of_topic, value, own in (
        ("maxProducersPerTopic", "maxProducers", 7, 8),
        ("maxConsumersPerTopic", "maxConsumers", 7, 8),
        ("maxConsumersPerSubscription", "maxConsumersPerSubscription", 7, 8),
        ("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", 7, 8),
        ("maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer", 7, 8),
        ("maxUnackedMessagesPerSubscription", "maxUnackedMessagesOnSubscription", 7, 8),
        ("retention", "retention", {"retentionTimeInMinutes": 7, "retentionSizeInMB": 7},
         {"retentionTimeInMinutes": 8, "retentionSizeInMB": 8}),
        ("persistence", "persistence", _PERSISTENCE, {**_PERSISTENCE, "managedLedgerMaxMarkDeleteRate": 9.0}),
        ("publishRate", "publishRate", {"publishThrottlingRateInMsg": 7, "publishThrottlingRateInByte": 7},
         {"publishThrottlingRateInMsg": 8, "publishThrottlingRateInByte": 8}),
        ("dispatchRate", "dispatchRate", _RATE, {**_RATE, "dispatchThrottlingRateInMsg": 8}),
        ("subscriptionDispatchRate", "subscriptionDispatchRate", _RATE, {**_RATE, "dispatchThrottlingRateInMsg": 8}),
        ("subscribeRate", "subscribeRate", {"subscribeThrottlingRatePerConsumer": 7, "ratePeriodInSecond": 7},
         {"subscribeThrottlingRatePerConsumer": 8, "ratePeriodInSecond": 8}),
        ("delayedDelivery", "delayedDelivery", {"tickTime": 700, "active": True, "maxDeliveryDelayInMillis": 0},
         {"tickTime": 800, "active": False, "maxDeliveryDelayInMillis": 0}),
        ("deduplication", "deduplicationEnabled", True, False),
        ("inactiveTopicPolicies", "inactiveTopicPolicies", _INACTIVE, {**_INACTIVE, "maxInactiveDurationSeconds": 8}),
        ("autoSubscriptionCreation", "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False},
         {"allowAutoSubscriptionCreation": True}),
        ("subscriptionTypesEnabled", "subscriptionTypesEnabled", ["Shared"], ["Failover"]),
    ):  # fmt: skip
        steps += [
            Step("POST", f"{NAMESPACE}/{name}", value),
            Step("GET", f"{TOPIC}/{of_topic}?applied=true"),
            Step("GET", f"{TOPIC}/{of_topic}"),
            Step("POST", f"{TOPIC}/{of_topic}", own),
            Step("GET", f"{TOPIC}/{of_topic}?applied=true"),
            Step("DELETE", f"{NAMESPACE}/{name}"),
            Step("GET", f"{TOPIC}/{of_topic}?applied=true"),
            Step("DELETE", f"{TOPIC}/{of_topic}"),
            Step("GET", f"{TOPIC}/{of_topic}?applied=true"),
        ]
    changed: tuple[tuple[str, str, Any, Any], ...] = (
        ("compactionThreshold", "compactionThreshold", 7, 8),
        ("schemaCompatibilityStrategy", "schemaCompatibilityStrategy", "FORWARD", "BACKWARD"),
    )
    for name, of_topic, value, own in changed:
        setter = "PUT" if name.startswith("schema") else "POST"
        steps += [
            Step("PUT", f"{NAMESPACE}/{name}", value),
            Step("GET", f"{TOPIC}/{of_topic}?applied=true"),
            Step(setter, f"{TOPIC}/{of_topic}", own),
            Step("GET", f"{TOPIC}/{of_topic}?applied=true"),
            Step("DELETE", f"{TOPIC}/{of_topic}"),
            Step("DELETE", f"{NAMESPACE}/{name}"),
            Step("PUT", f"{NAMESPACE}/{name}", {"compactionThreshold": 0}.get(name, "UNDEFINED")),
        ]
    for kind in ("destination_storage", "message_age"):
        query = f"?backlogQuotaType={kind}"
        steps += [
            Step("POST", f"{NAMESPACE}/backlogQuota{query}", {**_SIZE_QUOTA, "limitTime": 7}),
            Step("GET", f"{TOPIC}/backlogQuotaMap?applied=true"),
            Step("POST", f"{TOPIC}/backlogQuota{query}", {**_TIME_QUOTA, "limitSize": 8}),
            Step("GET", f"{TOPIC}/backlogQuotaMap?applied=true"),
            Step("DELETE", f"{TOPIC}/backlogQuota{query}"),
            Step("DELETE", f"{NAMESPACE}/backlogQuota{query}"),
            Step("GET", f"{TOPIC}/backlogQuotaMap?applied=true"),
        ]
    return steps


def setting_steps() -> list[Step]:
    """The broker's settings while it runs."""
    return [
        Step("GET", BROKERS),
        Step("GET", f"{BROKERS}/values"),
        Step("POST", f"{BROKERS}/maxConcurrentLookupRequest/1000"),
        Step("GET", f"{BROKERS}/values"),
        Step("POST", f"{BROKERS}/ttlDurationDefaultInSeconds/77"),
        Step("GET", f"{TOPIC}/messageTTL?applied=true"),
        Step("POST", f"{BROKERS}/ttlDurationDefaultInSeconds/x"),
        Step("POST", f"{BROKERS}/clusterName/x"),
        Step("POST", f"{BROKERS}/nothing/x"),
        Step("DELETE", f"{BROKERS}/ttlDurationDefaultInSeconds"),
        Step("GET", f"{TOPIC}/messageTTL?applied=true"),
        Step("DELETE", f"{BROKERS}/maxConcurrentLookupRequest"),
        Step("DELETE", f"{BROKERS}/clusterName"),
        Step("DELETE", f"{BROKERS}/nothing"),
        Step("GET", f"{BROKERS}/values"),
    ]


CHANGES: Final = "persistent://t1/n1/__change_events"
"""The system topic with the policies of the topics in a namespace."""
CHANGES_SCHEMA: Final = "/admin/v2/schemas/t1/n1/__change_events/schema"


def last_steps() -> list[Step]:
    """Policies for all clusters, all that can be set at once, and the end of a topic that has some."""
    other = TOPIC.replace("/top", "/other")
    return [
        Step("PUT", other),
        Step("POST", f"{other}/maxProducers?isGlobal=true", 5),
        Step("GET", f"{other}/maxProducers"),
        Step("GET", f"{other}/maxProducers?isGlobal=true"),
        Step("GET", f"{other}/maxProducers?applied=true"),
        Step("POST", f"{other}/maxProducers", 6),
        Step("GET", f"{other}/maxProducers?applied=true"),
        Step("POST", f"{other}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
        Step("POST", f"{other}/subscriptionDispatchRate", _RATE),
        Step("POST", f"{other}/s/dispatchRate", _RATE),
        Step("POST", f"{other}/subscriptionTypesEnabled", ["Shared", "Key_Shared"]),
        Step("DELETE", other),
    ]
