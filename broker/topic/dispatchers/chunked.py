"""Large messages that came in chunks: which entries belong together, and which consumer has them. No IO and no clock.

    entry ──meet──▶ message ──its first chunk is sent──▶ owner ──all chunks are acknowledged──▶ forgotten
                       ▲                                   │
                       └────────── give_back ──────────────┘

A client puts a message together only from chunks that come to one consumer, in order; it acknowledges all of them, or
gives all of them back. So, for Shared and Key_Shared:

1. All chunks of a message go to the consumer that has its first, as long as it is there: they wait for its permits.
   Limits of what is not acknowledged do not hold them: nothing of a message is acknowledged before its last chunk.
2. They go out in order.
3. When one is given back, or its consumer leaves, all that are not acknowledged come again, at another consumer if
   there is one.
4. A producer that has lost its connection sends once more what it has no receipts for. Where the first copy of a chunk
   is not acknowledged, the second one is, and is not sent: clients (C++'s and Go's) drop a message of which a chunk
   comes a second time. A first chunk of another time is another message: its producer has begun anew with its ids.
5. What nobody can put together is acknowledged, too: what came before a first chunk, or behind the last one, and what
   is left of a message whose first chunk is acknowledged. (Entries are read in order from the first that is not
   acknowledged, so that is a chunk whose message is not known.) A consumer that has begun with a message gets the rest
   of it in any case.
"""

from collections.abc import Iterable
from typing import Final

from broker.topic.clients.consumer import Consumer
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import Position

# Messages in chunks that one subscription remembers, some 1 KB each with a few chunks. Clients put ten together at one
# time (maxPendingChunkedMessage), so it is far above what consumers hold; but what was acknowledged chunk by chunk and
# never ends is forgotten by nobody else. Of a message beyond it chunks may go to several consumers.
CHUNKED_MESSAGES_MAX: Final = 10_000


class ChunkedMessage:
    """One message of several entries, as far as they were read and are not acknowledged."""

    __slots__ = (
        "at_owner", "delayed", "first", "has_last", "highest", "is_lost", "open", "owner", "publish_ms", "unwanted",
        "uuid",
    )  # fmt: skip

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.publish_ms = 0
        self.owner: Consumer | None = None
        self.unwanted: Consumer | None = None
        """The consumer that gave it back: it should not get it if there is another."""
        self.first: Position | None = None
        """The position of its first chunk, until that is acknowledged."""
        self.highest = -1
        """The highest chunk_id that was read."""
        self.has_last = False
        """Whether its last chunk was read."""
        self.is_lost = False
        """Whether nobody can put it together any more (rule 5)."""
        self.open: set[Position] = set()
        """Its chunks that are not acknowledged."""
        self.at_owner: set[Position] = set()
        self.delayed: set[Position] = set()
        """Those that wait for the time of the message."""

    @property
    def is_bound(self) -> bool:
        """Whether it waits for something of its own: its consumer, its time; or for nothing any more."""
        return self.owner is not None or bool(self.delayed) or self.is_lost

    @property
    def waiting(self) -> int:
        """Chunks that were read and are to be sent."""
        return len(self.open) - len(self.at_owner)

    @property
    def is_unfinished(self) -> bool:
        """Whether its owner waits for more of it."""
        return self.owner is not None and not self.is_lost and (not self.has_last or self.waiting > 0)

    def has_copy_of(self, metadata: MessageMetadata) -> bool:
        """Whether this chunk is there, and comes with the message (rule 4)."""
        if self.first is None or metadata.chunk_id > self.highest:
            return False
        return metadata.chunk_id > 0 or metadata.publish_time == self.publish_ms

    def on_sent(self, position: Position, owner: Consumer) -> None:
        """The chunk at *position* went to *owner*, which gets the others, too."""
        assert self.owner is None or self.owner is owner, f"{self.uuid}: {position} went to {owner}, not {self.owner}"
        self.owner, self.unwanted = owner, None
        self.at_owner.add(position)


