"""Single messages, backlogs and namespaces over HTTP, where it takes more than one topic and one answer.

What Apache's broker answers to the same calls is in tests/golden/test_messages.py.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pulsar
import pytest

from broker.admin.topics.entry_headers import entry_answer, time_text
from broker.admin.topics.messages import UNPACKED_AT_ONCE
from broker.topic.reading.looking import entry_at
from broker.topic.reading.subscription import REPLICATED
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import Position
from tests.support.waiting import eventually, settle
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.test_official_client import EARLIEST, client, receive, texts

ADMIN = "/admin/v2"
NAMESPACE = f"{ADMIN}/namespaces/public/default"
TOPICS = f"{ADMIN}/persistent/public/default"
TOPIC = TopicName.parse("persistent://public/default/t")
FROM_START = {"ledgerId": -1, "entryId": -1}


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


def publish(url: str, topic: str, count: int, batched: int = 0) -> None:
    with client(url) as c:
        single = c.create_producer(topic, batching_enabled=False)
        for number in range(count):
            single.send(b"%d" % number)
        if batched:
            batch = c.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000)
            for number in range(batched):
                batch.send_async(b"b%d" % number, lambda *_: None)
            batch.flush()


async def backlog(world: AdminWorld, side: Side, topic: str, subscription: str = "s") -> int:
    stats = (await world.call(side, "GET", f"{TOPICS}/{topic}/stats", follow=True)).json
    found: int = stats["subscriptions"][subscription]["msgBacklog"]
    return found


# ---------------------------------------------------------------------------------- single messages


async def test_entries_are_unpacked_on_other_threads_and_so_many_at_a_time(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = await world.side()
    await world.run(publish, side.url, str(TOPIC), 1)
    loop_thread, release = threading.get_ident(), threading.Event()
    reading = unpacking = most = 0

    def noting(*arguments: Any) -> Any:
        nonlocal unpacking, most
        assert threading.get_ident() != loop_thread
        unpacking += 1
        most = max(most, unpacking)
        assert release.wait(20)
        unpacking -= 1
        return entry_answer(*arguments)

    async def counting(*arguments: Any) -> Any:
        nonlocal reading
        reading += 1
        return await entry_at(*arguments)

    monkeypatch.setattr("broker.admin.topics.messages.entry_answer", noting)
    monkeypatch.setattr("broker.admin.topics.messages.entry_at", counting)
    path = f"{TOPICS}/t/examinemessage?messagePosition=1"
    asked = [asyncio.create_task(world.call(side, "GET", path, follow=True)) for _ in range(7)]
    await eventually(lambda: unpacking == UNPACKED_AT_ONCE)
    await settle()
    assert (reading, most) == (UNPACKED_AT_ONCE, UNPACKED_AT_ONCE), "those that wait have read nothing"
    release.set()
    assert [(await one).status for one in asked] == [200] * 7
    assert most == UNPACKED_AT_ONCE


def test_times_have_no_zero_at_the_end_of_their_fraction() -> None:
    assert [time_text(ms) for ms in (0, 1, 10, 600, 1_700_000_000_000)] == [
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:00:00.001Z",
        "1970-01-01T00:00:00.01Z",
        "1970-01-01T00:00:00.6Z",
        "2023-11-14T22:13:20Z",
    ]
    assert time_text(2**63) == str(2**63)


def test_a_producer_cannot_add_headers_to_an_answer() -> None:
    metadata = MessageMetadata(producer_name="p\r\nX-Evil: 1", sequence_id=1, publish_time=1, partition_key="k\x00\n")
    metadata.properties.add(key="a\r\nb", value="ü\n")
    headers, payload = entry_answer(Position(1, 2), encode_entry(metadata, b"x"))
    assert dict(headers)["X-Pulsar-producer-name"] == "p  X-Evil: 1"
    assert dict(headers)["X-Pulsar-partition-key"] == "k  "
    assert json.loads(dict(headers)["X-Pulsar-PROPERTY"]) == {"a\r\nb": "ü\n"}
    assert bytes(payload) == b"x"
    assert not [value for _, value in headers if not value.isascii() or "\n" in value]


def test_every_member_of_the_metadata_that_is_set_has_its_header() -> None:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, replicated_from="east", replicate_to=["w", "n"],
        schema_version=b"\0\1", partition_key_b64_encoded=True, marker_type=7, txnid_least_bits=1, txnid_most_bits=2,
        highest_sequence_id=3, null_value=True, uuid="u", num_chunks_from_msg=2, total_chunk_msg_size=9, chunk_id=1,
        null_partition_key=True, encryption_algo="AES", encryption_param=b"iv",
    )  # fmt: skip
    metadata.encryption_keys.add(key="k", value=b"v")
    headers, payload = entry_answer(Position(1, 2), encode_entry(metadata, b"as it is"))
    assert bytes(payload) == b"as it is"
    found = {name.removeprefix("X-Pulsar-"): value for name, value in headers if "keys" not in name}
    assert [value for name, value in headers if name == "X-Pulsar-replicated-to"] == ["w", "n"]
    assert found == {
        "Message-ID": "1:2", "PROPERTY": "{}", "publish-time": "1970-01-01T00:00:00.001Z", "null-value": "true",
        "PROPERTY-TOTAL-CHUNKS": "2", "PROPERTY-CHUNK-ID": "1", "Is-Encrypted": "true", "producer-name": "p",
        "sequence-id": "1", "replicated-from": "east", "replicated-to": "n", "encryption-algo": "AES",
        "Base64-encryption-param": "aXY=", "Base64-schema-version": "AAE=", "partition-key-b64-encoded": "true",
        "marker-type": "7", "txnid-least-bits": "1", "txnid-most-bits": "2", "highest-sequence-id": "3", "uuid": "u",
        "num-chunks-from-msg": "2", "total-chunk-msg-size": "9", "chunk-id": "1", "null-partition-key": "true",
        "txn-uncommitted": "false",
    }  # fmt: skip


def test_a_damaged_entry_is_no_answer() -> None:
    with pytest.raises(Corruption):
        entry_answer(Position(1, 2), b"\x0e\x01")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("subscription/s/position/0", 412), ("subscription/s/position/x", 412),
        ("ledger/x/entry/0", 412), ("ledger/0/entry/x", 412), ("ledger/9/entry/999999999999999999", 404),
        ("examinemessage?messagePosition=x", 400),
    ],
)  # fmt: skip
async def test_what_names_no_message_is_refused(world: AdminWorld, path: str, status: int) -> None:
    side = await world.side()
    await world.run(publish, side.url, "t", 1)
    await world.call(side, "PUT", f"{TOPICS}/t/subscription/s")
    assert (await world.call(side, "GET", f"{TOPICS}/t/{path}")).status == status
    assert (await world.call(side, "GET", f"{TOPICS}/t/subscriptions")).json == ["s"], "nothing was made by looking"


async def test_an_entry_with_a_broker_s_stamp_shows_it(world: AdminWorld) -> None:
    stamping = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"
    side = await world.side(entry_metadata_interceptors=(stamping,))
    await world.run(publish, side.url, "t", 1)
    found = await world.call(side, "GET", f"{TOPICS}/t/examinemessage")
    assert found.text == "0"
    assert found.headers["X-Pulsar-Broker-Entry-METADATA-timestamp"].endswith("Z")


async def test_messages_are_numbered_over_unloads_and_at_the_next_broker(world: AdminWorld) -> None:
    numbering = ("org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor",)
    first, second = [await world.side(entry_metadata_interceptors=numbering) for _ in range(2)]

    async def last_index() -> int:
        answer = await world.call(first, "GET", f"{TOPICS}/t/examinemessage?initialPosition=latest", follow=True)
        assert "X-Pulsar-Broker-Entry-METADATA-timestamp" not in answer.headers
        return int(answer.headers["X-Pulsar-Broker-Entry-METADATA-index"])

    await world.run(publish, first.url, "t", 2, 3)
    assert await last_index() == 4
    await world.call(first, "PUT", f"{TOPICS}/t/unload", follow=True)
    await world.run(publish, second.url, "t", 1)
    assert await last_index() == 5
    await world.call(first, "POST", f"{TOPICS}/t/terminate", follow=True)
    assert await last_index() == 5


# ---------------------------------------------------------------------------------------- backlogs


@pytest.mark.parametrize(("limit", "value"), [("backlog_scan_entries_max", 3), ("backlog_scan_ms_max", 0)])
async def test_an_analysis_ends_at_its_limits_and_says_so(world: AdminWorld, limit: str, value: int) -> None:
    side = await world.side(**{limit: value})
    await world.run(publish, side.url, "t", 5)
    await world.call(side, "PUT", f"{TOPICS}/t/subscription/s", FROM_START)
    found = (await world.call(side, "POST", f"{TOPICS}/t/subscription/s/analyzeBacklog")).json
    assert (found["entries"], found["aborted"]) == (3 if limit == "backlog_scan_entries_max" else 0, True)


@pytest.mark.parametrize("limit", ["_RUN_ENTRIES", "_RUN_BYTES"])
async def test_a_backlog_is_read_in_runs(world: AdminWorld, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"broker.topic.reading.looking.{limit}", 2)
    side = await world.side()
    await world.run(publish, side.url, "t", 5, 3)
    await world.call(side, "PUT", f"{TOPICS}/t/subscription/s", FROM_START)
    found = (await world.call(side, "POST", f"{TOPICS}/t/subscription/s/analyzeBacklog")).json
    assert (found["entries"], found["messages"], found["aborted"]) == (6, 8, False)


async def test_markers_of_brokers_are_counted_apart_from_a_backlog(world: AdminWorld) -> None:
    """As by `PersistentSubscription.analyzeBacklog` of 4.2.4."""
    side = await world.side()
    await world.run(publish, side.url, "t", 2)
    await world.call(side, "PUT", f"{TOPICS}/t/subscription/s", FROM_START)
    topic = side.broker.topics[TopicName.parse("persistent://public/default/t")]
    metadata = MessageMetadata(producer_name="", sequence_id=0, publish_time=1, marker_type=10)
    topic.ledger.append([encode_entry(metadata, b"")], [None])
    found = (await world.call(side, "POST", f"{TOPICS}/t/subscription/s/analyzeBacklog")).json
    assert (found["entries"], found["messages"], found["markerMessages"]) == (2, 2, 1)
    assert found["lastMessageId"] == str(topic.ledger.ledgers.last_confirmed)


async def test_a_batch_is_delivered_from_the_message_that_a_reset_names(world: AdminWorld) -> None:
    side = await world.side(batch_index_acks=True)
    await world.run(publish, side.url, "t", 1, 4)
    await world.call(side, "PUT", f"{TOPICS}/t/subscription/s")
    topic = side.broker.topics[TopicName.parse("persistent://public/default/t")]
    batch = topic.ledger.ledgers.last_confirmed

    def read(count: int) -> list[str]:
        with client(side.url) as c:
            return texts(receive(c.subscribe("t", "s"), count, acknowledge=False))

    for index, is_excluded, left in ((2, False, ["b2", "b3"]), (2, True, ["b3"]), (0, False, ["b0", "b1", "b2", "b3"])):
        body = {**batch._asdict(), "batchIndex": index, "excluded": is_excluded}
        wanted = {"ledgerId": body.pop("ledger_id"), "entryId": body.pop("entry_id"), **body}
        assert (await world.call(side, "POST", f"{TOPICS}/t/subscription/s/resetcursor", wanted)).status == 204
        assert await world.run(read, len(left)) == left
    assert (
        await world.call(side, "POST", f"{TOPICS}/t/subscription/s/resetcursor", {**wanted, "batchIndex": "x"})
    ).status == 412


async def test_consumers_stay_when_all_is_skipped_and_get_what_comes_next(world: AdminWorld) -> None:
    side = await world.side()
    await world.run(publish, side.url, "t", 5)

    def subscribe() -> tuple[pulsar.Client, pulsar.Consumer]:
        c = pulsar.Client(side.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        consumer = c.subscribe("t", "s", initial_position=EARLIEST)
        receive(consumer, 2, acknowledge=False)
        return c, consumer

    c, consumer = await world.run(subscribe)
    topic = side.broker.topics[TopicName.parse("persistent://public/default/t")]
    before = topic.subscriptions["s"].consumers
    assert (await world.call(side, "POST", f"{TOPICS}/t/subscription/s/skip_all")).status == 204
    assert topic.subscriptions["s"].consumers == before
    assert topic.subscriptions["s"].unacked_messages == 0
    await world.run(publish, side.url, "t", 1)
    assert await world.run(lambda: texts(receive(consumer, 4, acknowledge=False))) == ["2", "3", "4", "0"]
    await world.run(c.close)


async def test_properties_of_a_subscription_survive_the_topic(world: AdminWorld) -> None:
    side = await world.side()
    await world.run(publish, side.url, "t", 3)
    sub = f"{TOPICS}/t/subscription/s"
    assert (await world.call(side, "PUT", sub, {**FROM_START, "properties": {"a": "b"}})).status == 204
    assert (await world.call(side, "GET", f"{TOPICS}/t/stats")).json["subscriptions"]["s"][
        "subscriptionProperties"
    ] == {"a": "b"}
    topic = side.broker.topics[TopicName.parse("persistent://public/default/t")]
    for acknowledged in (False, True):  # the state in the node alone, and in a cursor ledger
        if acknowledged:
            cursor = topic.ledger.cursors["s"]
            cursor.mark_delete(topic.ledger.ledgers.first_position)
            await cursor.flush()
        given = {"is": str(acknowledged)}
        assert (await world.call(side, "PUT", f"{sub}/properties", given)).status == 204
        assert (await world.call(side, "GET", f"{sub}/properties")).json == given
        await side.broker.opening.unload(topic.name)
        assert (await world.call(side, "GET", f"{sub}/properties")).json == given
        topic = side.broker.topics[topic.name]
    assert await backlog(world, side, "t") == 2
    refused = await world.call(side, "PUT", f"{sub}/properties", {"a": 1})
    assert (refused.status, "texts" in refused.reason) == (412, True)
    assert (await world.call(side, "PUT", f"{TOPICS}/t/subscription/none/properties", {})).status == 404


async def test_that_a_subscription_is_replicated_survives_acknowledgements_and_the_topic(world: AdminWorld) -> None:
    side = await world.side()
    await world.run(publish, side.url, "t", 3)
    sub, status = f"{TOPICS}/t/subscription/s", "replicatedSubscriptionStatus"

    async def shown() -> list[bool]:
        told = (await world.call(side, "GET", f"{sub}/{status}")).json[TOPIC.full]
        stats = (await world.call(side, "GET", f"{TOPICS}/t/stats")).json["subscriptions"]["s"]
        return [told, stats["isReplicated"], stats["replicated"]]

    await world.call(side, "PUT", sub, FROM_START)
    assert await shown() == [False] * 3
    for wanted in (True, False, True):
        assert (await world.call(side, "POST", f"{sub}/{status}", wanted)).status == 204
        assert await shown() == [wanted] * 3
        assert side.broker.topics[TOPIC].ledger.cursors["s"].properties == ({REPLICATED: 1} if wanted else {})
    await world.call(side, "POST", f"{sub}/skip/1")
    await world.call(side, "POST", f"{sub}/resetcursor/0")
    await side.broker.opening.unload(TOPIC)
    assert await shown() == [True] * 3


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_consumer_that_wants_its_subscription_replicated_has_that_stored(
    world: AdminWorld, is_new: bool
) -> None:
    side = await world.side()
    await world.call(side, "PUT", f"{TOPICS}/t")
    if not is_new:
        await world.call(side, "PUT", f"{TOPICS}/t/subscription/s")
    client = await RawClient.connect(side.broker.port)
    await client.subscribe(TOPIC.full, replicate_subscription_state=True)
    await client.subscribe(TOPIC.full, 2, subscription="reader", durable=False, replicate_subscription_state=True)
    stats = (await world.call(side, "GET", f"{TOPICS}/t/stats")).json["subscriptions"]
    assert {name: one["isReplicated"] for name, one in stats.items()} == {"s": True, "reader": False}
    client.writer.close()
    await side.broker.opening.unload(TOPIC)
    told = await world.call(side, "GET", f"{TOPICS}/t/subscription/s/replicatedSubscriptionStatus")
    assert told.json == {TOPIC.full: True}


@pytest.mark.parametrize("path", ["t", "parted", "parted-partition-0"])
async def test_a_trimmed_topic_keeps_what_is_not_consumed_and_the_ledger_that_is_written(
    world: AdminWorld, path: str
) -> None:
    side = await world.side(max_entries_per_ledger=5, min_rollover_minutes=0)
    await world.call(side, "PUT", f"{TOPICS}/parted/partitions", 1)
    topic = "t" if path == "t" else "parted-partition-0"
    await world.call(side, "PUT", f"{TOPICS}/t")
    await world.call(side, "PUT", f"{TOPICS}/{topic}/subscription/s", FROM_START)
    await world.run(publish, side.url, topic, 12)
    assert (await world.call(side, "POST", f"{TOPICS}/{path}/trim")).status == 200
    stats = (await world.call(side, "GET", f"{TOPICS}/{topic}/internalStats")).json
    assert (len(stats["ledgers"]), stats["numberOfEntries"]) == (3, 12)
    await world.call(side, "POST", f"{TOPICS}/{topic}/subscription/s/skip/7")
    assert (await world.call(side, "POST", f"{TOPICS}/{path}/trim")).status == 200
    stats = (await world.call(side, "GET", f"{TOPICS}/{topic}/internalStats")).json
    assert (len(stats["ledgers"]), stats["numberOfEntries"]) == (2, 7)


async def test_a_truncated_topic_keeps_only_the_ledger_that_is_written(world: AdminWorld) -> None:
    side = await world.side(max_entries_per_ledger=5, min_rollover_minutes=0)
    policy = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    assert (await world.call(side, "POST", f"{NAMESPACE}/retention", policy)).status == 204
    await world.run(publish, side.url, "t", 12)
    await world.call(side, "PUT", f"{TOPICS}/t/subscription/s", FROM_START)
    assert (await world.call(side, "DELETE", f"{TOPICS}/t/truncate")).status == 204
    stats = (await world.call(side, "GET", f"{TOPICS}/t/internalStats")).json
    assert len(stats["ledgers"]) == 1
    assert stats["numberOfEntries"] == 2
    assert await backlog(world, side, "t") == 0


# -------------------------------------------------------------------------------------- namespaces


async def filled(world: AdminWorld) -> tuple[Side, Side]:
    """Two brokers that share six topics with a backlog of three each; one topic is not open."""
    a, b = await world.side(), await world.side()
    for number in range(6):
        await world.call(a, "PUT", f"{TOPICS}/t{number}", follow=True)
        await world.run(publish, a.url, f"t{number}", 3)
        for name in ("s", "other"):
            await world.call(a, "PUT", f"{TOPICS}/t{number}/subscription/{name}", FROM_START, follow=True)
    assert (await world.call(a, "PUT", f"{TOPICS}/t0/unload", follow=True)).status == 204
    return a, b


async def test_all_topics_of_a_namespace_are_cleared_wherever_they_are(world: AdminWorld) -> None:
    a, b = await filled(world)
    assert (await world.call(a, "POST", f"{NAMESPACE}/clearBacklog/s")).status == 204
    for number in range(6):
        assert await backlog(world, b, f"t{number}") == 0
        assert await backlog(world, b, f"t{number}", "other") == 3
    assert (await world.call(b, "POST", f"{NAMESPACE}/clearBacklog")).status == 204
    for number in range(6):
        assert await backlog(world, a, f"t{number}", "other") == 0


async def test_a_subscription_is_removed_from_all_topics_unless_somebody_uses_it(world: AdminWorld) -> None:
    a, b = await filled(world)
    c = pulsar.Client(a.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = await world.run(c.subscribe, "t3", "s")
    refused = await world.call(b, "POST", f"{NAMESPACE}/unsubscribe/s")
    assert (refused.status, "consumers" in refused.reason) == (412, True)
    await world.run(consumer.close)
    assert (await world.call(b, "POST", f"{NAMESPACE}/unsubscribe/s")).status == 204
    for number in range(6):
        assert (await world.call(a, "GET", f"{TOPICS}/t{number}/subscriptions", follow=True)).json == ["other"]
    await world.run(c.close)


async def test_one_bundle_is_cleared_by_its_owner(world: AdminWorld) -> None:
    a, b = await filled(world)
    bundles = (await a.broker.namespace("public/default")).bundles
    name = TopicName.parse("persistent://public/default/t1")
    bundle = bundles.bundle_of(name).rpartition("/")[2]
    for side in (a, b):
        found: Any = await world.call(side, "POST", f"{NAMESPACE}/{bundle}/clearBacklog/s", follow=True)
        assert found.status == 204
    inside = [n for n in range(6) if bundles.bundle_of(name.parse(f"{name.full[:-1]}{n}")).endswith(bundle)]
    assert [n for n in range(6) if await backlog(world, a, f"t{n}") == 0] == inside
    assert (await world.call(a, "POST", f"{NAMESPACE}/0x00000000_0x00000001/clearBacklog")).status == 412
    assert (await world.call(a, "POST", f"{ADMIN}/namespaces/public/none/clearBacklog")).status == 404


async def test_what_is_stored_of_a_topic_is_shown_by_any_broker(world: AdminWorld) -> None:
    a, b = await filled(world)
    for side in (a, b):
        found = (await world.call(side, "GET", f"{TOPICS}/t1/internal-info")).json
        assert sorted(found["cursors"]) == ["other", "s"]
    assert (await world.call(a, "GET", f"{TOPICS}/none/internal-info")).status == 404
    await world.call(a, "POST", f"{TOPICS}/t1/terminate", follow=True)
    found = (await world.call(b, "GET", f"{TOPICS}/t1/internal-info")).json
    assert found["terminatedPosition"]["entryId"] == 2
    assert found["ledgers"][0]["entries"] == 3


@pytest.mark.parametrize("batched", [0, 3])
async def test_the_last_id_of_a_terminated_topic_stays_what_it_was(world: AdminWorld, batched: int) -> None:
    side = await world.side()
    await world.run(publish, side.url, "t", 2, batched)
    before = (await world.call(side, "GET", f"{TOPICS}/t/lastMessageId")).json
    last = (await world.call(side, "POST", f"{TOPICS}/t/terminate")).json
    assert (last["ledgerId"], last["entryId"]) == (before["ledgerId"], before["entryId"])
    for _ in range(2):
        assert (await world.call(side, "GET", f"{TOPICS}/t/lastMessageId")).json == before
        found = await world.call(side, "GET", f"{TOPICS}/t/examinemessage")
        assert found.headers["X-Pulsar-Message-ID"] == f"{before['ledgerId']}:{before['entryId']}"
        assert (await world.call(side, "PUT", f"{TOPICS}/t/unload")).status == 204
