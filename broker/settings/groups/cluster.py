"""The cluster and its stores. No IO."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from magnetar_core.runtime.config import Group, setting

APACHE_LINES: Final = ("4.0", "4.2", "5.0")

# Apache's names for the ways to cut a bundle (`broker.ownership.splitting`).
SPLIT_ALGORITHMS: Final = (
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
    "flow_or_qps_equally_divide",
)

# Each bundle has a node with its owner in the metadata store. (Apache has the same maximum.)
BUNDLES_MAX: Final = 4_096

# What a broker does whose session with the metadata store has ended, or may have.
RECONNECT: Final = "reconnect"
SHUTDOWN: Final = "shutdown"


@dataclass(frozen=True, kw_only=True)
class Cluster(Group):
    """The cluster: its name, its stores, its namespaces' bundles."""

    apache_line: str = setting(
        "apacheLine",
        "",
        help=f"{', '.join(APACHE_LINES)}: the defaults of that line of Apache's brokers, where ours are others; "
        "empty: those that docs/compatibility.md lists",
        choices=("", *APACHE_LINES),
    )
    cluster_name: str = setting("clusterName", "standalone", help="name of the cluster")
    metadata_store_url: str = setting("metadataStoreUrl", "zk:127.0.0.1:2181", help="zk:host:port,… or rocksdb:DIR")
    configuration_store_url: str = setting(
        "configurationMetadataStoreUrl", "", help="empty or metadataStoreUrl: there is one store for everything"
    )
    bookkeeper_store_uri: str = setting(
        "bookkeeperMetadataServiceUri",
        "",
        help="empty or /ledgers in the store of metadataStoreUrl, as zk://host/ledgers",
    )
    session_timeout_ms: int = setting(
        "metadataStoreSessionTimeoutMillis", 30_000, help="how long the metadata store waits for a silent broker"
    )
    session_expired_policy: str = setting(
        "zookeeperSessionExpiredPolicy",
        RECONNECT,
        help="reconnect: while the metadata store is silent, open topics go on, and what was owned is taken up again "
        "afterwards; shutdown: no receipt leaves once the session may have ended, and the broker stops when it has",
        choices=(RECONNECT, SHUTDOWN),
    )
    evaluates_patterns: bool = setting(
        "enableBrokerSideSubscriptionPatternEvaluation",
        True,
        help="topics are compared with a client's pattern here",
    )
    watches_topic_lists: bool = setting(
        "enableBrokerTopicListWatcher", True, help="with the setting before: clients may watch such lists"
    )
    pattern_characters_max: int = setting(
        "subscriptionPatternMaxLength", 50, help="longer patterns are left to the client"
    )
    default_bundles: int = setting(
        "defaultNumberOfNamespaceBundles",
        32,
        help="bundles of a new namespace, if the request does not say how many",
        most=BUNDLES_MAX,
        least=1,
    )

    split_algorithm: str = setting(
        "defaultNamespaceBundleSplitAlgorithm",
        SPLIT_ALGORITHMS[0],
        help=f"where bundles are cut: one of {', '.join(SPLIT_ALGORITHMS)}",
        choices=SPLIT_ALGORITHMS,
    )
    split_algorithms: tuple[str, ...] = setting(
        "supportedNamespaceBundleSplitAlgorithms",
        SPLIT_ALGORITHMS,
        help="those that a request may ask for",
        choices=SPLIT_ALGORITHMS,
    )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.configuration_store_url and _place(self.configuration_store_url) != _place(self.metadata_store_url):
            yield (
                f"configurationMetadataStoreUrl={self.configuration_store_url}: a second store is not read; remove it, "
                "or set it to metadataStoreUrl"
            )
        if self.bookkeeper_store_uri and _place(self.bookkeeper_store_uri) != _place(self.metadata_store_url):
            yield (
                f"bookkeeperMetadataServiceUri={self.bookkeeper_store_uri}: ledgers are at /ledgers in the store of "
                "metadataStoreUrl; remove it"
            )


def _place(url: str) -> tuple[frozenset[str], str]:
    """The servers of a metadata store, and the path below which it is used, however its URL is written."""
    rest = re.sub(r"^(metadata-store:)?(zk(\+\w+)?:(//)?)?", "", url.strip())
    hosts, _, path = rest.partition("/")
    servers = frozenset(host for host in re.split("[,;]", hosts) if host)
    return servers, path.strip("/").removesuffix("ledgers").rstrip("/")
