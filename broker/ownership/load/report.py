"""The load of a broker, in Apache's JSON: in its node `/loadbalance/brokers/<id>`, and at `broker-stats/load-report`.

No IO and no clock. Apache's brokers read ours and we read theirs (recorded: tests/vectors/zookeeper and http).

Rule: what is not known of a broker is zero. A broker whose report cannot be understood counts as one without load, so
that it still gets bundles; only its address must be readable.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from magnetar_core.runtime.types import MIB

# The load manager whose reports have this form.
MANAGER: Final = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"

# What Apache's brokers write where the speed of the network is not known.
_NO_LIMIT_KBPS: Final = -1000.0

# Apache counts 1,000 here, and 1,024 in the kilobits that pass.
_KBITS_OF_GBIT: Final = 1_000_000


class BundleLoad(NamedTuple):
    """What passes one bundle, a second; its clients and open topics."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    consumers: int = 0
    producers: int = 0
    topics: int = 0

    @property
    def messages(self) -> float:
        return self.messages_in + self.messages_out

    @property
    def bytes(self) -> float:
        return self.bytes_in + self.bytes_out


class BrokerLoad(NamedTuple):
    """One broker, as its report says."""

    cpu: float = 0.0
    """Share of what it can use: 1.0 is all. A broker of ours works on one core, Apache's on all."""
    memory: float = 0.0
    bandwidth: float = 0.0
    """Share of the network, where its speed is known."""
    bundles: Mapping[str, BundleLoad] = {}
    at_ms: int = 0
    direct_memory: float = 0.0
    """The memory outside the heap of Apache's brokers; those of ours have none."""
    bandwidth_in: float = 0.0
    bandwidth_out: float = 0.0

    @property
    def counted_memory(self) -> float:
        """The memory that Apache's strategies weigh: outside the heap, and of brokers without a heap all."""
        return self.direct_memory or self.memory

    @property
    def usage(self) -> float:
        """The share of what is scarcest."""
        return max(self.cpu, self.memory, self.bandwidth)

    def usage_of(self, bundle: str) -> float:
        """The part of `usage` that goes with a bundle of the report: its share of the bytes, or of the messages where
        there are no bytes; without any traffic all bundles count alike."""
        whole, part = self.total, self.bundles[bundle]
        if whole.bytes:
            share = part.bytes / whole.bytes
        elif whole.messages:
            share = part.messages / whole.messages
        else:
            share = 1 / len(self.bundles)
        return share * self.usage

    @property
    def total(self) -> BundleLoad:
        """The sum over all its bundles."""
        columns = zip(*self.bundles.values(), strict=True)
        return BundleLoad(*map(sum, columns)) if self.bundles else BundleLoad()


def network_share(traffic_bytes: float, nic_gbps: float) -> float:
    """Which share of a network *traffic_bytes* bytes a second take, as a report has it.

    *nic_gbps*: the speed of the network in gigabits a second, above 0.
    """
    return traffic_bytes * 8 / 1024 / (nic_gbps * _KBITS_OF_GBIT)


def encode_load(load: BrokerLoad, *, memory_limit_bytes: int, nic_gbps: float = 0.0) -> dict[str, Any]:
    """The members of a report that give the load, in Apache's order. *nic_gbps*: the speed of the network in each
    direction, gigabits a second; 0: not known."""
    total = load.total
    nic_kbps = nic_gbps * _KBITS_OF_GBIT or _NO_LIMIT_KBPS
    limit_mbytes = memory_limit_bytes / MIB
    return {
        "cpu": {"usage": load.cpu * 100, "limit": 100.0},
        "memory": {"usage": load.memory * limit_mbytes, "limit": limit_mbytes},
        "directMemory": {"usage": 0.0, "limit": limit_mbytes},
        "bandwidthIn": {"usage": total.bytes_in * 8 / 1024, "limit": nic_kbps},
        "bandwidthOut": {"usage": total.bytes_out * 8 / 1024, "limit": nic_kbps},
        "msgThroughputIn": float(total.bytes_in),
        "msgThroughputOut": float(total.bytes_out),
        "msgRateIn": float(total.messages_in),
        "msgRateOut": float(total.messages_out),
        "lastUpdate": load.at_ms,
        "lastStats": {
            name: {
                "msgRateIn": float(bundle.messages_in),
                "msgThroughputIn": float(bundle.bytes_in),
                "msgRateOut": float(bundle.messages_out),
                "msgThroughputOut": float(bundle.bytes_out),
                "consumerCount": bundle.consumers,
                "producerCount": bundle.producers,
                "topics": bundle.topics,
                "cacheSize": 0,
            }
            for name, bundle in load.bundles.items()
        },
        "numTopics": total.topics,
        "numBundles": len(load.bundles),
        "numConsumers": total.consumers,
        "numProducers": total.producers,
        "bundles": sorted(load.bundles),
        "lastBundleGains": [],
        "lastBundleLosses": [],
    }


def decode_load(report: Mapping[str, Any]) -> BrokerLoad:
    """The load in the JSON of a broker's node."""
    try:
        stats = report.get("lastStats") or {}
        return BrokerLoad(
            _share(report, "cpu"),
            max(_share(report, "memory"), _share(report, "directMemory")),
            max(_share(report, "bandwidthIn"), _share(report, "bandwidthOut")),
            {str(name): _bundle(bundle) for name, bundle in stats.items()},
            int(_number(report, "lastUpdate")),
            _share(report, "directMemory"),
            _share(report, "bandwidthIn"),
            _share(report, "bandwidthOut"),
        )
    except (AttributeError, TypeError, ValueError):
        return BrokerLoad()


def _bundle(stats: Mapping[str, Any]) -> BundleLoad:
    return BundleLoad(
        _number(stats, "msgRateIn"),
        _number(stats, "msgThroughputIn"),
        _number(stats, "msgRateOut"),
        _number(stats, "msgThroughputOut"),
        int(_number(stats, "consumerCount")),
        int(_number(stats, "producerCount")),
        int(_number(stats, "topics")),
    )


def _share(report: Mapping[str, Any], name: str) -> float:
    resource = report.get(name) or {}
    usage, limit = _number(resource, "usage"), _number(resource, "limit")
    return usage / limit if limit > 0 and usage > 0 else 0.0


def _number(members: Mapping[str, Any], name: str) -> float:
    """A member that is a number; 0 if it is absent. Raises ValueError."""
    value = members.get(name) or 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is not a number")
    return float(value)
