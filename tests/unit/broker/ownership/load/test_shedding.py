"""Which bundles leave which broker, by the strategies of Apache's load manager (pure)."""

from typing import Any

import pytest

from broker.ownership.load.averages import BundleAverages
from broker.ownership.load.report import BrokerLoad, BundleLoad
from broker.ownership.load.shedding import (
    SHEDDERS,
    AvgShedder,
    Cluster,
    OverloadShedder,
    Shed,
    Shedder,
    ThresholdShedder,
    UniformLoadShedder,
    Weights,
    shedding_settings,
)
from broker.settings.config import BrokerConfig
from broker.settings.groups.load import SHEDDING_STRATEGIES
from magnetar_core.runtime.types import MIB

NS = "public/default"


def settings(**changes: Any) -> Any:
    return shedding_settings(
        BrokerConfig(**{"unload_mbytes_min": 0.0, "usage_history": 0.0, "unload_share": 0.2, **changes})
    )


def loaded(cpu: float, **traffic: float) -> BrokerLoad:
    """*traffic*: MB and thousands of messages a second of each bundle."""
    bundles = {
        f"{NS}/{name}": BundleLoad(bytes_in=one * MIB, messages_in=one * 1000, topics=1)
        for name, one in traffic.items()
    }
    return BrokerLoad(cpu=cpu, bundles=bundles)


def cluster(*recent: str, **loads: BrokerLoad) -> Cluster:
    averages = {
        bundle: BundleAverages().with_sample(one) for load in loads.values() for bundle, one in load.bundles.items()
    }
    return Cluster(loads, averages, {f"{NS}/{one}" for one in recent})


def names(found: list[Shed]) -> list[tuple[str, str]]:
    return [(one.source, one.bundle.rpartition("/")[2]) for one in found]


def test_each_strategy_that_can_be_chosen_is_there() -> None:
    assert tuple(SHEDDERS) == SHEDDING_STRATEGIES[1:]


@pytest.mark.parametrize("make", SHEDDERS.values(), ids=[one.rpartition(".")[2] for one in SHEDDERS])
def test_without_brokers_or_between_equal_ones_nothing_leaves(make: Any) -> None:
    shedder: Shedder = make()
    assert shedder.find(cluster(), settings()) == []
    for _ in range(10):
        assert shedder.find(cluster(a=loaded(0.5, x=10, y=10), b=loaded(0.5, v=10, w=10)), settings()) == []


# ------------------------------------------------------------------------------------- ThresholdShedder


def test_a_broker_above_the_average_gives_the_largest_bundles_until_the_excess_is_gone() -> None:
    # The average is 0.5; 0.9 is above it by 0.4, of which the threshold stays and the margin goes: 0.35 of 100 MB/s.
    world = cluster(a=loaded(0.9, x=30, y=20, z=50), b=loaded(0.1, w=5))
    assert names(ThresholdShedder().find(world, settings())) == [("a", "z")]
    world = cluster(a=loaded(0.9, x=30, y=20, z=30, u=20), b=loaded(0.1, w=5))
    assert names(ThresholdShedder().find(world, settings())) == [("a", "x"), ("a", "z")]


def test_what_is_not_worth_a_move_stays() -> None:
    world = cluster(a=loaded(0.9, x=30, y=70), b=loaded(0.1))
    assert ThresholdShedder().find(world, settings(unload_mbytes_min=36.0)) == []
    assert ThresholdShedder().find(world, settings(unload_mbytes_min=34.0)) != []


def test_the_threshold_is_that_of_the_settings() -> None:
    world = cluster(a=loaded(0.9, x=30, y=70), b=loaded(0.1))
    assert ThresholdShedder().find(world, settings(shedding_threshold_percent=41)) == []
    assert ThresholdShedder().find(world, settings(shedding_threshold_percent=40)) != []


def test_history_keeps_a_peak_from_moving_anything() -> None:
    shedder, slow = ThresholdShedder(), settings(usage_history=0.9)
    calm, peak = loaded(0.2, x=30, y=70), loaded(0.9, x=30, y=70)
    assert shedder.find(cluster(a=calm, b=loaded(0.2)), slow) == []
    assert shedder.find(cluster(a=peak, b=loaded(0.2)), slow) == []
    assert ThresholdShedder().find(cluster(a=peak, b=loaded(0.2)), slow) != [], "the first round has no history"
    rounds = 1
    while not shedder.find(cluster(a=peak, b=loaded(0.2)), slow):
        rounds += 1
    assert rounds == 3, "0.2 + 0.7 × (1 - 0.9^n) is above the average by 0.1 from n = 4 on"


