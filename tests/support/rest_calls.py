"""Calls of the admin API whose answers of Apache's broker are kept in `tests/vectors/rest`, in the order they are made.

`tests/golden/record_rest.py` makes them of an Apache broker, `tests/golden/test_rest.py` makes the same ones of ours.
"""

from typing import Any, Final

from tests.support.permission_calls import ISOLATION, Call

_NS: Final = "/admin/v2/namespaces/public/passing"
_TOPICS: Final = "/admin/v2/non-persistent/public/passing"
_X: Final = f"{_TOPICS}/x"
_P: Final = f"{_TOPICS}/parted"

NON_PERSISTENT: Final = (
    Call("PUT", _NS, {"bundles": {"numBundles": 2}}), Call("GET", _TOPICS), Call("GET", f"{_TOPICS}/partitioned"),
    Call("GET", f"{_X}/stats"), Call("GET", f"{_X}/partitions"), Call("GET", f"{_X}/internalStats"), Call("PUT", _X),
    Call("PUT", _X), Call("GET", _TOPICS), Call("GET", f"{_X}/stats"), Call("GET", f"{_X}/internalStats"),
    Call("GET", f"{_X}/partitions"), Call("GET", f"{_X}/properties"), Call("PUT", f"{_X}/properties", {"a": "b"}),
    Call("DELETE", f"{_X}/properties?key=a"), Call("PUT", f"{_X}/subscription/s1"),
    Call("GET", f"{_X}/subscriptions"), Call("GET", f"{_X}/lastMessageId"), Call("GET", f"{_X}/messageid/0"),
    Call("POST", f"{_X}/subscription/s1/expireMessages/1"), Call("POST", f"{_X}/all_subscription/expireMessages/1"),
    Call("POST", f"{_X}/terminate"), Call("GET", f"{_X}/permissions"),
    Call("POST", f"{_X}/permissions/eve", ["consume"]), Call("GET", f"{_X}/permissions"),
    Call("DELETE", f"{_X}/permissions/eve"), Call("DELETE", f"{_X}/truncate"),
    Call("DELETE", f"{_X}/subscription/s1"), Call("PUT", f"{_X}/unload"), Call("GET", _TOPICS),
    Call("GET", f"{_X}/stats"), Call("DELETE", _X), Call("DELETE", f"{_TOPICS}/never-made"),
    Call("PUT", f"{_P}/partitions", 2), Call("PUT", f"{_P}/partitions", 2), Call("GET", f"{_P}/partitions"),
    Call("GET", f"{_TOPICS}/partitioned"), Call("GET", _TOPICS), Call("GET", f"{_P}/stats"),
    Call("GET", f"{_P}-partition-1/stats"), Call("GET", _TOPICS), Call("GET", f"{_P}/partitioned-stats"),
    Call("GET", f"{_P}/partitioned-internalStats"), Call("POST", f"{_P}/partitions", 3),
    Call("GET", f"{_P}/partitions"), Call("POST", f"{_P}/createMissedPartitions"), Call("GET", _TOPICS),
    Call("GET", f"{_P}/subscriptions"), Call("DELETE", _P), Call("GET", f"{_NS}/topics?mode=NON_PERSISTENT"),
    Call("GET", f"{_NS}/topics?mode=ALL"), Call("GET", f"{_NS}/topics"), Call("PUT", f"{_P}/unload"),
    Call("DELETE", f"{_P}/partitions"), Call("GET", f"{_P}/partitions"),
    Call("GET", f"{_P}/partitions?checkAllowAutoCreation=true"), Call("PUT", f"{_TOPICS}/lone-partition-0"),
    Call("GET", f"{_TOPICS}/0x00000000_0x80000000"),
    Call("GET", "/lookup/v2/topic/non-persistent/public/passing/zz/bundle"), Call("DELETE", _NS),
)  # fmt: skip

_CUT: Final = "/admin/v2/namespaces/public/cut"
_BY: Final = "split?splitAlgorithmName="

