"""Magnetar: a Pulsar-compatible message store.

`magnetar.Client` and `magnetar.AsyncClient` are the simple topic API; their modules are loaded at the first use.

Example:
    with magnetar.Client("localhost:6648") as client:
        client.producer("orders").send(b"payload", key="customer-7")
        with client.consumer("orders", "billing", from_earliest=True) as consumer:
            message = consumer.receive(timeout_s=10)
            print(message.key, message.value)
            consumer.ack(message)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.client.async_client import AsyncClient
    from magnetar.client.async_consumer import AsyncConsumer, AsyncReader
    from magnetar.client.async_producer import AsyncProducer
    from magnetar.client.base.options import ProducerAccess, Start, SubscriptionType
    from magnetar.client.base.states import StateChange
    from magnetar.client.base.telemetry import Telemetry
    from magnetar.client.blocking.consumer import Consumer, Reader
    from magnetar.client.blocking.producer import Producer
    from magnetar.client.blocking.table import TableView
    from magnetar.client.client import Client
    from magnetar.client.codecs.declared import Avro, Json, Schema
    from magnetar.client.errors import TopicError
    from magnetar.client.retries.retry import Retry
    from magnetar.client.values import Message, Outgoing
    from magnetar.client.views.table import AsyncTableView
    from magnetar_core.topics.message_id import MessageId

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncReader",
    "AsyncTableView",
    "Avro",
    "Client",
    "Consumer",
    "Json",
    "Message",
    "MessageId",
    "Outgoing",
    "Producer",
    "ProducerAccess",
    "Reader",
    "Retry",
    "Schema",
    "Start",
    "StateChange",
    "SubscriptionType",
    "TableView",
    "Telemetry",
    "TopicError",
    "__version__",
]

_HOMES = {
    "AsyncClient": "magnetar.client.async_client",
    "AsyncConsumer": "magnetar.client.async_consumer",
    "AsyncProducer": "magnetar.client.async_producer",
    "AsyncReader": "magnetar.client.async_consumer",
    "AsyncTableView": "magnetar.client.views.table",
    "Avro": "magnetar.client.codecs.declared",
    "Client": "magnetar.client.client",
    "Consumer": "magnetar.client.blocking.consumer",
    "Json": "magnetar.client.codecs.declared",
    "Message": "magnetar.client.values",
    "MessageId": "magnetar_core.topics.message_id",
    "Outgoing": "magnetar.client.values",
    "Producer": "magnetar.client.blocking.producer",
    "ProducerAccess": "magnetar.client.base.options",
    "Reader": "magnetar.client.blocking.consumer",
    "Retry": "magnetar.client.retries.retry",
    "Schema": "magnetar.client.codecs.declared",
    "Start": "magnetar.client.base.options",
    "StateChange": "magnetar.client.base.states",
    "SubscriptionType": "magnetar.client.base.options",
    "TableView": "magnetar.client.blocking.table",
    "Telemetry": "magnetar.client.base.telemetry",
    "TopicError": "magnetar.client.errors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """So that `help(magnetar)` shows the classes."""
    return sorted({*globals(), *__all__})
