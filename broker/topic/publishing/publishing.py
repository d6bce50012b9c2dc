"""Messages on their way into a topic: deduplication, storage, receipts. No IO and no clock.

    take ──▶ (storage) ──▶ note_durable, confirm ──▶ receipts, in the order of the entries
      │             └────▶ refuse, forget
      └──▶ duplicates are answered at once

Rules:

1. Receipts leave in the order in which entries became durable, and only while the ownership allows it
   (`may_acknowledge`). Receipts that are withheld wait, and all later ones behind them, until `release`.
2. Of each message the sink of its producer is told exactly once: that it is stored, that it is refused, or that there
   is no answer. A connection has a limit of pending messages.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from broker.errors import BrokerError, MetadataFailure, NotAllowed, StorageFailure, TopicTerminated
from broker.ownership.rules import Ownership
from broker.topic.clients.producer import Producer
from broker.topic.publishing.deduplication import Deduplication, Verdict
from broker.topic.publishing.entry_metadata import EntryMetadata
from broker.wire.frames import NO_ID, Send
from magnetar_core.runtime.data.buckets import LATENCY_BOUNDS, SIZE_BOUNDS, Buckets
from magnetar_core.runtime.data.distribution import Distribution
from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.errors import EntryRefused, ManagedLedgerError
from managed_ledger.messages import parse_metadata


class Pending(NamedTuple):
    """An entry that storage has not answered yet."""

    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    size_bytes: int
    messages: int
    is_recorded: bool
    """Whether its sequence id counts for deduplication."""
    sent_s: float
    """When it was given to storage, on the monotonic clock; the same for all entries of a run."""


class AnsweredProducers(Protocol):
    """Learns when a producer has nothing pending (`broker.topic.publishing.producers.Producers`)."""

    deduplicates: bool
    """Whether sequence ids are compared."""

    def on_all_answered(self, producer: Producer) -> None:
        """*producer* has nothing pending any more, and it is closed or its client waits for the close."""
        ...


class Publishing:
    """The messages on their way into one topic."""

    def __init__(
        self, ownership: Ownership, producers: AnsweredProducers, of_broker: Distribution | None = None
    ) -> None:
        """*of_broker* counts the milliseconds until entries were stored, of all topics together."""
        self.deduplication: Deduplication | None = None
        self.messages_in = 0
        self.bytes_in = 0
        self.sizes = Buckets(SIZE_BOUNDS)
        """Bytes of entries that were given to storage."""
        self.latencies = Buckets(LATENCY_BOUNDS)
        """Microseconds until they were stored."""
        self.entries_in = 0
        self.has_chunks = False
        """Whether a message came in parts."""
        self._ownership = ownership
        self._producers = producers
        self._broker_latencies = of_broker or Distribution()
        self._withheld: list[tuple[int, int, Sequence[Pending]]] = []

    def use_deduplication(self, state: Deduplication | None) -> None:
        """Compare sequence ids with those in *state* from now on; None: not any more."""
        self.deduplication = state
        self._producers.deduplicates = state is not None

    def last_sequence_id(self, name: str) -> int:
        """The highest id that is stored under a producer's name; -1 if none is, or without deduplication."""
        return -1 if self.deduplication is None else self.deduplication.last_sequence_id(name)

    def take(
        self, run: Sequence[tuple[Producer, Send]], metadata: EntryMetadata | None, now_s: float
    ) -> tuple[list[Buffer], list[Pending]]:
        """The entries of *run* to be stored, in order, and their contexts; repeated messages are answered at once.

        *metadata* writes what the broker puts before each entry; None: nothing.
        """
        buffers: list[Buffer] = []
        contexts: list[Pending] = []
        deduplication = self.deduplication
        for producer, send in run:
            size = len(send.entry)
            is_recorded = not send.is_marker and (not send.is_chunk or _is_last_chunk(send))
            if deduplication is not None and is_recorded:
                verdict = deduplication.check(producer.name, send.sequence_id, send.highest_sequence_id)
                if verdict is not Verdict.NEW:
                    self._answer_repeated(producer, send, verdict)
                    continue
            if send.is_chunk:
                producer.chunks_in += 1
                self.has_chunks = True
            producer.pending += 1
            buffers.append(send.entry if metadata is None else metadata.with_metadata(send.entry, send.num_messages))
            contexts.append(
                Pending(
                    producer, send.sequence_id, send.highest_sequence_id, size, send.num_messages, is_recorded, now_s
                )
            )
        if buffers:
            self.sizes.add_run(list(map(len, buffers)))
        return buffers, contexts

    def admissible(
        self, run: Sequence[tuple[Producer, Send]], bytes_max: int, delay_max_ms: int, now_ms: int
    ) -> list[tuple[Producer, Send]]:
        """*run* without the messages that the topic's policies forbid; their producers are told. 0: no limit."""
        admitted = []
        for producer, send in run:
            problem = None
            if bytes_max and len(send.entry) > bytes_max and not send.is_chunk:
                problem = f"Exceed maximum message size: the topic takes {bytes_max} bytes"
            elif delay_max_ms and _delivers_at_ms(send.entry) - now_ms > delay_max_ms:
                problem = f"Exceeds max allowed delivery delay of {delay_max_ms} milliseconds"
            if problem is None:
                admitted.append((producer, send))
                continue
            _refuse(producer, send, NotAllowed(problem))
        return admitted

    def pass_over(self, run: Sequence[tuple[Producer, Send]]) -> None:
        """Store nothing of *run*: its producers are being disconnected; they reconnect and send the messages again."""
        for producer, send in run:
            producer.sink.on_unanswered(len(send.entry))

    def _answer_repeated(self, producer: Producer, send: Send, verdict: Verdict) -> None:
        """A message that came before: its receipt if it is stored; while that is not known, a failure, so that it comes
        again."""
        if verdict is Verdict.DUPLICATE and self._ownership.may_acknowledge():
            size = len(send.entry)
            # It came in, too: Apache's brokers count what comes, not what is stored.
            producer.messages_in += send.num_messages
            producer.bytes_in += size
            self.messages_in += send.num_messages
            self.bytes_in += size
            producer.sink.on_stored(producer, send.sequence_id, send.highest_sequence_id, NO_ID, NO_ID, size)
        else:  # the client reconnects and sends it again
            _refuse(producer, send, StorageFailure("the first copy of this message is still being stored"))

    # ------------------------------------------------------------------------------- answers of storage

    def note_stored(self, contexts: Sequence[Pending], now_s: float) -> None:
        """These entries are stored: count them, and how long it took."""
        self.entries_in += len(contexts)
        start, count = 0, len(contexts)
        while start < count:
            sent_s = contexts[start].sent_s
            end = start + 1
            if contexts[-1].sent_s == sent_s:  # nearly always: what was sent together is stored together
                end = count
            while end < count and contexts[end].sent_s == sent_s:
                end += 1
            took_s = max(now_s - sent_s, 0.0)
            self.latencies.add(int(took_s * 1_000_000), end - start)
            self._broker_latencies.add(took_s * 1000, end - start)
            start = end

    def end_period(self) -> None:
        self.sizes.end_period()
        self.latencies.end_period()

    def note_durable(self, contexts: Sequence[Pending]) -> None:
        """These entries are durable: a message with the same sequence id is a duplicate from here on."""
        deduplication = self.deduplication
        if deduplication is None:
            return
        for pending in contexts:
            if pending.is_recorded:
                deduplication.on_persisted(pending.producer.name, pending.sequence_id, pending.highest_sequence_id)

    def confirm(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Pending]) -> bool:
        """Send the receipts of entries with consecutive ids; False if they are withheld (rule 1)."""
        if self._withheld or not self._ownership.may_acknowledge():
            self._withheld.append((ledger_id, first_entry_id, contexts))
            return False
        for entry_id, (producer, sequence_id, highest, size, messages, _, _) in enumerate(contexts, first_entry_id):
            producer.pending -= 1
            producer.messages_in += messages
            producer.bytes_in += size
            self.messages_in += messages
            self.bytes_in += size
            if producer.is_closed:
                producer.sink.on_unanswered(size)
            else:
                producer.sink.on_stored(producer, sequence_id, highest, ledger_id, entry_id, size)
            if not producer.pending and (producer.is_closed or producer.closing is not None):
                self._producers.on_all_answered(producer)
        return True

    def release(self) -> bool:
        """Send the receipts that were withheld; False if they still are."""
        withheld, self._withheld = self._withheld, []
        for ledger_id, first_entry_id, contexts in withheld:
            self.confirm(ledger_id, first_entry_id, contexts)
        return not self._withheld

    def refuse(self, contexts: Sequence[Pending], error: ManagedLedgerError) -> None:
        """These entries will never be stored here; their producers are told why."""
        reason = NotAllowed(str(error)) if isinstance(error, EntryRefused) else TopicTerminated(str(error))
        if self.deduplication is not None and isinstance(error, EntryRefused):
            for pending in contexts:
                if pending.is_recorded:
                    self.deduplication.on_refused(
                        pending.producer.name, pending.sequence_id, pending.highest_sequence_id
                    )
        for pending in contexts:
            producer = pending.producer
            if producer.is_closed:
                producer.sink.on_unanswered(pending.size_bytes)
            else:
                producer.sink.on_refused(
                    producer, pending.sequence_id, pending.highest_sequence_id, reason, pending.size_bytes
                )
            self._note_answered(producer)

    def forget(self, contexts: Sequence[Pending]) -> None:
        """These entries get no answer: their producers are disconnected, or the topic is closed."""
        for pending in contexts:
            pending.producer.sink.on_unanswered(pending.size_bytes)
            self._note_answered(pending.producer)

    def _note_answered(self, producer: Producer) -> None:
        """A message of *producer* is answered, or will not be."""
        assert producer.pending > 0, f"{producer} has nothing pending"
        producer.pending -= 1
        if not producer.pending and (producer.is_closed or producer.closing is not None):
            self._producers.on_all_answered(producer)

    def forget_withheld(self) -> None:
        """Drop the withheld receipts: none leaves any more."""
        withheld, self._withheld = self._withheld, []
        for _, _, contexts in withheld:
            self.forget(contexts)

    def on_storage_failed(self) -> None:
        """Pending messages may not be stored: deduplication accepts them when they are sent again."""
        if self.deduplication is not None:
            self.deduplication.on_storage_failed()