class ChunkedMessages:
    """The messages in chunks of one subscription. It is true while there are any."""

    def __init__(self) -> None:
        self.at: dict[Position, ChunkedMessage] = {}
        # In the order in which they were met. Two may have one uuid, when a producer begins anew with its sequence ids:
        # `_latest` has the one that chunks to come belong to.
        self._messages: dict[ChunkedMessage, None] = {}
        self._latest: dict[str, ChunkedMessage] = {}
        self._has_forgotten = False
        """Whether there were too many: then the first chunk of one that is not known may be with a consumer."""

    def __len__(self) -> int:
        return len(self._messages)

    def meet(self, position: Position, metadata: MessageMetadata) -> ChunkedMessage:
        """The message of the chunk at *position*, which was read."""
        message = self.at.get(position)
        if message is not None:
            return message
        uuid, is_first = metadata.uuid, metadata.chunk_id <= 0
        former_message = message = self._latest.get(uuid)
        if former_message is not None and former_message.has_copy_of(metadata):
            return _unusable_message(uuid)
        if message is None or is_first or message.has_last or message.is_lost:
            if not is_first and not self._has_forgotten:
                return _unusable_message(uuid)
            if len(self._messages) >= CHUNKED_MESSAGES_MAX:
                self._forget(next(iter(self._messages)))
            message = self._latest[uuid] = ChunkedMessage(uuid)
            self._messages[message] = None
            if former_message is not None and not former_message.has_last:
                message.unwanted = former_message.owner  # its client has a beginning of another message with this uuid
                self._lose(former_message)
        if is_first:
            message.first, message.publish_ms = position, metadata.publish_time
        message.open.add(position)
        message.highest = max(message.highest, metadata.chunk_id)
        message.has_last = message.has_last or metadata.chunk_id >= metadata.num_chunks_from_msg - 1
        self.at[position] = message
        return message

    def unfinished_owners(self) -> Iterable[Consumer]:
        """Consumers that wait for the rest of a message."""
        return dict.fromkeys(
            message.owner for message in self._messages if message.owner is not None and message.is_unfinished
        )

    def waiting_at_owners(self) -> Iterable[Position]:
        """Chunks that were read and wait for the consumers that have the others."""
        waiting = (message for message in self._messages if message.owner is not None and message.waiting)
        return (position for message in waiting for position in message.open if position not in message.at_owner)

    def on_acked(self, position: Position) -> None:
        """The chunk at *position* is acknowledged; the message goes with its last one."""
        message = self.at.pop(position, None)
        if message is None:
            return
        message.open.discard(position)
        message.at_owner.discard(position)
        message.delayed.discard(position)
        if position == message.first:
            message.first = None
        if message.owner is None:
            self._check(message)
        elif not message.open and (message.has_last or message.is_lost):
            self._drop(message)

    def on_acked_up_to(self, position: Position) -> None:
        for done in [other for other in self.at if other <= position]:
            self.on_acked(done)

    def on_woken(self, position: Position) -> None:
        """The time of the chunk at *position* has come."""
        message = self.at.get(position)
        if message is not None:
            message.delayed.discard(position)

    def give_back(self, consumer: Consumer, positions: Iterable[Position]) -> list[Position]:
        """*positions* come back from *consumer*, and with them all chunks of their messages (rule 3)."""
        returned = dict.fromkeys(positions)
        for position in list(returned):
            message = self.at.get(position)
            if message is not None and message.owner is consumer:
                returned.update(dict.fromkeys(message.at_owner))
                message.at_owner.clear()
                message.owner, message.unwanted = None, consumer
        return list(returned)

    def on_left(self, consumer: Consumer) -> None:
        """*consumer* has given everything back and is gone: of what it began to acknowledge nothing is left to do."""
        for message in list(self._messages):
            if message.owner is consumer or message.unwanted is consumer:
                message.owner = message.unwanted = None
                self._check(message)

    def clear(self) -> None:
        self.at.clear()
        self._messages.clear()
        self._latest.clear()
        self._has_forgotten = False

    def _check(self, message: ChunkedMessage) -> None:
        """Nobody has *message* now: without its first chunk nobody ever will."""
        if message.first is None and not self._has_forgotten:
            self._lose(message)
        elif not message.open:
            self._drop(message)

    def _lose(self, message: ChunkedMessage) -> None:
        """Nobody can put *message* together any more: what is left of it is acknowledged (rule 5)."""
        message.is_lost = True
        if not message.open:
            self._drop(message)

    def _forget(self, message: ChunkedMessage) -> None:
        """Forget a message, since there are too many: its chunks may go to several consumers from now on."""
        for position in message.open:
            del self.at[position]
        self._drop(message)
        self._has_forgotten = True

    def _drop(self, message: ChunkedMessage) -> None:
        self._messages.pop(message, None)
        if self._latest.get(message.uuid) is message:
            del self._latest[message.uuid]


def _unusable_message(uuid: str) -> ChunkedMessage:
    message = ChunkedMessage(uuid)
    message.is_lost = True
    return message
