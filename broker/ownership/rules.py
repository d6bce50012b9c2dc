"""Which broker serves a topic: the Protocol that a broker asks, and its values. No IO.

Rules the rest of the broker relies on:

1. `owns` is asked before a topic is loaded and before a producer or consumer is attached; it never waits. A client that
   was sent here by the former owner (PIP-307), or by a broker that sees a node of this one before it knows that the
   bundle is its own, or after it was restarted, may come before the bundle does: `is_coming` waits for that.
2. While `may_acknowledge` is false no receipt is sent: the broker's session with the metadata store may have ended
   unnoticed, and another broker may serve the topic. (Only with `zookeeperSessionExpiredPolicy=shutdown`.)
3. A bundle that was reported as lost is closed at once: its clients are told to look up again, and no receipt
   leaves afterwards, not even for what is durable.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from broker.errors import NotReady
from magnetar_core.topics.topic_name import TopicName

# The listener under which brokers find each other's ports of the topic API over gRPC.
GRPC_LISTENER: Final = "magnetar-grpc"


class NoBrokerAvailable(NotReady, code=NotReady.code):
    """No broker can serve the bundle at the moment."""


class BrokerAddress(NamedTuple):
    """How clients reach a broker. The URL of a protocol that it does not serve is empty."""

    service_url: str
    """`pulsar://host:port`."""
    service_url_tls: str = ""
    """`pulsar+ssl://host:port`."""
    http_url: str = ""
    https_url: str = ""
    listeners: Mapping[str, tuple[str, str]] = {}
    """Named listeners: (service URL, service URL over TLS)."""

    @property
    def native_url(self) -> str:
        """The URL of the binary protocol, over TLS if there is no other: what distinguishes brokers."""
        return self.service_url or self.service_url_tls

    @property
    def has_listeners(self) -> bool:
        """Whether clients of the binary protocol reach it at several addresses, by the listener that they ask for."""
        return bool(self.listeners.keys() - {GRPC_LISTENER})

    @property
    def broker_id(self) -> str:
        """Its name in the cluster, `host:port` of HTTP; empty if it has none. (Pulsar 5.0 writes it into records.)"""
        return urlsplit(self.http_url or self.https_url).netloc

    def web_url(self, *, secure: bool) -> str:
        """The URL of HTTP: over TLS if *secure* or if there is no other. Empty if there is none."""
        return (self.https_url or self.http_url) if secure else (self.http_url or self.https_url)


class Located(NamedTuple):
    """Where a topic is served."""

    here: bool
    broker: BrokerAddress | None
    """The broker to connect to, or with `redirect` to look up at; None only with `here`."""
    redirect: bool = False
    """The lookup is to be repeated at *broker*, which does not serve the topic yet."""
    authoritative: bool = True
    """With `redirect`: the flag of the repeated lookup."""


def session_has_time(now_s: float, last_answer_s: float, session_timeout_s: float) -> bool:
    """Whether our session cannot have ended yet; seconds of one monotonic clock (the session rule).

    A session ends when the metadata store has not heard from the broker for the session's time. Counted from the
    sending of the last request that was answered, by the broker's own clock, that moment is never after the store's: a
    broker that stops acknowledging then has stopped before another one can take over. (Fencing is the second guard,
    behind this rule.)
    """
    return now_s - last_answer_s < session_timeout_s


class Ownership(Protocol):
    """Knows and acquires the bundles of this broker, and finds the owners of others."""

    async def locate(self, topic: TopicName, *, authoritative: bool) -> Located:
        """Find the broker that serves *topic*; may acquire its bundle for this one. Raises NoBrokerAvailable."""
        ...

    async def brokers(self) -> dict[str, BrokerAddress]:
        """The registered brokers by id; some may have just died. Raises Corruption."""
        ...

    def owns(self, topic: TopicName) -> bool:
        """Whether the topic's bundle is ours now."""
        ...

    async def is_coming(self, topic: TopicName) -> bool:
        """Whether the topic's bundle is ours, after waiting for it if this broker is about to take it.

        Raises NoBrokerAvailable, StoreUnavailable, Corruption.
        """
        ...

    def may_acknowledge(self) -> bool:
        """Whether receipts may leave (the session rule)."""
        ...

    def watch_lost(self, lost: Callable[[list[str]], None]) -> Callable[[], None]:
        """Call *lost* with the names of bundles that this broker does not own any more; returns how to stop."""
        ...
