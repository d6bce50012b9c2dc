"""Deduplication, access modes, sticky keys, topic lists: the small machines."""

import itertools
import random
from collections import Counter

import pytest

from broker.binary.listing import filter_topics, topics_hash
from broker.errors import ConsumerAssignError, ProducerBusy, ProducerFenced
from broker.topic.dispatchers.replay_set import ReplaySet
from broker.topic.dispatchers.sticky_keys import (
    ConsistentHashing,
    HalvedRanges,
    Selector,
    StickyRanges,
    hash_by_ranges,
    hash_by_ring,
    murmur3,
    murmur3_of_each,
    sticky_key,
)
from broker.topic.publishing.deduplication import Deduplication, Verdict, highest_of
from broker.topic.publishing.producer_access import Access, ProducerAccess
from broker.wire import pulsar_pb2 as wire
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import Position

NEW, DUPLICATE, IN_FLIGHT = Verdict.NEW, Verdict.DUPLICATE, Verdict.IN_FLIGHT


@pytest.fixture
def known() -> Deduplication:
    return Deduplication(producers_max=2)


def test_a_message_is_new_once_then_in_flight_then_a_duplicate(known: Deduplication) -> None:
    assert known.check("p", 0, 0) is NEW
    assert known.check("p", 0, 0) is IN_FLIGHT
    known.on_persisted("p", 0, 0)
    assert known.check("p", 0, 0) is DUPLICATE
    assert known.check("q", 0, 0) is NEW
    assert known.last_sequence_id("p") == 0
    assert known.last_sequence_id("q") == -1


def test_what_did_not_become_durable_is_taken_again(known: Deduplication) -> None:
    assert known.check("p", 5, 9) is NEW
    known.on_storage_failed()
    assert known.check("p", 5, 9) is NEW


def test_a_batch_of_old_and_new_messages_is_stored(known: Deduplication) -> None:
    assert known.check("p", 0, 4) is NEW
    known.on_persisted("p", 0, 4)
    assert known.check("p", 3, 4) is DUPLICATE
    assert known.check("p", 3, 6) is NEW
    assert known.snapshot() == {"p": 4}


def test_sequence_ids_are_signed() -> None:
    assert highest_of(2**64 - 1, 0) == -1
    assert highest_of(3, 2**64 - 1) == 3  # a client that has no highest one says -1
    assert highest_of(2**63 - 1, 0) == 2**63 - 1


def test_a_snapshot_and_the_entries_behind_it_restore_the_state(known: Deduplication) -> None:
    known.restore({"p": 4})
    known.replay(MessageMetadata(producer_name="p", sequence_id=5, publish_time=1, highest_sequence_id=7))
    known.replay(MessageMetadata(producer_name="q", sequence_id=1, publish_time=1, marker_type=1))
    for chunk in range(2):
        known.replay(
            MessageMetadata(producer_name="r", sequence_id=3, publish_time=1, num_chunks_from_msg=3, chunk_id=chunk)
        )
    assert known.snapshot() == {"p": 7}
    assert known.check("p", 7, 7) is DUPLICATE
    assert known.check("r", 3, 3) is NEW


def test_producers_that_are_long_gone_are_forgotten(known: Deduplication) -> None:
    for at_ms, name in enumerate("abc"):
        known.on_persisted(name, 1, 1)
        known.forget_inactive([], at_ms, 1000)
    assert known.snapshot() == {"b": 1, "c": 1}  # three are one too many: the longest absent one went
    known.forget_inactive(["c"], 5000, 1000)
    assert known.snapshot() == {"c": 1}


def test_access_modes() -> None:
    access: ProducerAccess[str] = ProducerAccess(None)
    assert access.decide(wire.Shared, None, 3) == (Access.SHARED, None)
    with pytest.raises(ProducerFenced):
        access.decide(wire.Exclusive, None, 1)
    assert access.decide(wire.WaitForExclusive, None, 1).access is Access.WAITS
    assert access.decide(wire.Exclusive, None, 0) == (Access.EXCLUSIVE, 0)
    access.grant("a", 0)
    with pytest.raises(ProducerBusy):
        access.decide(wire.Shared, None, 1)
    with pytest.raises(ProducerFenced):
        access.decide(wire.Exclusive, None, 1)
    access.wait("b", None)
    access.wait("c", None)
    assert access.next_in_line(0) is None
    access.leave("b")
    access.leave("a")
    assert access.next_in_line(0) == ("c", 1)
    access.grant("c", 1)
    assert access.decide(wire.ExclusiveWithFencing, None, 1) == (Access.EXCLUSIVE_AFTER_FENCING, 2)
    access.fence()
    access.grant("d", 2)
    access.leave("d")
    with pytest.raises(ProducerFenced):
        access.decide(wire.Exclusive, 1, 0)
    assert access.decide(wire.Exclusive, 2, 0) == (Access.EXCLUSIVE, 2)


