"""The options of producers, consumers and readers as types: what both clients take beside topic and value. No IO."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypedDict

from magnetar_core.topics.message_id import MessageId

if TYPE_CHECKING:
    from magnetar.client.codecs.declared import Schema
    from magnetar.client.retries.retry import Retry

SubscriptionType = Literal["exclusive", "shared", "failover", "key_shared"]

ProducerAccess = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]

Start = Literal["earliest", "latest"] | MessageId | int | datetime
"""Where a reader begins: "earliest", "latest", an id (the message behind it comes first), or a time: milliseconds since
1970 (UTC), or a datetime."""


class ProducerOptions(TypedDict, total=False):
    """Of `producer`."""

    name: str
    schema: "Schema | None"
    mix_keys: bool
    send_timeout_s: float
    access: ProducerAccess


class ConsumerOptions(TypedDict, total=False):
    """Of `consumer`."""

    topics: Sequence[str]
    pattern: "str | re.Pattern[str] | None"
    type: SubscriptionType
    name: str
    from_earliest: bool
    queue_size: int
    sticky_ranges: Sequence[tuple[int, int]]
    allow_out_of_order: bool
    priority: int
    schema: "Schema | None"
    retry: "Retry | None"


class ReaderOptions(TypedDict, total=False):
    """Of `reader`."""

    start: Start
    inclusive: bool
    queue_size: int
