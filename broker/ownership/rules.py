"""Who serves a topic: the questions that the broker asks, whoever answers them.

Rules the rest of the broker relies on:

1. `owns` is asked before a topic is loaded and before a producer or consumer is attached; it never waits.
2. While `may_acknowledge` is false nothing that was published is confirmed: our session with the metadata store may
   have ended without our knowing, and another broker may be serving the topic.
3. A bundle that was reported as lost is closed at once: its clients are told to look up again, and no receipt
   leaves afterwards, not even for what is durable.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from broker.errors import NotReady
from managed_ledger.topic_name import TopicName


class NoBrokerAvailable(NotReady, code=NotReady.code):
    """Nobody can serve the bundle at the moment."""


class BrokerAddress(NamedTuple):
    """How clients reach a broker. URLs are empty where there is no such door."""

    service_url: str
    """`pulsar://host:port`."""
    service_url_tls: str = ""
    """`pulsar+ssl://host:port`."""
    http_url: str = ""
    https_url: str = ""
    listeners: Mapping[str, tuple[str, str]] = {}
    """Named listeners: (service URL, service URL over TLS)."""


class Located(NamedTuple):
    """Where a topic is served."""

    here: bool
    broker: BrokerAddress | None
    """The broker to connect to or to ask; None only with `here`."""
    redirect: bool = False
    """*broker* is to be asked; it does not serve the topic yet."""
    authoritative: bool = True
    """With `redirect`: what the repeated question must say."""


class Ownership(Protocol):
    """Who serves which bundle."""

    async def locate(self, topic: TopicName, *, authoritative: bool) -> Located:
        """Find who serves *topic*, taking its bundle if that falls to us. Raises NoBrokerAvailable."""
        ...

    def owns(self, topic: TopicName) -> bool:
        """Whether the topic's bundle is ours now."""
        ...

    def may_acknowledge(self) -> bool:
        """Whether receipts may leave (the session rule)."""
        ...

    def watch_lost(self, lost: Callable[[list[str]], None]) -> Callable[[], None]:
        """Call *lost* with the names of bundles that are ours no more; returns how to stop."""
        ...
