"""The index of a topic's messages over all its ledgers: how a new owner finds where it goes on. No IO of its own.

The owner may put an index before each entry (`BrokerEntryMetadata.index`): how many messages came before the last one
of the entry. It has to go on over ledgers and owners. What is stored for that, as Apache's
`ManagedLedgerInterceptorImpl` has it:

    record of the topic    property `index`: the index of the last entry that was acknowledged when it was written
    last ledger            the entries themselves

Rules:

1. The index is the higher one of both. An empty last ledger has none; then the record was written when that ledger was
   begun, behind the last entry of all others.
2. What is written into the record is never above an acknowledged entry: after a crash no index is left out.
3. An entry without index (from a broker that is not set up to write one) or one that is lost is passed over, and the
   one before it is looked at, up to `ENTRIES_LOOKED_MAX`. The messages that were passed over have no index.
"""

import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, Protocol

from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.errors import DataLost
from managed_ledger.messages import broker_metadata_of, split_entry
from managed_ledger.position import Position

log = logging.getLogger(__name__)

PROPERTY: Final = "index"
"""The name of the property, which is Apache's."""

NO_INDEX: Final = -1
"""Before the first message; its index is 0."""

# Entries of the last ledger that are read to find one with an index. The last one has it, unless a broker that is not
# set up to write indexes wrote to the topic; reading more would only make the topic open later.
ENTRIES_LOOKED_MAX: Final = 100


class EntryLike(Protocol):
    """What is used of an entry."""

    @property
    def data(self) -> Buffer: ...


class LedgersLike(Protocol):
    """What is used of the list of ledgers."""

    @property
    def last_confirmed(self) -> Position: ...


class Reader(Protocol):
    """Reads entries by position (`managed_ledger.reading.reading.Reading`)."""

    def read(
        self, first: Position, max_entries: int, max_bytes: int
    ) -> Sequence[EntryLike] | Awaitable[Sequence[EntryLike]]: ...


def index_in(data: Buffer) -> int | None:
    """The index before an entry; None where it has none, or cannot be read."""
    try:
        metadata = broker_metadata_of(split_entry(data))
    except Corruption:
        return None
    return metadata.index if metadata is not None and metadata.HasField("index") else None


def index_in_properties(properties: Mapping[str, str], name: str) -> int:
    """The index in the properties of topic *name*; `NO_INDEX` where there is none. Raises Corruption."""
    text = properties.get(PROPERTY)
    if text is None:
        return NO_INDEX
    try:
        return int(text)
    except ValueError:
        raise Corruption(
            f"{name}: the property {PROPERTY!r} of its record is {text!r}, not a number; a topic whose entries get an "
            "index keeps it there: remove the property, or set it to the index of the last message"
        ) from None


async def stored_index(ledgers: LedgersLike, reader: Reader, properties: Mapping[str, str], name: str) -> int:
    """The index of the last message of a topic whose last ledger is closed; `NO_INDEX` if there is none.

    Raises Corruption for a property that is not a number, StorageUnavailable.
    """
    noted_index = index_in_properties(properties, name)
    last = ledgers.last_confirmed
    for entry_id in range(last.entry_id, max(last.entry_id - ENTRIES_LOOKED_MAX, -1), -1):
        try:
            answer = reader.read(Position(last.ledger_id, entry_id), 1, 1)
            entries = answer if isinstance(answer, Sequence) else await answer
        except DataLost as error:
            log.warning("%s: its index goes on behind an entry that is lost: %s", name, error)
            continue
        index = index_in(entries[0].data) if entries else None
        if index is not None:
            return max(noted_index, index)  # rule 1
    return noted_index
