"""What passes bundles and brokers on average, as Apache's leaders keep it in the metadata store. No IO and no clock.

    /loadbalance/bundle-data/<bundle>           the last 10 samples and the last 1,000, of the bundles with most traffic
    /loadbalance/broker-time-average/<id>       the sums of all bundles of a broker

An Apache broker that becomes the leader begins with these averages, and `pulsar-perf monitor-brokers` shows them; ours
does the same. Rule (Apache's `TimeAverageMessageData`): a new sample counts 1/n, where n grows to the most that the
average has; a bundle of which nothing is known passes 50 messages and 50,000 bytes a second in each direction.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.ownership.load.report import BrokerLoad, BundleLoad

BUNDLE_DATA: Final = "/loadbalance/bundle-data"
BROKER_AVERAGES: Final = "/loadbalance/broker-time-average"

SHORT_SAMPLES: Final = 10
LONG_SAMPLES: Final = 1_000

# Names in Apache's JSON, in its order, which is that of an average.
_RATES: Final = ("msgThroughputIn", "msgThroughputOut", "msgRateIn", "msgRateOut")


class Average(NamedTuple):
    """Bytes and messages a second."""

    samples: int = 0
    bytes_in: float = 50_000.0
    bytes_out: float = 50_000.0
    messages_in: float = 50.0
    messages_out: float = 50.0

    def with_sample(self, load: BundleLoad, samples_max: int) -> "Average":
        """The average with one more sample, which counts 1/n (the rule above)."""
        samples = min(self.samples + 1, samples_max)
        rates = (load.bytes_in, load.bytes_out, load.messages_in, load.messages_out)
        _, *former = self
        new = [((samples - 1) * old + rate) / samples for old, rate in zip(former, rates, strict=True)]
        return Average(samples, *new)


class BundleAverages(NamedTuple):
    """One bundle: over a short and a long time, and its open topics."""

    short: Average = Average()
    long: Average = Average()
    topics: int = 0

    def with_sample(self, load: BundleLoad) -> "BundleAverages":
        return BundleAverages(
            self.short.with_sample(load, SHORT_SAMPLES), self.long.with_sample(load, LONG_SAMPLES), load.topics
        )


def busiest(averages: Mapping[str, BundleAverages], count_max: int) -> list[str]:
    """The bundles whose averages are written: those with most traffic over the long time, then the short one.

    *count_max* of them; -1: all."""

    def traffic(bundle: str) -> tuple[float, ...]:
        terms = averages[bundle]
        return tuple(
            value
            for average in (terms.long, terms.short)
            for value in (average.bytes_in + average.bytes_out, average.messages_in + average.messages_out)
        )

    bundles = sorted(averages, key=lambda bundle: (traffic(bundle), bundle), reverse=True)
    return bundles if count_max < 0 else bundles[:count_max]


def encode_bundle(averages: BundleAverages) -> dict[str, Any]:
    return {
        "shortTermData": _encode(averages.short, SHORT_SAMPLES),
        "longTermData": _encode(averages.long, LONG_SAMPLES),
        "topics": averages.topics,
    }


def _encode(average: Average, samples_max: int) -> dict[str, Any]:
    rates = zip(_RATES, map(float, average[1:]), strict=True)
    return {"maxSamples": samples_max, "numSamples": average.samples, **dict(rates)}


def decode_bundle(record: Mapping[str, Any]) -> BundleAverages:
    """What another leader wrote; what cannot be understood counts as nothing known."""
    try:
        return BundleAverages(
            _decode(record["shortTermData"], SHORT_SAMPLES),
            _decode(record["longTermData"], LONG_SAMPLES),
            int(record["topics"]),
        )
    except (KeyError, TypeError, ValueError):
        return BundleAverages()


def _decode(record: Mapping[str, Any], samples_max: int) -> Average:
    samples = min(max(int(record["numSamples"]), 0), samples_max)
    return Average(samples, *(max(0.0, float(record[name])) for name in _RATES))


def encode_broker(bundles: Iterable[str], averages: Mapping[str, BundleAverages]) -> dict[str, Any]:
    """The sums over the *bundles* of a broker."""
    of_bundles = [averages.get(bundle, BundleAverages()) for bundle in bundles]
    return {
        **_encode_sums("shortTerm", [of_bundle.short for of_bundle in of_bundles]),
        **_encode_sums("longTerm", [of_bundle.long for of_bundle in of_bundles]),
    }


def _encode_sums(prefix: str, averages: Sequence[Average]) -> dict[str, float]:
    """The sum of each rate, as `shortTermMsgRateIn`."""
    sums = {}
    for number, rate in enumerate(_RATES, start=1):  # the first member of an average is its number of samples
        sums[f"{prefix}{rate[0].upper()}{rate[1:]}"] = float(sum(average[number] for average in averages))
    return sums


def loads_of_bundles(loads: Mapping[str, BrokerLoad]) -> dict[str, BundleLoad]:
    """The bundles of all brokers. Where two report one bundle, since it moved meanwhile, the later report counts."""
    ordered = sorted(loads.values(), key=lambda load: load.at_ms)
    return {bundle: bundle_load for load in ordered for bundle, bundle_load in load.bundles.items()}
