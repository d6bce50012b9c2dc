"""Where a broker is reached. No IO."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from magnetar_core.runtime.config import Group, processes_setting, setting

# The name of the listener of brokers among themselves, if nothing else is said; it need not be there.
INTERNAL: Final = "internal"


@dataclass(frozen=True, kw_only=True)
class Ports(Group):
    """Ports, and the addresses that clients are told."""

    service_port: int | None = setting("brokerServicePort", 6650, help="port of the binary protocol; 0 = any free one")
    service_port_tls: int | None = setting("brokerServicePortTls", None, help="port of the binary protocol over TLS")
    web_port: int | None = setting("webServicePort", 8080, help="port of the HTTP admin API; 0 = any free one")
    web_port_tls: int | None = setting("webServicePortTls", None, help="port of the HTTP admin API over TLS")
    grpc_port: int | None = setting("grpcServicePort", None, help="port of the topic API over gRPC; 0 = any free one")
    grpc_port_tls: int | None = setting("grpcServicePortTls", None, help="port of the topic API over gRPC, with TLS")
    processes: int = processes_setting()
    bind_address: str = setting("bindAddress", "0.0.0.0", help="address that the ports are opened on")
    advertised_address: str | None = setting(
        "advertisedAddress", None, help="host name that clients are told; default: the address bound"
    )
    advertised_listeners: str = setting(
        "advertisedListeners", "", help="name:pulsar://host:port, comma separated: addresses for named listeners"
    )
    internal_listener_name: str = setting(
        "internalListenerName",
        INTERNAL,
        help="the advertised listener for clients that name none; without a listener of this name, or if this is "
        "empty, they hear advertisedAddress",
    )

    @property
    def advertised_host(self) -> str:
        """The host name that clients are told; `localhost` for a broker on all addresses that advertises none."""
        if self.advertised_address:
            return self.advertised_address
        return "localhost" if self.bind_address in ("0.0.0.0", "::", "") else self.bind_address

    @property
    def has_tls(self) -> bool:
        """Whether one of the ports speaks TLS."""
        return any(port is not None for port in (self.service_port_tls, self.web_port_tls, self.grpc_port_tls))

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.service_port is None and self.service_port_tls is None:
            yield "brokerServicePort or brokerServicePortTls must be set: clients come in there"
        try:
            names = parse_listeners(self.advertised_listeners)
        except ValueError as error:
            yield f"advertisedListeners: {error}"
        else:
            if self.internal_listener_name not in ("", INTERNAL, *names):
                yield f"internalListenerName={self.internal_listener_name} is not among advertisedListeners"


def parse_listeners(text: str) -> dict[str, tuple[str, str]]:
    """`name:pulsar://host:port,…` as name → (URL, URL over TLS). Raises ValueError."""
    listeners: dict[str, tuple[str, str]] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        name, separator, url = part.strip().partition(":")
        if not separator or not name or not url.startswith(("pulsar://", "pulsar+ssl://")):
            raise ValueError(f"{part.strip()!r} is not name:pulsar://host:port")
        plain, tls = listeners.get(name, ("", ""))
        listeners[name] = (plain, url) if url.startswith("pulsar+ssl://") else (url, tls)
    return listeners
