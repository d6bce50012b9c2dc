"""The settings of each process of a service that was asked for several brokers or bookies. No IO.

    process        0                    1                              i
    binary port    brokerServicePort    brokerServicePort + 1          + i      (TLS and gRPC alike)
    bookie port    bookiePort           bookiePort + 1                 + i
    HTTP, HTTPS    the service has the configured port; processes have the ports above it: + 1 + i
    directories    DIR                  DIR/process-1                  DIR/process-<i>
    bookie id      bookieId             bookieId-1                     bookieId-<i>; empty: host and port, as ever

Rules:

1. Process 0 has the ports, the directories and the id that a single one has: going from one process to several, and
   back, moves no data.
2. Port 0 stays 0: each process takes a free one.
3. All ports of a service differ; ports that meet are refused before anything is started.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Final

from bookie.config import BookieConfig
from broker.settings.config import BrokerConfig
from magnetar_core.runtime.config import PROCESSES
from magnetar_core.runtime.types import ConfigurationError

_PORT_MAX: Final = 65_535
_LISTENER_PORT: Final = re.compile(r":(\d+)(?=\s*(?:,|$))")

Share = dict[str, str]
"""Setting → its text in one process, where it is not that of the configuration."""


def broker_shares(config: BrokerConfig, processes: int) -> list[Share]:
    """The settings in which the brokers of a service differ. Raises ConfigurationError."""
    if not config.metadata_store_url.startswith("zk:"):
        raise ConfigurationError(
            f"{PROCESSES}={processes}: metadataStoreUrl={config.metadata_store_url} belongs to one process; several "
            "brokers need ZooKeeper (zk:HOST:PORT)"
        )
    own = {
        "brokerServicePort": config.service_port,
        "brokerServicePortTls": config.service_port_tls,
        "grpcServicePort": config.grpc_port,
        "grpcServicePortTls": config.grpc_port_tls,
    }
    web = {"webServicePort": config.web_port, "webServicePortTls": config.web_port_tls}
    if config.web_port_tls is not None and config.tls_client_required:
        raise ConfigurationError(
            f"{PROCESSES}={processes}: tlsRequireTrustedClientCertOnConnect asks for certificates that the one address "
            "of the service cannot show its processes; leave webServicePortTls empty and set webServicePort"
        )
    shares: list[Share] = []
    for number in range(processes):
        ports = {**_shifted_ports(own, number), **_shifted_ports(web, number + 1)}
        share = {name: str(port) for name, port in ports.items()}
        if config.advertised_listeners:
            share["advertisedListeners"] = _listeners(config.advertised_listeners, number)
        shares.append({**share, PROCESSES: "1"})
    _check_ports(shares, web, processes)
    return shares


def bookie_shares(config: BookieConfig, processes: int) -> list[Share]:
    """The settings in which the bookies of a service differ. Raises ConfigurationError."""
    uri = config.metadata_service_uri
    if "rocksdb:" in uri or "memory:" in uri:
        raise ConfigurationError(
            f"{PROCESSES}={processes}: metadataServiceUri={uri} belongs to one process; several bookies need ZooKeeper "
            "(zk://HOST:PORT/ledgers)"
        )
    name, http = http_setting(config)
    shares: list[Share] = []
    for number in range(processes):
        ports = {**_shifted_ports({"bookiePort": config.port}, number), **_shifted_ports({name: http}, number + 1)}
        share = {setting: str(port) for setting, port in ports.items()}
        if number:
            share["journalDirectories"] = ",".join(directory_of(path, number) for path in config.journal_directories)
            share["ledgerDirectories"] = ",".join(directory_of(path, number) for path in config.ledger_directories)
            # One node of auto-recovery for a service, as for a single bookie; its management is at the one address.
            share["autoRecoveryDaemonEnabled"] = "false"
            if config.bookie_id:
                share["bookieId"] = f"{config.bookie_id}-{number}"
        shares.append({**share, PROCESSES: "1"})
    _check_ports(shares, {name: http}, processes)
    return shares


def http_setting(config: BookieConfig) -> tuple[str, int | None]:
    """The name of the setting with the port of a bookie's HTTP, and the port; None: there is no HTTP."""
    name = "prometheusStatsHttpPort" if config.is_metrics_only else "httpServerPort"
    return name, None if config.http_address is None else config.http_address[1]


def directory_of(directory: str, number: int) -> str:
    """The directory of process *number*, of a directory in the configuration (rule 1)."""
    return directory if number == 0 else posixpath.join(directory, f"process-{number}")


def _shifted_ports(ports: Mapping[str, int | None], by: int) -> dict[str, int]:
    return {name: port + by if port else 0 for name, port in ports.items() if port is not None}


def _listeners(text: str, by: int) -> str:
    return _LISTENER_PORT.sub(lambda match: f":{int(match[1]) + by}", text)


def _check_ports(shares: list[Share], own: Mapping[str, int | None], processes: int) -> None:
    """Rule 3."""
    problems = list(_port_problems(shares, own))
    if problems:
        raise ConfigurationError(
            f"{PROCESSES}={processes}: each process has ports of its own, counted up from the configured ones:\n"
            + "\n".join(f"  {problem}" for problem in problems)
        )


def _port_problems(shares: list[Share], own: Mapping[str, int | None]) -> Iterator[str]:
    wanted = [(name, port, "the service") for name, port in own.items() if port]
    for number, share in enumerate(shares):
        # Ports only: the number of processes is a number in a share, too.
        ports = [(name, int(text)) for name, text in share.items() if "Port" in name]
        wanted += [(name, port, f"process {number}") for name, port in ports if port]
    holders: dict[int, tuple[str, str]] = {}
    for name, port, who in wanted:
        if port > _PORT_MAX:
            yield f"{name} of {who} would be {port}, which is above {_PORT_MAX}"
        elif port in holders:
            other, other_who = holders[port]
            yield f"{other} of {other_who} and {name} of {who} would both be {port}; set one of them further away"
        else:
            holders[port] = (name, who)
