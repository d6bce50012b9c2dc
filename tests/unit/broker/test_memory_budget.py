"""One budget of memory for all: who waits, who goes on, and what a connection counts."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from broker.binary.consumers import ConnectionConsumers
from broker.binary.flow import OUTBOX_HIGH_BYTES, OUTBOX_LOW_BYTES, OUTBOX_PAUSE_BYTES, READ_ROOM_BYTES
from broker.memory_budget import LOOK_S, RESUME_BELOW, RESUMED_AT_ONCE, STEP_S, MemoryBudget
from broker.settings.config import BrokerConfig
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.runtime.process.memory import memory_bytes
from magnetar_core.runtime.types import KIB, MIB
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually
from tests.unit.broker.binary.test_connection import connected
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.topic.dispatching import EXCLUSIVE, SHARED, Bench, entry

TOPIC = "persistent://public/default/t"


def large(number: int, size_bytes: int) -> bytes:
    return encode_entry(MessageMetadata(producer_name="p", sequence_id=number, publish_time=1), bytes(size_bytes))


class Row:
    """Who goes on, in order."""

    def __init__(self, limit_bytes: int = 1000) -> None:
        self.clock = ManualClock()
        self.budget = MemoryBudget(limit_bytes, self.clock.call_later)
        self.went_on: list[object] = []

    def wait(self, *names: object, takes: int = 0) -> None:
        for name in names:

            def go_on(name: object = name) -> None:
                self.went_on.append(name)
                self.budget.take(takes)

            self.budget.wait(name, go_on)


def test_who_waits_goes_on_in_order_when_a_quarter_is_free() -> None:
    row = Row()
    row.budget.take(1000)
    assert row.budget.is_full
    row.wait("a", "b", "a")
    row.budget.give(249)
    row.clock.advance(10 * LOOK_S)
    assert row.went_on == []
    row.budget.give(2)
    row.clock.advance(2 * LOOK_S)
    assert row.went_on == ["a", "b"]
    assert row.budget.used_bytes == 749 < 1000 * RESUME_BELOW


def test_a_few_go_on_at_once_and_the_others_only_if_there_still_is_room() -> None:
    row = Row()
    row.budget.take(1000)
    row.wait(*range(100), takes=50)
    row.budget.give(1000)
    row.clock.advance(LOOK_S)
    assert row.went_on == list(range(15)), "what they took is seen"
    row.budget.give(row.budget.used_bytes)
    row.clock.advance(LOOK_S)
    assert len(row.went_on) == 30
    many = Row(10**9)
    many.wait(*range(3 * RESUMED_AT_ONCE))
    many.clock.advance(LOOK_S)
    assert len(many.went_on) == RESUMED_AT_ONCE
    many.clock.advance(3 * STEP_S)
    assert len(many.went_on) == 3 * RESUMED_AT_ONCE


def test_whoever_left_does_not_go_on() -> None:
    row = Row()
    row.budget.take(1000)
    row.wait("a", "b")
    row.budget.forget("a")
    row.budget.give(1000)
    row.clock.advance(LOOK_S)
    assert row.went_on == ["b"]


def test_holders_are_asked_what_they_still_hold() -> None:
    row = Row()

    class Socket:
        def recount(self) -> None:
            row.budget.give(900)
            row.budget.holders.pop(self)

    row.budget.take(1000)
    row.budget.holders[Socket()] = None
    row.wait("a")
    row.clock.advance(LOOK_S)
    assert row.went_on == ["a"]


def test_what_was_not_taken_cannot_be_given() -> None:
    budget = MemoryBudget(10, ManualClock().call_later)
    with pytest.raises(AssertionError):
        budget.give(1)


def test_the_defaults_follow_the_memory_that_there_is(tmp_path: Any) -> None:
    config = BrokerConfig()
    assert config.publish_buffer_bytes(24 << 30) == 128 * MIB
    assert config.publish_buffer_bytes(512 * MIB) == 64 * MIB
    assert config.read_buffer_bytes(24 << 30) == 64 * MIB
    assert config.publish_buffer_bytes(1) == config.read_buffer_bytes(1) == 2 * config.max_message_bytes
    assert BrokerConfig(publish_buffer_mbytes=300).publish_buffer_bytes(1) == 300 * MIB
    assert any("maxMessagePublishBufferSizeInMB" in one for one in BrokerConfig(publish_buffer_mbytes=9).problems())
    whole = memory_bytes([])
    for text, expected in (("max", whole), (str(64 * MIB), 64 * MIB), (str(2**62), whole), ("", whole)):
        (tmp_path / "memory.max").write_text(text + "\n")
        assert memory_bytes([str(tmp_path / "memory.max"), str(tmp_path / "absent")]) == expected


# ---------------------------------------------------------------------------------- what connections count


async def test_what_is_published_is_counted_until_it_is_answered(world: BrokerInMemory) -> None:
    client = await RawClient.connect(world.broker.port)
    await client.produce(TOPIC)
    ledger = world.ledger(TOPIC)
    ledger.hold = True
    data = large(0, 10_000)
    client.publish(1, *range(5), data=data)
    await eventually(lambda: world.broker.publishes.used_bytes == 5 * len(data))
    ledger.release()
    await eventually(lambda: world.broker.publishes.used_bytes == 0)
    ledger.hold = True
    client.publish(1, *range(5, 9), data=data)
    await eventually(lambda: world.broker.publishes.used_bytes == 4 * len(data))
    client.close()
    await eventually(lambda: not world.broker.server.clients)
    assert world.broker.publishes.used_bytes == 4 * len(data), "storage still has it"
    ledger.release()
    await eventually(lambda: world.broker.publishes.used_bytes == 0)


async def test_connections_are_not_read_while_all_together_have_too_much(world: BrokerInMemory) -> None:
    """And all go on when it is stored; each message is answered once."""
    world.broker.publishes.limit_bytes = 1 * MIB
    data = large(0, 100_000)
    clients = [await RawClient.connect(world.broker.port) for _ in range(8)]
    for number, client in enumerate(clients):
        await client.produce(TOPIC, producer_name=f"p{number}")
    ledger = world.ledger(TOPIC)
    ledger.hold = True
    for client in clients:
        client.publish(1, *range(20), data=data)
    budget = world.broker.publishes
    await eventually(lambda: not any(one._is_socket_read for one in world.broker.server.clients))
    assert budget.waiting_count
    assert 1 * MIB <= budget.used_bytes <= 1 * MIB + len(clients) * 512 * 1024, "a chunk each, beyond the limit"
    for client in clients:
        client.send(BaseCommand.PING)
    ledger.release()
    for client in clients:
        receipts: list[int] = []
        while len(receipts) < 20:
            answer = await client.answer()
            if answer.type == BaseCommand.SEND_RECEIPT:
                receipts.append(answer.send_receipt.sequence_id)
        assert receipts == list(range(20))
        client.close()
    assert ledger.ledgers.entries_total == 160
    await eventually(lambda: (budget.used_bytes, budget.waiting_count) == (0, 0))


async def test_half_a_frame_is_counted_and_forgotten_with_its_connection(world: BrokerInMemory) -> None:
    client = await RawClient.connect(world.broker.port)
    client.writer.write((1_000_000).to_bytes(4, "big") + bytes(500_000))
    unfinished = world.broker.server.unfinished
    await eventually(lambda: unfinished.bytes == 1_000_004)
    client.close()
    await eventually(lambda: unfinished.bytes == 0)


async def test_half_frames_leave_others_room_to_publish(world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: their sockets are not read, and who sends whole frames has its turn."""
    monkeypatch.setattr("magnetar_core.bookkeeper.wire.unfinished.LOOK_S", 0.02)
    monkeypatch.setattr("magnetar_core.bookkeeper.wire.unfinished.TURN_S", 60.0)
    unfinished = world.broker.server.unfinished
    unfinished.limit_bytes = 3 * MIB
    halves = [await RawClient.connect(world.broker.port) for _ in range(8)]
    for half in halves:
        half.writer.write((MIB).to_bytes(4, "big") + bytes(MIB - 100))
    await eventually(lambda: sum(not one.is_read for one in world.broker.server.clients) >= 4)
    assert sum(one._splitter.held_bytes for one in world.broker.server.clients) < 7 * MIB
    monkeypatch.setattr("magnetar_core.bookkeeper.wire.unfinished.TURN_S", 0.02)
    honest = await RawClient.connect(world.broker.port)
    await honest.produce(TOPIC)
    for number in range(5):
        honest.publish(1, number, data=large(number, 300_000))
        await honest.expect(BaseCommand.SEND_RECEIPT)


