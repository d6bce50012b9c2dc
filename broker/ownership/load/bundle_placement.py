"""Where a bundle goes that leaves its broker, by the strategies of Apache's ModularLoadManagerImpl. No IO and no clock.

    LeastLongTermMessageRate       the fewest messages a second over the long time; a broker above the threshold for
                                   overload only where all are
    LeastResourceUsageWithWeight   one of those that use less than the average by the difference; of all, if there is
                                   none. History counts in
    RoundRobinBrokerSelector       each in its turn
    AvgShedder                     where the shedding strategy of that name says; else any

Rules, all Apache's (4.0.8):

1. Brokers with `loadBalancerBrokerMaxTopics` topics or more are left out; where all have them, none is.
2. With `loadBalancerDistributeBundlesEvenlyEnabled` only brokers with the fewest bundles of the namespace are asked.
3. Where the one that was chosen is above the threshold for overload, all that may serve the namespace are asked again.
4. The broker that has the bundle is among them. Where it is chosen, the bundle stays.

Among equals *pick* decides: the load manager brings a random choice.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from broker.ownership.load.averages import BundleAverages
from broker.ownership.load.report import BrokerLoad
from broker.ownership.load.shedding import Cluster, Shed, SheddingSettings
from broker.settings.groups.load import LOAD_CLASSES

Pick = Callable[[Sequence[str]], str]


class Asked(NamedTuple):
    """What a strategy chooses by."""

    shed: Shed
    cluster: Cluster
    arriving: Mapping[str, Collection[str]]
    """Broker → bundles that were sent to it and that it has not told yet."""
    settings: SheddingSettings
    difference: float
    """LeastResourceUsageWithWeight: by how much a broker has to be below the average, as a share."""
    pick: Pick


class Placement(Protocol):
    def choose(self, brokers: Collection[str], asked: Asked) -> str:
        """One of *brokers*, of which there is one at least."""
        ...


def _long_messages(averages: BundleAverages) -> float:
    return averages.long.messages_in + averages.long.messages_out


class LeastLongTermMessageRate:
    def choose(self, brokers: Collection[str], asked: Asked) -> str:
        scores = {one: self._score(one, asked) for one in sorted(brokers)}
        free = {one: score for one, score in scores.items() if score is not None}
        least = min(free.values(), default=0.0)
        return asked.pick([one for one, score in free.items() if score == least] or list(scores))

    @staticmethod
    def _score(broker: str, asked: Asked) -> float | None:
        """Messages a second; None: the broker is overloaded."""
        load = asked.cluster.loads.get(broker, BrokerLoad())
        if asked.settings.weights.usage(load) > asked.settings.overload:
            return None
        bundles = {*load.bundles, *asked.arriving.get(broker, ())}
        return sum(_long_messages(asked.cluster.averages.get(one, BundleAverages())) for one in bundles)


class LeastResourceUsageWithWeight:
    def __init__(self) -> None:
        self._usage: dict[str, float] = {}

    def choose(self, brokers: Collection[str], asked: Asked) -> str:
        loads = asked.cluster.loads
        self._usage = {one: usage for one, usage in self._usage.items() if one in loads}
        for one in brokers:
            load = loads.get(one, BrokerLoad())
            now, history = asked.settings.weights.usage(load), asked.settings.history
            # A broker without traffic has begun anew: what it used before says nothing.
            before = self._usage.get(one, now) if load.bundles and load.total.messages else now
            self._usage[one] = before * history + now * (1 - history)
        average = sum(self._usage[one] for one in brokers) / len(brokers)
        best = [one for one in sorted(brokers) if self._usage[one] + asked.difference <= average]
        return asked.pick(best or sorted(brokers))


class RoundRobinBrokerSelector:
    def __init__(self) -> None:
        self._turn = -1

    def choose(self, brokers: Collection[str], asked: Asked) -> str:
        ordered = sorted(brokers)
        self._turn = (self._turn + 1) % len(ordered)
        return ordered[self._turn]


class AvgPlacement:
    def choose(self, brokers: Collection[str], asked: Asked) -> str:
        return asked.shed.destination if asked.shed.destination in brokers else asked.pick(sorted(brokers))


PLACEMENTS: Final[Mapping[str, Callable[[], Placement]]] = {
    f"{LOAD_CLASSES}LeastLongTermMessageRate": LeastLongTermMessageRate,
    f"{LOAD_CLASSES}LeastResourceUsageWithWeight": LeastResourceUsageWithWeight,
    f"{LOAD_CLASSES}RoundRobinBrokerSelector": RoundRobinBrokerSelector,
    f"{LOAD_CLASSES}AvgShedder": AvgPlacement,
}


def destination(
    placement: Placement, brokers: Collection[str], asked: Asked, *, topics_max: int, distribute_evenly: bool
) -> str | None:
    """Where the bundle goes; None: it stays (rule 4). *brokers* may serve it."""
    if not brokers:
        return None
    namespace = asked.shed.bundle.rpartition("/")[0]
    loads = asked.cluster.loads

    def topics(broker: str) -> int:
        coming = sum(asked.cluster.averages[one].topics for one in _coming(broker) if one in asked.cluster.averages)
        return coming + sum(one.topics for one in loads.get(broker, BrokerLoad()).bundles.values())

    def _coming(broker: str) -> Collection[str]:
        return set(asked.arriving.get(broker, ())) - loads.get(broker, BrokerLoad()).bundles.keys()

    def bundles(broker: str) -> int:
        held = (*loads.get(broker, BrokerLoad()).bundles, *_coming(broker))
        return sum(one.rpartition("/")[0] == namespace for one in held)

    left = [one for one in brokers if topics(one) < topics_max] or list(brokers)
    if distribute_evenly:
        fewest = min(map(bundles, left))
        left = [one for one in left if bundles(one) == fewest]
    chosen = placement.choose(left, asked)
    if asked.settings.weights.usage(loads.get(chosen, BrokerLoad())) > asked.settings.overload:
        chosen = placement.choose(brokers, asked)
    return None if chosen == asked.shed.source else chosen