BUNDLES: Final = (
    Call("PUT", _CUT, {"bundles": {"numBundles": 2}}),
    Call("GET", f"{_CUT}/bundles"),
    *(Call("PUT", f"/admin/v2/persistent/public/cut/t{number}") for number in range(12)),
    Call("GET", "/lookup/v2/topic/persistent/public/cut/t0/bundle"),
    Call("GET", f"{_CUT}/0x00000000_0x80000000/topicHashPositions?topics=persistent://public/cut/t1"),
    Call("GET", f"{_CUT}/0x00000000_0x40000000/topicHashPositions"),
    Call("GET", "/admin/v2/namespaces/public/nowhere/0x00000000_0x80000000/topicHashPositions"),
    Call("PUT", f"{_CUT}/0x00000000_0x80000000/split"),
    Call("GET", f"{_CUT}/bundles"),
    Call("PUT", f"{_CUT}/0x00000000_0x80000000/split"),
    Call("PUT", f"{_CUT}/0x40000000_0x80000000/split"),
    Call("GET", f"{_CUT}/bundles"),
    Call("PUT", f"{_CUT}/0x60000000_0x80000000/{_BY}topic_count_equally_divide"),
    Call("GET", f"{_CUT}/bundles"),
    Call("PUT", f"{_CUT}/0x00000000_0x40000000/{_BY}nothing_like_it"),
    Call("PUT", f"{_CUT}/0x00000000_0x40000000/{_BY}specified_positions_divide"),
    Call("PUT", f"{_CUT}/0x00000000_0x40000000/{_BY}specified_positions_divide", [0x10000000, 0x20000000, 5 << 30]),
    Call("GET", f"{_CUT}/bundles"),
    Call("PUT", f"{_CUT}/0x00000000_0x10000000/{_BY}specified_positions_divide", [1 << 31]),
    Call("GET", f"{_CUT}/bundles"),
    *(Call("GET", f"/admin/v2/persistent/public/cut/t{number}/subscriptions") for number in range(3)),
    Call("PUT", f"{_CUT}/0x00000000_0x10000000/unload?destinationBroker=nobody:1"),
    Call("PUT", f"{_CUT}/0x00000000_0x10000000/unload?destinationBroker=BROKER"),
    Call("PUT", f"{_CUT}/0x00000000_0x20000000/unload"),
    Call("GET", "/lookup/v2/topic/persistent/public/cut/t0/bundle"),
    Call("GET", _CUT),
)

_QUOTAS: Final = "/admin/v2/resource-quotas"
_QUOTA: Final = f"{_QUOTAS}/public/quota/0x00000000_0x80000000"
_GIVEN: Final = {
    "msgRateIn": 1.0, "msgRateOut": 2.0, "bandwidthIn": 3.0, "bandwidthOut": 4.0, "memory": 5.0, "dynamic": False
}  # fmt: skip

QUOTAS: Final = (
    Call("PUT", "/admin/v2/namespaces/public/quota", {"bundles": {"numBundles": 2}}),
    Call("POST", _QUOTAS, {**_GIVEN, "memory": 80.0}),
    Call("GET", _QUOTAS),
    Call("GET", _QUOTA),
    Call("POST", _QUOTA, _GIVEN),
    Call("GET", _QUOTA),
    Call("GET", f"{_QUOTAS}/public/quota/0x80000000_0xffffffff"),
    Call("GET", f"{_QUOTAS}/public/quota/0x00000000_0x40000000"),
    Call("GET", f"{_QUOTAS}/public/nowhere/0x00000000_0x40000000"),
    Call("DELETE", _QUOTA),
    Call("GET", _QUOTA),
    Call("DELETE", _QUOTA),
    Call("DELETE", "/admin/v2/namespaces/public/quota"),
)

_T: Final = "/admin/v2/persistent/public/more"
_MORE: Final = "/admin/v2/namespaces/public/more"
_PASSING: Final = "/admin/v2/non-persistent/public/more"
_SCHEMAS: Final = "/admin/v2/schemas/public"
_STATUS: Final = "replicatedSubscriptionStatus"

