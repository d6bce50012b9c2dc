"""What a client can be refused with, and the code that says so on the wire. No IO.

BrokerError                     UnknownError
 ├─ InvalidTopicName            the name breaks the rules
 ├─ TopicNotFound               also: its namespace or tenant
 ├─ SubscriptionNotFound
 ├─ NotReady                    not owned here, being loaded or unloaded, fenced for a moment: retry
 ├─ MetadataFailure             the metadata store
 ├─ StorageFailure              the ledgers
 │   └─ TopicUnreadable         what is stored of the topic cannot be understood: it can only be deleted, by force
 ├─ TopicTerminated
 ├─ ProducerBusy, ProducerFenced
 ├─ ConsumerBusy, ConsumerAssignError
 ├─ IncompatibleSchema
 ├─ QuotaExceeded, QuotaExceededHold
 ├─ TooManyRequests
 ├─ NotAuthenticated, NotAuthorized
 ├─ NothingStored               it asks for what only a persistent topic has
 └─ NotAllowed                  a policy forbids it, or this broker does not have it
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from broker.wire import pulsar_pb2 as wire
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.types import Corruption, MagnetarError
from managed_ledger.errors import (
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerTerminated,
    OpenTransaction,
    RecordUnreadable,
    ShadowTopic,
    TransactionalTopic,
)


class BrokerError(MagnetarError):
    """A request was refused; the text goes to the client."""

    code: ClassVar[int] = wire.UnknownError

    def __init__(self, text: str = "", way_out: str | None = None) -> None:
        """*way_out*: what the client can do, for the doors that say it; empty if *text* says so itself. None: what
        helps against most errors of the class."""
        super().__init__(text)
        self.way_out = way_out

    def __init_subclass__(cls, *, code: int) -> None:
        super().__init_subclass__()
        cls.code = code


class InvalidTopicName(BrokerError, code=wire.InvalidTopicName):
    """The topic's name breaks the rules for names."""


class TopicNotFound(BrokerError, code=wire.TopicNotFound):
    """The topic, its namespace or its tenant does not exist and may not be created on the way."""


class NoSuchTenant(TopicNotFound, code=TopicNotFound.code):
    """The tenant does not exist, which is told to a caller that has no right there either."""


class SubscriptionNotFound(BrokerError, code=wire.SubscriptionNotFound):
    """The subscription does not exist and may not be created on the way."""


class NotReady(BrokerError, code=wire.ServiceNotReady):
    """Not now or not here: the client looks up again and retries."""


class MetadataFailure(BrokerError, code=wire.MetadataError):
    """The metadata store did not do what was asked, or the request names something that is not there."""


class StorageFailure(BrokerError, code=wire.PersistenceError):
    """Reading or writing ledgers failed."""


class TopicUnreadable(StorageFailure, code=wire.PersistenceError):
    """A record of the topic is not what its format promises."""


class TopicTerminated(BrokerError, code=wire.TopicTerminatedError):
    """Nothing can be written to the topic any more."""


class ProducerBusy(BrokerError, code=wire.ProducerBusy):
    """The name is taken, or an exclusive producer is in place; also a refused subscription name."""


class ProducerFenced(BrokerError, code=wire.ProducerFenced):
    """Another producer has exclusive access, or had it later."""


class ConsumerBusy(BrokerError, code=wire.ConsumerBusy):
    """Another consumer prevents this one from joining."""


class ConsumerAssignError(BrokerError, code=wire.ConsumerAssignError):
    """The hash ranges of a Key_Shared consumer are not possible."""


class IncompatibleSchema(BrokerError, code=wire.IncompatibleSchema):
    """The schema is not compatible with those of the topic."""


class NotAllowed(BrokerError, code=wire.NotAllowedError):
    """A policy forbids it, or this broker does not have the feature."""


class NothingStored(BrokerError, code=wire.UnknownError):
    """The topic is not persistent. (The code is that of Apache's brokers.)"""


class NotAuthenticated(BrokerError, code=wire.AuthenticationError):
    """The client has not shown who it is, or what it showed is not valid (any more)."""


class NotAuthorized(BrokerError, code=wire.AuthorizationError):
    """The client's role may not do this."""


class TooManyRequests(BrokerError, code=wire.TooManyRequests):
    """The client has more requests under way than the limit."""


class QuotaExceededHold(BrokerError, code=wire.ProducerBlockedQuotaExceededError):
    """The backlog quota is used up; the policy is producer_request_hold."""


class QuotaExceeded(BrokerError, code=wire.ProducerBlockedQuotaExceededException):
    """The backlog quota is used up; the policy is producer_exception."""


def storage_error(error: ManagedLedgerError) -> BrokerError:
    """How a client is told about *error* of a topic's managed ledger."""
    if isinstance(error, ManagedLedgerTerminated):
        return TopicTerminated(str(error))
    if isinstance(error, (ShadowTopic, TransactionalTopic, OpenTransaction)):
        return NotAllowed(str(error), way_out="")
    if isinstance(error, RecordUnreadable):
        return TopicUnreadable(str(error))
    if isinstance(error, ManagedLedgerFenced):
        return NotReady(str(error))
    return StorageFailure(str(error))


@contextmanager
def storage_errors() -> Iterator[None]:
    """An error of a topic's managed ledger becomes what its client is told (`storage_error`)."""
    try:
        yield
    except ManagedLedgerError as error:
        raise storage_error(error) from error


@contextmanager
def metadata_errors() -> Iterator[None]:
    """A record that cannot be read, or an unreachable metadata store, becomes MetadataFailure with the same text."""
    try:
        yield
    except (MetadataError, ManagedLedgerError, Corruption) as error:
        raise MetadataFailure(str(error)) from error
