"""Policies of topics in the metadata store, as Apache's 5.0 may keep them: in force, changed, followed."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broker.policies.topic import service
from broker.policies.topic.nodes import Place, node_of, path_of, place_of, read_node
from broker.policies.topic.record import NONE_SET
from broker.settings.groups.topics import IN_METADATA
from magnetar_core.bookkeeper.metadata.stores.store import CannotWatch
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.policies.topic.test_service import CHANGES, NAME, TOPIC, make, put, told

PARTED = TopicName.parse("persistent://public/default/a%b-partition-3")


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def side_of(world: AdminWorld) -> Side:
    return await world.side(topic_policies_service=IN_METADATA)


async def node(side: Side, *, is_global: bool = False) -> dict[str, Any] | None:
    stored = await side.store.get(path_of(NAME, is_global=is_global))
    return None if stored is None else json.loads(stored.value)


async def there(side: Side, *, is_global: bool = False) -> dict[str, Any]:
    stored = await node(side, is_global=is_global)
    assert stored is not None
    return stored


def test_a_node_is_named_after_the_whole_topic() -> None:
    path = "/admin/topic-policies/global/public/default/persistent/a%25b"
    assert path_of(PARTED, is_global=True) == path
    assert place_of(path, "public/default") == Place(PARTED.base, True)
    for other in (path, "/admin/topic-policies/local/public/default/persistent"):
        assert place_of(other, "public/other") is None
    assert place_of(f"{path}/below", "public/default") is None


@pytest.mark.parametrize("value", [b"", b"[]", b"{", b'"text"'])
def test_a_node_that_is_damaged_is_an_error_that_names_it(value: bytes) -> None:
    with pytest.raises(Corruption, match=r"^/x"):
        read_node(value, "/x")


def test_members_that_are_not_known_are_kept_and_those_that_java_derives_are_not() -> None:
    node = b'{"isGlobal":false,"fresh":{"a":1},"maxProducerPerTopic":null,"messageTTLSet":false,"globalPolicies":false}'
    record = read_node(node, "/x")
    assert record == {"fresh": {"a": 1}}
    written = json.loads(node_of(record, is_global=True))
    assert (written["fresh"], written["isGlobal"]) == ({"a": 1}, True)


async def test_what_is_set_is_stored_in_a_node_and_holds_at_each_broker(world: AdminWorld) -> None:
    side, other = await side_of(world), await side_of(world)
    await make(world, side)
    await put(world, side, "messageTTL?messageTTL=77", 77)
    assert (await there(side))["messageTTLInSeconds"] == 77
    assert not await side.broker.ledgers.exists(CHANGES.managed_ledger_name), "there is no system topic"
    assert await told(world, other, "messageTTL") == "77"
    await put(world, other, "maxProducers", 3)
    await put(world, other, "maxConsumers?isGlobal=true", 4)
    assert await told(world, side, "messageTTL") == "77", "the other policies are kept"

    async def sees(policy: str) -> str:
        return await told(world, side, policy)

    for policy, value in ("maxProducers", "3"), ("maxConsumers?isGlobal=true", "4"):
        for _ in range(200):
            if await sees(policy) == value:
                break
        assert await sees(policy) == value
    assert (await there(side, is_global=True))["maxConsumerPerTopic"] == 4
    assert (await world.call(side, "DELETE", f"{TOPIC}?force=true", follow=True)).status == 204
    assert await node(side) is None
    assert await node(side, is_global=True) is None


async def test_what_another_broker_stores_holds_without_a_word_from_it(world: AdminWorld) -> None:
    side = await side_of(world)
    await make(world, side)
    policies = side.broker.in_force.topic_policies
    path = path_of(NAME, is_global=False)
    await side.store.put(path, node_of({"maxProducerPerTopic": 9, "fresh": 1}, is_global=False))
    known = policies._namespaces["public/default"].known
    await eventually(lambda: (NAME, False) in known)
    assert await told(world, side, "maxProducers") == "9"
    await side.store.put(path, node_of({"maxProducerPerTopic": 10, "fresh": 2}, is_global=False))
    await eventually(lambda: (known[NAME, False][1] or {}).get("maxProducerPerTopic") == 10)
    await put(world, side, "maxConsumers", 1)
    assert (await there(side))["fresh"] == 2
    await side.store.delete(path)
    await eventually(lambda: (NAME, False) not in known)
    assert await told(world, side, "maxProducers") == ""
    await side.store.put(path, b"{")
    await eventually(lambda: policies.unreadable == 1)
    await put(world, side, "maxConsumers", 2)
    assert await told(world, side, "maxConsumers") == "2", "one that is damaged counts as none"


async def test_changes_of_two_brokers_at_the_same_moment_both_hold(world: AdminWorld) -> None:
    side = await side_of(world)
    await make(world, side)
    await put(world, side, "maxProducers", 1)
    real = side.store.put
    was_quicker = False

    async def put_late(path: str, value: bytes, *rest: Any, **named: Any) -> int:
        nonlocal was_quicker
        if path == path_of(NAME, is_global=False) and not was_quicker:
            was_quicker = True
            await real(path, node_of({"maxProducerPerTopic": 1, "maxMessageSize": 5}, is_global=False))
        return await real(path, value, *rest, **named)

    side.broker.in_force.topic_policies._store.put = put_late  # type: ignore[method-assign]
    await put(world, side, "maxConsumers", 2)
    stored = await node(side)
    assert stored is not None
    assert was_quicker
    assert (stored["maxProducerPerTopic"], stored["maxMessageSize"], stored["maxConsumerPerTopic"]) == (1, 5, 2)


async def test_a_namespace_with_a_system_topic_goes_on_with_it(world: AdminWorld) -> None:
    old = await world.side()
    await make(world, old)
    await put(world, old, "maxProducers", 5)
    side = await side_of(world)
    assert await told(world, side, "maxProducers") == "5"
    await put(world, side, "maxProducers", 6)
    assert await node(side) is None
    assert await told(world, old, "maxProducers") == "6"


async def test_a_system_topic_that_appears_counts_from_then_on(world: AdminWorld) -> None:
    side = await side_of(world)
    await make(world, side)
    await put(world, side, "maxProducers", 5)
    namespace = side.broker.in_force.topic_policies._namespaces["public/default"]
    assert await node(side)
    old = await world.side()
    policies = old.broker.in_force.topic_policies
    await policies.change(NAME, lambda _: {"maxProducerPerTopic": 7}, is_global=False)
    await eventually(lambda: namespace.known[NAME, False][1] == {**NONE_SET, "maxProducerPerTopic": 7})
    assert not namespace.has_nodes
    assert await told(world, side, "maxProducers") == "7"


async def test_without_a_watch_of_a_tree_nodes_are_read_again(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOOK_S", 0.01)
    side = await side_of(world)

    async def cannot(path: str, changed: object) -> None:
        raise CannotWatch("it is old")

    side.broker.in_force.topic_policies._store.watch_tree = cannot  # type: ignore[assignment, method-assign]
    await make(world, side)
    assert await told(world, side, "maxProducers") == ""
    await side.store.put(path_of(NAME, is_global=False), node_of({"maxProducerPerTopic": 9}, is_global=False))
    known = side.broker.in_force.topic_policies._namespaces["public/default"].known
    await eventually(lambda: (NAME, False) in known)
    assert await told(world, side, "maxProducers") == "9"