TOPICS: Final = (
    Call("PUT", _MORE, {"bundles": {"numBundles": 2}}),
    *(Call("PUT", f"{_T}/{name}") for name in ("a", "b", "s")),
    *(Call("PUT", f"{_T}/{name}/partitions", 2) for name in ("p", "q")),
    Call("POST", f"{_T}/a/trim"), Call("POST", f"{_T}/p/trim"), Call("POST", f"{_T}/p-partition-0/trim"),
    Call("POST", f"{_T}/nope/trim"), Call("POST", f"{_PASSING}/a/trim"),
    Call("POST", f"{_T}/p/terminate"), Call("POST", f"{_T}/a/terminate/partitions"),
    Call("POST", f"{_T}/nope/terminate/partitions"), Call("POST", f"{_PASSING}/p/terminate/partitions"),
    Call("POST", f"{_T}/p/terminate/partitions"), Call("POST", f"{_T}/p/terminate/partitions"),
    Call("POST", f"{_T}/p-partition-1/terminate"),
    Call("POST", f"{_T}/a/terminate"), Call("POST", f"{_T}/a/terminate"),
    Call("POST", f"{_T}/nope/terminate"),
    Call("GET", f"{_SCHEMAS}/more/s/metadata"),
    Call("POST", f"{_SCHEMAS}/more/s/schema", {"type": "STRING", "schema": "", "properties": {}}),
    Call("GET", f"{_SCHEMAS}/more/s/metadata"), Call("GET", f"{_SCHEMAS}/more/s-partition-0/metadata"),
    Call("GET", f"{_SCHEMAS}/more/nope/metadata"), Call("GET", f"{_SCHEMAS}/nope/nope/metadata"),
    Call("POST", f"{_T}/s/maxProducers", 3), Call("DELETE", f"{_T}/s/policies"), Call("GET", f"{_T}/s/maxProducers"),
    Call("DELETE", f"{_T}/nope/policies"), Call("DELETE", f"{_T}/p/policies"),
    *(
        Call("GET", f"{path}{query}")
        for query in ("", "?includeSystemTopic=true", "?includeSystemTopic=false")
        for path in (_T, f"{_T}/partitioned", f"{_MORE}/topics", _PASSING)
    ),
    Call("GET", f"{_MORE}/topics?mode=ALL&includeSystemTopic=true"),
    Call("GET", f"{_MORE}/topics?mode=NON_PERSISTENT&includeSystemTopic=true"),
    Call("GET", f"{_T}?bundle=0x00000000_0x80000000"), Call("GET", f"{_T}?bundle=0x80000000_0xffffffff"),
    Call("PUT", f"{_PASSING}/np"),
    Call("GET", f"{_PASSING}/nope/backlog"), Call("GET", "/admin/v2/non-persistent/public/nope/nope/backlog"),
    Call("PUT", f"{_T}/b/subscription/s"), Call("PUT", f"{_T}/b/subscription/r?replicated=true"),
    Call("PUT", f"{_T}/q/subscription/s"), Call("PUT", f"{_T}/q/subscription/r?replicated=true"),
    *(Call("GET", f"{_T}/{name}/subscription/{one}/{_STATUS}") for name in "bq" for one in "srz"),
    *(Call("POST", f"{_T}/{name}/subscription/s/{_STATUS}", True) for name in "bq"),
    *(Call("GET", f"{_T}/{name}/subscription/s/{_STATUS}") for name in "bq"),
    Call("GET", f"{_T}/q-partition-1/subscription/s/{_STATUS}"),
    *(Call("POST", f"{_T}/{name}/subscription/s/{_STATUS}", False) for name in "bq"),
    *(Call("GET", f"{_T}/{name}/subscription/s/{_STATUS}") for name in "bq"),
    Call("POST", f"{_T}/b/subscription/s/{_STATUS}"), Call("POST", f"{_T}/b/subscription/s/{_STATUS}", "x"),
    *(Call("POST", f"{_T}/{name}/subscription/z/{_STATUS}", True) for name in "bq"),
    *(
        Call(method, f"{path}/subscription/s/{_STATUS}", body)
        for path in (f"{_T}/nope", f"{_PASSING}/np") for method, body in (("GET", None), ("POST", True))
    ),
    *(Call("POST", f"{_T}/{name}-partition-0/trim") for name in "pq"),
)  # fmt: skip

_CLUSTERS: Final = "/admin/v2/clusters"
_LOCAL: Final = f"{_CLUSTERS}/standalone"
_DOMAINS: Final = f"{_LOCAL}/failureDomains"
_RULES: Final = f"{_LOCAL}/namespaceIsolationPolicies"


def _failover(kind: str, **parameters: str) -> dict[str, Any]:
    return {**ISOLATION, "auto_failover_policy": {"policy_type": kind, "parameters": parameters}}


def _without(name: str) -> dict[str, Any]:
    return {one: value for one, value in ISOLATION.items() if one != name}


_WRONG: Final[tuple[dict[str, Any], ...]] = (
    {}, {"namespaces": []}, {**ISOLATION, "auto_failover_policy": None}, {**ISOLATION, "primary": []},
    _without("secondary"), _without("primary"), _without("namespaces"), {**ISOLATION, "primary": ["["]},
    _failover("min_available"), _failover("nothing"), _failover("min_available", min_limit="1"),
    _failover("min_available", min_limit="x", usage_threshold="80"),
)  # fmt: skip
_RIGHT: Final[tuple[dict[str, Any], ...]] = (
    {**ISOLATION, "secondary": ["127.*"]}, {**ISOLATION, "unload_scope": "all_matching"},
    {**ISOLATION, "unload_scope": "none"}, {**ISOLATION, "unload_scope": "unknown"},
    _failover("min_available", min_limit="-1", usage_threshold="80"),
    _failover("min_available", min_limit="1", usage_threshold="180"),
    _failover("min_available", min_limit="1", usage_threshold="80", more="x"),
)  # fmt: skip