async def test_what_a_client_does_not_read_is_counted_and_its_consumers_wait(world: BrokerInMemory) -> None:
    client = await RawClient.connect(world.broker.port)
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, permits=0, initialPosition=wire.CommandSubscribe.Earliest)
    count = 60
    for number in range(count):
        client.publish(1, number, data=large(number, 200_000))
        await client.expect(BaseCommand.SEND_RECEIPT)
    (protocol,) = world.broker.server.clients
    client._reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.send(BaseCommand.FLOW, consumer_id=1, messagePermits=1000)
    await eventually(lambda: protocol.unsent_bytes > OUTBOX_LOW_BYTES)
    await asyncio.sleep(0.1)
    assert protocol.unsent_bytes <= OUTBOX_HIGH_BYTES + 400_000, "at most an entry more than the limit"
    assert 0 < world.broker.reads.used_bytes <= OUTBOX_HIGH_BYTES + 400_000
    client._reader._transport.resume_reading()  # type: ignore[attr-defined]
    for number in range(count):
        assert (await client.expect(BaseCommand.MESSAGE)).message.message_id.entryId == number
    client.close()
    await eventually(lambda: world.broker.reads.used_bytes == 0)


async def test_a_client_that_is_closed_and_reads_the_rest_leaves_nothing_in_the_budget(world: BrokerInMemory) -> None:
    client = await RawClient.connect(world.broker.port)
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, permits=0, initialPosition=wire.CommandSubscribe.Earliest)
    for number in range(60):
        client.publish(1, number, data=large(number, 200_000))
        await client.expect(BaseCommand.SEND_RECEIPT)
    (protocol,) = world.broker.server.clients
    for transport, option in ((protocol._transport, socket.SO_SNDBUF), (client.writer.transport, socket.SO_RCVBUF)):
        assert transport is not None
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 64 * KIB)
    client._reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.send(BaseCommand.FLOW, consumer_id=1, messagePermits=1000)
    await eventually(lambda: protocol.unsent_bytes > OUTBOX_PAUSE_BYTES)
    protocol.close()
    client._reader._transport.resume_reading()  # type: ignore[attr-defined]
    assert await client.ended()
    await eventually(lambda: not world.broker.server.clients)
    assert (world.broker.reads.used_bytes, world.broker.reads.holders) == (0, {})
    client.close()


