"""What `internalStats` shows beyond the numbers of the managed ledger."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pulsar
import pytest

from broker.admin.topics.ledger_text import ledger_text
from broker.topic.topic import Topic
from magnetar_core.bookkeeper.client.errors import BookieUnavailable
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.schemas.compatibility import Schema, SchemaType, Strategy
from tests.support.vectors import load
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.test_official_client import QUIET

TOPICS = "/admin/v2/persistent/public/default"
NAME = TopicName.parse("persistent://public/default/t")

RECORDED = LedgerMetadata(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    digest_type=DigestType.CRC32C,
    segments=(Segment(0, ("127.0.0.1:3182", "127.0.0.1:3183", "127.0.0.1:3181")),),
    custom_metadata=(
        ("component", b"managed-ledger"),
        ("pulsar/managed-ledger", b"t1/n1/persistent/top"),
        ("application", b"pulsar"),
    ),
)


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def internal(world: AdminWorld, side: Side, query: str = "") -> Any:
    return (await world.call(side, "GET", f"{TOPICS}/t/internalStats{query}")).json


async def made_topic(world: AdminWorld) -> tuple[Side, Topic]:
    side = await world.side()
    assert (await world.call(side, "PUT", f"{TOPICS}/t")).status == 204
    return side, side.broker.topics[NAME]


def test_metadata_are_written_as_java_writes_them() -> None:
    golden = load("http/122-get-admin-v2-persistent-t1-n1-top-internalStats-metadata-true.json")
    assert ledger_text(RECORDED) == golden["response"]["json"]["ledgers"][0]["metadata"]


def test_a_closed_ledger_shows_its_end_and_none_its_password() -> None:
    closed = LedgerMetadata(
        ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.HMAC, password=b"secret",
        segments=(Segment(0, ("a:1",)), Segment(7, ("b:1",))), state=LedgerState.CLOSED, length=99, last_entry_id=9,
    )  # fmt: skip
    assert ledger_text(closed) == (
        "LedgerMetadata{formatVersion=3, ensembleSize=1, writeQuorumSize=1, ackQuorumSize=1, state=CLOSED, length=99, "
        "lastEntryId=9, digestType=MAC, password=OMITTED, ensembles={0=[a:1], 7=[b:1]}, customMetadata={}}"
    )


async def test_metadata_and_marks_are_shown_when_they_are_asked_for(world: AdminWorld) -> None:
    side, topic = await made_topic(world)
    ledger_id = topic.ledger.ledgers.last_confirmed.ledger_id
    await LedgerStore(side.store).create_with_id(ledger_id, RECORDED)
    assert "metadata" not in (await internal(world, side))["ledgers"][0]
    (shown,) = (await internal(world, side, "?metadata=true"))["ledgers"]
    assert (shown["metadata"], shown["underReplicated"]) == (ledger_text(RECORDED), False)
    await MarkBoard(side.store).mark(ledger_id, "127.0.0.1:3183", 1)
    (shown,) = (await internal(world, side, "?metadata=true"))["ledgers"]
    assert shown["underReplicated"] is True


async def test_ledgers_of_schemas_show_what_their_metadata_say(world: AdminWorld) -> None:
    side, _ = await made_topic(world)
    schema = Schema(SchemaType.STRING, b"", ())
    await side.broker.schemas.put_if_absent(NAME.schema_id, schema, Strategy.ALWAYS_COMPATIBLE)
    (shown,) = (await internal(world, side))["schemaLedgers"]
    assert (shown["entries"], shown["size"]) == (-1, -1), "nobody knows the ledger"
    closed = LedgerMetadata(
        ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C,
        segments=(Segment(0, ("a:1",)),), state=LedgerState.CLOSED, length=77, last_entry_id=0,
    )  # fmt: skip
    await LedgerStore(side.store).create_with_id(shown["ledgerId"], closed)
    (shown,) = (await internal(world, side, "?metadata=true"))["schemaLedgers"]
    assert (shown["entries"], shown["size"], shown["metadata"]) == (1, 77, ledger_text(closed))


async def test_a_cursor_is_active_and_waits_while_a_consumer_does(world: AdminWorld) -> None:
    side, topic = await made_topic(world)
    c = pulsar.Client(side.url, logger=QUIET)
    consumer = await world.run(c.subscribe, str(NAME), "s")
    await eventually(lambda: topic.subscriptions["s"].is_waiting)
    shown = await internal(world, side)
    cursor = shown["cursors"]["s"]
    assert (cursor["active"], cursor["waitingReadOp"], cursor["subscriptionHavePendingRead"]) == (True, True, True)
    assert shown["waitingCursorsCount"] == 1
    await world.run(consumer.close)
    await eventually(lambda: not topic.subscriptions["s"].consumers)
    shown = await internal(world, side)
    assert (shown["cursors"]["s"]["active"], shown["waitingCursorsCount"]) == (False, 0)
    await world.run(c.close)


async def test_a_ledger_that_could_not_be_begun_leaves_its_time(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, topic = await made_topic(world)
    assert "lastLedgerCreationFailureTimestamp" not in await internal(world, side)

    async def fail(**_: Any) -> Any:
        raise BookieUnavailable("none is there")

    monkeypatch.setattr(topic.ledger._lifecycle._bookkeeper, "create_ledger", fail)
    with pytest.raises(Exception, match="cannot create a ledger"):
        await topic.ledger._lifecycle.begin()
    shown = await internal(world, side)
    assert shown["lastLedgerCreationFailureTimestamp"].endswith("Z")
    assert shown["lastLedgerCreatedTimestamp"].endswith("Z")


async def test_reads_from_the_bookies_show_while_they_last(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    side, topic = await made_topic(world)
    c = pulsar.Client(side.url, logger=QUIET)

    def use() -> Any:
        consumer = c.subscribe(str(NAME), "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=10)
        c.create_producer(str(NAME)).send(b"x")
        return consumer, consumer.receive(5000)

    consumer, message = await world.run(use)
    read: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(topic.subscriptions["s"].cursor, "read_again", lambda *_: read)
    await world.run(consumer.negative_acknowledge, message)
    await eventually(lambda: topic.subscriptions["s"].pump.is_replaying)
    cursor = (await internal(world, side))["cursors"]["s"]
    assert (cursor["pendingReadOps"], cursor["subscriptionHavePendingReplayRead"]) == (1, True)
    monkeypatch.undo()
    read.set_result([])
    await eventually(lambda: not topic.subscriptions["s"].pump.is_reading)
    cursor = (await internal(world, side))["cursors"]["s"]
    assert (cursor["pendingReadOps"], cursor["subscriptionHavePendingReplayRead"]) == (0, False)
    await world.run(c.close)
