"""Times that producers claim: a year ahead, a year back, none, before 1970. Everything is delivered, at both ports, and
found again; and no claimed time alone uses a backlog quota up, or keeps one from being used up."""

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from broker.settings.quotas import AGE, EVICTION, HOLD, BacklogQuota
from broker.topic.reading.backlog_quota import exceeded
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar.client.async_client import AsyncClient
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.grpc.conftest import client, door
from tests.unit.broker.raw_client import RawClient

__all__ = ["client", "door"]

TOPIC: Final = "persistent://public/default/t"
NAME: Final = TopicName.parse(TOPIC)
NOW_MS: Final = 1_900_000_000_000
YEAR_MS: Final = 365 * 24 * 3600 * 1000
# In the order in which they are published.
CLAIMED: Final = [NOW_MS + YEAR_MS, NOW_MS - YEAR_MS, 0, 2**64 - 1, 2**63, 2**63 - 1, NOW_MS]


def signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def dated(number: int, publish_time: int, **more: Any) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=publish_time, **more)
    return encode_entry(metadata, str(number).encode())


@pytest.fixture
async def raw(world: BrokerInMemory) -> AsyncIterator[RawClient]:
    made = await RawClient.connect(world.broker.port)
    await made.produce(TOPIC)
    yield made
    made.close()


async def publish(raw: RawClient, *publish_times: int, **more: Any) -> None:
    for number, publish_time in enumerate(publish_times):
        raw.publish(1, number, data=dated(number, publish_time, **more))
        await raw.expect(BaseCommand.SEND_RECEIPT)


async def test_what_claims_an_odd_time_is_delivered_over_the_topic_api(raw: RawClient, client: AsyncClient) -> None:
    for number, claimed in enumerate(CLAIMED):
        raw.publish(1, number, data=dated(number, claimed, event_time=claimed))
        await raw.expect(BaseCommand.SEND_RECEIPT)
    async with await client.reader("t", start="earliest") as reader:
        found = [await reader.receive(timeout_s=30) for _ in CLAIMED]
    assert [one.payload for one in found] == [str(number).encode() for number in range(len(CLAIMED))]
    assert [one.publish_time_ms for one in found] == [signed(claimed) for claimed in CLAIMED]
    assert [one.event_time_ms for one in found] == [signed(claimed) for claimed in CLAIMED]


@pytest.mark.parametrize("wanted", [0, 1, NOW_MS, NOW_MS + YEAR_MS, 2**63 - 1, 2**63, 2**64 - 1])
async def test_a_seek_to_an_odd_time_is_answered_and_delivery_goes_on(raw: RawClient, wanted: int) -> None:
    await publish(raw, *CLAIMED)
    await raw.subscribe(TOPIC, permits=0)
    raw.send(BaseCommand.SEEK, consumer_id=1, request_id=3, message_publish_time=wanted)
    await raw.expect(BaseCommand.CLOSE_CONSUMER)
    await raw.expect(BaseCommand.SUCCESS)
    await raw.subscribe(TOPIC)
    first = next((at for at, one in enumerate(CLAIMED) if signed(one) >= signed(wanted)), len(CLAIMED))
    expected = list(range(first, len(CLAIMED)))
    assert [(await raw.expect(BaseCommand.MESSAGE)).message.message_id.entryId for _ in expected] == expected
    assert await raw.nothing_came()


@pytest.mark.parametrize("claimed", CLAIMED)
async def test_no_claimed_time_uses_the_quota_for_the_age_up(
    world: BrokerInMemory, raw: RawClient, claimed: int
) -> None:
    """The ledger was begun a minute ago: nothing in it is older, whatever its producer says."""
    await publish(raw, claimed)
    await raw.subscribe(TOPIC, permits=0, initialPosition=wire.CommandSubscribe.Earliest)
    ledger, subscriptions = world.ledger(TOPIC), world.broker.topics[NAME].subscriptions.values()
    nothing, quota = BacklogQuota(-1, -1, HOLD), BacklogQuota(-1, 600, EVICTION)
    ledger.begun_at_ms[ledger.ledgers.last_confirmed.ledger_id] = NOW_MS - 60_000
    assert await exceeded(ledger, subscriptions, nothing, quota, NOW_MS) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("claimed", CLAIMED)
async def test_no_claimed_time_keeps_the_quota_for_the_age_from_being_used_up(
    world: BrokerInMemory, raw: RawClient, monkeypatch: pytest.MonkeyPatch, claimed: int
) -> None:
    """The ledger was closed long ago: everything in it is as old at least."""
    await publish(raw, claimed)
    await raw.subscribe(TOPIC, permits=0, initialPosition=wire.CommandSubscribe.Earliest)
    ledger, subscriptions = world.ledger(TOPIC), world.broker.topics[NAME].subscriptions.values()
    nothing, quota = BacklogQuota(-1, -1, HOLD), BacklogQuota(-1, 600, EVICTION)
    monkeypatch.setattr(ledger.ledgers, "closed_ms", lambda ledger_id: NOW_MS - 3600_000)
    found = await exceeded(ledger, subscriptions, nothing, quota, NOW_MS)  # type: ignore[arg-type]
    assert found is not None
    assert found.kind == AGE
