"""What compaction may take at a time."""

import asyncio
import threading
from collections.abc import Awaitable, Sequence

import pytest

from broker.topic.compaction.compactor import CompactionStatus, Compactor
from broker.topic.compaction.latest_keys import Opened
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.compacted.ledger import CompactedLedgers
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.messages_pb2 import LZ4
from managed_ledger.position import EARLIEST, Position
from managed_ledger.reading.reading import Entry
from tests.support.memory_bookkeeper import MemoryBookKeeper
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.topic.compaction.test_latest_keys import batch, single

TOPIC = "persistent://public/default/t"


async def test_topics_are_compacted_so_many_at_a_time(world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, done = 0, 0, 0
    are_many = asyncio.Event()

    async def compact(_: Compactor) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await are_many.wait()
        running -= 1
        done += 1

    monkeypatch.setattr(Compactor, "_compact", compact)
    for number in range(7):
        topic = await world.broker.opening.persistent(TopicName.parse(f"{TOPIC}{number}"), create=True)
        assert topic.compactor.start()
    await eventually(lambda: running == 2)
    are_many.set()
    await eventually(lambda: done == 7)
    assert most == 2


async def test_a_topic_with_too_many_keys_is_not_compacted_and_goes_on(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.topic.topic.MIB", 300)
    await world.restart(compaction_keys_mb=1)
    raw = await RawClient.connect(world.broker.port)
    await raw.produce(TOPIC)
    for number, key in enumerate("aab"):
        raw.publish(1, number, data=single(key, b"v"))
        await raw.expect(BaseCommand.SEND_RECEIPT)
    topic = await world.broker.opening.persistent(TopicName.parse(TOPIC), create=True)
    facts = topic.compactor.facts
    assert topic.compactor.start()
    await eventually(lambda: facts.status is not CompactionStatus.RUNNING)
    assert facts.status is CompactionStatus.ERROR
    assert "compactionKeysMaxMemoryMB" in facts.last_error
    assert topic.compactor.horizon is None
    raw.publish(1, 3, data=single("c", b"v"))
    await raw.expect(BaseCommand.SEND_RECEIPT)
    await raw.subscribe(TOPIC, initialPosition=wire.CommandSubscribe.Earliest)
    got = [(await raw.expect(BaseCommand.MESSAGE)).message.message_id.entryId for _ in range(4)]
    assert got == [0, 1, 2, 3]
    raw.close()


@pytest.mark.parametrize("limit", ["_READ_ENTRIES", "_READ_BYTES"])
async def test_a_compaction_reads_so_much_at_a_time(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(f"broker.topic.compaction.compactor.{limit}", 3)
    raw = await RawClient.connect(world.broker.port)
    await raw.produce(TOPIC)
    raw.publish(1, *range(20))
    for _ in range(20):
        await raw.answer()
    topic = await world.broker.opening.persistent(TopicName.parse(TOPIC), create=True)
    ledger = world.ledger(TOPIC)
    read = ledger.read
    sizes: list[int] = []

    def noting(first: Position, max_entries: int, max_bytes: int) -> Sequence[Entry] | Awaitable[Sequence[Entry]]:
        found = read(first, max_entries, max_bytes)
        assert isinstance(found, Sequence)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(ledger, "read", noting)
    assert topic.compactor.start()
    await eventually(lambda: topic.compactor.facts.succeeded_ms)
    assert sum(sizes) == 2 * 20
    assert max(sizes) == (3 if limit == "_READ_ENTRIES" else 1)
    raw.close()


@pytest.mark.parametrize("inline_bytes", [1 << 20, 100])
async def test_a_compressed_batch_is_compacted_in_turns(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr("broker.topic.compaction.latest_keys.MESSAGES_PER_TURN", 100)
    monkeypatch.setattr("broker.topic.compaction.compactor.INLINE_BYTES_MAX", inline_bytes)
    loop_thread, elsewhere = threading.get_ident(), 0
    unpacked = Opened.unpacked

    def noting(entry: Opened) -> Opened:
        nonlocal elsewhere
        elsewhere += threading.get_ident() != loop_thread
        return unpacked(entry)

    monkeypatch.setattr(Opened, "unpacked", noting)
    raw = await RawClient.connect(world.broker.port)
    await raw.produce(TOPIC)
    raw.publish(1, 0, data=batch(*((f"k{number % 7}", b"v" * 9) for number in range(2_000)), codec=LZ4))
    await raw.answer()
    topic = await world.broker.opening.persistent(TopicName.parse(TOPIC), create=True)
    assert topic.compactor.start()
    turns = 0
    while topic.compactor.facts.status is CompactionStatus.RUNNING:
        turns += 1
        await asyncio.sleep(0)
    assert topic.compactor.facts.status is CompactionStatus.SUCCESS
    assert turns > 2 * 2_000 / 100
    assert topic.compactor.facts.removed_messages == 1_993
    assert bool(elsewhere) is (inline_bytes == 100)
    raw.close()


async def test_a_compaction_waits_for_what_it_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managed_ledger.compacted.ledger._WRITE_AHEAD_BYTES", 300)
    keeper = MemoryBookKeeper()
    ledgers = CompactedLedgers("t", keeper.client, ManagedLedgerConfig())
    writer = await ledgers.create(TOPIC, -1, Position(1, 99))
    (handle,) = keeper.handles
    most = 0
    append = handle.append

    def noting(payloads: Sequence[bytes]) -> int:
        nonlocal most
        most = max(most, handle.pending_bytes)
        return append(payloads)

    monkeypatch.setattr(handle, "append", noting)
    await writer.add([(Position(1, number), single("k", b"v" * 50)) for number in range(100)])
    await writer.close()
    assert 100 < most <= 300
    assert (await ledgers.open(writer.ledger_id)).entries == 100


async def test_so_many_positions_of_a_compacted_ledger_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managed_ledger.compacted.ledger._POSITIONS_MAX", 5)
    ledgers = CompactedLedgers("t", MemoryBookKeeper().client, ManagedLedgerConfig())
    writer = await ledgers.create(TOPIC, -1, Position(1, 99))
    await writer.add([(Position(1, 2 * number), single("k", b"v")) for number in range(50)])
    await writer.close()
    found = await ledgers.open(writer.ledger_id)
    for number in range(100):
        entries = await found.read(Position(1, number), 1, 1)
        assert [one.entry_id for one in entries] == ([number + number % 2] if number < 99 else [])
    assert len(found._positions) == 5
    assert [one.entry_id for one in await found.read(EARLIEST, 3, 1 << 20)] == [0, 2, 4]
