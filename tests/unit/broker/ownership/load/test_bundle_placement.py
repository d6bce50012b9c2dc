"""Where a bundle goes that leaves its broker (pure)."""

from collections.abc import Sequence
from typing import Any

import pytest

from broker.ownership.load.averages import BundleAverages
from broker.ownership.load.bundle_placement import (
    PLACEMENTS,
    Asked,
    AvgPlacement,
    LeastLongTermMessageRate,
    LeastResourceUsageWithWeight,
    Placement,
    RoundRobinBrokerSelector,
    destination,
)
from broker.ownership.load.report import BrokerLoad, BundleLoad
from broker.ownership.load.shedding import Cluster, Shed, shedding_settings
from broker.settings.config import BrokerConfig
from broker.settings.groups.load import PLACEMENT_STRATEGIES

NS = "public/default"


def loaded(cpu: float, **messages: float) -> BrokerLoad:
    bundles = {f"{NS}/{name}": BundleLoad(messages_in=one, topics=10) for name, one in messages.items()}
    return BrokerLoad(cpu=cpu, bundles=bundles)


def last(every: Sequence[str]) -> str:
    return every[-1]


def asked(loads: dict[str, BrokerLoad], *, to: str = "", arriving: Any = None, **changes: Any) -> Asked:
    averages = {
        name: BundleAverages().with_sample(one) for load in loads.values() for name, one in load.bundles.items()
    }
    settings = shedding_settings(BrokerConfig(**changes))
    return Asked(Shed(f"{NS}/x", "a", to), Cluster(loads, averages), arriving or {}, settings, 0.1, last)


def placed(placement: Placement, found: Asked, **more: Any) -> str | None:
    limits = {"topics_max": 50_000, "distribute_evenly": False, **more}
    return destination(placement, list(found.cluster.loads), found, **limits)


def test_each_strategy_that_can_be_chosen_is_there() -> None:
    assert tuple(PLACEMENTS) == PLACEMENT_STRATEGIES


def test_the_fewest_messages_over_the_long_time_win_and_what_is_on_its_way_counts() -> None:
    loads = {"a": loaded(0.8, x=9, y=9), "b": loaded(0.2, u=5), "c": loaded(0.2, v=3)}
    assert placed(LeastLongTermMessageRate(), asked(loads)) == "c"
    assert placed(LeastLongTermMessageRate(), asked(loads, arriving={"c": [f"{NS}/y"]})) == "b"


def test_an_overloaded_broker_gets_a_bundle_only_where_all_are_overloaded() -> None:
    loads = {"a": loaded(0.5, x=9, y=9), "b": loaded(0.4, u=5), "c": loaded(0.9, v=3)}
    assert placed(LeastLongTermMessageRate(), asked(loads)) == "b"
    assert placed(LeastLongTermMessageRate(), asked(loads, overload_percent=95)) == "c"
    assert placed(LeastLongTermMessageRate(), asked(loads, overload_percent=10)) == "c", "any, here the last"


def test_the_bundle_stays_where_its_broker_is_chosen() -> None:
    loads = {"a": loaded(0.5, x=1), "b": loaded(0.4, u=5)}
    assert placed(LeastLongTermMessageRate(), asked(loads)) is None
    assert destination(
        LeastLongTermMessageRate(), [], asked(loads), topics_max=1, distribute_evenly=False
    ) is None, "nobody may have it"  # fmt: skip


def test_a_broker_below_the_average_by_the_difference_gets_it_and_else_any() -> None:
    loads = {"a": loaded(0.8, x=9), "b": loaded(0.1, u=5), "c": loaded(0.45, v=3)}
    assert placed(LeastResourceUsageWithWeight(), asked(loads)) == "b"
    near = {"a": loaded(0.5, x=9), "b": loaded(0.45, u=5), "c": loaded(0.45, v=3)}
    assert placed(LeastResourceUsageWithWeight(), asked(near)) == "c", "any, here the last"


def test_the_usage_of_before_counts_unless_the_broker_has_no_traffic() -> None:
    placement = LeastResourceUsageWithWeight()
    before = {"a": loaded(0.8, x=9), "b": loaded(0.1, u=5), "c": loaded(0.8, v=3)}
    assert placed(placement, asked(before)) == "b"
    changed = {"a": loaded(0.8, x=9), "b": loaded(0.8, u=5), "c": loaded(0.1, v=3)}
    assert placed(placement, asked(changed)) == "b", "one round of ten"
    assert placed(placement, asked({**changed, "b": loaded(0.8), "c": loaded(0.1)})) == "c"


def test_each_broker_has_its_turn() -> None:
    placement, loads = RoundRobinBrokerSelector(), {one: loaded(0.1) for one in "abc"}
    assert [placed(placement, asked(loads)) for _ in range(4)] == [None, "b", "c", None]


def test_where_the_shedding_strategy_says_unless_that_broker_may_not_have_it() -> None:
    loads = {one: loaded(0.1) for one in "abc"}
    assert placed(AvgPlacement(), asked(loads, to="b")) == "b"
    assert placed(AvgPlacement(), asked(loads, to="gone")) == "c"


def test_brokers_with_too_many_topics_are_left_out_unless_all_have() -> None:
    loads = {"a": loaded(0.5, x=9, y=9), "b": loaded(0.4, u=5, t=1), "c": loaded(0.4, v=3)}
    assert placed(LeastLongTermMessageRate(), asked(loads), topics_max=20) == "c"
    loads["c"] = loaded(0.4, v=1, w=1)
    assert placed(LeastLongTermMessageRate(), asked(loads), topics_max=20) == "c", "all have 20"
    loads["c"], loads["b"] = loaded(0.4, v=1), loaded(0.4, u=100)
    coming = asked(loads, arriving={"c": [f"{NS}/y"]})
    assert placed(LeastLongTermMessageRate(), coming, topics_max=20) == "b", "those that are on their way count"


@pytest.mark.parametrize(("evenly", "found"), [(True, "b"), (False, "c")])
def test_distributed_evenly_the_brokers_with_the_fewest_bundles_of_the_namespace_have_it(
    evenly: bool, found: str
) -> None:
    loads = {"a": loaded(0.5, x=9, y=9, z=9), "b": loaded(0.4, u=5), "c": loaded(0.4, v=1, w=1)}
    assert placed(LeastLongTermMessageRate(), asked(loads), distribute_evenly=evenly) == found


def test_where_the_one_with_the_fewest_bundles_is_overloaded_all_are_asked() -> None:
    loads = {"a": loaded(0.5, x=9, y=9, z=9), "b": loaded(0.9, u=5), "c": loaded(0.4, v=1, w=1)}
    assert placed(LeastLongTermMessageRate(), asked(loads), distribute_evenly=True) == "c"