def _is_last_chunk(send: Send) -> bool:
    """All chunks of a message have its sequence id, so only the last one is checked and noted."""
    try:
        metadata = parse_metadata(send.entry)
    except Corruption:
        return True
    return metadata.chunk_id == metadata.num_chunks_from_msg - 1


def encrypted(run: Sequence[tuple[Producer, Send]]) -> list[tuple[Producer, Send]]:
    """*run* without the messages that are not encrypted; their producers are told, in Apache's words."""
    admitted = []
    for producer, send in run:
        if _is_encrypted(send.entry):
            admitted.append((producer, send))
            continue
        _refuse(producer, send, MetadataFailure("Messages must be encrypted"))
    return admitted


def _is_encrypted(entry: Buffer) -> bool:
    try:
        return bool(parse_metadata(entry).encryption_keys)
    except Corruption:
        return False


def _refuse(producer: Producer, send: Send, error: BrokerError) -> None:
    producer.sink.on_refused(producer, send.sequence_id, send.highest_sequence_id, error, len(send.entry))


def _delivers_at_ms(entry: Buffer) -> int:
    """When the message asks to be delivered; 0: at once, or it cannot be read, which its consumers will see."""
    try:
        metadata = parse_metadata(entry)
    except Corruption:
        return 0
    return metadata.deliver_at_time if metadata.HasField("deliver_at_time") else 0
