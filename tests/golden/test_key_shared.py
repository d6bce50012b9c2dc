"""Which consumer of a Key_Shared subscription gets which key, as at Apache's broker (tests/vectors/key_shared)."""

from typing import Any, Final

from broker.topic.dispatchers.sticky_keys import ConsistentHashing, HalvedRanges, Selector, StickyRanges
from tests.support.golden import REPLAYS, Report, golden, load

KEYS: Final = [b"k%d" % number for number in range(400)]


def assigned(selector: Selector[int]) -> str:
    """A digit for each key: its consumer."""
    return "".join(str(selector.select(selector.hash_of(key))) for key in KEYS)


def ranges(selector: Selector[int]) -> list[list[list[int]]]:
    found = selector.ranges()
    return [[list(one) for one in found[consumer]] for consumer in sorted(found)]


@golden(
    "key_shared/assigned.json",
    how={REPLAYS},
    compared="who was sent each of 400 keys, and the ranges of hashes that statistics tell, for all three selectors",
)
def test_a_key_goes_to_the_same_consumer(report: Report) -> None:
    recorded: dict[str, Any] = load("key_shared/assigned.json")
    made: list[tuple[str, Selector[int]]] = [("ring", ConsistentHashing(100)), ("halves", HalvedRanges())]
    for name, selector in made:
        for number, consumer in enumerate(recorded[name]["consumers"]):
            selector.add(number, consumer, ())
        with report.row(name):
            assert assigned(selector) == recorded[name]["assigned"]
            assert ranges(selector) == recorded[name]["ranges"]
    sticky: StickyRanges[int] = StickyRanges()
    for number in (0, 1):
        sticky.add(number, "", [(start, start + 63) for start in range(64 * number, 65536, 128)])
    with report.row("sticky"):
        assert assigned(sticky) == recorded["sticky"]["assigned"]
    sticky = StickyRanges()
    for number, asked in enumerate(recorded["sticky_merged"]["asked"]):
        sticky.add(number, "", [(start, end) for start, end in asked])
    with report.row("sticky_merged"):
        assert ranges(sticky) == recorded["sticky_merged"]["ranges"]
