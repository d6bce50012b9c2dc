"""What is stored of a subscription, for a read of its backlog. Nothing is fenced, recovered or written.

A broker that serves the topic knows more than it has stored: acknowledgements are written with a delay.
"""

from typing import Final

from connectors.spark.plan.unconsumed import Acked
from connectors.spark.ranges import Position
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, DigestMismatch, NoSuchEntry, NoSuchLedger
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.types import Corruption, MagnetarError
from magnetar_core.topics.topic_name import TopicName, decode
from managed_ledger.cursors.cursor_store import CursorSnapshot
from managed_ledger.cursors.stored_cursor import stored_cursor
from managed_ledger.records.paths import ledger_path

# How often a cursor is looked for while its broker begins another ledger for it meanwhile.
_LOOKS: Final = 3


class SubscriptionMissing(MagnetarError):
    """The topic has no subscription of this name."""


async def consumed(
    store: MetadataStore, bookkeeper: BookKeeper, part: TopicName, subscription: str
) -> tuple[Position, Acked]:
    """(the first position that is not consumed, what is consumed behind it) of a topic partition that exists.

    Raises SubscriptionMissing with the names of those that there are, MagnetarError.
    """
    for left in reversed(range(_LOOKS)):
        try:
            cursor: CursorSnapshot | None = await stored_cursor(
                store, bookkeeper, part.managed_ledger_name, subscription
            )
        except (NoSuchLedger, NoSuchEntry) as error:  # the broker has switched to another ledger meanwhile
            if not left:
                raise MagnetarError(
                    f"what subscription {subscription} of {part} has consumed is gone: {error}"
                ) from error
            continue
        except (BookKeeperError, DigestMismatch, Corruption) as error:
            raise MagnetarError(f"what subscription {subscription} of {part} has consumed: {error}") from error
        if cursor is None:
            raise await missing(store, part, subscription)
        ledger_id, entry_id = cursor.mark_delete_position
        return (ledger_id, entry_id + 1), Acked.from_state(cursor.ranges, cursor.batches)
    raise AssertionError("the last look returns or raises")


async def missing(store: MetadataStore, part: TopicName, subscription: str) -> SubscriptionMissing:
    """The error for a subscription that is not there."""
    names = sorted(decode(child) for child in await store.children(ledger_path(part.managed_ledger_name)))
    there = f"there are {', '.join(names)}" if names else "there is none"
    return SubscriptionMissing(f"{part} has no subscription {subscription}; {there}")
