"""Events: one for each change in the life of a bookie, handed to callbacks. No IO.

    <root>/underreplication/magnetar/events           its version counts the events
    <root>/underreplication/magnetar/events/<id>      one event, until it was handed to all callbacks that want it

Rules:

1. An event is stored together with its change, so there is no change without an event, and no event without a change.
2. Ids ascend in the order of the changes, whatever the clocks of those who make them say: an id begins with the version
   of the node above, which changes with each event. The price is that two changes at the same time meet there, and one
   of them is made a moment later.
3. An id is never used again, also where the tree was deleted: it ends with letters that are drawn.
"""

import json
from enum import StrEnum
from typing import Any, Final, NamedTuple

from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import Corruption

REMOVED: Final = "removed"
"""Where a bookie is after its cookie and its state were deleted."""


class EventKind(StrEnum):
    """What has happened."""

    MOVED = "moved"
    """A bookie is in another state."""
    REMOVED = "removed"
    """A bookie was taken out of the cluster."""
    TEST = "test"
    """Nothing has happened: somebody wants to see whether a callback works."""


class Event(NamedTuple):
    """One change in the life of a bookie."""

    id: str
    kind: EventKind
    bookie: str
    before: str
    """A state of `lifecycle.State`."""
    after: str
    """A state of `lifecycle.State`, or REMOVED."""
    by: str
    why: str
    wall_ms: int
    """When the change was made, by the clock of whoever made it."""


def events_path(root: str) -> str:
    return f"{root}/underreplication/magnetar/events"


def event_path(root: str, event_id: str) -> str:
    return f"{events_path(root)}/{event_id}"


def event_id(found_version: int, letters: str) -> str:
    """The id of the event that changes the node above from *found_version* (NO_NODE: that makes it) (rules 2, 3)."""
    assert found_version >= NO_NODE
    return f"{found_version + 1:010d}-{letters}"


def encode(event: Event) -> bytes:
    """The value of the event's node, which is also the body that a callback gets."""
    facts = event._asdict()
    facts["from"], facts["to"] = facts.pop("before"), facts.pop("after")
    return json.dumps(facts).encode()


def decode(value: bytes) -> Event:
    """Raises Corruption."""
    try:
        facts: dict[str, Any] = parse_json(value)
        return Event(
            str(facts["id"]),
            EventKind(facts["kind"]),
            str(facts["bookie"]),
            str(facts["from"]),
            str(facts["to"]),
            str(facts["by"]),
            str(facts["why"]),
            int(facts["wall_ms"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Corruption(f"an event of a bookie's life, {value[:80]!r}: {error!r}") from error
