"""Which bundles leave which broker, by the strategies of Apache's ModularLoadManagerImpl. No IO and no clock.

    ThresholdShedder     brokers whose weighted usage, history counted in, is above the average by the threshold
    OverloadShedder      brokers whose scarcest resource is used above the threshold for overload
    UniformLoadShedder   the broker with the most messages (or bytes) against the one with the fewest
    AvgShedder           the most loaded broker to the least loaded one, the second to the second, and so on

Rules, all Apache's (4.0.8):

1. What a bundle passes is its short-term average; those with the most come first.
2. A bundle that was moved within the grace period stays. A broker's only bundle stays, but with AvgShedder where it is
   small enough. Bundles of the brokers' own health checks stay.
3. Threshold and Overload take bundles until the traffic that is to go is reached, but at least one; Uniform and Avg
   take each bundle that fits into what is left.
4. Only AvgShedder says where a bundle goes; for the others `bundle_placement` decides.

Where two brokers have the same load, the first by its id counts, so that a round can be repeated; with Apache's it is
the order of a hash map.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from broker.ownership.load.averages import BundleAverages
from broker.ownership.load.report import BrokerLoad
from broker.settings.config import BrokerConfig
from broker.settings.groups.load import LOAD_CLASSES
from magnetar_core.runtime.types import MIB

# What is taken off beyond the threshold, as a share of a broker, so that the broker does not stay at the threshold.
MARGIN: Final = 0.05

# The part of the threshold that the fullest broker gives away where another broker is below the lower boundary.
LOWER_BOUNDARY_MARGIN: Final = 0.5

# By how much a bundle may be above what is left to move: messages, or bytes, a second.
UNIFORM_DELTA: Final = 1000

# A rate below it is that of an idle broker and counts as 1: the others are divided by it.
_IDLE_RATE: Final = 1e-6


class Weights(NamedTuple):
    """How much each resource counts. Memory: for Apache's brokers the direct memory, for ours that of the process."""

    cpu: float = 1.0
    memory: float = 0.0
    bandwidth_in: float = 1.0
    bandwidth_out: float = 1.0

    def usage(self, load: BrokerLoad) -> float:
        """The share of a broker, by its scarcest resource."""
        return max(
            load.cpu * self.cpu,
            load.counted_memory * self.memory,
            load.bandwidth_in * self.bandwidth_in,
            load.bandwidth_out * self.bandwidth_out,
        )


