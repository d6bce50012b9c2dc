"""Limits of the topic API's client in `docs/limits.md`: what happens beyond them."""

import asyncio
from functools import partial
from typing import Any

import pytest

from broker.ownership.rules import Located
from broker.settings.quotas import PublishRate
from magnetar.client.async_client import AsyncClient
from magnetar.client.brokers import LOOKUPS_MAX
from magnetar.client.errors import MessageRefused, TopicUnavailable
from magnetar.client.publishing import FRAME_BYTES, FRAME_MESSAGES, PublishStream
from magnetar.client.values import Outgoing
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import iterate_batch
from tests.support.waiting import eventually, settle
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door

__all__ = ["client", "door", "world"]


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The payloads' sizes of each request that goes out."""
    made: list[list[int]] = []
    next_request = PublishStream._next

    def noting(stream: PublishStream) -> Any:
        request = next_request(stream)
        if request is not None:
            batched = [one for batch in request.batches for one in iterate_batch(batch.messages, batch.count)]
            made.append([*(len(one.payload) for one in batched), *(len(one.payload) for one in request.messages)])
        return request

    monkeypatch.setattr(PublishStream, "_next", noting)
    return made


async def send(client: AsyncClient, sizes: list[int]) -> None:
    """All at once; they come in this order."""
    async with client.producer("t") as producer:
        ids = await producer.send_many([bytes(size) for size in sizes])
    assert len(set(ids)) == len(sizes)
    async with client.reader("t") as reader:
        assert [len((await reader.receive(5)).payload) for _ in sizes] == sizes
        assert not await reader.has_more()


async def test_messages_of_one_call_go_in_frames_of_so_many(client: AsyncClient, frames: list[list[int]]) -> None:
    await send(client, [1] * (2 * FRAME_MESSAGES + 5))
    assert list(map(len, frames)) == [FRAME_MESSAGES, FRAME_MESSAGES, 5]


LARGE = FRAME_BYTES + 1
HUGE = 2_700_000
"""Two of them are more than maxMessageSize."""


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([60_000] * 10, [4, 4, 2]),
        ([1, 1, LARGE, 1, 1], [2, 1, 2]),
        ([LARGE, LARGE], [1, 1]),
        ([HUGE] * 2 + [1] * 1_500, [1, 1, FRAME_MESSAGES, 500]),
        ([1] * 1_500 + [HUGE] * 2, [FRAME_MESSAGES, 500, 1, 1]),
    ],
    ids=["even", "one large", "all large", "huge ones first", "huge ones last"],
)
async def test_bytes_of_one_call_go_in_frames_of_so_many(
    client: AsyncClient, frames: list[list[int]], sizes: list[int], expected: list[int]
) -> None:
    await send(client, sizes)
    assert list(map(len, frames)) == expected
    assert all(sum(frame) <= FRAME_BYTES or len(frame) == 1 for frame in frames)


async def test_several_calls_share_frames_up_to_the_limit(client: AsyncClient, frames: list[list[int]]) -> None:
    async with client.producer("t") as producer:
        await producer.send(b"")
        frames.clear()
        ids = await asyncio.gather(*(producer.send_many([bytes(60_000)] * 3) for _ in range(4)))
    assert len({id_ for some in ids for id_ in some}) == 12
    assert list(map(len, frames)) == [4, 4, 4]


async def test_properties_count_in_a_frame_as_well(client: AsyncClient, frames: list[list[int]]) -> None:
    large = Outgoing(b"x", properties={"p": "y" * HUGE})
    async with client.producer("t") as producer:
        assert len(set(await producer.send_many([large] * 2))) == 2
        with pytest.raises(MessageRefused, match=r"a message of 54000\d\d bytes is larger than .* maxMessageSize"):
            await producer.send_many([Outgoing(b"x", properties={"p": "y" * 2 * HUGE})])
    assert list(map(len, frames)) == [1, 1]


async def test_a_lookup_is_sent_on_so_often(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = TopicName.parse("t")
    world.ownership.elsewhere[name] = Located(False, world.broker.address, redirect=True)
    lookups = 0
    lookup = world.broker.lookup

    async def counting(*arguments: Any, **named: Any) -> Any:
        nonlocal lookups
        lookups += 1
        return await lookup(*arguments, **named)

    monkeypatch.setattr(world.broker, "lookup", counting)
    with pytest.raises(TopicUnavailable, match=f"{LOOKUPS_MAX} brokers sent us on; try again later"):
        await client._brokers.owner("t")
    assert lookups == LOOKUPS_MAX


@pytest.mark.parametrize(
    ("rate", "stored"),
    [(PublishRate(20, 0), [21, 41, 61]), (PublishRate(0, 1_000), [11, 21, 31])],
    ids=["messages", "bytes"],
)
async def test_a_publish_rate_holds_for_the_messages_of_one_request(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch, rate: PublishRate, stored: list[int]
) -> None:
    monkeypatch.setattr("broker.grpc.publish.HOLD_STEP_MS", 5)
    now_ms = world.broker.clock.wall_ms()
    monkeypatch.setattr(world.broker.clock, "wall_ms", lambda: now_ms)
    payloads = [b"%04d" % number + bytes(96) for number in range(200)]
    await client.topics.create("t")
    topic = world.broker.topics[TopicName.parse("t")]
    async with client.producer("t") as producer:
        topic.publish_throttle.use(rate, now_ms)
        sending = asyncio.ensure_future(producer.send_many(payloads))
        for count in stored:
            await eventually(partial(lambda least: topic.messages_in >= least, count - 4))
            await settle()
            assert count - 4 <= topic.messages_in <= count, "an entry has more bytes than its payloads"
            assert not sending.done()
            now_ms += 1_000
        topic.publish_throttle.use(PublishRate(0, 0), now_ms)
        await sending
    async with client.reader("t") as reader:
        assert [(await reader.receive(5)).payload for _ in payloads] == payloads
