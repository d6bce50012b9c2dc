"""What the broker puts before each entry of a topic: its time, the index of its last message. No IO and no clock.

    take ──▶ with_metadata(entry, messages) ──▶ storage ──▶ on_stored ──▶ the index for the topic's record
                                                     └────▶ go_back, when nothing is pending

Rules (as Apache's `AppendBrokerTimestampMetadataInterceptor` and `AppendIndexMetadataInterceptor`):

1. The index of an entry is that of its last message: the first message of a topic has 0, and each entry adds its number
   of messages. A chunk counts as a message.
2. Entries are stored in the order in which they were numbered, so after each answer of storage the index of the last
   stored entry is known without looking at it.
3. Messages that storage refused leave no gap if nothing was numbered behind them; else they do. No index is given to
   two messages.
"""

from collections.abc import Iterable

from broker.wire.frames import with_broker_metadata
from magnetar_core.runtime.types import Buffer
from managed_ledger.messages_pb2 import BrokerEntryMetadata


class EntryMetadata:
    """Writes the metadata of one topic's entries."""

    def __init__(self, *, stamps: bool, indexes: bool, index: int) -> None:
        """*index*: of the last message that is stored; -1: none is."""
        self.stored_index = index
        """The index of the last message that is acknowledged."""
        self.indexes = indexes
        """Whether entries get an index."""
        self._stamps = stamps
        self._index = index
        self._metadata = BrokerEntryMetadata()

    def begin_run(self, now_ms: int) -> None:
        """The entries that follow came at *now_ms*."""
        if self._stamps:
            self._metadata.broker_timestamp = now_ms

    def with_metadata(self, entry: Buffer, messages: int) -> Buffer:
        """*entry*, which has so many messages, with its metadata before it; one without messages stays as it is."""
        if messages < 1:
            return entry
        if self.indexes:
            self._index += messages
            self._metadata.index = self._index
        return with_broker_metadata(self._metadata.SerializeToString(), entry)

    def on_stored(self, messages: Iterable[int]) -> None:
        """The next entries are stored; they have so many messages each."""
        self.stored_index += sum(count for count in messages if count > 0)
        assert self.stored_index <= self._index, (self.stored_index, self._index)

    def on_refused(self, messages: Iterable[int]) -> None:
        """These were numbered and will not be stored, while others are pending: their numbers stay unused (rule 3)."""
        self.stored_index += sum(count for count in messages if count > 0)
        assert self.stored_index <= self._index, (self.stored_index, self._index)

    def go_back(self) -> None:
        """Nothing is pending: what was numbered and not stored never will be (rule 3)."""
        self._index = self.stored_index
