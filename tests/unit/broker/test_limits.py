"""Limits of the binary port and of topics (`docs/limits.md`), each overflowed. A limit that is large is made small."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from broker.names import DEDUPLICATION_CURSOR
from broker.topic.publishing.stored_deduplication import StoredDeduplication
from broker.wire.frames import command
from broker.wire.pulsar_pb2 import BaseCommand
from tests.support.memory_managed_ledger import MemoryCursor
from tests.support.transports import NotingTransport
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.topic.dispatching import entry

TOPIC = "persistent://public/default/t"


async def test_small_frames_leave_as_one_and_large_ones_as_they_are(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.binary.server.JOINED_BYTES_MAX", 100)
    raw = await RawClient.connect(world.broker.port)
    (client,) = world.broker.server.clients
    noting = NotingTransport(client._transport)
    monkeypatch.setattr(client, "_transport", noting)
    for text_bytes, buffers in ((10, 1), (100, 20)):
        noting.writes.clear()
        for number in range(20):
            client.write(command(BaseCommand.ERROR, request_id=number, error=0, message="x" * text_bytes))
        answers = [(await raw.expect(BaseCommand.ERROR)).error for _ in range(20)]
        assert [(one.request_id, len(one.message)) for one in answers] == [(at, text_bytes) for at in range(20)]
        assert [len(sizes) for sizes in noting.writes] == [buffers]
    raw.close()


def is_established(one: socket.socket) -> bool:
    """Whether the connection of a TCP socket stands, from its side."""
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1  # TCP_ESTABLISHED


async def test_so_many_connections_wait_to_be_accepted_and_the_others_are_tried_again(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.binary.server.BACKLOG", 3)
    await world.restart()
    clients = [socket.socket() for _ in range(8)]
    for one in clients:  # nothing is accepted before this task waits for something
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", world.broker.port))
    assert sum(map(is_established, clients)) == 4, "Linux lets one more in"
    async with asyncio.timeout(60):
        while not all(map(is_established, clients)):
            await asyncio.sleep(0.01)
    for one in clients:
        one.close()


@pytest.mark.parametrize("limit", ["REPLAY_ENTRIES", "REPLAY_BYTES"])
async def test_a_topic_with_deduplication_replays_its_entries_in_steps(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(StoredDeduplication, "snapshot", lambda _: None)  # as after a kill
    await world.restart(deduplication=True)
    raw = await RawClient.connect(world.broker.port)
    await raw.produce(TOPIC, producer_name="p")
    raw.publish(1, *range(20))
    for _ in range(20):
        await raw.expect(BaseCommand.SEND_RECEIPT)
    raw.close()
    stored = world.ledger(TOPIC)
    steps: list[int] = []
    read = MemoryCursor.read

    def noting(cursor: MemoryCursor, max_entries: int, max_bytes: int) -> Any:
        found = read(cursor, max_entries, max_bytes)
        assert isinstance(found, Sequence)
        steps.append(len(found))
        return found

    monkeypatch.setattr(MemoryCursor, "read", noting)
    size_bytes = len(entry(0))
    monkeypatch.setattr(
        f"broker.topic.publishing.stored_deduplication.{limit}", 6 if limit == "REPLAY_ENTRIES" else 6 * size_bytes
    )
    await world.restart(deduplication=True)
    raw = await RawClient.connect(world.broker.port)
    assert (await raw.produce(TOPIC, producer_name="p")).last_sequence_id == 19
    assert sum(steps) == stored.ledgers.entries_total == 20
    assert steps[0] in (5, 6)
    assert max(steps) == steps[0]
    assert DEDUPLICATION_CURSOR in world.ledger(TOPIC).cursors
    raw.close()


@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/t"])
async def test_a_host_has_so_many_producers_and_consumers_of_a_topic(world: BrokerInMemory, topic: str) -> None:
    await world.restart(max_producers_per_address=1, max_consumers_per_address=1)
    raw = await RawClient.connect(world.broker.port)
    for number, (kind, found) in enumerate(((BaseCommand.PRODUCER_SUCCESS, "ok"), (BaseCommand.ERROR, "producers"))):
        raw.send(BaseCommand.PRODUCER, topic=topic, producer_id=number, request_id=number)
        answer = await raw.expect(kind)
        assert found == "ok" or "reached max same address producers limit" in answer.error.message
    for number, (kind, found) in enumerate(((BaseCommand.SUCCESS, "ok"), (BaseCommand.ERROR, "consumers"))):
        raw.send(
            BaseCommand.SUBSCRIBE, topic=topic, subscription=f"s-{number}", subType=1, consumer_id=number,
            request_id=10 + number,
        )  # fmt: skip
        answer = await raw.expect(kind)
        assert found == "ok" or "reached max same address consumers limit" in answer.error.message
    raw.close()
