"""Asks for one connection whether its caller may do what a command wants. No IO."""

from typing import Protocol

from broker.binary.admission.client_facts import ClientFacts
from broker.errors import NoSuchTenant, NotAuthorized
from broker.names import parse_topic
from broker.security.authorization import Need, Operation, about_topic
from magnetar_core.security.caller import Caller
from magnetar_core.topics.topic_name import TopicName


class AccessPort(Protocol):
    """Lets callers in, or refuses them (`broker.security.access.Access`)."""

    async def check(self, caller: Caller, need: Need) -> None:
        """Raises NotAuthenticated, NotAuthorized, MetadataFailure."""
        ...


class Guard:
    """Knows who is at the other end of a connection; the parts of the connection ask it first of all."""

    __slots__ = ("_access", "client")

    def __init__(self, access: AccessPort, client: ClientFacts) -> None:
        self._access = access
        self.client = client

    async def check(self, need: Need) -> None:
        """Raises NotAuthenticated, NotAuthorized (also in a tenant that does not exist), MetadataFailure."""
        try:
            await self._access.check(self.client.caller, need)
        except NoSuchTenant as error:
            raise NotAuthorized(f"{self.client.caller} may not do this: {error}") from error

    async def topic(self, text: str, operation: Operation, subscription: str = "") -> TopicName:
        """The topic that a client names, if the client may do *operation* with it.

        Raises InvalidTopicName, NotAuthenticated, NotAuthorized, MetadataFailure.
        """
        name = parse_topic(text)
        await self.check(about_topic(operation, name, subscription))
        return name

    async def topic_for_partitions(self, text: str) -> TopicName:
        """The topic that a client names to learn its number of partitions, which is a client's first question.

        In answer to this question alone Apache's brokers (4.0.8) tell a tenant that does not exist from a right that is
        missing, so NoSuchTenant is passed on here.

        Raises InvalidTopicName, NotAuthenticated, NotAuthorized, NoSuchTenant, MetadataFailure.
        """
        name = parse_topic(text)
        await self._access.check(self.client.caller, about_topic(Operation.LOOKUP, name))
        return name
