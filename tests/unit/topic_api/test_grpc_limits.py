"""Limits of the topic API's port (`docs/limits.md`), each overflowed. A limit that is large is made small first."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from broker.grpc.publish import SEQUENCE_ID_MAX
from broker.grpc.service import REQUEST_PADDING_BYTES, SERVICE, GrpcServer
from magnetar.runtime.types import MIB
from magnetar.topic_api import topics_pb2 as api
from magnetar.topic_api.async_client import AsyncClient
from tests.unit.broker.conftest import World
from tests.unit.topic_api.conftest import open_grpc
from tests.unit.topic_api.test_service import refused, stream


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


async def test_receipts_go_in_several_answers(world: World, channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.grpc.publish.RECEIPTS_PER_ANSWER", 3)
    call = await opened(channel, "Publish")
    too_large = messages(1, world.config.max_message_bytes)
    for number in range(10):
        await call.write(api.PublishRequest(first_sequence_id=number, messages=too_large if number % 2 else messages(1, 9)))
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


async def test_a_consume_call_goes_on_when_little_is_unsent(
    client: AsyncClient, channel: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.grpc.consume.QUEUE_HIGH_BYTES", 40_000)
    monkeypatch.setattr("broker.grpc.consume.QUEUE_LOW_BYTES", 10_000)
    monkeypatch.setattr("broker.grpc.consume.FRAME_BYTES", 1)
    dispatched: list[int] = []
    unsent = asyncio.Event()
    monkeypatch.setattr("broker.grpc.consume.ConsumeCall.take", held(unsent))
