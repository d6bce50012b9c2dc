"""Outcomes in one form, and where two of them differ. Pure.

1. Ids have their rank: the entries that a program saw of a partition are 0, 1, 2 … in the order of their ids.
2. Messages of one answer stand by partition; those of a Shared or Key_Shared subscription, of several consumers or of a
   `drain`, by their number, since the order between redelivered and new ones is a race.
3. Who of several Shared consumers got a message is left out.
4. Of a partitioned topic a message that came twice within one answer counts once: the queue that a client has over
   several partitions keeps what it has when one of them reconnects.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.differ.events import Event, Program


class Place(NamedTuple):
    """An id. Negative numbers are the client's own words: nothing was stored."""

    topic: str
    partition: int
    ledger_id: int
    entry_id: int
    batch_index: int


class Message(NamedTuple):
    """One that came: to whom, which it is, and what it carries."""

    who: str
    number: int
    partition: int
    redelivered: int
    place: Place
    carried: tuple[Any, ...]


def _places(value: Any) -> list[Place]:
    if isinstance(value, Place):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [place for one in value for place in _places(one)] if isinstance(value, list | tuple) else []


def normal(outcomes: Sequence[Any]) -> list[Any]:
    """The outcomes of a program, as they are compared."""
    entries: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for place in _places(outcomes):
        if place.entry_id >= 0:
            entries.setdefault((place.topic, place.partition), set()).add((place.ledger_id, place.entry_id))
    ranks = {key: {entry: rank for rank, entry in enumerate(sorted(found))} for key, found in entries.items()}

    def plain(value: Any) -> Any:
        if isinstance(value, Place):
            if value.entry_id < 0:
                return f"no id {value.entry_id}"
            rank = ranks[value.topic, value.partition][value.ledger_id, value.entry_id]
            at = "" if value.partition < 0 else f"{value.partition}:"
            return f"#{at}{rank}" + ("" if value.batch_index < 0 else f".{value.batch_index}")
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [plain(one) for one in _ordered(value)]
        return value

    return [plain(outcome) for outcome in outcomes]


def _ordered(values: Sequence[Any]) -> Sequence[Any]:
    """Rules 2 and 3."""
    messages = [one for one in values if isinstance(one, Message)]
    if not messages:
        return values
    order, *rest = [one for one in values if not isinstance(one, Message)]
    if order in ("Shared", "KeyShared"):
        messages = [one._replace(who="") for one in messages]
    if order == "in order":
        messages.sort(key=lambda one: one.partition)
    else:
        messages.sort(key=lambda one: (one.partition, one.number, one.redelivered, one.place.batch_index))
    distinct = {(one.who, one.number): one for one in reversed(messages)}
    if messages[0].partition >= 0:
        messages = [one for one in messages if distinct[one.who, one.number] is one]
    return [order, *rest, *messages]


class Difference(NamedTuple):
    """The first event whose outcomes differ."""

    at: int
    event: Event
    apache: Any
    ours: Any


def difference(program: Program, apache: Sequence[Any], ours: Sequence[Any]) -> Difference | None:
    for at, (one, theirs, own) in enumerate(zip(program, normal(apache), normal(ours), strict=True)):
        if theirs != own:
            return Difference(at, one, theirs, own)
    return None