def test_hashes_are_those_of_apache() -> None:
    keys = (b"k1", b"k2", b"key1", b"key2", b"key01", b"key02", b"NONE_KEY")
    known = (2110152746, 1479966664, 462881061, 1936800180, 39696932, 751761803, 504741539)
    assert tuple(map(murmur3, keys)) == known
    for length in range(10):
        prefix, endings = b"abcdefghi"[:length], [b"", b"1", b"23", b"456", b"7890", b"12345"]
        assert murmur3_of_each(prefix, endings) == [murmur3(prefix + one) for one in endings]


def test_the_ordering_key_beats_the_key() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=8, publish_time=1)
    assert sticky_key(metadata) == b"p-8"
    metadata.partition_key = "YWJj"
    assert sticky_key(metadata) == b"YWJj"
    metadata.partition_key_b64_encoded = True
    assert sticky_key(metadata) == b"abc"
    metadata.ordering_key = b"o"
    assert sticky_key(metadata) == b"o"


def test_only_the_keys_of_the_one_who_leaves_move() -> None:
    selectors: list[Selector[str]] = [ConsistentHashing(100), HalvedRanges()]
    for selector in selectors:
        for name in "abcd":
            selector.add(name, name, ())
        before = {hash_: selector.select(hash_) for hash_ in range(1, 65536, 97)}
        assert set(before.values()) == set("abcd")
        selector.remove("b")
        for hash_, owner in before.items():
            now = selector.select(hash_)
            assert now == owner if owner != "b" else now in tuple("acd")
        for name in "acd":
            selector.remove(name)
        assert selector.select(5) is None


def test_a_ring_is_the_same_whoever_came_and_went_before() -> None:
    rng = random.Random(4)
    ring: ConsistentHashing[str] = ConsistentHashing(500)  # many points fall together
    there: list[str] = []
    for step in range(60):
        if there and rng.random() < 0.4:
            ring.remove(there.pop(rng.randrange(len(there))))
        else:
            there.append(f"c{step}")
            ring.add(there[-1], there[-1])
        if step % 4:
            continue
        anew: ConsistentHashing[str] = ConsistentHashing(500)
        for one in there:
            anew.add(one, one)
        for hash_ in range(1, 65536, 997):
            assert ring.select(hash_) == anew.select(hash_)
    for one in there:
        ring.remove(one)
    assert ring.select(7) is None


def test_consumers_of_one_name_share_the_hashes() -> None:
    ring: ConsistentHashing[int] = ConsistentHashing(100)
    for number in range(4):
        ring.add(number, "same")
    shares = Counter(ring.select(hash_) for hash_ in range(1, 65536))
    assert set(shares) == {0, 1, 2, 3}
    assert min(shares.values()) > 8_000


def test_ranges_are_halved_and_merge_into_their_neighbour() -> None:
    selector: HalvedRanges[str] = HalvedRanges()
    for name in "abc":
        selector.add(name, name)
    assert [selector.select(hash_) for hash_ in (0, 16384, 16385, 32768, 32769, 65535)] == list("ccbbaa")
    selector.remove("a")
    assert selector.select(65535) == "b"


def test_sticky_ranges_may_not_overlap() -> None:
    selector: StickyRanges[str] = StickyRanges()
    selector.add("a", "a", [(0, 9), (20, 29)])
    for ranges in ([], [(5, 4)], [(-1, 3)], [(9, 10)], [(10, 20)], [(25, 26)], [(100, 65537)], [(40, 50), (50, 60)]):
        with pytest.raises(ConsumerAssignError):
            selector.add("b", "b", ranges)
    selector.add("b", "b", [(10, 19)])
    assert [selector.select(hash_) for hash_ in (0, 9, 10, 19, 20, 29, 30)] == ["a", "a", "b", "b", "a", "a", None]


