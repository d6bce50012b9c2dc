"""The two brokers, with a storage each: ZooKeeper, a bookie and a broker, three real processes of either brand."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.mixed_cluster import Brand, MixedCluster

BRANDS: Final[tuple[Brand, Brand]] = ("apache", "ours")

# With teeth: ledgers that are full after a few entries, checks that come soon, parts of batches acknowledged.
SETTINGS: Final[dict[str, Any]] = {
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "backlogQuotaCheckIntervalInSeconds": "1",
    "brokerDeduplicationEnabled": "false",
    "managedLedgerMaxEntriesPerLedger": "7",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "delayedDeliveryTickTimeMillis": "100",
    # Who becomes active while another one's delay runs is a race.
    "activeConsumerFailoverDelayTimeMillis": "0",
}


class Address(NamedTuple):
    """Where a broker is."""

    service_url: str
    admin_url: str


class Pair(NamedTuple):
    """Apache's broker, and ours."""

    apache: Address
    ours: Address


@contextlib.contextmanager
def running(folder: Path) -> Iterator[tuple[Pair, Path]]:
    """Both brokers, and the log of ours."""
    with MixedCluster(folder / "apache", copies=1) as apache, MixedCluster(folder / "ours", copies=1) as ours:
        clusters = dict(zip(BRANDS, (apache, ours), strict=True))
        # One after the other: a process ends with the thread that started it.
        for brand, cluster in clusters.items():
            cluster.start_zookeeper()
            cluster.initialise(brand)
        bookies = [cluster.add("bookie", brand, wait=False) for brand, cluster in clusters.items()]
        for bookie in bookies:
            bookie.wait_ready()
        brokers = [cluster.add("broker", brand, wait=False, **SETTINGS) for brand, cluster in clusters.items()]
        for broker in brokers:
            broker.wait_ready()
        addresses = [Address(broker.service_url, broker.admin_url) for broker in brokers]
        yield Pair(*addresses), brokers[1].log
