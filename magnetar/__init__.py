"""Magnetar: a Pulsar-compatible message store.

`magnetar.Client` and `magnetar.AsyncClient` are the simple topic API; what they need is loaded when they are used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.topic_api.async_client import AsyncClient
    from magnetar.topic_api.client import Client
    from magnetar.topic_api.message_id import MessageId
    from magnetar.topic_api.values import Message, Outgoing, Schema

__version__ = "0.1.0"

__all__ = ["AsyncClient", "Client", "Message", "MessageId", "Outgoing", "Schema", "__version__"]

_HOMES = {
    "AsyncClient": "async_client",
    "Client": "client",
    "Message": "values",
    "MessageId": "message_id",
    "Outgoing": "values",
    "Schema": "values",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"magnetar.topic_api.{home}"), name)
