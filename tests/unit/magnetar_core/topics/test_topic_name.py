"""A topic's name: which texts are one, and where the topic stands."""

import pytest

from magnetar_core.topics.topic_name import TopicName, TopicNameError, decode, encode


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
    ["", "/", "a/b", "a//c", "/a/b", "persistent://", "persistent://a", "persistent://a/b", "persistent://a/b/",
     "queue://a/b/c", "persistent://a b/c/t", "persistent:///b/c", "a/../t", "persistent://a/b/..", "x" * 1025,
     "\ud800"],
)  # fmt: skip
def test_names_that_are_refused(text: str) -> None:
    with pytest.raises(TopicNameError) as refused:
        TopicName.parse(text)
    assert refused.value.reason
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "text", ["persistent://a/c/b/t", "non-persistent://a/c/b/t", "persistent://a/c/b/t/u", "a/c/b/t"]
)
def test_names_with_a_cluster_are_refused_with_that_reason(text: str) -> None:
    with pytest.raises(TopicNameError, match=r"names with a cluster .* are not served"):
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
        ("-partition-3", -1, "-partition-3"),
        ("a\nb-partition-3", 3, "a\nb"),
    ],
)
def test_partitions(local: str, partition: int, base: str) -> None:
    name = TopicName.parse(f"a/b/{local}")
    assert (name.partition, name.base.local) == (partition, base)
    assert name.with_partition(7).base == name


def test_where_a_topic_stands() -> None:
    assert encode("a~b /c*-._ü") == "a%7Eb+%2Fc*-._%C3%BC"
    assert decode(encode("a~b /c*-._ü+%")) == "a~b /c*-._ü+%"
    name = TopicName.parse("persistent://a/b/x y-partition-2")
    assert name.managed_ledger_name == "a/b/persistent/x+y-partition-2"
    assert name.schema_id == "a/b/x+y"
    assert name.base.partitions_path == "/admin/partitioned-topics/a/b/persistent/x+y"
    assert name.rest_path == "persistent/a/b/x%20y-partition-2"
    assert TopicName.of_managed_ledger(name.managed_ledger_name) == name


@pytest.mark.parametrize("name", ["a/b/persistent", "a/c/b/persistent/t", ""])
def test_what_is_no_ledger_of_a_topic_is_refused(name: str) -> None:
    with pytest.raises(TopicNameError):
        TopicName.of_managed_ledger(name)


def test_system_topics_are_known() -> None:
    for text in ("a/b/__change_events", "a/b/__change_events-partition-0", "a/b/x__transaction_pending_ack",
                 "pulsar/system/transaction_coordinator_assign-partition-3"):  # fmt: skip
        assert TopicName.parse(text).is_system
    assert not TopicName.parse("a/b/change_events").is_system
