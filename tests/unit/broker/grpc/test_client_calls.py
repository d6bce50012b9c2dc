"""Calls of the topic API's client that are cut off, overlap, or get no answer."""

import asyncio
from typing import Any

import pytest

from magnetar.client.async_client import AsyncClient
from magnetar.client.brokers import Brokers
from tests.unit.broker.conftest import world
from tests.unit.broker.grpc.conftest import client, door

__all__ = ["client", "door", "world"]


@pytest.mark.parametrize("kind", ["Consume", "Publish"])
async def test_opening_that_was_cut_off_leaves_no_stream_behind(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await client.topics.create("p", partitions=2)
    is_slow, open_stream = asyncio.Event(), Brokers.open

    async def slowly(brokers: Brokers, topic: str, method: str, *others: Any) -> Any:
        if topic.endswith("-1") and not is_slow.is_set():
            await is_slow.wait()
        return await open_stream(brokers, topic, method, *others)

    monkeypatch.setattr(Brokers, "open", slowly)
    made: Any = client.consumer("p", "s") if kind == "Consume" else client.producer("p", name="me")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await made.open()
    is_slow.set()
    await made.open()
    await made.close()
