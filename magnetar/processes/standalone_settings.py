"""The settings of a standalone: those of its broker and of its bookies, in one file, as in Apache's `standalone.conf`.

A name that broker or bookie knows is accepted. Settings that a standalone decides itself (its folders, the names of its
bookies) are refused with a hint. `advertisedAddress`, the only name that both have, is the broker's.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bookie.config import IGNORED_SETTINGS, BookieConfig
from broker.settings.apache import names as apache_names
from broker.settings.config import BrokerConfig, load_broker_config
from magnetar_core.runtime.config import PROCESSES, from_environment, load, names_of, unknown_setting, with_origin
from magnetar_core.runtime.process.daemon import read_properties
from magnetar_core.runtime.types import ConfigurationError

FIRST_BOOKIE_PORT: Final = 3181
FIRST_BOOKIE_HTTP_PORT: Final = 8000
GRPC_PORT: Final = 6648
SERVICE_PORT_TLS: Final = 6651
WEB_PORT_TLS: Final = 8443
COPIES_MAX: Final = 3
"""The most copies of each entry, where there are several bookies; one may be missing when it is acknowledged."""

# Pulsar deletes messages that no subscription waits for, and after a minute the whole topic. On one machine, where
# people try things out, published messages are kept; a configuration file can say otherwise.
KEEP_EVERYTHING: Final = {
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "brokerDeleteInactiveTopicsEnabled": "false",
}

BROKER_NAMES: Final = names_of(BrokerConfig) | apache_names.NAMES
BOOKIE_NAMES: Final = (names_of(BookieConfig) | IGNORED_SETTINGS.keys()) - BROKER_NAMES

_FOLDERS: Final = "everything of a standalone is stored below its --data; remove the setting"
_OWN_PROCESS: Final = "remove the setting, or run bookies and broker as processes of their own"
_DECIDED: Final[Mapping[str, str]] = {
    "journalDirectory": _FOLDERS,
    "journalDirectories": _FOLDERS,
    "ledgerDirectories": _FOLDERS,
    "metadataServiceUri": _FOLDERS,
    "bookieId": f"the bookies of a standalone are called bookie-1, bookie-2, …; {_OWN_PROCESS}",
}
"""Settings that a standalone decides itself → what to do instead. One that is set to nothing is not refused."""

_ANY_ADDRESS: Final = ("0.0.0.0", "::")


class StandaloneSettings(NamedTuple):
    """The settings of a standalone's parts."""

    broker: BrokerConfig
    bookies: tuple[BookieConfig, ...]
    preferred_grpc_port: int | None = GRPC_PORT
    """If this one is in use, any free port is taken; None: the port of the topic API was asked for by an option."""


def read_standalone_settings(
    data: Path,
    path: Path | None,
    environ: Mapping[str, str],
    *,
    bookies: int,
    service_port: int | None = None,
    web_port: int | None = None,
    grpc_port: int | None = None,
    first_bookie_port: int | None = None,
    secure: Mapping[str, str] | None = None,
) -> StandaloneSettings:
    """The settings in the file at *path* and in *environ*, for a standalone on the folder *data*.

    The ports win over both. *secure* are the settings that `--secure` decides; then the ports are those of TLS. Raises
    ConfigurationError with every problem, each with the file that it is in.
    """
    if bookies < 1:
        raise ConfigurationError("--bookies must be at least 1")
    values = {**read_properties(path), **from_environment(environ)}
    suffix = ""
    if secure is not None:
        values, suffix = _secured(values, secure, path, environ), "Tls"
        if service_port == 0:
            values["grpcServicePortTls"] = "0"
    ports = {
        f"brokerServicePort{suffix}": service_port,
        f"webServicePort{suffix}": web_port,
        f"grpcServicePort{suffix}": grpc_port,
        "bookiePort": first_bookie_port,
    }
    values |= {name: str(port) for name, port in ports.items() if port is not None}
    try:
        settings = standalone_settings(data, values, bookies=bookies, has_bookie_tls=secure is not None)
        return settings if grpc_port is None else settings._replace(preferred_grpc_port=None)
    except ConfigurationError as error:
        raise ConfigurationError(with_origin(str(error), str(path or ""), environ)) from None