def test_a_bundle_that_was_moved_stays_and_so_does_the_only_one() -> None:
    world = cluster("y", a=loaded(0.9, x=30, y=70), b=loaded(0.1))
    assert names(ThresholdShedder().find(world, settings())) == [("a", "x")]
    assert ThresholdShedder().find(cluster(a=loaded(0.9, x=100), b=loaded(0.1)), settings()) == []


def test_the_bundle_of_a_health_check_stays() -> None:
    check = "pulsar/cluster-1/a:8080/0x00000000_0xffffffff"
    load = loaded(0.9, x=30, y=10)
    load = load._replace(bundles={**load.bundles, check: BundleLoad(bytes_in=900 * MIB)})
    assert check not in [one.bundle for one in ThresholdShedder().find(cluster(a=load, b=loaded(0.1)), settings())]


def test_below_the_lower_boundary_the_fullest_broker_gives_if_it_is_told_to() -> None:
    # The average is 0.3; nobody is above 0.45, and d is below 0.15.
    loads = {"a": loaded(0.4, x=60, y=40), "b": loaded(0.4, u=1), "c": loaded(0.4), "d": loaded(0.0)}
    limits = {"shedding_threshold_percent": 15}
    assert ThresholdShedder().find(cluster(**loads), settings(**limits)) == []
    found = ThresholdShedder().find(cluster(**loads), settings(**limits, lower_boundary_shedding=True))
    assert names(found) == [("a", "x")]
    dear = settings(**limits, lower_boundary_shedding=True, unload_mbytes_min=8.0)
    assert ThresholdShedder().find(cluster(**loads), dear) == [], "half of the threshold is 7.5 of 100 MB/s"


def test_resources_count_with_their_weights_and_the_misspelt_names_while_the_right_ones_are_one() -> None:
    load = BrokerLoad(cpu=0.3, memory=0.8, direct_memory=0.5, bandwidth_in=0.2, bandwidth_out=0.4)
    assert Weights().usage(load) == pytest.approx(0.4), "memory counts for nothing"
    assert Weights(memory=1.0).usage(load) == pytest.approx(0.5)
    assert Weights(memory=1.0).usage(load._replace(direct_memory=0.0)) == pytest.approx(0.8), "one of ours"
    assert settings(bandwith_in_weight=2.0, bandwidth_out_weight=3.0, bandwith_out_weight=9.0).weights == Weights(
        bandwidth_in=2.0, bandwidth_out=3.0
    )
    assert settings(cpu_weight=0.5, direct_memory_weight=0.25).weights[:2] == (0.5, 0.25)


# ------------------------------------------------------------------------------------- OverloadShedder


def test_only_an_overloaded_broker_gives_enough_to_be_below_the_threshold_again() -> None:
    world = cluster(a=loaded(0.95, x=6, y=10, z=84), b=loaded(0.0))
    assert OverloadShedder().find(world, settings(overload_percent=96)) == []
    assert names(OverloadShedder().find(world, settings())) == [("a", "z")]
    even = cluster(a=loaded(0.95, x=10, y=10, z=10), b=loaded(0.9, w=1))
    assert names(OverloadShedder().find(even, settings())) == [("a", "x")], "b has a single bundle"


def test_the_weights_do_not_count_for_an_overloaded_broker() -> None:
    world = cluster(a=loaded(0.95, x=10, y=20), b=loaded(0.0))
    assert names(OverloadShedder().find(world, settings(cpu_weight=0.1))) == [("a", "y")]


# ------------------------------------------------------------------------------------- UniformLoadShedder


