"""The errors of the topic API's calls. No IO.

TopicError                  a call failed; `code` is gRPC's status
 ├─ TopicUnavailable        no broker could do it within the timeout; trying again later may help
 ├─ TopicDoesNotExist       the topic, its namespace or subscription
 ├─ ProducerFenced          another producer has exclusive access to the topic, or has had it since
 ├─ TopicInUse              a producer's name, an exclusive subscription or a topic is taken
 ├─ SchemaRefused           the topic does not take the schema of a producer or consumer
 ├─ MessageRefused          this message is not stored, and sending it again does not help
 ├─ UnreadableMessage       what is stored cannot be taken apart (encrypted, chunked, damaged)
 ├─ AccessDenied            the brokers do not know who the program is, or it may not do this
 └─ ClientClosed
"""

from magnetar_core.runtime.types import MagnetarError


class TopicError(MagnetarError):
    """A call failed; the text names the topic and says what to do.

    Example:
        try:
            client.producer("orders").send(b"payload")
        except magnetar.TopicError as error:
            print(error.code, error)
    """

    code: str = ""
    """gRPC's name of the status, for example FAILED_PRECONDITION; empty where the client itself refused."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class TopicUnavailable(TopicError):
    """No broker answered, or none serves the topic now."""


class TopicDoesNotExist(TopicError):
    """The topic, its namespace or the subscription does not exist."""


class TopicInUse(TopicError):
    """The producer name, the subscription or the topic name is in use by another client."""


class ProducerFenced(TopicError):
    """Another producer has exclusive access to the topic, or has had it since this one wrote last."""


class SchemaRefused(TopicError):
    """The topic does not take the schema that the producer's or consumer's `value=` stands for."""


class MessageRefused(TopicError):
    """The broker will not store this message."""


class UnreadableMessage(TopicError):
    """The message is stored, but its payload cannot be read. Acknowledge `message.id` to skip it."""

    message: object = None


class AccessDenied(TopicError):
    """The token or certificate is missing or not valid, or its role may not do this."""


class ClientClosed(TopicError):
    """The client, producer or consumer was closed."""


def error_of(code: str, text: str) -> TopicError:
    """The error class for a status of gRPC."""
    kinds = {
        "NOT_FOUND": TopicDoesNotExist,
        "ALREADY_EXISTS": TopicInUse,
        "ABORTED": ProducerFenced,
        "UNAUTHENTICATED": AccessDenied,
        "PERMISSION_DENIED": AccessDenied,
        "UNAVAILABLE": TopicUnavailable,
        "DEADLINE_EXCEEDED": TopicUnavailable,
        "RESOURCE_EXHAUSTED": TopicUnavailable,
    }
    return kinds.get(code, TopicError)(text, code)