CLUSTERS: Final = (
    Call("GET", f"{_LOCAL}/peers"), Call("GET", f"{_CLUSTERS}/nope/peers"), Call("POST", f"{_LOCAL}/peers", ["far"]),
    Call("POST", f"{_CLUSTERS}/nope/peers", ["standalone"]),
    Call("PUT", f"{_CLUSTERS}/far", {"serviceUrl": "http://127.0.0.1:1"}),
    Call("POST", f"{_LOCAL}/peers", ["standalone"]), Call("POST", f"{_LOCAL}/peers", ["far"]),
    Call("GET", f"{_LOCAL}/peers"), Call("POST", f"{_LOCAL}/peers", []), Call("GET", f"{_LOCAL}/peers"),
    Call("POST", f"{_LOCAL}/peers"), Call("POST", f"{_LOCAL}/peers", "x"), Call("GET", f"{_CLUSTERS}/far/peers"),
    *(Call("GET", f"{_CLUSTERS}/{name}/migrate") for name in ("standalone", "far", "nope")),
    *(Call("GET", f"{_CLUSTERS}/{name}/failureDomains") for name in ("standalone", "far", "nope")),
    Call("GET", f"{_DOMAINS}/d"), Call("DELETE", f"{_DOMAINS}/d"),
    Call("POST", f"{_DOMAINS}/d", {"brokers": ["b:1", "b:2"]}), Call("GET", f"{_DOMAINS}/d"), Call("GET", _DOMAINS),
    Call("POST", f"{_DOMAINS}/e", {"brokers": ["b:1"]}), Call("GET", _DOMAINS),
    Call("POST", f"{_DOMAINS}/d", {"brokers": ["b:3"]}), Call("GET", f"{_DOMAINS}/d"),
    Call("POST", f"{_DOMAINS}/f", {}), Call("POST", f"{_DOMAINS}/h", [1]),
    Call("POST", f"{_DOMAINS}/i", {"brokers": []}), Call("GET", _DOMAINS),
    Call("POST", f"{_CLUSTERS}/nope/failureDomains/d", {"brokers": ["b:1"]}),
    Call("GET", f"{_CLUSTERS}/nope/failureDomains/d"),
    *(Call("DELETE", f"{_DOMAINS}/{name}") for name in "ddfi"), Call("GET", _DOMAINS),
    Call("POST", f"{_CLUSTERS}/far/failureDomains/d", {"brokers": ["b:1"]}),
    Call("GET", f"{_CLUSTERS}/far/failureDomains"),
    Call("GET", _RULES), Call("GET", f"{_RULES}/p"), Call("GET", f"{_RULES}/brokers"),
    Call("GET", f"{_RULES}/brokers/BROKER"), Call("DELETE", f"{_RULES}/p"),
    *(Call("GET", f"{_CLUSTERS}/{name}/namespaceIsolationPolicies") for name in ("far", "nope")),
    Call("POST", f"{_RULES}/p", ISOLATION), Call("GET", _RULES), Call("GET", f"{_RULES}/p"),
    Call("GET", f"{_RULES}/brokers"), Call("GET", f"{_RULES}/brokers/BROKER"), Call("GET", f"{_RULES}/brokers/b:1"),
    *(
        call
        for given in _WRONG
        for call in (Call("POST", f"{_RULES}/x", given), Call("GET", f"{_RULES}/x"))
    ),
    *(
        call
        for given in _RIGHT
        for call in (
            Call("POST", f"{_RULES}/x", given), Call("GET", f"{_RULES}/x"), Call("GET", f"{_RULES}/brokers/BROKER"),
            Call("DELETE", f"{_RULES}/x"),
        )
    ),
    Call("POST", f"{_CLUSTERS}/far/namespaceIsolationPolicies/p", ISOLATION),
    Call("POST", f"{_CLUSTERS}/nope/namespaceIsolationPolicies/p", ISOLATION),
    Call("GET", f"{_CLUSTERS}/far/namespaceIsolationPolicies"), Call("DELETE", f"{_CLUSTERS}/far"),
    Call("DELETE", f"{_CLUSTERS}/far/namespaceIsolationPolicies/p"),
    Call("GET", f"{_CLUSTERS}/far/namespaceIsolationPolicies"), Call("DELETE", f"{_CLUSTERS}/far"),
    Call("DELETE", f"{_RULES}/p"), Call("DELETE", f"{_RULES}/p"), Call("GET", f"{_RULES}/p"), Call("GET", _RULES),
    Call("GET", f"{_RULES}/brokers"),
)  # fmt: skip

CALLS: Final = {
    "non-persistent": NON_PERSISTENT, "bundles": BUNDLES, "quotas": QUOTAS, "topics": TOPICS, "clusters": CLUSTERS,
}  # fmt: skip
"""By the name of their file."""