def test_lists_of_topics_have_the_hashes_of_apache() -> None:
    assert topics_hash([]) == "00000000"
    assert topics_hash(["persistent://public/default/raw-p"]) == "6f4b29e3"
    assert topics_hash(["persistent://public/default/pat-2", "persistent://public/default/pat-1"]) == "1f53e010"


def short(topics: list[str] | None) -> list[str]:
    return [topic.rpartition("/")[2] for topic in topics or ()]


def test_plain_patterns_are_matched_and_clever_ones_left_to_the_client() -> None:
    topics = [f"persistent://public/default/{name}" for name in ("ab", "ab-partition-3", "axxb", "b", "abab")]
    assert short(filter_topics(topics, "persistent://public/default/a.*b", 50)) == [
        "ab",
        "ab-partition-3",
        "axxb",
        "abab",
    ]
    assert short(filter_topics(topics, "public/default/ab", 50)) == ["ab", "ab-partition-3"]
    assert filter_topics(topics, "public/default/ab.*ab.*", 50) == [topics[4]]
    assert filter_topics(topics, "public/default/abab.*ab", 50) == []
    for clever in ("(a+)+b", "a|b", "a?", "x" * 51, "a.b"):
        assert filter_topics(topics, clever, 50) is None


def test_the_replay_set_keeps_its_order() -> None:
    for order in itertools.permutations([(1, 5), (1, 6), (2, 0), (3, 1)]):
        waiting = ReplaySet()
        for ledger_id, entry_id in order:
            waiting.add(Position(ledger_id, entry_id), entry_id % 2)
        waiting.add(Position(1, 5))
        assert [position for position, _ in waiting] == sorted(order)
        assert waiting.run_from(Position(1, 5), 10) == 2
        waiting.discard(Position(1, 6))
        waiting.discard(Position(9, 9))
        assert [position for position, _ in waiting] == [(1, 5), (2, 0), (3, 1)]
        waiting.discard_up_to(Position(2, 0))
        assert [position for position, _ in waiting] == [(3, 1)]
        assert waiting.waiting_by_hash == {1: 1}


def test_who_waits_longest_is_next_and_nobody_overtakes_those_who_wait() -> None:
    access: ProducerAccess[str] = ProducerAccess(None)
    access.grant("holder", 0)
    for name in ("first", "second"):
        assert access.decide(wire.WaitForExclusive, None, 1).access is Access.WAITS
        access.wait(name, None)
    access.leave("holder")
    with pytest.raises(ProducerBusy):
        access.decide(wire.Shared, None, 0)
    with pytest.raises(ProducerFenced):
        access.decide(wire.Exclusive, None, 0)
    assert access.next_in_line(0) == ("first", 1)
    access.grant("first", 1)
    access.leave("first")
    assert access.next_in_line(0) == ("second", 2)


def test_no_key_has_the_hash_0() -> None:
    halved, first, last = b"k179888", b"k225121", b"k236164"  # the first ones of these names with such hashes
    assert (murmur3(halved) % 65536, murmur3(first) % 65535, murmur3(last) % 65535) == (0, 0, 65534)
    assert (hash_by_ranges(halved), hash_by_ring(first), hash_by_ring(last)) == (1, 1, 65535)


def test_ranges_are_what_selects() -> None:
    selectors: list[Selector[str]] = [ConsistentHashing(20), HalvedRanges(), StickyRanges()]
    for selector in selectors:
        assert selector.ranges() == {}
        for number, name in enumerate("abc"):
            selector.add(name, name, [(number * 100, number * 100 + 50)])
        ranges = selector.ranges()
        assert set(ranges) == set("abc")
        for name, its in ranges.items():
            assert all(end + 1 < following for (_, end), (following, _) in itertools.pairwise(its))
            for start, end in its:
                assert all(selector.select(hash_) == name for hash_ in (max(start, 1), (start + end) // 2 or 1, end))


def test_what_waits_up_to_a_position_goes_with_the_position_itself() -> None:
    waiting = ReplaySet()
    for entry_id in range(5):
        waiting.add(Position(1, entry_id), entry_id % 2)
    waiting.discard_up_to(Position(1, 2))
    assert [position.entry_id for position, _ in waiting] == [3, 4]
    assert dict(waiting.waiting_by_hash) == {1: 1, 0: 1}
