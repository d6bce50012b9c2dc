"""The settings in a `bookkeeper.conf`: one file for a bookie, for the auto-recovery in it, and for a node alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autorecovery.config import IGNORED_SETTINGS as IGNORED_BY_AUTO_RECOVERY
from autorecovery.config import AutoRecoveryConfig
from bookie.config import IGNORED_SETTINGS as IGNORED_BY_BOOKIES
from bookie.config import SHIPPED_SETTINGS, BookieConfig
from magnetar_core.runtime.apache_lists import changed
from magnetar_core.runtime.config import kinds_of, setting
from magnetar_core.runtime.http.hosts import names_setting
from magnetar_core.runtime.process.daemon import read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Where a node of its own finds its cluster."""

    metadata_service_uri: str = setting("metadataServiceUri", "", help="metadata store: zk://host:port/ledgers")
    session_timeout_ms: int = setting("zkTimeout", 30_000, help="session with the metadata store, milliseconds")
    name: str = setting("bookieId", "", help="name of the node in locks and elections; empty: host and process")
    http_enabled: bool = setting("httpServerEnabled", False, help="the HTTP management interface")
    http_port: int = setting("httpServerPort", 8000, help="its TCP port; 0 takes a free one")
    http_host: str = setting(
        "httpServerHost", "127.0.0.1", help="address that it listens on; Apache's default is 0.0.0.0"
    )
    http_names: tuple[str, ...] = names_setting()


# Each reader takes its own settings and leaves those of the others; a name that nobody knows is refused by each.
_NOT_OF_BOOKIES: Final = {**dict.fromkeys(SHIPPED_SETTINGS, "text"), **IGNORED_BY_BOOKIES}
_BOOKIE: Final = {**kinds_of(BookieConfig), **_NOT_OF_BOOKIES}
_AUTO_RECOVERY: Final = {**kinds_of(AutoRecoveryConfig), **IGNORED_BY_AUTO_RECOVERY}


def read_bookie_settings(path: Path | None, overrides: Mapping[str, str] | None = None) -> BookieConfig:
    """The bookie's settings; *overrides* win over file and environment. Raises ConfigurationError."""
    return read_settings(
        BookieConfig,
        path,
        ignored={**_AUTO_RECOVERY, **_NOT_OF_BOOKIES},
        overrides=overrides,
        also=lambda values: changed(values, SHIPPED_SETTINGS, "bookie"),
    )


def read_auto_recovery_settings(path: Path | None) -> AutoRecoveryConfig:
    """The settings of auto-recovery. Raises ConfigurationError."""
    return read_settings(
        AutoRecoveryConfig, path, ignored={**_BOOKIE, **kinds_of(NodeConfig), **IGNORED_BY_AUTO_RECOVERY}
    )


def read_node_settings(path: Path | None) -> NodeConfig:
    """Where a node of auto-recovery finds its cluster. Raises ConfigurationError."""
    return read_settings(NodeConfig, path, ignored={**_BOOKIE, **_AUTO_RECOVERY})