UNWEIGHTED: Final = Weights(memory=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SheddingSettings:
    """The settings of all strategies: shares of a broker, messages and bytes a second."""

    weights: Weights
    history: float
    threshold: float
    lower_boundary: bool
    bytes_min: float
    """ThresholdShedder: less than this is not worth a move."""
    overload: float
    rate_difference_percent: float
    """UniformLoadShedder: 0 is off, as with the next one."""
    bytes_factor: float
    unload_share: float
    unload_messages_min: float
    unload_bytes_min: float
    unload_bundles_max: int
    """-1: any number."""
    low: float
    """AvgShedder: differences of two brokers, and the rounds in a row in which they are seen."""
    high: float
    low_rounds: int
    high_rounds: int


def shedding_settings(config: BrokerConfig) -> SheddingSettings:
    return SheddingSettings(
        weights=Weights(
            config.cpu_weight,
            config.direct_memory_weight,
            _either_spelling(config.bandwidth_in_weight, config.bandwith_in_weight),
            _either_spelling(config.bandwidth_out_weight, config.bandwith_out_weight),
        ),
        history=config.usage_history,
        threshold=config.shedding_threshold_percent / 100,
        lower_boundary=config.lower_boundary_shedding,
        bytes_min=config.unload_mbytes_min * MIB,
        overload=config.overload_percent / 100,
        rate_difference_percent=config.rate_difference_percent,
        bytes_factor=config.throughput_factor,
        unload_share=config.unload_share,
        unload_messages_min=config.unload_messages_min,
        unload_bytes_min=config.unload_bytes_min,
        unload_bundles_max=config.unload_bundles_max,
        low=config.avg_low_percent / 100,
        high=config.avg_high_percent / 100,
        low_rounds=config.avg_low_rounds,
        high_rounds=config.avg_high_rounds,
    )


def _either_spelling(weight: float, misspelt: float) -> float:
    """A setting that Apache once misspelt: the right name counts, unless it has its default."""
    return weight if weight != 1.0 else misspelt


class Shed(NamedTuple):
    """*bundle* leaves *source*; *destination* is empty where `bundle_placement` decides."""

    bundle: str
    source: str
    destination: str = ""


class Cluster(NamedTuple):
    """What a round of the leader begins with."""

    loads: Mapping[str, BrokerLoad]
    averages: Mapping[str, BundleAverages]
    recent: Collection[str] = ()
    """Bundles that stay: they were moved within the grace period, or their namespaces are excluded."""

    def movable(self, broker: str, traffic: Callable[[BundleAverages], float]) -> list[tuple[str, float]]:
        """(bundle, its traffic) of a broker, the most first (rules 1 and 2)."""
        bundles = [
            (bundle, traffic(self.averages[bundle]))
            for bundle in self.loads[broker].bundles
            if bundle in self.averages and bundle not in self.recent and not is_heartbeat(bundle)
        ]
        return sorted(bundles, key=lambda pair: (-pair[1], pair[0]))


def is_heartbeat(bundle: str) -> bool:
    """Whether a bundle is of a broker's own health check: `pulsar/host:port`, or with the cluster between."""
    namespace = bundle.rpartition("/")[0]
    return namespace.startswith("pulsar/") and ":" in namespace


def short_bytes(averages: BundleAverages) -> float:
    return averages.short.bytes_in + averages.short.bytes_out


def short_messages(averages: BundleAverages) -> float:
    return averages.short.messages_in + averages.short.messages_out


def _bundles_reaching(bundles: Iterable[tuple[str, float]], traffic_wanted: float) -> list[str]:
    """The first bundles that have *traffic_wanted* together; at least one (rule 3)."""
    chosen: list[str] = []
    for bundle, traffic in bundles:
        if chosen and traffic_wanted <= 0:
            break
        chosen.append(bundle)
        traffic_wanted -= traffic
    return chosen


def _bundles_that_fit(
    bundles: Iterable[tuple[str, float]], traffic_wanted: float, *, delta: float = 0.0, count_max: int = -1
) -> list[str]:
    """Each bundle whose traffic is at most *delta* above what is left of *traffic_wanted* (rule 3)."""
    chosen: list[str] = []
    for bundle, traffic in bundles:
        if count_max != -1 and len(chosen) >= count_max:
            break
        if 0 < traffic <= traffic_wanted + delta:
            chosen.append(bundle)
            traffic_wanted -= traffic
    return chosen


class Shedder(Protocol):
    """One strategy, with what it remembers of the rounds before."""

    def find(self, cluster: Cluster, settings: SheddingSettings) -> list[Shed]: ...


class ThresholdShedder:
    def __init__(self) -> None:
        self._usage: dict[str, float] = {}

    def find(self, cluster: Cluster, settings: SheddingSettings) -> list[Shed]:
        usage = self._usage_with_history(cluster, settings)
        if not usage:
            return []
        average = sum(usage.values()) / len(usage)
        if average == 0:
            return []
        sheds: list[Shed] = []
        for broker in sorted(usage):
            # A broker far below the average comes here too; its *share* is less than nothing then.
            if average - settings.threshold < usage[broker] < average + settings.threshold:
                continue
            share = usage[broker] - average - settings.threshold + MARGIN
            sheds += self._sheds_from(cluster, broker, cluster.loads[broker].total.bytes * share, settings)
        if not sheds and settings.lower_boundary:
            # Apache counts the present usage into the history a second time before this.
            usage = self._usage_with_history(cluster, settings)
            average = sum(usage.values()) / len(usage)
            if min(usage.values()) < average - settings.threshold:
                several = [broker for broker in usage if len(cluster.loads[broker].bundles) > 1]
                fullest = min(several or usage, key=lambda broker: (-usage[broker], broker))
                share = settings.threshold * LOWER_BOUNDARY_MARGIN
                sheds = self._sheds_from(cluster, fullest, cluster.loads[fullest].total.bytes * share, settings)
        return sheds

    def _usage_with_history(self, cluster: Cluster, settings: SheddingSettings) -> dict[str, float]:
        """Count the present usage into the averages of the rounds before, and return these."""
        current_usage = {broker: settings.weights.usage(load) for broker, load in cluster.loads.items()}
        self._usage = {
            broker: self._usage.get(broker, used) * settings.history + used * (1 - settings.history)
            for broker, used in current_usage.items()
        }
        return self._usage

    @staticmethod
    def _sheds_from(cluster: Cluster, broker: str, bytes_wanted: float, settings: SheddingSettings) -> list[Shed]:
        if bytes_wanted < settings.bytes_min or len(cluster.loads[broker].bundles) < 2:
            return []
        bundles = _bundles_reaching(cluster.movable(broker, short_bytes), bytes_wanted)
        return [Shed(bundle, broker) for bundle in bundles]


class OverloadShedder:
    def find(self, cluster: Cluster, settings: SheddingSettings) -> list[Shed]:
        sheds: list[Shed] = []
        for broker, load in sorted(cluster.loads.items()):
            usage = UNWEIGHTED.usage(load)
            if usage >= settings.overload and len(load.bundles) > 1:
                bytes_wanted = load.total.bytes * (usage - settings.overload + MARGIN)
                bundles = _bundles_reaching(cluster.movable(broker, short_bytes), bytes_wanted)
                sheds += [Shed(bundle, broker) for bundle in bundles]
        return sheds


class UniformLoadShedder:
    def find(self, cluster: Cluster, settings: SheddingSettings) -> list[Shed]:
        messages = {broker: load.total.messages for broker, load in cluster.loads.items()}
        sizes = {broker: load.total.bytes for broker, load in cluster.loads.items()}
        if not messages:
            return []
        source, highest_rate, lowest_rate = _fullest_and_rates(messages)
        if 0 < settings.rate_difference_percent < (highest_rate - lowest_rate) * 100 / lowest_rate:
            traffic, minimum = short_messages, settings.unload_messages_min
        else:
            source, highest_rate, lowest_rate = _fullest_and_rates(sizes)
            if not 0 < settings.bytes_factor < highest_rate / lowest_rate:
                return []
            traffic, minimum = short_bytes, settings.unload_bytes_min
        traffic_wanted = float(int((highest_rate - lowest_rate) * settings.unload_share))
        if len(cluster.loads[source].bundles) < 2 or traffic_wanted < minimum:
            return []
        bundles = _bundles_that_fit(
            cluster.movable(source, traffic), traffic_wanted, delta=UNIFORM_DELTA, count_max=settings.unload_bundles_max
        )
        return [Shed(bundle, source) for bundle in bundles]


def _fullest_and_rates(rates: Mapping[str, float]) -> tuple[str, float, float]:
    """The broker with the highest rate, that rate, and the lowest rate of all brokers."""
    fullest = min(rates, key=lambda broker: (-rates[broker], broker))
    lowest_rate = min(rates.values())
    return fullest, rates[fullest], lowest_rate if lowest_rate > _IDLE_RATE else 1.0


class AvgShedder:
    def __init__(self) -> None:
        self._high: dict[str, int] = {}
        self._low: dict[str, int] = {}

    def find(self, cluster: Cluster, settings: SheddingSettings) -> list[Shed]:
        usage = {broker: settings.weights.usage(load) for broker, load in cluster.loads.items()}
        ordered = sorted(usage, key=lambda broker: (usage[broker], broker))
        low, high, pairs = dict[str, int](), dict[str, int](), list[tuple[str, str]]()
        half = len(ordered) // 2
        for emptier, fuller in zip(ordered[:half], ordered[: -half - 1 : -1], strict=True):
            difference = usage[fuller] - usage[emptier]
            if difference < settings.low:
                continue
            pairs.append((emptier, fuller))
            for broker in (emptier, fuller):
                low[broker] = self._low.get(broker, 0) + 1
                if difference >= settings.high:
                    high[broker] = self._high.get(broker, 0) + 1
        self._low, self._high = low, high
        sheds: list[Shed] = []
        for emptier, fuller in pairs:
            if self._is_due_to_shed((emptier, fuller), settings):
                for broker in (emptier, fuller):
                    self._low.pop(broker, None)
                    self._high.pop(broker, None)
                sheds += self._sheds_between(cluster, fuller, emptier, settings)
        return sheds

    def _is_due_to_shed(self, pair: tuple[str, str], settings: SheddingSettings) -> bool:
        """Whether one of the two brokers has differed from others for enough rounds in a row."""
        return any(
            self._high.get(broker, 0) >= settings.high_rounds or self._low.get(broker, 0) >= settings.low_rounds
            for broker in pair
        )

    @staticmethod
    def _sheds_between(cluster: Cluster, fuller: str, emptier: str, settings: SheddingSettings) -> list[Shed]:
        fuller_load, emptier_load = cluster.loads[fuller].total, cluster.loads[emptier].total
        messages = (fuller_load.messages - emptier_load.messages) * settings.unload_share
        size = (fuller_load.bytes - emptier_load.bytes) * settings.unload_share
        if messages > settings.unload_messages_min:
            bundles = _bundles_that_fit(cluster.movable(fuller, short_messages), messages)
        elif size > settings.unload_bytes_min:
            bundles = _bundles_that_fit(cluster.movable(fuller, short_bytes), size)
        else:
            return []
        return [Shed(bundle, fuller, emptier) for bundle in bundles]


SHEDDERS: Final[Mapping[str, Callable[[], Shedder]]] = {
    f"{LOAD_CLASSES}ThresholdShedder": ThresholdShedder,
    f"{LOAD_CLASSES}OverloadShedder": OverloadShedder,
    f"{LOAD_CLASSES}UniformLoadShedder": UniformLoadShedder,
    f"{LOAD_CLASSES}AvgShedder": AvgShedder,
}
