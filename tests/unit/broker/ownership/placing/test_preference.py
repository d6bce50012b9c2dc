import json
from collections import Counter

import pytest

from broker.names import Bundles
from broker.ownership.nodes import (
    decode_broker,
    decode_leader,
    decode_owner,
    encode_broker,
    encode_leader,
    encode_owner,
)
from broker.ownership.placing.preference import FREE_MAX, preference
from broker.ownership.rules import BrokerAddress, session_has_time
from magnetar_core.runtime.types import Corruption
from tests.support.vectors import load

BUNDLES = [f"public/default/{text}" for text in Bundles.equal(64).ranges]
ADDRESS = BrokerAddress("pulsar://127.0.0.1:6652", "", "http://127.0.0.1:8082", "", {})
APACHE_NODES = load("zookeeper/c-after-rollover-and-unload.json")["nodes"]


def apache(path: str) -> bytes:
    text: str = APACHE_NODES[path]["text"]
    return text.encode()


def test_the_broker_with_the_fewest_bundles_stands_first() -> None:
    for bundle in BUNDLES:
        assert preference(bundle, ["a", "b", "c"], {"a": 2, "b": 1, "c": 3}) == ["b", "a", "c"]
        assert preference(bundle, ["a", "b"], {"a": 1})[0] == "b"


def test_among_equals_the_order_is_the_same_for_whoever_asks_and_differs_between_bundles() -> None:
    brokers = ["a", "b", "c"]
    firsts = Counter(preference(bundle, brokers, {})[0] for bundle in BUNDLES)
    assert set(firsts) == set(brokers)
    for bundle in BUNDLES:
        assert preference(bundle, reversed(brokers), {}) == preference(bundle, brokers, {})


