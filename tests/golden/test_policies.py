"""Policies over HTTP: each recorded call, in order, and what Apache's broker answered (`record_policies`)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

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
from broker.settings.dynamic import DYNAMIC
from managed_ledger.messages import messages_of
from tests.support.golden import DECODES, ENCODES, REPLAYS, Report, b64, golden, load, rows
from tests.support.policy_calls import Step, made
from tests.unit.broker.admin.admin_world import AdminWorld, Answer, Side

CLUSTER = "standalone"


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
    how={DECODES, ENCODES},
    compared="key, policies and value of each event in the system topic, byte for byte, and the schema's text",
)
def test_events_of_topic_policies(report: Report) -> None:
    schema = load("policies/events_schema.json")
    with report.row("schema"):
        assert schema["data"] == SCHEMA
        assert schema["properties"] == SCHEMA_PROPERTIES
    for number, row in enumerate(rows(report.vector), 1):
        entry = b64(row["entry"])
        metadata, messages = messages_of(entry)
        (message,) = messages
        (change,) = changes_in(*messages_of(entry), parse_schema(SCHEMA.encode()))
        assert isinstance(change, Change)
        with report.row(str(number)):
            assert metadata.partition_key == key_of(change.topic, is_global=change.is_global)
            value = b""
            if change.policies is not None:
                value = encode(change.topic, change.policies, is_global=change.is_global, cluster=CLUSTER)
            assert value == bytes(message.payload)
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
