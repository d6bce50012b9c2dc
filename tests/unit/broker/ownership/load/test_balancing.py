"""What the load manager decides (pure)."""

from typing import Any

import pytest

from broker.ownership.load.balancing import USAGE_MIN, Balancer, Move, balance_limits, is_report_due
from broker.ownership.load.report import BrokerLoad, BundleLoad
from broker.settings.config import BrokerConfig

MINUTE_MS = 60_000
NS = "public/default"


def limits(**changes: Any) -> Any:
    return balance_limits(BrokerConfig(**changes))


def bundle(traffic: float, **more: Any) -> BundleLoad:
    return BundleLoad(bytes_in=traffic, messages_in=traffic, topics=10)._replace(**more)


def loaded(cpu: float, at_ms: int = 1, **traffic: float) -> BrokerLoad:
    return BrokerLoad(cpu=cpu, bundles={f"{NS}/{name}": bundle(one) for name, one in traffic.items()}, at_ms=at_ms)


def settled(balancer: Balancer, loads: dict[str, BrokerLoad], now_ms: int = MINUTE_MS) -> Move | None:
    """What is decided in the second of two equal rounds."""
    assert balancer.next_move(loads, now_ms) is None, "one round is not enough"
    return balancer.next_move(loads, now_ms)


def test_the_most_loaded_broker_gives_the_bundle_that_makes_both_most_alike_to_the_least_loaded() -> None:
    loads = {"a": loaded(0.9, x=50, y=20, z=30), "b": loaded(0.4), "c": loaded(0.3, w=10)}
    # The difference is 0.6: half of it is a third of the traffic of a.
    assert settled(Balancer(limits()), loads) == Move(f"{NS}/z", "a", "c")


@pytest.mark.parametrize(
    ("loads", "why"),
    [
        ({"a": loaded(0.9, x=50, y=50)}, "there is no other broker"),
        ({}, "there is none"),
        ({"a": loaded(0.55, x=50, y=50), "b": loaded(0.5)}, "they differ by less than the threshold"),
        ({"a": loaded(USAGE_MIN - 0.01, x=5, y=5), "b": loaded(0.0)}, "the most loaded one has room"),
        ({"a": loaded(0.9, x=100), "b": loaded(0.1)}, "its only bundle would make the other one as loaded"),
        ({"a": loaded(0.9), "b": loaded(0.1)}, "it has no bundle"),
        ({"a": loaded(0.9, x=0, y=0), "b": loaded(0.1)}, "its load has nothing to do with its bundles"),
    ],
)
def test_nothing_moves_without_a_gain(loads: dict[str, BrokerLoad], why: str) -> None:
    assert settled(Balancer(limits()), loads) is None, why


def test_only_bundle_with_all_the_traffic_moves_if_the_other_broker_is_less_loaded_afterwards() -> None:
    loads = {"a": loaded(0.9, x=99, y=1), "b": loaded(0.1)}
    assert settled(Balancer(limits()), loads) == Move(f"{NS}/y", "a", "b"), "x would take 0.89 of the usage along"


def test_a_peak_that_lasts_one_round_moves_nothing() -> None:
    balancer = Balancer(limits())
    peak = {"a": loaded(0.9, x=30, y=70), "b": loaded(0.1)}
    calm = {"a": loaded(0.3, x=30, y=70), "b": loaded(0.25)}
    for loads in (peak, calm, peak, calm, peak):
        assert balancer.next_move(loads, MINUTE_MS) is None


def test_after_a_move_the_next_waits_until_both_brokers_have_told_their_load() -> None:
    balancer = Balancer(limits())
    loads = {"a": loaded(0.9, x=30, y=30, z=40), "b": loaded(0.1)}
    move = settled(balancer, loads)
    assert move is not None
    balancer.on_moved(move, now_ms=2 * MINUTE_MS)
    half_new = {"a": loaded(0.8, at_ms=2 * MINUTE_MS + 1, y=50, z=50), "b": loaded(0.1)}
    for _ in range(3):
        assert balancer.next_move(half_new, 3 * MINUTE_MS) is None
    new = {**half_new, "b": loaded(0.1, at_ms=2 * MINUTE_MS + 1)}
    assert balancer.next_move(new, 4 * MINUTE_MS) is not None