@pytest.mark.parametrize("bundles", [4, 16, 64, 128])
@pytest.mark.parametrize("brokers", [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d", "e"]])
def test_bundles_that_are_asked_for_at_the_same_moment_are_spread_evenly(bundles: int, brokers: list[str]) -> None:
    names = [f"t/n/{text}" for text in Bundles.equal(bundles).ranges]
    counts = Counter(preference(name, brokers, {})[0] for name in names)
    assert max(counts.values()) - min(counts[broker] for broker in brokers) <= 1
    assert all(sorted(preference(name, brokers, {})) == brokers for name in names)


@pytest.mark.parametrize("owned", [{}, {"a": 1}, {"b": 5}, {"a": 3, "b": 4}])
@pytest.mark.parametrize("brokers", [["a", "b"], ["a", "b", "c"]])
def test_free_bundles_even_out_what_brokers_have(owned: dict[str, int], brokers: list[str]) -> None:
    """Decided at the same moment, each by somebody else, while some are owned already."""
    free = BUNDLES[sum(owned.values()) :]
    counts = Counter(owned)
    for bundle in free:
        counts[preference(bundle, brokers, owned, None, free)[0]] += 1
    assert max(counts.values()) - min(counts[broker] for broker in brokers) <= 1


def test_among_very_many_free_bundles_each_is_assigned_by_itself() -> None:
    free = [f"t/n/{text}" for text in Bundles.equal(2 * FREE_MAX).ranges]
    assert [preference(one, ["a", "b"], {}, None, free) for one in free] == [
        preference(one, ["a", "b"], {}) for one in free
    ]


def test_namespaces_of_one_bundle_are_spread() -> None:
    firsts = Counter(preference(f"t/n{number}/0x00000000_0xffffffff", ["a", "b"], {})[0] for number in range(100))
    assert min(firsts["a"], firsts["b"]) > 25


def test_brokers_with_equal_usage_have_turns_although_another_uses_more() -> None:
    firsts = Counter(preference(bundle, ["a", "b", "c"], {}, {"b": 0.9})[0] for bundle in BUNDLES)
    assert firsts == {"a": 32, "c": 32}


def test_a_node_that_names_no_range_has_its_place_as_well() -> None:
    assert sorted(preference("t/n/what", ["a", "b"], {})) == ["a", "b"]


@pytest.mark.parametrize(("now_s", "has_time"), [(10.0, True), (11.99, True), (12.0, False), (99.0, False)])
def test_a_session_has_time_until_its_length_after_the_last_answer(now_s: float, has_time: bool) -> None:
    assert session_has_time(now_s, last_answer_s=10.0, session_timeout_s=2.0) is has_time


def test_a_store_in_this_process_never_ends_its_session() -> None:
    assert session_has_time(1e12, 0.0, float("inf"))


def test_an_owner_is_written_as_apache_writes_it() -> None:
    golden = apache("/namespace/public/noauto/0x80000000_0xc0000000")
    internal = b'"internal":{"brokerServiceUrl":"pulsar://127.0.0.1:6652","brokerHttpUrl":"http://127.0.0.1:8082"}'
    written = encode_owner(ADDRESS)
    assert written.replace(b'"brokerId":"127.0.0.1:8082",', b"").replace(internal, b"") == golden, "5.0 has more"
    assert decode_owner(written, "/x") == (ADDRESS, False)
    assert decode_owner(golden, "/x") == (ADDRESS, False)


def test_an_owner_keeps_tls_listeners_and_the_mark_of_unloading() -> None:
    address = BrokerAddress(
        "pulsar://h:1", "pulsar+ssl://h:2", "http://h:3", "https://h:4", {"outside": ("pulsar://o:1", "")}
    )
    assert decode_owner(encode_owner(address, disabled=True), "/x") == (address, True)
    listeners = json.loads(encode_owner(address))["advertisedListeners"]
    assert listeners == {
        "outside": {"brokerServiceUrl": "pulsar://o:1", "brokerServiceUrlTls": None},
        "internal": {
            "brokerServiceUrl": "pulsar://h:1",
            "brokerServiceUrlTls": "pulsar+ssl://h:2",
            "brokerHttpUrl": "http://h:3",
            "brokerHttpsUrl": "https://h:4",
        },
    }


def test_an_owner_of_5_0_is_read() -> None:
    """Its listener `internal` is no other place than its own; one with another address is a listener of its own."""
    url = "pulsar://127.0.0.1:26652"
    listeners = {"internal": {"brokerServiceUrl": url, "brokerHttpUrl": "http://127.0.0.1:28082"}}
    record = {"brokerId": "127.0.0.1:28082", "nativeUrl": url, "httpUrl": "http://127.0.0.1:28082", "disabled": False}
    address, disabled = decode_owner(json.dumps({**record, "advertisedListeners": listeners}).encode(), "/x")
    assert (address, disabled) == (BrokerAddress(url, "", "http://127.0.0.1:28082"), False)
    assert not address.has_listeners
    listeners["internal"]["brokerServiceUrl"] = "pulsar://inside:1"
    address, _ = decode_owner(json.dumps({**record, "advertisedListeners": listeners}).encode(), "/x")
    assert address.listeners == {"internal": ("pulsar://inside:1", "")}


def test_a_living_broker_tells_its_listeners_for_lookups_that_are_sent_on_to_it() -> None:
    address = ADDRESS._replace(listeners={"outside": ("pulsar://o:1", ""), "inside": ("", "pulsar+ssl://i:2")})
    assert decode_broker(encode_broker(address, "0.1.0", 0), "/x") == address


def test_apaches_broker_and_leader_are_understood() -> None:
    broker = decode_broker(apache("/loadbalance/brokers/127.0.0.1:8082"), "/x")
    assert broker == BrokerAddress("pulsar://127.0.0.1:6652", "", "http://127.0.0.1:8082", "")
    leader = decode_leader(apache("/loadbalance/leader"), "/x")
    assert leader == ("127.0.0.1:8082", "http://127.0.0.1:8082")
    assert decode_leader(b'{"serviceUrl":"http://h:8080"}', "/x") == ("h:8080", "http://h:8080")


def test_our_broker_has_the_members_that_apache_reads() -> None:
    ours = json.loads(encode_broker(ADDRESS, "0.1.0", 1_700_000_000_000))
    theirs = json.loads(apache("/loadbalance/brokers/127.0.0.1:8082"))
    for member in ("webServiceUrl", "pulsarServiceUrl", "loadReportType", "persistentTopicsEnabled", "protocols"):
        assert ours[member] == theirs[member]
    assert decode_broker(encode_broker(ADDRESS, "0.1.0", 0), "/x") == ADDRESS
    assert json.loads(encode_leader("h:1", ADDRESS)) == {"brokerId": "h:1", "serviceUrl": "http://127.0.0.1:8082"}


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b'"x"', b"\xff", b"7", b'{"advertisedListeners":[1]}'])
def test_a_broken_node_is_named(broken: bytes) -> None:
    decoders = [decode_owner] if b"advertised" in broken else [decode_owner, decode_broker, decode_leader]
    for decode in decoders:
        with pytest.raises(Corruption, match=r"^/some/node: expected the JSON of .*, found"):
            decode(broken, "/some/node")
