"""The URL of the metadata store, as it is written in settings and options.

    zk:host:port[,host:port…][/chroot]     Apache ZooKeeper
    rocksdb:DIR                            a directory of this machine; one process owns it
    memory:NAME                            a tree in this process that all openers of NAME share

Bookies and auto-recovery are also given Apache's `metadataServiceUri`, which names the ledgers' root as well:
`zk+hierarchical://host:port;host:port/ledgers` or `metadata-store:<url as above>/ledgers`.
"""

import re
from typing import Final

from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.secondary import open_secondary
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import ConfigurationError

DEFAULT_ROOT: Final = "/ledgers"

_SERVICE_URI: Final = re.compile(r"zk(\+(?P<layout>[a-z]+))?://(?P<hosts>[^/]+)(?P<root>/.*)?")

# The trees of `memory:NAME`; they exist as long as the process.
_memories: dict[str, MemoryStore] = {}


ZOOKEEPER_PORT: Final = 2181


def zookeeper_hosts(place: str) -> dict[str, tuple[str, int]]:
    """Each server in *place*, the part of a URL behind `zk:`, with its host and port. Raises ConfigurationError."""
    servers: dict[str, tuple[str, int]] = {}
    for text in place.partition("/")[0].split(","):
        if not text:
            continue
        host, separator, port = text.rpartition(":")
        if separator and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise ConfigurationError(f"zk:{place}: what stands behind {host}: is no port (1 to 65535)")
        servers[text] = (host, int(port)) if separator else (text, ZOOKEEPER_PORT)
    return servers


async def open_store(
    url: str, clock: Clock, *, session_timeout_s: float = 30.0, read_only: bool = False
) -> MetadataStore:
    """Connect to the tree that *url* names.

    *session_timeout_s* matters to ZooKeeper only. *read_only* lets a second process read a `rocksdb:` directory
    while its owner works. Raises ConfigurationError, StoreInUse, StoreUnavailable.
    """
    scheme, separator, place = url.partition(":")
    if not separator or not place:
        raise ConfigurationError(f"{url!r} is not a metadata URL: zk:host:port, rocksdb:DIRECTORY or memory:NAME")
    match scheme:
        case "zk":
            zookeeper_hosts(place)
            # Imported only here: the other stores work without kazoo's threads and import time.
            from magnetar_core.bookkeeper.metadata.stores.zookeeper import ZooKeeperStore

            return await ZooKeeperStore.open(place, session_timeout_s, clock)
        case "rocksdb":
            path = place.removeprefix("//")
            return await (open_secondary(path, clock) if read_only else EmbeddedStore.open(path, clock))
        case "memory":
            tree = _memories.get(place)
            if tree is None:
                tree = _memories[place] = MemoryStore(clock)
            return tree.session()
    raise ConfigurationError(f"{url!r}: unknown kind of metadata store {scheme!r} (known: zk, rocksdb, memory)")


def split_service_uri(uri: str) -> tuple[str, str]:
    """Apache's `metadataServiceUri` as (URL for `open_store`, ledgers' root). Raises ConfigurationError."""
    match = _SERVICE_URI.fullmatch(uri)
    if match is not None:
        layout = match["layout"]
        if layout not in (None, "null", "hierarchical"):
            raise ConfigurationError(f"{uri}: layout {layout!r} is not supported (only hierarchical)")
        return "zk:" + match["hosts"].replace(";", ","), (match["root"] or DEFAULT_ROOT).rstrip("/")
    url = uri.removeprefix("metadata-store:")
    if url.startswith("zk:"):
        hosts, slash, path = url.removeprefix("zk:").partition("/")
        # The last part is the ledgers' root, the parts before it are the chroot.
        chroot, _, name = path.rstrip("/").rpartition("/")
        if not slash or not name or uri == url:
            return url, DEFAULT_ROOT
        return f"zk:{hosts}" + (f"/{chroot}" if chroot else ""), f"/{name}"
    return url, DEFAULT_ROOT
