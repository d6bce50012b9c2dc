"""What the parts of a connection know of its client. Values only. No IO."""

from typing import NamedTuple

from magnetar_core.security.caller import TRUSTED, Caller


class ClientFacts(NamedTuple):
    """What a client said of itself when it connected."""

    address: str
    version: str = ""
    protocol_version: int = 0
    keeps_broker_metadata: bool = False
    """It understands the broker's metadata in front of an entry, so this is not cut off."""
    hears_the_end: bool = True
    """It may be told that a terminated topic has no more for it (REACHED_END_OF_TOPIC)."""
    caller: Caller = TRUSTED
    """As whom it is authenticated."""


class Coming:
    """An id whose producer or consumer is being made."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        self.is_cancelled = False
        """The client closed it, or is gone, before it was made."""
