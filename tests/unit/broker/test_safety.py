"""Nothing that was published may get lost on its way to the ledger: odd numbers, dead ledgers, impossible sizes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from broker.settings.groups.ledgers import INDEX_INTERCEPTOR
from broker.topic.publishing.deduplication import Deduplication, Verdict
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import EntryRefused, InvalidPosition, ManagedLedgerFenced, StorageUnavailable
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.reading.entry_index import index_in
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.topic.dispatching import EXCLUSIVE, Bench, entry

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
UNSET = 2**64 - 1  # -1 on the wire


@pytest.fixture
async def raw(world: BrokerInMemory) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(world.broker.port)
    yield client
    client.close()


def test_a_highest_id_that_is_not_set_does_not_make_a_message_old() -> None:
    known = Deduplication(10)
    assert known.check("p", 5, UNSET) is Verdict.NEW
    known.on_persisted("p", 5, UNSET)
    assert known.last_sequence_id("p") == 5
    assert known.check("p", 6, UNSET) is Verdict.NEW
    assert known.check("p", 5, UNSET) is Verdict.DUPLICATE
    replayed = Deduplication(10)
    replayed.replay(MessageMetadata(producer_name="p", sequence_id=5, highest_sequence_id=UNSET, publish_time=1))
    assert replayed.last_sequence_id("p") == 5


def test_the_first_message_of_a_producer_is_new_whatever_its_number() -> None:
    known = Deduplication(10)
    assert known.check("p", 2**64 - 5, 0) is Verdict.NEW
    assert known.check("q", UNSET, UNSET) is Verdict.NEW
    assert known.check("q", UNSET, UNSET) is Verdict.IN_FLIGHT


async def test_a_part_of_a_batch_that_is_not_there_cannot_be_acknowledged() -> None:
    """Up to it would mean everything."""
    bench = Bench()
    await bench.append(*map(entry, range(3)))
    bench.join(1, EXCLUSIVE, permits=10)
    with pytest.raises(InvalidPosition):
        bench.ack(1, 9, cumulative=True, ack_set=[0b10])
    assert bench.cursor.backlog() == 3


async def test_a_topic_whose_ledger_has_ended_is_dropped_and_opened_again(
    world: BrokerInMemory, raw: RawClient
) -> None:
    """I111: whatever kept it from telling us."""
    await raw.produce(TOPIC)
    world.ledger(TOPIC).is_open = False
    raw.publish(1, 0)
    await raw.expect(BaseCommand.CLOSE_PRODUCER)
    await eventually(lambda: NAME not in world.broker.topics)
    await raw.produce(TOPIC)
    raw.publish(1, 0)
    assert (await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt.message_id.entryId == 0


async def test_a_ledger_that_ended_before_anybody_listened_is_not_served(world: BrokerInMemory, raw: RawClient) -> None:
    taken = world.ledgers.open

    async def open_and_lose(*arguments: Any, **options: Any) -> Any:
        ledger = await taken(*arguments, **options)
        cast(Any, ledger).fence(ManagedLedgerFenced("taken over in this very moment"))
        return ledger

    world.ledgers.open = open_and_lose  # type: ignore[method-assign]
    raw.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)
    assert await raw.refused() == wire.ServiceNotReady
    world.ledgers.open = taken  # type: ignore[method-assign]
    await raw.produce(TOPIC)


async def test_an_entry_that_no_bookie_takes_is_refused_and_the_others_are_stored(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await raw.produce(TOPIC)
    ledger = world.ledger(TOPIC)
    taken = ledger.append

    def append(run: Sequence[Any], contexts: Sequence[Any]) -> None:
        if len(run[0]) > 1_000:
            asyncio.get_running_loop().call_soon(ledger.listener.on_append_failed, contexts, EntryRefused("too large"))
        else:
            taken(run, contexts)

    ledger.append = append  # type: ignore[method-assign]
    metadata = MessageMetadata(producer_name="p", sequence_id=7, publish_time=1)
    raw.publish(1, 7, data=encode_entry(metadata, bytes(2_000)))
    answer = (await raw.expect(BaseCommand.SEND_ERROR)).send_error
    assert (answer.sequence_id, answer.error) == (7, wire.NotAllowedError)
    assert world.broker.topics[NAME].appends_failed == 1
    raw.publish(1, 8)
    assert (await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt.sequence_id == 8


async def test_an_entry_that_is_refused_between_others_does_not_give_its_index_or_theirs_to_a_later_one(
    world: BrokerInMemory,
) -> None:
    await world.restart(entry_metadata_interceptors=(INDEX_INTERCEPTOR,))
    raw = await RawClient.connect(world.broker.port)
    await raw.produce(TOPIC)
    ledger = world.ledger(TOPIC)
    taken = ledger.append
    stored: list[int | None] = []

    def append(run: Sequence[Any], contexts: Sequence[Any]) -> None:
        if len(run[0]) > 1_000:
            asyncio.get_running_loop().call_soon(ledger.listener.on_append_failed, contexts, EntryRefused("too large"))
        else:
            stored.extend(map(index_in, run))
            taken(run, contexts)

    async def publish_too_large(number: int) -> None:
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        raw.publish(1, number, data=encode_entry(metadata, bytes(2_000)))
        await raw.expect(BaseCommand.SEND_ERROR)

    ledger.append = append  # type: ignore[method-assign]
    ledger.hold = True
    raw.publish(1, 0)
    await eventually(lambda: ledger.pending_count == 1)
    await publish_too_large(1)
    raw.publish(1, 2)
    await eventually(lambda: ledger.pending_count == 2)
    ledger.release()
    for _ in range(2):
        await raw.expect(BaseCommand.SEND_RECEIPT)
    assert stored == [0, 2]
    assert ledger.index == 2
    await publish_too_large(3)
    raw.publish(1, 4)
    await raw.expect(BaseCommand.SEND_RECEIPT)
    assert stored == [0, 2, 3]
    raw.close()


async def test_after_a_storage_failure_producers_may_come_with_the_last_answer(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await raw.produce(TOPIC)
    ledger = world.ledger(TOPIC)
    taken = ledger.append
    ledger.hold = True
    raw.publish(1, 0)
    await eventually(lambda: ledger.pending_count == 1)

    def fail(run: Sequence[Any], contexts: Sequence[Any]) -> None:
        asyncio.get_running_loop().call_soon(ledger.listener.on_append_failed, contexts, StorageUnavailable("gone"))

    ledger.append = fail  # type: ignore[method-assign]
    raw.publish(1, 1)
    await raw.expect(BaseCommand.CLOSE_PRODUCER)
    topics = world.broker.topics
    assert topics[NAME].is_fenced
    raw.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=2, request_id=2)
    assert await raw.refused() == wire.ServiceNotReady
    ledger.append = taken  # type: ignore[method-assign]
    ledger.release()
    assert not topics[NAME].is_fenced, "at once, without a look from time to time"
    await raw.produce(TOPIC, producer_id=3)
