"""Calls of the admin API whose answers of Apache's broker are kept in `tests/vectors/rest`, in the order they are made.

`tests/golden/record_rest.py` makes them of an Apache broker, `tests/golden/test_rest.py` makes the same ones of ours.
"""

from typing import Final

from tests.support.permission_calls import Call

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

CALLS: Final = {"non-persistent": NON_PERSISTENT, "bundles": BUNDLES, "quotas": QUOTAS}
"""By the name of their file."""
