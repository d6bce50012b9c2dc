"""Ledgers in which Apache's brokers keep which messages of a subscription wait for their time.

With `delayedDeliveryTrackerFactoryClassName=…BucketDelayedDeliveryTrackerFactory` a broker of Apache's writes an index
of delayed messages into ledgers, its "buckets", and names each in a property of the cursor (`Bucket`, 4.0.8). Ours
reads the same messages in the topic, so it needs none of them. It keeps the properties, for the next broker of
Apache's, and deletes the ledgers with the cursor (`BucketDelayedDeliveryTrackerFactory.cleanResidualSnapshots`).
"""

from collections.abc import Mapping
from typing import Final

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import NoSuchLedger
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.topics.topic_name import TopicName, TopicNameError

INTERNAL_PREFIX: Final = "#pulsar.internal."
"""Names of cursor properties that belong to brokers begin with it (`ManagedCursor.CURSOR_INTERNAL_PROPERTY_PREFIX`)."""

_BUCKET: Final = INTERNAL_PREFIX + "delayed.bucket"
_TOPIC: Final = "pulsar/delayedIndexTopic"


async def delete_buckets(bookkeeper: BookKeeper, managed_ledger: str, texts: Mapping[str, str]) -> None:
    """Delete the buckets that the properties *texts* of a cursor name. Raises BookKeeperError.

    Clients can give a subscription properties of any name. So the record of each ledger has to say that it is a bucket
    of this topic.
    """
    for ledger_id in _bucket_ids(texts):
        try:
            if _is_bucket_of(await bookkeeper.read_metadata(ledger_id), managed_ledger):
                await bookkeeper.delete_ledger(ledger_id)
        except NoSuchLedger:
            pass


def _bucket_ids(texts: Mapping[str, str]) -> list[int]:
    ids = [text for name, text in texts.items() if name.startswith(_BUCKET) and text.isascii() and text.isdigit()]
    return sorted({int(text) for text in ids if int(text) < 2**63})


def _is_bucket_of(metadata: LedgerMetadata, managed_ledger: str) -> bool:
    fields = dict(metadata.custom_metadata)
    try:
        topic = TopicName.parse(fields.get(_TOPIC, b"").decode())
    except (TopicNameError, UnicodeDecodeError):
        return False
    return fields.get("component") == b"delayed-index-bucket" and topic.managed_ledger_name == managed_ledger
