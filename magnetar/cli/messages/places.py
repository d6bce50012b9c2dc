"""Places in a topic: read from any form that users type, and shown in one form. No IO."""

import re
from datetime import datetime
from typing import Any, Final, Protocol
from urllib.parse import quote

from magnetar_core.runtime.types import MagnetarError
from magnetar_core.topics.message_id import EARLIEST, LATEST, MessageId

PLACE_HELP: Final = (
    "earliest, latest, the id of a message (12:1:-1), a time (2026-03-01T12:00), or how long ago (90s, 15m, 2h, 3d)."
)

_AGO: Final = re.compile(r"(\d+)\s*(ms|s|min|m|h|d)")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Admin(Protocol):
    """The brokers, asked over HTTP (`inspect.broker_admin.AdminClient`)."""

    @staticmethod
    def path_of(topic: str) -> str: ...

    def call(self, method: str, path: str, body: Any = None) -> Any: ...

    def partitions(self, topic: str) -> int: ...


class PlaceError(MagnetarError):
    """A place in a topic that cannot be read."""


def place_of(text: str, now_ms: int) -> MessageId | int:
    """An id (EARLIEST and LATEST for the ends), or milliseconds since 1970. Raises PlaceError."""
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    try:
        return MessageId.parse(text)
    except ValueError:
        pass
    if match := _AGO.fullmatch(text):
        return now_ms - int(match[1]) * _UNITS_MS[match[2]]
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise PlaceError(f"{text!r} is not a place in a topic: write {PLACE_HELP[:-1]}") from None


def json_of(place: MessageId) -> dict[str, int]:
    """The id in the form that the admin API takes."""
    return {"ledgerId": place.ledger_id, "entryId": place.entry_id, "partitionIndex": place.partition}


def id_of(answer: dict[str, int]) -> MessageId:
    """The id from the form in which the admin API gives it."""
    return MessageId(
        answer["ledgerId"], answer["entryId"], answer.get("partitionIndex", -1), answer.get("batchIndex", -1)
    )


def shown_id(message_id: Any) -> str:
    """The id of the official client, in the form in which ids are shown here."""
    if isinstance(message_id, str):
        return str(MessageId.parse(message_id))
    given = message_id
    return str(MessageId(given.ledger_id(), given.entry_id(), given.partition(), given.batch_index()))


def subscription_path(admin: Admin, topic: str, name: str) -> str:
    return f"/admin/v2/{admin.path_of(topic)}/subscription/{quote(name, safe='')}"


def create_at(admin: Admin, topic: str, name: str, place: MessageId | int) -> None:
    """Create a subscription that begins at *place*. Raises AdminError, with status 409 if it exists."""
    if isinstance(place, int):  # the API moves only an existing subscription to a time
        admin.call("PUT", subscription_path(admin, topic, name), json_of(EARLIEST))
        admin.call("POST", f"{subscription_path(admin, topic, name)}/resetcursor/{place}")
    else:
        admin.call("PUT", subscription_path(admin, partition_of(admin, topic, place), name), json_of(place))


def must_be_one(admin: Admin, topic: str) -> None:
    """Raises PlaceError if *topic* has partitions."""
    count = admin.partitions(topic)
    if count:
        raise PlaceError(f"{topic} has {count} partitions: name one, {topic}-partition-0 to {count - 1}")


def partition_of(admin: Admin, topic: str, place: MessageId) -> str:
    """The partition of *topic* that the id *place* belongs to; *topic* itself if it has none, or the id is an end."""
    if place in (EARLIEST, LATEST) or place.partition < 0 or not admin.partitions(topic):
        return topic
    return f"{topic}-partition-{place.partition}"
