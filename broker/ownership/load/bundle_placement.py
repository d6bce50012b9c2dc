"""Where a bundle goes that leaves its broker, by the strategies of Apache's ModularLoadManagerImpl. No IO and no clock.

    LeastLongTermMessageRate       the fewest messages a second over the long time; a broker above the threshold for
                                   overload only where all are
    LeastResourceUsageWithWeight   one of those that use less than the average by the difference; if there are none, one
                                   of all. Usage in earlier rounds counts too
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
    """Broker → bundles that were sent to it and that it has not reported yet."""
    settings: SheddingSettings
    difference: float
    """LeastResourceUsageWithWeight: by how much a broker has to be below the average, as a share."""
    pick: Pick


class Placement(Protocol):
    def choose(self, brokers: Collection[str], asked: Asked) -> str:
        """One of *brokers*, which has at least one."""
        ...


def _long_messages(averages: BundleAverages) -> float:
    return averages.long.messages_in + averages.long.messages_out


class LeastLongTermMessageRate:
    def choose(self, brokers: Collection[str], asked: Asked) -> str:
        scores = {broker: self._score(broker, asked) for broker in sorted(brokers)}
        free = {broker: score for broker, score in scores.items() if score is not None}
        least_rate = min(free.values(), default=0.0)
        return asked.pick([broker for broker, score in free.items() if score == least_rate] or list(scores))

    @staticmethod
    def _score(broker: str, asked: Asked) -> float | None:
        """Messages a second; None: the broker is overloaded."""
        load = asked.cluster.loads.get(broker, BrokerLoad())
        if asked.settings.weights.usage(load) > asked.settings.overload:
            return None
        bundles = {*load.bundles, *asked.arriving.get(broker, ())}
        return sum(_long_messages(asked.cluster.averages.get(bundle, BundleAverages())) for bundle in bundles)


class LeastResourceUsageWithWeight:
    def __init__(self) -> None:
        self._usage: dict[str, float] = {}

    def choose(self, brokers: Collection[str], asked: Asked) -> str:
        loads = asked.cluster.loads
        self._usage = {broker: usage for broker, usage in self._usage.items() if broker in loads}
        for broker in brokers:
            load = loads.get(broker, BrokerLoad())
            present, history = asked.settings.weights.usage(load), asked.settings.history
            # A broker without traffic has begun anew: what it used before says nothing.
            former = self._usage.get(broker, present) if load.bundles and load.total.messages else present
            self._usage[broker] = former * history + present * (1 - history)
        average = sum(self._usage[broker] for broker in brokers) / len(brokers)
        best = [broker for broker in sorted(brokers) if self._usage[broker] + asked.difference <= average]
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
        averages = asked.cluster.averages
        arriving = sum(averages[name].topics for name in _arriving_bundles(broker) if name in averages)
        return arriving + sum(bundle.topics for bundle in loads.get(broker, BrokerLoad()).bundles.values())

    def _arriving_bundles(broker: str) -> Collection[str]:
        return set(asked.arriving.get(broker, ())) - loads.get(broker, BrokerLoad()).bundles.keys()

    def bundles(broker: str) -> int:
        owned_bundles = (*loads.get(broker, BrokerLoad()).bundles, *_arriving_bundles(broker))
        return sum(bundle.rpartition("/")[0] == namespace for bundle in owned_bundles)

    candidates = [broker for broker in brokers if topics(broker) < topics_max] or list(brokers)
    if distribute_evenly:
        fewest = min(map(bundles, candidates))
        candidates = [broker for broker in candidates if bundles(broker) == fewest]
    chosen = placement.choose(candidates, asked)
    if asked.settings.weights.usage(loads.get(chosen, BrokerLoad())) > asked.settings.overload:
        chosen = placement.choose(brokers, asked)
    return None if chosen == asked.shed.source else chosen