def test_the_broker_with_the_most_messages_gives_what_fits_into_a_share_of_the_difference() -> None:
    # 100,000 against 10,000 messages a second: a fifth of the difference is 18,000.
    world = cluster(a=loaded(0.1, x=60, y=15, z=20, u=5), b=loaded(0.1, w=10))
    assert names(UniformLoadShedder().find(world, settings())) == [("a", "y")], "x and z do not fit, u not any more"
    half = settings(unload_share=0.5)
    assert names(UniformLoadShedder().find(world, half)) == [("a", "z"), ("a", "y"), ("a", "u")]
    assert names(UniformLoadShedder().find(world, settings(unload_share=0.5, unload_bundles_max=2))) == [
        ("a", "z"),
        ("a", "y"),
    ]
    assert UniformLoadShedder().find(world, settings(unload_messages_min=18_001)) == []


def test_a_difference_within_the_threshold_is_left() -> None:
    world = cluster(a=loaded(0.1, x=10, y=4), b=loaded(0.1, w=10))
    assert UniformLoadShedder().find(world, settings(unload_messages_min=0)) == []
    found = UniformLoadShedder().find(world, settings(unload_messages_min=0, rate_difference_percent=30.0))
    assert found == [], "what is left is smaller than each bundle"
    world = cluster(a=loaded(0.1, x=13, y=1), b=loaded(0.1, w=10))
    found = UniformLoadShedder().find(world, settings(unload_messages_min=0, rate_difference_percent=30.0))
    assert names(found) == [("a", "y")]


def test_bytes_count_where_messages_do_not_differ_enough() -> None:
    def wide(size: float) -> BundleLoad:
        return BundleLoad(messages_in=100.0, bytes_in=size * MIB)

    a = BrokerLoad(bundles={f"{NS}/x": wide(50), f"{NS}/y": wide(4)})
    world = cluster(a=a, b=BrokerLoad(bundles={f"{NS}/v": wide(5), f"{NS}/w": wide(5)}))
    assert names(UniformLoadShedder().find(world, settings())) == [("a", "y")]
    assert UniformLoadShedder().find(world, settings(throughput_factor=5.5)) == []
    assert UniformLoadShedder().find(world, settings(throughput_factor=0.0)) == []
    assert UniformLoadShedder().find(world, settings(unload_bytes_min=9 * MIB)) == []


# ------------------------------------------------------------------------------------- AvgShedder


def rounds_until_found(load: float, **changes: Any) -> int:
    shedder, rounds = AvgShedder(), 1
    world = cluster(a=loaded(load, x=10, y=1), b=loaded(0.1))
    while not shedder.find(world, settings(**changes)):
        rounds += 1
        assert rounds < 30
    return rounds


def test_a_difference_is_seen_several_times_before_a_bundle_leaves_and_a_large_one_less_often() -> None:
    assert rounds_until_found(0.3) == 8
    assert rounds_until_found(0.6) == 2
    assert rounds_until_found(0.3, avg_low_rounds=3) == 3
    assert rounds_until_found(0.6, avg_high_rounds=1) == 1
    assert rounds_until_found(0.3, avg_high_percent=19) == 2


def test_a_round_without_a_difference_begins_the_count_anew() -> None:
    shedder, limits = AvgShedder(), settings(avg_low_rounds=2)
    apart, alike = (cluster(a=loaded(cpu, x=10, y=1), b=loaded(0.1)) for cpu in (0.3, 0.2))
    assert [bool(shedder.find(one, limits)) for one in (apart, alike, apart, apart)] == [False, False, False, True]


def test_the_most_loaded_gives_to_the_least_loaded_and_the_second_to_the_second() -> None:
    world = cluster(
        a=loaded(0.9, p=10, q=1), b=loaded(0.8, r=10, s=1), c=loaded(0.5, t=5), d=loaded(0.2), e=loaded(0.1)
    )
    found = AvgShedder().find(world, settings(avg_high_rounds=1))
    assert found == [Shed(f"{NS}/q", "a", "e"), Shed(f"{NS}/s", "b", "d")]


def test_little_traffic_is_not_worth_a_move() -> None:
    world = cluster(a=loaded(0.9, x=0.5, y=0.1), b=loaded(0.1))
    once = {"avg_high_rounds": 1, "unload_share": 0.5}
    assert AvgShedder().find(world, settings(**once)) == []
    found = AvgShedder().find(world, settings(**once, unload_messages_min=100))
    assert names(found) == [("a", "y")]
    found = AvgShedder().find(world, settings(**once, unload_bytes_min=100))
    assert names(found) == [("a", "y")], "by bytes"
