"""Policies over HTTP: each recorded call, in order, and what Apache's broker answered (`record_policies`)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from broker.policies.topic.avro_values import read_value
from broker.policies.topic.events import (
    SCHEMA,
    SCHEMA_PROPERTIES,
    Change,
    changes_in,
    encode,
    event_metadata,
    key_of,
    parse_schema,
)
from broker.policies.topic.nodes import node_of, read_node
from broker.settings.dynamic import DYNAMIC
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import Message, messages_of
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.schemas.avro import parse
from tests.support.golden import DECODES, ENCODES, REPLAYS, Report, b64, golden, load, rows
from tests.support.policy_calls import Step, made
from tests.unit.broker.admin.admin_world import AdminWorld, Answer, Side

CLUSTER = "standalone"
ADDED_IN_4_2 = '{"name":"subscriptionExpirationTimeInMinutes","type":["null","int"],"default":null},'


@asynccontextmanager
async def fresh() -> AsyncIterator[tuple[AdminWorld, Side]]:
    """A broker with one bookie's quorums, and what the recorder made."""
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        side = await world.side(
            cluster_name=CLUSTER, ensemble_size=1, write_quorum=1, ack_quorum=1, **_SHIPPED_SETTINGS
        )
        for step in made(CLUSTER):
            assert (await ask(world, side, step)).status == 204
        yield world, side


# What `standalone.conf` says, as far as answers show it.
_SHIPPED_SETTINGS: dict[str, Any] = {"mark_delete_rate": 0.1, "backlog_quota_gbytes": 10}


async def ask(world: AdminWorld, side: Side, step: Step) -> Answer:
    return await world.call(side, step.method, step.path, step.body)


def value_of(text: str) -> Any:
    """The JSON of an answer, or its text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@golden(
    "policies/namespace.jsonl",
    how={REPLAYS},
    compared="status and body of each call; of a refusal the status only",
)
def test_policies_of_a_namespace(report: Report) -> None:
    asyncio.run(compare(report))


@golden(
    "policies/inherited.jsonl",
    how={REPLAYS},
    compared="what is in force of a topic with its namespace's policies and its own: status and body of each call",
)
def test_policies_in_force(report: Report) -> None:
    asyncio.run(compare(report))


@golden(
    "policies/topic.jsonl",
    how={REPLAYS},
    compared="status and body of each call; of a refusal the status only",
)
def test_policies_of_a_topic(report: Report) -> None:
    asyncio.run(compare(report))


@golden(
    "policies/events.jsonl",
    beside_it=("events_schema.json",),
    how={DECODES},
    compared="key and policies of each event in the system topic, what 4.0.8 reads of ours, and the schema's text",
)
def test_events_of_topic_policies(report: Report) -> None:
    schema = load("policies/events_schema.json")
    with report.row("schema"):
        assert schema["data"] == SCHEMA.replace(ADDED_IN_4_2, "")
        assert schema["properties"] == SCHEMA_PROPERTIES
    for number, row in enumerate(rows(report.vector), 1):
        entry = b64(row["entry"])
        metadata, messages = messages_of(entry)
        (message,) = messages
        (change,) = changes_in(*messages_of(entry), parse_schema(schema["data"].encode()))
        assert isinstance(change, Change)
        with report.row(str(number)):
            assert metadata.partition_key == key_of(change.topic, is_global=change.is_global)
            value = b""
            if change.policies is not None:
                value = encode(change.topic, change.policies, is_global=change.is_global, cluster=CLUSTER)
                of_408 = read_value(message.payload, parse(schema["data"].encode()), parse(schema["data"].encode()))
                assert read_value(value, parse(SCHEMA.encode()), parse(schema["data"].encode())) == of_408
            ours = event_metadata(
                change.topic, is_global=change.is_global, cluster=CLUSTER, is_removal=change.policies is None
            )
            for field, told in ours.ListFields():
                assert getattr(metadata, field.name) == told


async def compare(report: Report) -> None:
    async with fresh() as (world, side):
        for number, row in enumerate(rows(report.vector), 1):
            step = Step(row["method"], row["path"], row["body"])
            answer = await ask(world, side, step)
            name = f"{number} {step.method} {step.path.removeprefix('/admin/v2/')}"
            with report.row(name):
                assert answer.status == row["status"], f"{answer.status} {answer.text[:200]}, Apache's {row['status']}"
            if answer.status >= 400 or row["status"] >= 400:
                continue
            told, recorded = value_of(answer.text), value_of(row["answer"])
            for member in members(told) | members(recorded):
                with report.row(name + member):
                    assert part(told, member) == part(recorded, member)


def members(value: Any) -> set[str]:
    """`.name` for each member of an object; one empty name for everything else."""
    return {f".{name}" for name in value} if isinstance(value, dict) and value else {""}


def part(value: Any, member: str) -> Any:
    return value.get(member[1:], "it is missing") if member and isinstance(value, dict) else value


@golden(
    "policies/settings.jsonl",
    how={REPLAYS},
    compared="settings that change while a broker runs: status and body; of the list of names that ours are among them",
)
def test_settings_while_a_broker_runs(report: Report) -> None:
    recorded = json.loads(rows(report.vector)[0]["answer"])
    with report.row("names"):
        assert set(recorded) >= DYNAMIC, sorted(DYNAMIC - set(recorded))
    asyncio.run(compare(report))


@golden(
    "policies/topic-5.0.1.jsonl",
    how={DECODES, ENCODES},
    compared="each event byte for byte; each node of the metadata store without what Java derives",
)
def test_policies_as_apaches_5_0_stores_them(report: Report) -> None:
    topic = TopicName.parse("persistent://public/default/orders")
    for number, row in enumerate(rows(report.vector), 1):
        stored, event = row["stored"], b64(row["event"])
        is_global = stored["isGlobal"]
        metadata = MessageMetadata(partition_key=key_of(topic, is_global=is_global))
        (change,) = changes_in(metadata, iter([Message(-1, None, memoryview(event))]), parse_schema(SCHEMA.encode()))
        assert isinstance(change, Change)
        assert change.policies is not None
        with report.row(f"event {number}"):
            assert encode(topic, change.policies, is_global=is_global, cluster=CLUSTER) == event
        with report.row(f"node {number}"):
            node = read_node(json.dumps(stored).encode(), "")
            assert node is not None
            assert read_node(node_of(node, is_global=is_global), "") == node
            assert json.loads(node_of(node, is_global=is_global))["isGlobal"] is is_global
            assert as_one_form(node) == as_one_form(change.policies)


def as_one_form(value: Any) -> Any:
    """Without what is not set, and what Java derives from the driver of offloading."""
    if isinstance(value, dict):
        return {
            name: as_one_form(item)
            for name, item in value.items()
            if item is not None and name not in ("s3Driver", "gcsDriver", "fileSystemDriver")
        }
    return value
