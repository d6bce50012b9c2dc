"""Errors of the broker as gRPC statuses: the code, and a text that names the topic and says what to do."""

from typing import Any, Final

import grpc

from broker.errors import (
    BrokerError,
    ConsumerAssignError,
    ConsumerBusy,
    IncompatibleSchema,
    InvalidTopicName,
    MetadataFailure,
    NotAllowed,
    NotAuthenticated,
    NotAuthorized,
    NotReady,
    ProducerBusy,
    ProducerFenced,
    QuotaExceeded,
    QuotaExceededHold,
    StorageFailure,
    SubscriptionNotFound,
    TooManyRequests,
    TopicNotFound,
    TopicTerminated,
)
from magnetar_core.runtime.types import MagnetarError

Status: Any = grpc.StatusCode

_LOOK_UP: Final = "look the topic up again and retry"
_RETRY: Final = "retry"

_BY_CLASS: Final[dict[type[BrokerError], tuple[Any, str]]] = {
    InvalidTopicName: (Status.INVALID_ARGUMENT, "write persistent://tenant/namespace/topic or a short name"),
    TopicNotFound: (Status.NOT_FOUND, "create the topic, or allow that topics are made when they are used"),
    SubscriptionNotFound: (Status.NOT_FOUND, "create the subscription first"),
    NotReady: (Status.UNAVAILABLE, _LOOK_UP),
    MetadataFailure: (Status.UNAVAILABLE, _RETRY),
    StorageFailure: (Status.UNAVAILABLE, _RETRY),
    TopicTerminated: (Status.FAILED_PRECONDITION, "write to another topic"),
    ProducerBusy: (Status.ALREADY_EXISTS, "take another name, or close the other one first"),
    ProducerFenced: (Status.ABORTED, "another producer has exclusive access; make a new one, if this is to go on"),
    ConsumerBusy: (Status.ALREADY_EXISTS, "close another consumer first"),
    ConsumerAssignError: (Status.INVALID_ARGUMENT, "give ranges that are free"),
    IncompatibleSchema: (Status.FAILED_PRECONDITION, "change the schema, or the compatibility strategy"),
    NotAllowed: (Status.FAILED_PRECONDITION, "see the policies of the namespace"),
    NotAuthenticated: (Status.UNAUTHENTICATED, "send valid credentials in the metadata `authorization`"),
    NotAuthorized: (Status.PERMISSION_DENIED, "ask an administrator of the tenant for the permission"),
    TooManyRequests: (Status.RESOURCE_EXHAUSTED, _RETRY),
    QuotaExceededHold: (Status.UNAVAILABLE, _RETRY),
    QuotaExceeded: (Status.FAILED_PRECONDITION, "let its consumers catch up, or raise the quota"),
}


class Refused(MagnetarError):
    """A call that ends with this status."""

    def __init__(self, code: Any, text: str) -> None:
        super().__init__(text)
        self.code = code


def refusal(topic: str, error: BrokerError) -> Refused:
    """The status for *error*, about *topic*."""
    for kind in type(error).__mro__:
        if kind in _BY_CLASS:
            code, way_out = _BY_CLASS[kind]
            return Refused(code, _text(topic, str(error), way_out if error.way_out is None else error.way_out))
    return Refused(Status.INTERNAL, _text(topic, str(error), "see the broker's log"))


def moved(topic: str) -> Refused:
    """The broker closed a producer or consumer: the topic moves, or storage failed for a moment."""
    return Refused(Status.UNAVAILABLE, f"{topic}: closed by the broker; {_LOOK_UP}")


def _text(topic: str, text: str, way_out: str) -> str:
    problem = text if not topic or topic in text else f"{topic}: {text}"
    return f"{problem}; {way_out}" if way_out else problem