def test_which_of_several_idle_brokers_uses_the_least_holds_up_no_move() -> None:
    balancer = Balancer(limits())
    hot = loaded(0.9, x=30, y=30, z=40)
    assert balancer.next_move({"a": hot, "b": loaded(0.05), "c": loaded(0.06)}, MINUTE_MS) is None
    move = balancer.next_move({"a": hot, "b": loaded(0.06), "c": loaded(0.05)}, 2 * MINUTE_MS)
    assert move is not None
    assert (move.source, move.destination) == ("a", "c")


def test_a_broker_that_was_busy_or_away_in_the_round_before_gets_nothing_yet() -> None:
    hot = loaded(0.9, x=30, y=30, z=40)
    for former in ({"a": hot, "b": loaded(0.1), "c": loaded(0.85)}, {"a": hot, "b": loaded(0.1)}):
        balancer = Balancer(limits())
        assert balancer.next_move(former, MINUTE_MS) is None
        now = {"a": hot, "b": loaded(0.1), "c": loaded(0.05)}
        assert balancer.next_move(now, 2 * MINUTE_MS) is None
        assert balancer.next_move(now, 3 * MINUTE_MS) is not None


def test_a_move_waits_for_no_broker_that_had_no_part_in_the_last_one() -> None:
    """An idle broker tells its load every quarter of an hour."""
    balancer = Balancer(limits())
    loads = {"a": loaded(0.9, x=30, y=30, z=40), "b": loaded(0.1), "c": loaded(0.11)}
    move = settled(balancer, loads)
    assert move is not None
    assert move.destination == "b"
    balancer.on_moved(move, now_ms=2 * MINUTE_MS)
    after = 2 * MINUTE_MS + 1
    now = {"a": loaded(0.65, after, x=50, y=50), "b": loaded(0.35, after, w=1), "c": loaded(0.11)}
    move = settled(balancer, now, 3 * MINUTE_MS)
    assert move is not None
    assert move.destination == "c"
    gone = {"a": loaded(0.65, after, x=50, y=50), "c": loaded(0.11)}
    balancer.on_moved(Move("else", "a", "b"), now_ms=4 * MINUTE_MS)
    told = {**gone, "a": gone["a"]._replace(at_ms=4 * MINUTE_MS + 1)}
    assert settled(balancer, told, 5 * MINUTE_MS) is not None, "b is not there any more"


def test_a_move_that_was_tried_in_vain_holds_up_no_other_one() -> None:
    balancer = Balancer(limits())
    loads = {"a": loaded(0.9, x=30, y=30, z=40), "b": loaded(0.1)}
    first = settled(balancer, loads)
    assert first is not None
    balancer.on_moved(first, now_ms=2 * MINUTE_MS, is_done=False)
    second = settled(balancer, loads, 3 * MINUTE_MS)
    assert second is not None
    assert second.bundle != first.bundle


def test_a_bundle_that_moved_stays_for_the_grace_period() -> None:
    balancer = Balancer(limits(shedding_grace_minutes=30))
    move = settled(balancer, {"a": loaded(0.9, x=30, y=70), "b": loaded(0.1)})
    assert move is not None
    balancer.on_moved(move, now_ms=MINUTE_MS)
    name = move.bundle.rpartition("/")[2]
    back = {"a": loaded(0.1, at_ms=2 * MINUTE_MS), "b": loaded(0.9, at_ms=2 * MINUTE_MS, **{name: 30, "other": 400})}
    assert settled(balancer, back, 3 * MINUTE_MS) != Move(move.bundle, "b", "a")
    assert settled(Balancer(limits()), back, 3 * MINUTE_MS) is not None
    later = {one: load._replace(at_ms=40 * MINUTE_MS) for one, load in back.items()}
    balancer.on_moved(Move("else", "b", "a"), 39 * MINUTE_MS)
    assert settled(balancer, later, 41 * MINUTE_MS) == Move(move.bundle, "b", "a")


