"""Load reports: Apache's are read, ours have its form."""

import json
from typing import Any

import pytest

from broker.ownership.bundle_assignment import EQUAL_USAGE, decode_loaded_broker, encode_broker, preference
from broker.ownership.load_report import BrokerLoad, BundleLoad, decode_load, encode_load
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
