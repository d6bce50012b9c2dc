import pytest

from broker.errors import InvalidTopicName
from broker.names import Bundles, bundle_hash, parse_topic
from magnetar_core.topics.topic_name import TopicName


@pytest.mark.parametrize(
    ("text", "reason"), [("a/b", "neither `topic` nor"), ("persistent://a/c/b/t", "names with a cluster")]
)
def test_what_is_no_name_is_an_error_of_the_broker(text: str, reason: str) -> None:
    assert parse_topic("a/b/c") == TopicName("persistent", "a", "b", "c")
    with pytest.raises(InvalidTopicName, match=f"^Invalid topic name: {text}: {reason}"):
        parse_topic(text)


def test_the_bundle_of_a_topic() -> None:
    name = TopicName.parse("my-topic")
    assert bundle_hash(name) == 0x2BAD45F7
    assert Bundles.equal(4).range_of(name) == "0x00000000_0x40000000"
    assert Bundles.equal(16).bundle_of(name) == "public/default/0x20000000_0x30000000"
    assert Bundles.equal(1).ranges == ["0x00000000_0xffffffff"]


def test_every_topic_falls_into_the_bundle_whose_range_holds_its_hash() -> None:
    bundles = Bundles((0, 5, 0x8000_0000, 0xFFFF_FFFF))
    for number in range(200):
        name = TopicName.parse(f"t{number}")
        low, high = (int(text, 16) for text in bundles.range_of(name).split("_"))
        assert low <= bundle_hash(name) < high or high == bundle_hash(name) == 0xFFFF_FFFF
