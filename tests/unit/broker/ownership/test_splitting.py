"""Where bundles are cut (pure)."""

from itertools import pairwise

import pytest

from broker.names import Bundles, BundleSet
from broker.ownership.splitting import POSITIONS, RANGE, TOPIC_COUNT, TRAFFIC, cuts, even_cuts
from magnetar_core.topics.topic_name import TopicName

WHOLE = "0x00000000_0xffffffff"


def test_a_range_is_cut_in_its_middle() -> None:
    assert cuts(RANGE, "0x80000000_0xffffffff") == [0xBFFFFFFF]
    assert cuts(RANGE, "0x00000000_0x80000000") == [0x40000000]
    assert cuts(RANGE, "0x00000000_0x00000001") == [], "there is nothing between"


def test_topics_are_halved_by_their_number() -> None:
    # Recorded: three topics of a bundle on Apache's broker, and where it cut.
    assert cuts(TOPIC_COUNT, "0x00000000_0x40000000", hashes=[670592923, 21204063, 546679682]) == [0x10EC9BF0]
    assert cuts(TOPIC_COUNT, WHOLE, hashes=[5]) == []
    assert cuts(TOPIC_COUNT, WHOLE, hashes=[]) == []


def test_positions_outside_the_bundle_are_left_out() -> None:
    assert cuts(POSITIONS, "0x10000000_0x20000000", positions=[0x18000000, 0x10000000, 0x30000000, -1]) == [0x18000000]


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 100])
def test_even_parts_have_about_the_same_number_of_topics(parts: int) -> None:
    low, high = 0x40000000, 0x80000000
    hashes = [low + one * 7919 for one in range(1, 101)]
    found = even_cuts("0x40000000_0x80000000", reversed(hashes), parts)
    ends = [low, *found, high]
    counts = [sum(begin <= one < end for one in hashes) for begin, end in pairwise(ends)]
    assert len(counts) == parts
    assert sum(counts) == 100
    assert max(counts) - min(counts) <= 1


def test_topics_with_the_same_hash_stay_together() -> None:
    assert even_cuts(WHOLE, [5, 5, 5, 9], 4) == [5, 9]
    assert even_cuts(WHOLE, [0, 0, 0], 3) == [], "there is nothing before them"
    assert even_cuts(WHOLE, [], 3) == []


@pytest.mark.parametrize(
    ("traffic", "between"),
    [
        ({10: 1.0, 20: 1.0, 30: 1.0, 40: 1.0}, (20, 30)),
        ({10: 9.0, 20: 1.0, 30: 1.0}, (10, 20)),
        ({10: 1.0, 20: 1.0, 30: 9.0}, (20, 30)),
    ],
)
def test_traffic_is_halved(traffic: dict[int, float], between: tuple[int, int]) -> None:
    (found,) = cuts(TRAFFIC, WHOLE, traffic=traffic)
    assert between[0] < found <= between[1]


def test_without_traffic_or_with_one_topic_nothing_is_cut() -> None:
    assert cuts(TRAFFIC, WHOLE, traffic={}) == []
    assert cuts(TRAFFIC, WHOLE, traffic={7: 100.0}) == []
    assert cuts(TRAFFIC, WHOLE, traffic={7: 0.0, 9: 0.0}) == []


def test_whether_a_topic_is_in_some_bundles_does_not_depend_on_how_the_namespace_is_cut() -> None:
    bundles = Bundles.equal(8)
    names = [TopicName.parse(f"public/default/t{number}") for number in range(200)]
    for wanted in (bundles.ranges, bundles.ranges[::2], [bundles.ranges[-1]], []):
        made = BundleSet(f"public/default/{text}" for text in wanted)
        assert [made.has(name) for name in names] == [bundles.range_of(name) in wanted for name in names]
    assert not BundleSet(["public/other/0x00000000_0xffffffff"]).has(names[0])
    assert BundleSet(["public/default/0x00000000_0xffffffff"]).has(names[0])


def test_more_cuts_make_more_bundles() -> None:
    assert Bundles.equal(2).cut([0x40000000, 0x80000000]).texts == [
        "0x00000000",
        "0x40000000",
        "0x80000000",
        "0xffffffff",
    ]
