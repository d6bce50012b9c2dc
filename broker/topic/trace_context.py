"""Where an entry's trace began: W3C's `traceparent` among the properties of its messages. No IO.

A message that a client traces has the property `traceparent`; brokers store it as it is, and consumers get it. Here it
is looked for so that the broker's own work shows in the trace. It is found by its bytes, not by decoding: in the
metadata of an entry, and in a batch that is not compressed, where the first message that has one counts.
"""

import re
from collections.abc import Mapping
from typing import Final, Protocol

from magnetar_core.runtime.types import Buffer

# A protobuf KeyValue: key (field 1, 11 bytes) and value (field 2, 55 bytes: version, trace, span, flags).
_PROPERTY: Final = re.compile(rb"\n\x0btraceparent\x127(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})")

# Properties stand before the payload, and those of a batch's first message before the second one.
_SEARCHED_BYTES: Final = 16 * 1024

_SAMPLED: Final = 1


def parent_of(entry: Buffer) -> str:
    """The `traceparent` of an entry whose sender records the trace; empty if there is none."""
    match = _PROPERTY.search(memoryview(entry)[:_SEARCHED_BYTES])
    if match is None:
        return ""
    text = bytes(match[1]).decode()
    return text if int(text[-2:], 16) & _SAMPLED else ""


Facts = Mapping[str, str | int]
"""Attributes of a span."""

NO_FACTS: Final[Facts] = {}


class Span(Protocol):
    """A piece of work that has begun."""

    def child(self, name: str) -> "Span":
        """A part of it begins."""
        ...

    def end(self, error: str = "", facts: Facts = NO_FACTS) -> None:
        """It has ended; called once."""
        ...


class Tracing(Protocol):
    """Begins spans."""

    def start(self, name: str, parent: str, facts: Facts) -> Span:
        """Work on an entry begins; *parent* is its `traceparent`."""
        ...
