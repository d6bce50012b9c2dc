"""Which broker serves a topic: the answer of all ports of a broker (binary protocol, topic API, HTTP)."""

from collections.abc import Callable
from typing import NamedTuple

from broker.errors import BrokerError, NotReady, TooManyRequests
from broker.ownership.rules import BrokerAddress, Ownership
from broker.settings.groups.ports import INTERNAL
from broker.tenancy.namespaces import Namespaces
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.data.distribution import Distribution
from magnetar_core.topics.topic_name import TopicName


class TopicAddress(NamedTuple):
    """The broker that a client should ask about a topic."""

    broker: BrokerAddress
    is_redirect: bool
    """The client should repeat its lookup at *broker*, which does not serve the topic yet."""
    authoritative: bool
    """With `is_redirect`: what the repeated lookup must say."""

    def service_urls(self, listener: str) -> tuple[str, str]:
        """(URL, URL over TLS) of the broker's listener of that name, the default one if it is empty or `internal`.

        Raises NotReady if the broker has no such listener.
        """
        if listener not in self.broker.listeners:
            if listener in ("", INTERNAL):
                return self.broker.service_url, self.broker.service_url_tls
            raise NotReady(f"the broker do not have {listener} listener")
        return self.broker.listeners[listener]


class Lookups:
    """Finds the brokers of topics."""

    def __init__(
        self,
        namespaces: Namespaces,
        ownership: Ownership,
        own_address: Callable[[], BrokerAddress],
        concurrent_max: Callable[[], int],
        now_s: Callable[[], float],
    ) -> None:
        """*own_address* is known once the broker listens; *concurrent_max* limits `find_for_client`; *now_s*: seconds,
        to measure how long lookups take."""
        self._namespaces = namespaces
        self._ownership = ownership
        self._own_address = own_address
        self._concurrent_max = concurrent_max
        self._now_s = now_s
        self.pending = 0
        """Clients' lookups under way."""
        self.times = Distribution()
        """Milliseconds of clients' lookups that were answered."""
        self.redirects = self.answers = self.failures = 0
        """Clients that were sent on to another broker, that got a topic's address, and that were refused."""

    async def find(self, topic: TopicName, *, authoritative: bool) -> TopicAddress:
        """The broker that serves *topic*, or knows more about it; *authoritative*: another broker sent the client here.

        Raises TopicNotFound (no such namespace), NotReady, MetadataFailure, MetadataError.
        """
        await self._namespaces.policies(topic.namespace)
        located = await self._ownership.locate(topic, authoritative=authoritative)
        broker = self._own_address() if located.here else located.broker
        assert broker is not None, "a topic that is not served here is served by another broker"
        is_redirect = located.redirect and not located.here
        return TopicAddress(broker, is_redirect, located.authoritative if is_redirect else True)

    async def find_for_client(self, topic: TopicName, *, authoritative: bool) -> TopicAddress:
        """As `find`, for clients: after a failure thousands of them ask at the same time.

        Raises TopicNotFound, NotReady, TooManyRequests, MetadataFailure.
        """
        if self.pending >= self._concurrent_max():
            self.failures += 1
            raise TooManyRequests("Failed due to too many pending lookup requests")
        self.pending += 1
        began_s = self._now_s()
        try:
            answer = await self.find(topic, authoritative=authoritative)
        except MetadataError as error:
            self.failures += 1
            raise NotReady(f"KeeperException: {error}") from error
        except BrokerError:
            self.failures += 1
            raise
        finally:
            self.pending -= 1
            assert self.pending >= 0, "more lookups ended than began"
        self.times.add((self._now_s() - began_s) * 1000)
        if answer.is_redirect:
            self.redirects += 1
        else:
            self.answers += 1
        return answer
