"""Which schema a consumer may bring, by the rule of the topic; each row was seen at Apache's broker 4.0.8."""

import json

import pytest

from broker.errors import IncompatibleSchema
from broker.names import Bundles
from broker.policies.namespace import NamespacePolicies
from broker.serving.schemas import SchemaRules
from broker.settings.config import BrokerConfig
from broker.wire import pulsar_pb2 as wire
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.schemas.compatibility import Strategy
from managed_ledger.schemas.registry import SchemaRegistry
from tests.support.memory_bookkeeper import MemoryBookKeeper

BUNDLES = Bundles((0, 0xFFFFFFFF))
TOPIC = TopicName.parse("persistent://public/default/t")
TEXT = {"name": "a", "type": "string"}
PLAIN, DEFAULTED, NEEDED = (
    {"type": "record", "name": "R", "fields": [TEXT, *more]}
    for more in ((), ({"name": "b", "type": "int", "default": 0},), ({"name": "b", "type": "int"},))
)


def avro(schema: object) -> wire.Schema:
    return wire.Schema(name="", type=wire.Schema.Avro, schema_data=json.dumps(schema).encode())


@pytest.fixture
async def rules() -> SchemaRules:
    clock = LoopClock()
    return SchemaRules(SchemaRegistry(MemoryBookKeeper().client, MemoryStore(clock), clock), BrokerConfig())


async def is_admitted(rules: SchemaRules, schema: object, strategy: Strategy, *, used: bool = True) -> bool:
    policies = NamespacePolicies(BUNDLES, schema_strategy=strategy.value)
    try:
        await rules.admit_consumer(TOPIC, avro(schema), policies, lambda: used)
    except IncompatibleSchema:
        return False
    return True


@pytest.mark.parametrize("strategy", [Strategy.BACKWARD, Strategy.FORWARD, Strategy.FULL, Strategy.FORWARD_TRANSITIVE])
async def test_a_consumer_reads_what_the_latest_schema_wrote(rules: SchemaRules, strategy: Strategy) -> None:
    """Whatever the rule says of producers."""
    await rules.register(TOPIC, avro(NEEDED), NamespacePolicies(BUNDLES))
    assert [await is_admitted(rules, one, strategy) for one in (PLAIN, DEFAULTED, NEEDED)] == [True] * 3


async def test_what_cannot_read_the_latest_schema_is_refused_where_producers_may_bring_it(rules: SchemaRules) -> None:
    await rules.register(TOPIC, avro(PLAIN), NamespacePolicies(BUNDLES))
    for strategy in (Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE):
        assert not await is_admitted(rules, NEEDED, strategy)


async def test_a_former_version_that_cannot_read_the_latest_is_refused(rules: SchemaRules) -> None:
    always = NamespacePolicies(BUNDLES, schema_strategy="ALWAYS_COMPATIBLE")
    for schema in (NEEDED, PLAIN):
        await rules.register(TOPIC, avro(schema), always)
    assert not await is_admitted(rules, NEEDED, Strategy.BACKWARD)
    assert await is_admitted(rules, PLAIN, Strategy.BACKWARD)


async def test_where_no_other_schema_is_taken_consumers_bring_none_either(rules: SchemaRules) -> None:
    """Apache's broker refuses the topic's own schema, too; it is no other one."""
    await rules.register(TOPIC, avro(PLAIN), NamespacePolicies(BUNDLES))
    assert not await is_admitted(rules, DEFAULTED, Strategy.ALWAYS_INCOMPATIBLE)
    assert await is_admitted(rules, PLAIN, Strategy.ALWAYS_INCOMPATIBLE)


async def test_where_all_are_taken_a_topic_that_was_used_without_a_schema_takes_any_consumer(
    rules: SchemaRules,
) -> None:
    assert await is_admitted(rules, PLAIN, Strategy.ALWAYS_COMPATIBLE)
    assert not await is_admitted(rules, PLAIN, Strategy.FULL)
    assert await is_admitted(rules, PLAIN, Strategy.FULL, used=False)