@pytest.mark.parametrize("cold", [True, False])
async def test_subscriptions_of_one_connection_take_turns(world: BrokerInMemory, cold: bool) -> None:
    client = await RawClient.connect(world.broker.port)
    await client.produce(TOPIC)
    for number in range(4):
        await client.subscribe(
            TOPIC, number, permits=0, subscription=f"s{number}", initialPosition=wire.CommandSubscribe.Earliest
        )
    count = 12
    for number in range(count):
        client.publish(1, number, data=large(number, 700_000))
        await client.expect(BaseCommand.SEND_RECEIPT)
    world.ledger(TOPIC).cold = cold
    for number in range(4):
        client.send(BaseCommand.FLOW, consumer_id=number, messagePermits=1000)
    got: list[int] = []
    while len(got) < 4 * count:
        got.append((await client.expect(BaseCommand.MESSAGE)).message.consumer_id)
    assert {got.count(number) for number in range(4)} == {count}
    assert set(got[: 2 * count]) == {0, 1, 2, 3}, "nobody waits until another one has everything"
    client.close()
    await eventually(lambda: world.broker.reads.used_bytes == 0)


# ---------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_no_more_is_read_than_the_consumers_have_room_for(kind: int) -> None:
    bench = Bench()
    await bench.append(*map(entry, range(10)))
    peer = bench.join(1, kind, permits=0)
    peer.room_bytes = 100
    asked: list[tuple[int, int]] = []
    read = bench.cursor.read

    def note(entries_max: int, bytes_max: int) -> Any:
        asked.append((entries_max, bytes_max))
        return read(entries_max, bytes_max)

    bench.cursor.read = note  # type: ignore[method-assign, assignment]
    bench.flow(1, 100)
    assert asked[0][1] == 100


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_without_room_in_the_broker_nothing_is_read_but_one_entry_for_a_client_that_waits(kind: int) -> None:
    bench = Bench()
    await bench.append(*map(entry, range(10)))
    peer = bench.join(1, kind, permits=0)
    peer.is_idle = False
    bench.host.read_room_bytes = 0
    bench.flow(1, 100)
    assert peer.got == []
    (go_on,) = bench.host.waiting_for_room.values()
    bench.host.waiting_for_room.clear()
    if kind == EXCLUSIVE:
        sizes = []
        read = bench.cursor.read

        def one_by_one(entries_max: int, bytes_max: int) -> Sequence[Any]:
            sizes.append(entries_max)
            peer.is_idle = False  # it has something now
            found = read(entries_max, bytes_max)
            assert isinstance(found, Sequence)
            return found

        bench.cursor.read = one_by_one  # type: ignore[method-assign, assignment]
        peer.is_idle = True
        go_on()
        assert sizes == [1]
        (go_on,) = bench.host.waiting_for_room.values()
    bench.host.read_room_bytes = 1 << 20
    go_on()
    assert peer.got == list(range(10))