def test_a_bundle_moves_only_to_a_broker_that_may_serve_it() -> None:
    loads = {"a": loaded(0.9, x=30, y=40, z=30), "b": loaded(0.1)}
    for allowed in ({"x"}, {"z"}, set()):
        balancer = Balancer(limits())

        def may_serve(bundle: str, broker: str, allowed: set[str] = allowed) -> bool:
            assert broker == "b"
            return bundle.rpartition("/")[2] in allowed

        assert balancer.next_move(loads, MINUTE_MS, may_serve) is None
        move = balancer.next_move(loads, 2 * MINUTE_MS, may_serve)
        assert (None if move is None else move.bundle.rpartition("/")[2]) == next(iter(allowed), None)


# ------------------------------------------------------------------------------------------- splits


@pytest.mark.parametrize(
    ("crowded", "is_split"),
    [
        (bundle(0, topics=1001), True),
        (bundle(0, topics=1000), False),
        (bundle(0, producers=600, consumers=401), True),
        (bundle(0, messages_in=20_000.0, messages_out=10_001.0), True),
        (bundle(0, bytes_in=101 * 2.0**20), True),
        (bundle(0, bytes_in=101 * 2.0**20, topics=1), False),
    ],
)
def test_a_bundle_above_a_limit_is_split_unless_it_has_a_single_topic(crowded: BundleLoad, is_split: bool) -> None:
    loads = {"a": BrokerLoad(bundles={f"{NS}/x": crowded, f"{NS}/y": bundle(0)})}
    assert Balancer(limits()).splits(loads, {NS: 4}) == ([(f"{NS}/x", "a")] if is_split else [])


def test_of_a_namespace_the_most_crowded_bundle_is_split_and_none_if_it_has_enough_or_is_gone() -> None:
    loads = {
        "a": BrokerLoad(bundles={"t/n/x": bundle(0, topics=2000), "t/m/x": bundle(0, topics=1500)}),
        "b": BrokerLoad(bundles={"t/n/y": bundle(0, topics=3000)}),
    }
    balancer = Balancer(limits(namespace_max_bundles=16))
    assert balancer.splits(loads, {"t/n": 4, "t/m": 4}) == [("t/n/y", "b"), ("t/m/x", "a")]
    assert balancer.splits(loads, {"t/n": 16, "t/m": 15}) == [("t/m/x", "a")]
    assert balancer.splits(loads, {}) == []


def test_a_limit_of_zero_is_none() -> None:
    loads = {"a": BrokerLoad(bundles={f"{NS}/x": bundle(0, topics=10**6)})}
    assert Balancer(limits(bundle_max_topics=0)).splits(loads, {NS: 4}) == []


# ------------------------------------------------------------------------------------------ reports


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (loaded(0.5, 2, x=100), False),
        (loaded(0.59, 2, x=109), False),
        (loaded(0.61, 2, x=100), True),
        (loaded(0.5, 2, x=111), True),
        (loaded(0.5, 2, x=100, y=0), True),
        (loaded(0.5, 15 * MINUTE_MS + 1, x=100), True),
    ],
)
def test_a_load_is_told_when_it_differs_or_was_told_long_ago(now: BrokerLoad, due: bool) -> None:
    told = loaded(0.5, 1, x=100)
    assert is_report_due(now, told, threshold=0.1, interval_max_ms=15 * MINUTE_MS, is_changed=False) is due
    assert is_report_due(now, told, threshold=0.1, interval_max_ms=15 * MINUTE_MS, is_changed=True)
