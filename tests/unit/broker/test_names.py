import pytest

from broker.errors import InvalidTopicName
from broker.names import Bundles, TopicName, java_url_decode, topic_of_managed_ledger
from managed_ledger.names import encode as java_url_encode


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/c", "persistent://a/b/c"),
        ("persistent://a/b/c d", "persistent://a/b/c d"),
        ("non-persistent://a/b/c", "non-persistent://a/b/c"),
    ],
)
def test_short_and_full_names(text: str, full: str) -> None:
    assert TopicName.parse(text).full == full


@pytest.mark.parametrize(
    "text",
    ["", "a/b", "a/b/c/d", "persistent://a", "persistent://a/b/", "persistent://a/c/b/t", "queue://a/b/c",
     "persistent://a b/c/t", "persistent:///b/c", "a/../t", "persistent://a/b/.."],
)  # fmt: skip
def test_names_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        TopicName.parse(text)


@pytest.mark.parametrize(
    ("local", "partition", "base"),
    [
        ("t-partition-0", 0, "t"),
        ("t-partition-12", 12, "t"),
        ("t-partition-01", -1, "t-partition-01"),
        ("t-partition-", -1, "t-partition-"),
        ("t-partition--1", -1, "t-partition--1"),
        ("t-partition-0-partition-3", 3, "t-partition-0"),
    ],
)
def test_partitions(local: str, partition: int, base: str) -> None:
    name = TopicName.parse(f"a/b/{local}")
    assert (name.partition, name.base.local) == (partition, base)


def test_names_in_the_stores_are_encoded_as_java_does_it() -> None:
    assert java_url_encode("a~b /c*-._ü") == "a%7Eb+%2Fc*-._%C3%BC"
    assert java_url_decode(java_url_encode("a~b /c*-._ü+%")) == "a~b /c*-._ü+%"
    name = TopicName.parse("persistent://a/b/x y-partition-2")
    assert name.managed_ledger_name == "a/b/persistent/x+y-partition-2"
    assert name.schema_id == "a/b/x+y"
    assert name.partitions_path == "/admin/partitioned-topics/a/b/persistent/x+y"
    assert topic_of_managed_ledger(name.managed_ledger_name) == name


def test_the_bundle_of_a_topic() -> None:
    name = TopicName.parse("my-topic")
    assert name.hash == 0x2BAD45F7
    assert Bundles.equal(4).range_of(name) == "0x00000000_0x40000000"
    assert Bundles.equal(16).bundle_of(name) == "public/default/0x20000000_0x30000000"
    assert Bundles.equal(1).ranges == ["0x00000000_0xffffffff"]


def test_every_topic_falls_into_the_bundle_whose_range_holds_its_hash() -> None:
    bundles = Bundles((0, 5, 0x8000_0000, 0xFFFF_FFFF))
    for number in range(200):
        name = TopicName.parse(f"t{number}")
        low, high = (int(text, 16) for text in bundles.range_of(name).split("_"))
        assert low <= name.hash < high or high == name.hash == 0xFFFF_FFFF


def test_system_topics_are_known() -> None:
    for text in ("a/b/__change_events", "a/b/__change_events-partition-0", "a/b/x__transaction_pending_ack",
                 "pulsar/system/transaction_coordinator_assign-partition-3"):  # fmt: skip
        assert TopicName.parse(text).is_system
    assert not TopicName.parse("a/b/change_events").is_system
