"""Publishing without storage: what is stored, what is answered, and when."""

from typing import Any, cast

import pytest

from broker.errors import BrokerError
from broker.topic.clients.producer import Producer
from broker.topic.publishing.deduplication import REFUSED_MAX, Deduplication, Verdict
from broker.topic.publishing.publishing import Publishing
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import Send
from magnetar_core.runtime.data.distribution import Distribution
from managed_ledger.errors import EntryRefused, ManagedLedgerTerminated


class NotingSink:
    """A connection that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.room_given = 0

    def on_stored(
        self, producer: Producer, sequence_id: int, highest: int, ledger_id: int, entry_id: int, size_bytes: int
    ) -> None:
        self.told.append(("receipt", sequence_id, entry_id))
        self.room_given += size_bytes

    def on_refused(
        self, producer: Producer, sequence_id: int, highest: int, error: BrokerError, size_bytes: int
    ) -> None:
        self.told.append(("error", sequence_id, error.code))
        self.room_given += size_bytes

    def on_unanswered(self, size_bytes: int) -> None:
        self.room_given += size_bytes


class Session:
    """An ownership whose session can be in doubt."""

    def __init__(self) -> None:
        self.is_sure = True

    def may_acknowledge(self) -> bool:
        return self.is_sure


class Answered:
    def __init__(self) -> None:
        self.producers: list[Producer] = []
        self.deduplicates = False

    def on_all_answered(self, producer: Producer) -> None:
        self.producers.append(producer)


class Bench:
    def __init__(self) -> None:
        self.session = Session()
        self.answered = Answered()
        self.sink = NotingSink()
        self.of_broker = Distribution()
        self.publishing = Publishing(cast(Any, self.session), self.answered, self.of_broker)
        self.producer = Producer(cast(Any, None), cast(Any, self.sink), 1, "p")
        self.entries = 0

    def take(self, *sequence_ids: int, at_s: float = 0.0) -> list[Any]:
        run = [(self.producer, send(number)) for number in sequence_ids]
        buffers, contexts = self.publishing.take(run, None, at_s)
        assert len(buffers) == len(contexts)
        return contexts

    def stored(self, contexts: list[Any]) -> bool:
        first, self.entries = self.entries, self.entries + len(contexts)
        self.publishing.note_durable(contexts)
        return self.publishing.confirm(7, first, contexts)


def send(sequence_id: int) -> Send:
    return Send(
        producer_id=1,
        sequence_id=sequence_id,
        highest_sequence_id=0,
        num_messages=1,
        is_chunk=False,
        is_marker=False,
        is_transactional=False,
        entry=memoryview(b"12345"),
    )


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_receipts_name_their_entries_in_order(bench: Bench) -> None:
    assert bench.stored(bench.take(5, 6, 7))
    assert bench.sink.told == [("receipt", 5, 0), ("receipt", 6, 1), ("receipt", 7, 2)]
    assert bench.sink.room_given == 15
    assert (bench.publishing.messages_in, bench.publishing.bytes_in, bench.producer.pending) == (3, 15, 0)


def test_how_long_storage_took_is_counted_for_each_run(bench: Bench) -> None:
    contexts = [*bench.take(1, 2, at_s=1.0), *bench.take(3, at_s=1.009), *bench.take(4, 5, at_s=1.0095)]
    bench.publishing.note_stored(contexts, now_s=1.0105)
    bench.publishing.note_stored(bench.take(6, at_s=2.0), now_s=1.9)
    bench.publishing.end_period()
    latencies, sizes = bench.publishing.latencies.last, bench.publishing.sizes.last
    assert latencies.total == sizes.total == bench.publishing.entries_in == 6
    # Up to 0.5 ms: the clock that went back; 5 ms: 1.5 and 1 ms or so; 20 ms: 10.5 ms.
    assert (latencies.counts[0], sum(latencies.counts[1:3]), latencies.counts[4]) == (1, 3, 2)
    assert sizes.sum == 6 * 5
    assert (bench.of_broker.count, round(bench.of_broker.sum, 3)) == (6, 24.5), "milliseconds, of all topics together"


def test_receipts_that_are_held_back_are_not_overtaken(bench: Bench) -> None:
    bench.session.is_sure = False
    assert not bench.stored(bench.take(1))
    bench.session.is_sure = True
    assert not bench.stored(bench.take(2))
    assert bench.sink.told == []
    assert bench.publishing.release()
    assert [one[1] for one in bench.sink.told] == [1, 2]
    assert bench.stored(bench.take(3))


def test_while_the_session_is_in_doubt_nothing_is_released(bench: Bench) -> None:
    bench.session.is_sure = False
    bench.stored(bench.take(1))
    bench.stored(bench.take(2))
    assert not bench.publishing.release()
    assert bench.sink.told == []
    bench.publishing.forget_withheld()
    assert bench.sink.told == []
    assert bench.sink.room_given == 10
    assert bench.producer.pending == 0


def test_a_repeated_message_is_stored_once(bench: Bench) -> None:
    bench.publishing.deduplication = Deduplication(100)
    first = bench.take(1)
    assert bench.take(1) == []
    assert bench.sink.told == [("error", 1, wire.PersistenceError)], "the first copy may still fail"
    bench.stored(first)
    assert bench.take(1) == []
    assert bench.sink.told[1:] == [("receipt", 1, 0), ("receipt", 1, 2**64 - 1)]
    assert bench.sink.room_given == 15
    assert bench.publishing.last_sequence_id("p") == 1


def test_a_duplicate_is_not_confirmed_while_the_session_is_in_doubt(bench: Bench) -> None:
    bench.publishing.deduplication = Deduplication(100)
    bench.stored(bench.take(1))
    bench.session.is_sure = False
    bench.take(1)
    assert bench.sink.told[1:] == [("error", 1, wire.PersistenceError)]


def test_after_a_failure_the_same_message_may_come_again(bench: Bench) -> None:
    bench.publishing.deduplication = Deduplication(100)
    lost = bench.take(1)
    bench.publishing.forget(lost)
    bench.publishing.on_storage_failed()
    assert len(bench.take(1)) == 1
    assert bench.sink.told == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(EntryRefused("too large"), wire.NotAllowedError), (ManagedLedgerTerminated("ended"), wire.TopicTerminatedError)],
)
def test_who_can_never_be_stored_is_told_why(bench: Bench, error: Any, code: int) -> None:
    bench.publishing.refuse(bench.take(4), error)
    assert bench.sink.told == [("error", 4, code)]
    assert bench.sink.room_given == 5


def test_a_message_that_was_refused_is_no_duplicate_when_it_comes_again(bench: Bench) -> None:
    """Nor when a later one was stored: its client would take it for stored as well, and it is nowhere."""
    bench.publishing.deduplication = Deduplication(100)
    bench.stored(bench.take(3))
    refused = bench.take(4)
    bench.publishing.refuse(refused, EntryRefused("too large"))
    refused = bench.take(4)
    assert len(refused) == 1, "it is not in flight"
    bench.publishing.refuse(refused, EntryRefused("too large"))
    bench.stored(bench.take(5))
    again = bench.take(4)
    assert len(again) == 1
    bench.stored(again)
    assert [one[:2] for one in bench.sink.told] == [
        ("receipt", 3), ("error", 4), ("error", 4), ("receipt", 5), ("receipt", 4)
    ]  # fmt: skip
    assert bench.take(4) == [], "now it is stored"
    assert bench.publishing.last_sequence_id("p") == 5


def test_repeated_messages_count_as_come_in(bench: Bench) -> None:
    bench.publishing.deduplication = Deduplication(100)
    bench.stored(bench.take(1, 2))
    assert bench.take(1, 2) == []
    assert (bench.publishing.messages_in, bench.producer.messages_in) == (4, 4)
    assert bench.publishing.bytes_in == bench.producer.bytes_in == 4 * len(send(1).entry)


def test_a_refused_message_that_comes_again_is_no_duplicate_before_it_is_stored(bench: Bench) -> None:
    state = bench.publishing.deduplication = Deduplication(100)
    bench.publishing.refuse(bench.take(4), EntryRefused("too large"))
    bench.stored(bench.take(5))
    again = bench.take(4)
    assert state.check("p", 4, 0) is Verdict.IN_FLIGHT
    bench.publishing.on_storage_failed()
    bench.publishing.forget(again)
    again = bench.take(4)
    assert len(again) == 1, "it is stored nowhere"
    bench.stored(again)
    assert state.check("p", 4, 0) is Verdict.DUPLICATE


def test_so_many_refused_messages_are_remembered() -> None:
    state = Deduplication(100)
    for number in range(REFUSED_MAX + 1):
        assert state.check("p", number, 0) is Verdict.NEW
        state.on_refused("p", number, 0)
    assert state.check("p", 0, 0) is Verdict.IN_FLIGHT
    assert state.check("p", 1, 0) is Verdict.NEW
    state.restore({"p": REFUSED_MAX})
    assert state.check("p", 2, 0) is Verdict.DUPLICATE


def test_a_producer_that_closes_is_reported_with_its_last_answer(bench: Bench) -> None:
    one, other = bench.take(1), bench.take(2)
    bench.producer.closing = lambda: None
    bench.stored(one)
    assert bench.answered.producers == []
    bench.stored(other)
    assert bench.answered.producers == [bench.producer]


def test_a_producer_that_is_gone_gets_no_receipt_and_is_reported(bench: Bench) -> None:
    contexts = bench.take(1, 2)
    bench.producer.is_closed = True
    bench.stored(contexts)
    assert bench.sink.told == []
    assert bench.answered.producers == [bench.producer]
    assert bench.sink.room_given == 10


def test_what_comes_to_a_closed_topic_only_gives_its_room_back(bench: Bench) -> None:
    bench.publishing.pass_over([(bench.producer, send(1))])
    assert (bench.sink.told, bench.sink.room_given, bench.producer.pending) == ([], 5, 0)


def test_producers_know_whether_sequence_ids_are_compared() -> None:
    bench = Bench()
    told = []
    for state in (Deduplication(100), None):
        bench.publishing.use_deduplication(state)
        assert bench.publishing.deduplication is state
        told.append(bench.answered.deduplicates)
    assert told == [True, False]
