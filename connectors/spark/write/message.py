"""What a row of a DataFrame is sent as. No IO."""

from typing import NamedTuple


class Outgoing(NamedTuple):
    """One message to be sent."""

    topic: str | None
    """None: the topic of the options."""
    value: bytes | None
    key: str | None
    event_time_ms: int | None
    properties: dict[str, str] | None


def size_of(message: Outgoing) -> int:
    """About the bytes that it has in an entry, and in memory."""
    properties = sum(len(name) + len(text) for name, text in (message.properties or {}).items())
    return len(message.value or b"") + len(message.key or "") + properties + 32
