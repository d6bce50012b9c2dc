"""What a row of a DataFrame is sent as."""

from typing import NamedTuple


class Outgoing(NamedTuple):
    """One message."""

    topic: str | None
    """None: the one of the options."""
    value: bytes | None
    key: str | None
    event_time_ms: int | None
    properties: dict[str, str] | None
