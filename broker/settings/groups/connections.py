"""Limits of connections, and of what all of them have in memory. No IO."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from magnetar_core.runtime.config import Group, loop_stall_setting, setting
from magnetar_core.runtime.http.hosts import names_setting
from magnetar_core.runtime.types import MIB

# The smallest message size that still leaves room for what clients put around a message.
MESSAGE_BYTES_MIN: Final = 1024

# A message is one buffer in every process that handles it. With its headers its length must stay within 31 bits, in
# which protobuf and gRPC keep it.
MESSAGE_BYTES_MAX: Final = 1024 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Connections(Group):
    """Limits of a connection, and of a broker's connections together."""

    max_message_bytes: int = setting(
        "maxMessageSize",
        5 * 1024 * 1024,
        help="largest message, told to the clients",
        least=MESSAGE_BYTES_MIN,
        most=MESSAGE_BYTES_MAX,
    )
    max_uncompressed_bytes: int = setting(
        "maxUncompressedEntrySize",
        0,
        help="bytes that an entry may unpack to for consumers of the topic API; 0: four times maxMessageSize",
    )
    keep_alive_s: int = setting(
        "keepAliveIntervalSeconds", 30, help="a connection silent for two of these is closed", least=1
    )
    # 1,000 messages of 64 KiB are 64 MiB for one client. The journal stores messages of 1 KiB in groups of about 1,000,
    # so the limit protects the broker and does not throttle a client.
    max_pending_publishes: int = setting(
        "maxPendingPublishRequestsPerConnection", 1000, help="sends without a receipt before reading pauses", least=1
    )
    max_non_persistent: int = setting(
        "maxConcurrentNonPersistentMessagePerConnection",
        1000,
        help="messages for non-persistent topics that a connection may bring at once; others are dropped",
        least=1,
    )
    max_concurrent_lookups: int = setting(
        "maxConcurrentLookupRequest", 50_000, help="lookups under way in the whole broker", least=1
    )
    # Clients give a lookup up after 30 s. Whoever is refused earlier waits out a back-off of its own.
    takeover_wait_s: int = setting(
        "lookupTakeoverWaitSeconds", 20, help="a lookup waits so long for a topic whose broker is gone or gives it back"
    )

    tells_what_it_serves: bool = setting(
        "magnetarServingLog", True, help="tell other brokers which topics this one serves, and make ready for theirs"
    )

    loop_stall_warn_ms: int = loop_stall_setting()

    http_requests_limited: bool = setting(
        "httpRequestsLimitEnabled", False, help="whether httpRequestsMaxPerSecond is in force"
    )
    http_requests_per_s: float = setting(
        "httpRequestsMaxPerSecond", 100.0, help="HTTP requests a second, of all clients; more are answered with 429"
    )
    http_names: tuple[str, ...] = names_setting()
    http_connections_max: int = setting(
        "maxHttpServerConnections", 2048, help="connections to the HTTP ports; 0 = no limit"
    )
    http_idle_ms: int = setting(
        "httpServerIdleTimeout",
        30_000,
        help="an HTTP connection without a whole request for so long is closed",
        least=1,
    )
    http_header_bytes: int = setting(
        "httpMaxRequestHeaderSize", 8192, help="one header, or the first line, of an HTTP request", least=1024
    )
    max_connections: int = setting("brokerMaxConnections", 0, help="connections to the binary ports; 0 = no limit")
    max_connections_per_ip: int = setting(
        "brokerMaxConnectionsPerIp", 0, help="connections from one address; 0 = no limit"
    )
    proxy_protocol: bool = setting(
        "haProxyProtocolEnabled", False, help="the PROXY header of a load balancer is read before the first command"
    )
    web_proxy_protocol: bool = setting(
        "webServiceHaProxyProtocolEnabled", False, help="the same for HTTP, and before the TLS of HTTPS"
    )

    @property
    def uncompressed_bytes_max(self) -> int:
        """What an entry may unpack to. Clients compare the compressed size with maxMessageSize, so this is more."""
        return self.max_uncompressed_bytes or min(4 * self.max_message_bytes, 2**31 - 1)


@dataclass(frozen=True, kw_only=True)
class Memory(Connections):
    """Memory for all clients together (`broker.memory_budget`)."""

    publish_buffer_mbytes: int = setting(
        "maxMessagePublishBufferSizeInMB",
        -1,
        help="sends of all connections without a receipt, MB; above it sockets are not read; "
        "-1 = 1/8 of the memory, at most 128",
        least=-1,
    )
    read_buffer_mbytes: int = setting(
        "managedLedgerMaxReadsInFlightSizeInMB",
        -1,
        help="reads under way and frames not yet sent, of all connections, MB; above it nothing is read; "
        "-1 or 0 = 1/16 of the memory, at most 64",
        least=-1,
    )

    def publish_buffer_bytes(self, memory_bytes: int) -> int:
        """maxMessagePublishBufferSizeInMB in bytes, for a process that may use *memory_bytes*."""
        return self._buffer_bytes(self.publish_buffer_mbytes, memory_bytes // 8, 128 * MIB)

    def read_buffer_bytes(self, memory_bytes: int) -> int:
        """managedLedgerMaxReadsInFlightSizeInMB in bytes, for a process that may use *memory_bytes*."""
        return self._buffer_bytes(self.read_buffer_mbytes, memory_bytes // 16, 64 * MIB)

    def _buffer_bytes(self, wanted_mbytes: int, share_bytes: int, most_bytes: int) -> int:
        if wanted_mbytes > 0:
            return wanted_mbytes * MIB
        return max(min(share_bytes, most_bytes), 2 * self.max_message_bytes)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name, mbytes in (
            ("maxMessagePublishBufferSizeInMB", self.publish_buffer_mbytes),
            ("managedLedgerMaxReadsInFlightSizeInMB", self.read_buffer_mbytes),
        ):
            if mbytes > 0 and mbytes * MIB < 2 * self.max_message_bytes:
                yield f"{name} ({mbytes}) must hold two messages of maxMessageSize ({self.max_message_bytes} bytes)"