async def test_reading_under_way_is_counted_and_forgotten_with_its_topic(world: BrokerInMemory) -> None:
    client = await RawClient.connect(world.broker.port)
    await client.produce(TOPIC)
    client.publish(1, *range(3))
    for _ in range(3):
        await client.expect(BaseCommand.SEND_RECEIPT)
    ledger = world.ledger(TOPIC)
    ledger.cold, ledger.reads_held = True, asyncio.Event()
    await client.subscribe(TOPIC, initialPosition=wire.CommandSubscribe.Earliest)
    await eventually(lambda: world.broker.reads.used_bytes >= OUTBOX_HIGH_BYTES - 1000)
    await world.broker.opening.unload(TopicName.parse(TOPIC))
    await eventually(lambda: world.broker.reads.used_bytes == 0)
    client.close()


def test_a_connection_is_read_again_as_soon_as_its_answers_are_below_the_high_mark() -> None:
    """Below it the socket tells nothing more: waiting for the low mark could be for ever."""
    connection, outbox = connected()
    calls: list[str] = []
    outbox.pause_reading = lambda: calls.append("pause")  # type: ignore[method-assign]
    outbox.resume_reading = lambda: calls.append("resume")  # type: ignore[method-assign]
    outbox.write = lambda buffer: None  # type: ignore[method-assign]
    connection.flow.write_message(b"", bytes(2 * OUTBOX_HIGH_BYTES))
    connection.on_flushed(OUTBOX_HIGH_BYTES + 1)
    assert calls == ["pause"]
    assert not connection.consumers.is_writable
    connection.on_flushed((OUTBOX_HIGH_BYTES + OUTBOX_LOW_BYTES) // 2)
    assert calls == ["pause", "resume"]
    assert connection.consumers.is_writable


def test_entries_are_read_for_a_client_when_half_of_its_room_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, outbox = connected()
    pumped: list[int] = []
    monkeypatch.setattr(ConnectionConsumers, "pump", lambda consumers: pumped.append(consumers.room_bytes))
    outbox.write = lambda buffer: None  # type: ignore[method-assign]
    connection.on_flushed(0)
    assert connection.consumers.room_bytes == OUTBOX_HIGH_BYTES
    connection.flow.write_message(b"", bytes(OUTBOX_PAUSE_BYTES + 1))
    assert connection.consumers.room_bytes == 0, "some is left, but not enough to be worth a read"
    assert connection.consumers.is_writable, "what was read before is still sent"
    connection.on_flushed(OUTBOX_PAUSE_BYTES + 1)
    assert pumped == []
    connection.on_flushed(OUTBOX_LOW_BYTES)
    assert pumped == [OUTBOX_HIGH_BYTES - OUTBOX_LOW_BYTES]
    connection.consumers.reserve(READ_ROOM_BYTES)
    assert connection.consumers.room_bytes == 0
    connection.consumers.reserve(-READ_ROOM_BYTES)
    assert len(pumped) == 2, "a read has ended, and what it brought was less"
