"""Magnetar: a Pulsar-compatible message store.

`magnetar.Client` and `magnetar.AsyncClient` are the simple topic API; their modules are loaded at the first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.client.async_client import AsyncClient
    from magnetar.client.client import Client
    from magnetar.client.errors import TopicError
    from magnetar.client.retries.retry import Retry
    from magnetar.client.values import Message, Outgoing, Schema
    from managed_ledger.message_id import MessageId

__version__ = "0.1.0"

__all__ = ["AsyncClient", "Client", "Message", "MessageId", "Outgoing", "Retry", "Schema", "TopicError", "__version__"]

_HOMES = {
    "AsyncClient": "magnetar.client.async_client",
    "Client": "magnetar.client.client",
    "Message": "magnetar.client.values",
    "MessageId": "managed_ledger.message_id",
    "Outgoing": "magnetar.client.values",
    "Retry": "magnetar.client.retries.retry",
    "Schema": "magnetar.client.values",
    "TopicError": "magnetar.client.errors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
