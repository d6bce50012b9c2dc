"""Limits of the topic API's port (`docs/limits.md`), each overflowed. A limit that is large is made small first."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from broker.grpc.consume_call import ConsumeCall
from broker.grpc.publishing.writer import SEQUENCE_ID_MAX
from broker.grpc.service import SERVICE, STREAM_WINDOW_BYTES, GrpcServer
from magnetar.client.async_client import AsyncClient
from magnetar_core.runtime.process.descriptors import DESCRIPTORS
from magnetar_core.topics import topics_pb2 as api
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.grpc.conftest import open_grpc
from tests.unit.broker.grpc.test_service import refused, stream


async def opened(channel: Any, method: str, **opening: Any) -> Any:
    """A call that the broker has opened."""
    call = stream(channel, f"{SERVICE}/{method}", getattr(api, f"{method}Response"))
    await call.write(getattr(api, f"{method}Request")(open={"topic": "t", **opening}))
    await call.read()
    return call


@pytest.fixture
async def channel(door: GrpcServer) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as made:
        yield made


def messages(count: int, size: int) -> list[api.Message]:
    return [api.Message(payload=bytes(size)) for _ in range(count)]


async def test_receipts_go_in_several_answers(
    world: BrokerInMemory, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.grpc.publishing.stream.RECEIPTS_PER_ANSWER", 3)
    monkeypatch.setattr("broker.grpc.publishing.stream.ANSWERS_MAX", 0)  # the call is read on when they are
    call = await opened(channel, "Publish")
    too_large = messages(1, world.config.max_message_bytes)
    for number in range(10):
        await call.write(
            api.PublishRequest(first_sequence_id=number, messages=too_large if number % 2 else messages(1, 9))
        )
    stored, refusals = set[int](), set[int]()
    while len(stored) + len(refusals) < 10:
        answer = await call.read()
        assert 1 <= len(answer.receipts) + len(answer.refusals) <= 3
        for one in answer.receipts:
            stored |= set(range(one.first_sequence_id, one.first_sequence_id + one.count))
        refusals |= {one.first_sequence_id for one in answer.refusals}
    assert (stored, refusals) == (set(range(0, 10, 2)), set(range(1, 10, 2)))


async def test_sequence_ids_end(channel: Any) -> None:
    call = await opened(channel, "Publish")
    await call.write(api.PublishRequest(first_sequence_id=SEQUENCE_ID_MAX - 2, messages=messages(2, 1)))
    assert sum(one.count for one in (await call.read()).receipts) == 2
    call = await opened(channel, "Publish")
    await call.write(api.PublishRequest(first_sequence_id=SEQUENCE_ID_MAX - 2, messages=messages(3, 1)))
    code, details = await refused(call)
    assert (code, f"sequence ids end at {SEQUENCE_ID_MAX - 1}" in details) == ("INVALID_ARGUMENT", True)


async def test_a_consume_call_that_is_full_goes_on_when_little_is_unsent(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, high = 3_000, 10_000
    monkeypatch.setattr("broker.grpc.consume_call.QUEUE_HIGH_BYTES", high)
    monkeypatch.setattr("broker.grpc.consume_call.QUEUE_LOW_BYTES", low)
    monkeypatch.setattr("broker.grpc.consume_call.FRAME_BYTES", 1)
    queue, pop = ConsumeCall._queue, ConsumeCall._pop
    went_on: list[int] = []
    most = 0

    def noting_queue(call: ConsumeCall, answer: Any, size: int) -> None:
        nonlocal most
        assert call.is_writable or not size, "nothing is dispatched to one that is full"
        queue(call, answer, size)
        most = max(most, call._out_bytes)

    def noting_pop(call: ConsumeCall) -> None:
        was_full = not call.is_writable and call._is_full
        unsent = call._out_bytes - call._out[0][0]
        pop(call)
        if was_full and (not call._is_full or call._out_bytes > unsent):
            went_on.append(unsent)

    sizes = [900] * 9 + [20_000] + [900] * 30
    producer = client.producer("t")
    for size in sizes:
        await producer.send(bytes(size))  # an entry each
    monkeypatch.setattr(ConsumeCall, "_queue", noting_queue)
    monkeypatch.setattr(ConsumeCall, "_pop", noting_pop)
    async with client.consumer("t", "s", from_earliest=True) as consumer:
        assert [len((await consumer.receive(5)).payload) for _ in sizes] == sizes
    assert most > high
    assert went_on
    assert max(went_on) <= low


@pytest.mark.parametrize("window", [STREAM_WINDOW_BYTES, 16 * STREAM_WINDOW_BYTES])
async def test_of_a_call_that_is_not_read_only_so_much_is_on_its_way(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr("broker.grpc.publishing.stream.STREAM_BYTES_MAX", 60_000)
    monkeypatch.setattr("broker.grpc.service.STREAM_WINDOW_BYTES", window)
    server = await open_grpc(world)
    payload = bytes(50_000)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = await opened(channel, "Publish")
        world.ledger("t").hold = True
        written = 0

        async def write() -> None:
            nonlocal written
            while written < 400:
                await call.write(api.PublishRequest(first_sequence_id=written, messages=[api.Message(payload=payload)]))
                written += 1

        writing = asyncio.ensure_future(write())
        await eventually(lambda: written * len(payload) > window)
        seen = -1
        while seen != written:  # it stands still
            seen = written
            await asyncio.sleep(0.1)
        assert written * len(payload) <= 2 * window + 4 * len(payload)
        world.ledger("t").hold = False
        world.ledger("t").release()
        await writing
    await server.stop()


@pytest.mark.parametrize("limit", ["REQUEST_BYTES_MIN", "REQUEST_PADDING_BYTES"])
async def test_a_request_has_a_limit(world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"broker.grpc.service.{limit}", 20_000)
    most = 20_000
    if limit == "REQUEST_PADDING_BYTES":
        monkeypatch.setattr("broker.grpc.service.REQUEST_BYTES_MIN", 0)
        await world.restart(max_message_bytes=100_000)
        most += 100_000
    else:
        await world.restart(max_message_bytes=10_000)
        monkeypatch.setattr("broker.grpc.service.REQUEST_PADDING_BYTES", 0)
    server = await open_grpc(world)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        for size in (most, most + 1):
            call = await opened(channel, "Publish")
            request = api.PublishRequest(messages=messages(10, size // 10 - 20))
            request.messages[0].payload += bytes(size - request.ByteSize())
            assert request.ByteSize() == size
            await call.write(request)
            if size == most:
                while not (await call.read()).receipts:
                    pass
            else:
                assert (await refused(call))[0] == "RESOURCE_EXHAUSTED"
    await server.stop()


async def test_calls_of_a_connection_are_limited_and_the_others_wait(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.grpc.service.STREAMS_PER_CONNECTION_MAX", 3)
    server = await open_grpc(world)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        calls = [await opened(channel, "Publish") for _ in range(3)]
        fourth = asyncio.ensure_future(opened(channel, "Publish"))
        await asyncio.wait([fourth], timeout=0.1)
        assert not fourth.done()
        calls[0].cancel()
        await fourth
    await server.stop()


async def test_the_port_leaves_descriptors_to_the_others(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DESCRIPTORS, "limit", lambda: 16)  # 8 are for connections, a quarter of them for this port
    server = await open_grpc(world)
    connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
    try:
        for _, writer in connections:
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        async with asyncio.timeout(10):
            first = [await told(reader) for reader, _ in connections]
        assert sorted(first) == [False, True, True], "two are answered with settings, the third is closed"
    finally:
        for _, writer in connections:
            writer.close()
        await server.stop()


async def told(reader: asyncio.StreamReader) -> bool:
    try:
        return bool(await reader.read(9))
    except ConnectionError:
        return False