def _secured(
    values: Mapping[str, str], secure: Mapping[str, str], path: Path | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """*values* with what `--secure` decides, and with ports that speak TLS only and ask everybody who it is, unless
    *values* say otherwise. Raises ConfigurationError."""
    problems = [
        with_origin(
            f"{name}: --secure decides this; remove the setting, or leave --secure out", str(path or ""), environ
        )
        for name in values
        if name in secure
    ]
    if problems:
        raise ConfigurationError("\n".join(problems))
    ports = {
        "brokerServicePort": "",
        "webServicePort": "",
        "grpcServicePort": "",
        "brokerServicePortTls": str(SERVICE_PORT_TLS),
        "webServicePortTls": str(WEB_PORT_TLS),
        "grpcServicePortTls": str(GRPC_PORT),
        "authenticateMetricsEndpoint": "true",
    }
    return {**ports, **values, **secure}


def standalone_settings(
    data: Path, values: Mapping[str, str], *, bookies: int, has_bookie_tls: bool = False
) -> StandaloneSettings:
    """*has_bookie_tls*: bookies and broker have TLS between them, by files that `--secure` makes.

    Raises ConfigurationError with every problem of *values*.
    """
    of_bookies = {name: text for name, text in values.items() if name in BOOKIE_NAMES}
    of_broker = {name: text for name, text in values.items() if name in BROKER_NAMES}
    problems = [
        unknown_setting(name, [*BROKER_NAMES, *BOOKIE_NAMES])
        for name in values
        if name not in BROKER_NAMES and name not in BOOKIE_NAMES
    ]
    problems += [f"{name}={values[name]}: {why}" for name, why in _DECIDED.items() if values.get(name)]
    if values.get(PROCESSES, "1") not in ("", "1"):
        problems.append(f"{PROCESSES}={values[PROCESSES]}: a standalone is one process; {_OWN_PROCESS}")
    broker: BrokerConfig | None = None
    configs: list[BookieConfig] = []
    try:
        broker = load_broker_config(
            {**_broker_defaults(of_broker, bookies), **of_broker},
            overrides={"metadataStoreUrl": f"rocksdb:{data / 'metadata'}"},
        )
        if broker.bookie_tls is not None and not has_bookie_tls:
            problems.append(
                f"{broker.bookie_tls.origin}: the bookies of a standalone are in its own process, on the loopback "
                f"address and without TLS but by --secure; {_OWN_PROCESS}"
            )
    except ConfigurationError as error:
        problems.append(str(error))
    try:
        configs = [_bookie(data, number, of_bookies, is_secure=has_bookie_tls) for number in range(bookies)]
        problems += _bookie_problems(configs[0], has_tls=has_bookie_tls)
    except ConfigurationError as error:
        problems.append(str(error))
    if problems or broker is None:
        raise ConfigurationError("\n".join(problems))
    return StandaloneSettings(broker, tuple(configs))


def _broker_defaults(given: Mapping[str, str], bookies: int) -> dict[str, str]:
    """Settings that fit one machine; a person's file wins over them."""
    copies = min(bookies, COPIES_MAX)
    return {
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "localhost",
        "clusterName": "standalone",
        # 6648 if it is free; any free port otherwise, or if the binary port is any free one too.
        "grpcServicePort": "0" if given.get("brokerServicePort") == "0" else str(GRPC_PORT),
        "managedLedgerDefaultEnsembleSize": str(copies),
        "managedLedgerDefaultWriteQuorum": str(copies),
        "managedLedgerDefaultAckQuorum": str(min(copies, 2)),
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
        **KEEP_EVERYTHING,
    }


def _bookie(data: Path, number: int, given: Mapping[str, str], *, is_secure: bool) -> BookieConfig:
    """Settings of one of the bookies, counted from 0. Raises ConfigurationError."""
    place = data / f"bookie-{number + 1}"
    listen = given.get("bookieListenAddress") or "127.0.0.1"
    chosen = {name: text for name, text in given.items() if name not in _DECIDED}
    decided = {
        "bookieListenAddress": listen,
        "advertisedAddress": "127.0.0.1" if listen in _ANY_ADDRESS else listen,
        # The name in the cluster does not depend on the port, so that a folder may run on other ports.
        "bookieId": f"bookie-{number + 1}",
        "journalDirectories": str(place / "journal"),
        "ledgerDirectories": str(place / "ledgers"),
    }
    usual = {
        "bookiePort": str(FIRST_BOOKIE_PORT),
        # Their HTTP asks nobody who they are, as theirs never does; `--secure` lets nobody in who is not known.
        "httpServerEnabled": str(not is_secure).lower(),
        "httpServerPort": "0" if given.get("bookiePort") == "0" else str(FIRST_BOOKIE_HTTP_PORT),
        # As in Apache's standalone.conf: the disk of a developer's machine is full of other things.
        "diskUsageThreshold": "0.99",
        "diskUsageWarnThreshold": "0.99",
    }
    first = load(BookieConfig, {**usual, **chosen, **decided}, ignored=IGNORED_SETTINGS)
    next_to_it = {
        "bookiePort": str(first.port and first.port + number),
        "httpServerPort": str(first.http_port and first.http_port + number),
    }
    return load(BookieConfig, {**usual, **chosen, **decided, **next_to_it}, ignored=IGNORED_SETTINGS)


def _bookie_problems(config: BookieConfig, *, has_tls: bool) -> Iterator[str]:
    if config.tls is not None and not has_tls:
        yield f"{config.tls.origin}: the bookies of a standalone have no TLS but by --secure; {_OWN_PROCESS}"
    if config.is_metrics_only:
        yield (
            "statsProviderClass: the metrics of a standalone's bookies are at its broker's /metrics, and with "
            f"httpServerEnabled=true at their own; {_OWN_PROCESS}"
        )
