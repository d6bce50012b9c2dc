"""Load reports: Apache's are read, ours have its form."""

import json
from typing import Any

import pytest

from broker.ownership.load.report import BrokerLoad, BundleLoad, decode_load, encode_load
from broker.ownership.nodes import decode_loaded_broker, encode_broker
from broker.ownership.placing.preference import EQUAL_USAGE, expected_usage, preference
from broker.ownership.rules import BrokerAddress
from tests.support.vectors import load

ADDRESS = BrokerAddress("pulsar://127.0.0.1:6652", "", "http://127.0.0.1:8082", "", {})
APACHE = load("http/201-get-admin-v2-broker-stats-load-report.json")["response"]["json"]
LOAD = BrokerLoad(
    0.5, 0.25, 0.0, {"public/default/0x00000000_0x40000000": BundleLoad(10.0, 1000.0, 20.0, 2000.0, 3, 2, 7)}, 1_700_000
)


def test_apaches_report_is_read() -> None:
    found = decode_load(APACHE)
    assert found.cpu == pytest.approx(0.4218, abs=1e-4)
    assert found.usage == pytest.approx(APACHE["maxResourceUsage"], abs=1e-6)
    assert found.bundles["public/default/0xd0000000_0xe0000000"] == BundleLoad(consumers=1, topics=5)
    assert found.total.topics == APACHE["numTopics"]


def test_our_report_has_apaches_members_in_its_order_and_is_read_back() -> None:
    made = json.loads(encode_broker(ADDRESS, "4.0.8", 5, encode_load(LOAD, memory_limit_bytes=1 << 30)))
    del made["brokerVersion"]  # the extensible load manager's name of it
    assert made.pop("brokerId") == ADDRESS.broker_id, "as 5.0 has it"
    assert list(made) == list(APACHE)
    for name, value in made.items():
        assert type(value) is type(APACHE[name]), name
    (ours,), theirs = made["lastStats"].values(), next(iter(APACHE["lastStats"].values()))
    assert {name: type(value) for name, value in ours.items()} == {name: type(value) for name, value in theirs.items()}
    assert list(ours) == list(theirs)
    address, found = decode_loaded_broker(json.dumps(made).encode(), "/x")
    assert (address, found) == (ADDRESS, LOAD)
    assert made["maxResourceUsage"] == 0.5


@pytest.mark.parametrize(
    "broken",
    [
        {"cpu": {"usage": "x", "limit": 1}},
        {"cpu": 7},
        {"lastStats": [1]},
        {"lastStats": {"b": {"topics": True}}},
        {"lastStats": {"b": 3}},
        {"memory": {"usage": float("nan"), "limit": 1}},
        {"lastUpdate": float("inf")},
    ],
)
def test_a_report_that_is_not_understood_counts_as_no_load(broken: dict[str, Any]) -> None:
    assert decode_load(broken) == BrokerLoad()


def test_what_has_no_limit_counts_nothing() -> None:
    assert decode_load({"bandwidthIn": {"usage": 500.0, "limit": -1000.0}, "cpu": {"usage": 5.0}}).usage == 0.0


def test_a_bundle_goes_to_the_least_loaded_brokers_and_among_them_to_that_with_the_fewest() -> None:
    usage = {"a": 0.9, "b": 0.3, "c": 0.3 + EQUAL_USAGE}
    assert preference("t/n/x", ["a", "b", "c"], {"b": 5}, usage) == ["c", "b", "a"]
    assert preference("t/n/x", ["a", "b", "c"], {}, usage)[-1] == "a"
    assert preference("t/n/x", ["a", "b"], {}, {"a": 0.9, "b": 0.3}) == ["b", "a"]


def busy(usage: float, **bundles: BundleLoad) -> BrokerLoad:
    return BrokerLoad(usage, bundles={f"t/n/{name}": one for name, one in bundles.items()})


def test_what_a_bundle_uses_is_its_share_of_the_traffic() -> None:
    load = busy(0.8, a=BundleLoad(bytes_in=30.0, messages_in=1.0), b=BundleLoad(bytes_out=10.0, messages_in=99.0))
    assert [load.usage_of(f"t/n/{name}") for name in "ab"] == pytest.approx([0.6, 0.2])
    load = busy(0.8, a=BundleLoad(messages_in=1.0), b=BundleLoad(messages_out=3.0))
    assert [load.usage_of(f"t/n/{name}") for name in "ab"] == pytest.approx([0.2, 0.6])
    assert busy(0.8, a=BundleLoad(topics=9), b=BundleLoad()).usage_of("t/n/a") == pytest.approx(0.4)


def test_bundles_that_went_take_their_part_of_the_usage_with_them() -> None:
    even = BundleLoad(bytes_in=1.0)
    loads = {"a": busy(0.8, w=even, x=even, y=even, z=even), "b": busy(0.1)}
    everything = {f"t/n/{name}" for name in "wxyz"}
    assert expected_usage("t/n", loads, {"a": everything}) == pytest.approx({"a": 0.8, "b": 0.1})
    moved = {"a": {"t/n/w"}, "b": {"t/n/x", "t/n/y"}}
    assert expected_usage("t/n", loads, moved) == pytest.approx({"a": 0.2, "b": 0.5})
    assert expected_usage("t/n", loads, {}) == pytest.approx({"a": 0.0, "b": 0.1})
    assert expected_usage("t/other", loads, {}) == pytest.approx({"a": 0.8, "b": 0.1}), "of other namespaces none went"
    assert expected_usage("t/n", loads, {"a": everything, "b": {"t/n/new"}}) == pytest.approx({"a": 0.8, "b": 0.1})
