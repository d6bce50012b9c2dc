"""Resource groups: records over HTTP, namespaces in them, and their budgets seen by clients made of bare frames."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broker.policies.namespace import parse_resource_group
from broker.settings.quotas import NO_GROUP_RATES, DispatchRate, GroupRates, PublishRate
from broker.tenancy import changes as tenancy
from broker.tenancy import resource_groups
from broker.topic.non_persistent.topic import NonPersistentTopic
from broker.topic.rates.resource_group import ResourceGroup
from broker.topic.topic import Topic
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.bookkeeper.metadata.stores.store import StoreUnavailable
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Answer, Side
from tests.unit.broker.raw_client import RawClient

GROUPS = "/admin/v2/resourcegroups"
SPACES = "/admin/v2/namespaces"
ONE = f"{SPACES}/public/default"
OTHER = f"{SPACES}/public/other"
NODE = "/admin/resourcegroups/g"
LARGE = encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x" * 100_000)


class Stage:
    """A broker with the namespaces `public/default` and `public/other`, and its clients."""

    def __init__(self, world: AdminWorld, side: Side, stack: AsyncExitStack) -> None:
        self.world = world
        self.side = side
        self._stack = stack

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        return await self.world.call(self.side, method, path, body)

    async def call(self, method: str, path: str, body: Any = None) -> Answer:
        found = await self.ask(method, path, body)
        assert found.status in (200, 204), found.text
        return found

    async def client(self) -> RawClient:
        made = await RawClient.connect(self.side.broker.port)
        self._stack.callback(made.close)
        return made

    async def group(self, **rates: int) -> None:
        await self.call("PUT", f"{GROUPS}/g", rates)

    def known(self) -> ResourceGroup | None:
        return self.side.broker.resource_groups.get("g")

    def topic(self, name: str) -> Topic | NonPersistentTopic | None:
        parsed = TopicName.parse(name)
        return self.side.broker.topics.get(parsed) or self.side.broker.non_persistent.get(parsed)

    def is_member(self, name: str) -> bool:
        topic, group = self.topic(name), self.known()
        return topic is not None and group is not None and topic.membership.group is group

    async def stored(self) -> Any:
        node = await self.world.store.get(NODE)
        return None if node is None else json.loads(node.value)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        side = await world.side()
        made = Stage(world, side, stack)
        await made.call("PUT", OTHER, {"bundles": {"numBundles": 1}})
        for space in ("public/default", "public/other"):
            await world.spread([side], space)
        yield made


def topic_of(space: str, name: str = "t", domain: str = "persistent") -> str:
    return f"{domain}://{space.removeprefix(SPACES + '/')}/{name}"


async def published(client: RawClient, topic: str, count: int, producer_id: int = 1) -> None:
    await client.produce(topic, producer_id)
    for number in range(count):
        client.publish(producer_id, number)
    for _ in range(count):
        await client.expect(BaseCommand.SEND_RECEIPT)


# ----------------------------------------------------------------------------------------- records


async def test_a_group_is_made_told_listed_and_deleted(stage: Stage) -> None:
    assert (await stage.call("GET", GROUPS)).json == []
    missing = await stage.ask("GET", f"{GROUPS}/g")
    assert (missing.status, missing.reason) == (404, "ResourceGroup does not exist")
    given = {"publishRateInMsgs": 10, "publishRateInBytes": 1000, "dispatchRateInMsgs": 20, "dispatchRateInBytes": 2000}
    assert (await stage.ask("PUT", f"{GROUPS}/g", given)).status == 204
    assert (await stage.call("GET", GROUPS)).json == ["g"]
    assert (await stage.call("GET", f"{GROUPS}/g")).json == given
    assert await stage.stored() == given
    assert (await stage.ask("DELETE", f"{GROUPS}/g")).status == 204
    assert (await stage.call("GET", GROUPS)).json == []
    assert (await stage.ask("DELETE", f"{GROUPS}/g")).status == 404


async def test_what_is_not_given_has_no_limit_and_stays_when_a_group_is_changed(stage: Stage) -> None:
    await stage.group(publishRateInMsgs=10)
    others = {"publishRateInBytes": -1, "dispatchRateInMsgs": -1}
    assert await stage.stored() == {"publishRateInMsgs": 10, "dispatchRateInBytes": -1, **others}
    await stage.call("PUT", f"{GROUPS}/g", {"dispatchRateInBytes": 5, "publishRateInBytes": None})
    assert await stage.stored() == {"publishRateInMsgs": 10, "dispatchRateInBytes": 5, **others}
    await stage.call("PUT", f"{GROUPS}/g", {"publishRateInMsgs": -1})
    assert await stage.stored() == {"publishRateInMsgs": -1, "dispatchRateInBytes": 5, **others}


async def test_members_of_another_version_are_kept(stage: Stage) -> None:
    newer = {"publishRateInMsgs": 1, "replicationDispatchRateInMsgs": 7}
    await stage.world.store.put(NODE, json.dumps(newer).encode())
    await stage.call("PUT", f"{GROUPS}/g", {"publishRateInMsgs": 2})
    assert (await stage.call("GET", f"{GROUPS}/g")).json == {**newer, "publishRateInMsgs": 2}


@pytest.mark.parametrize("body", [None, [], "g", {"publishRateInMsgs": "many"}, {"publishRateInMsgs": 2**31}])
async def test_what_is_no_group_is_refused(stage: Stage, body: Any) -> None:
    refused = await stage.ask("PUT", f"{GROUPS}/g", body)
    assert (refused.status, bool(refused.reason)) == (400, True)
    assert await stage.stored() is None


async def test_so_many_groups_are_made_and_so_many_are_in_force(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenancy, "RESOURCE_GROUPS_MAX", 2)
    monkeypatch.setattr(resource_groups, "RESOURCE_GROUPS_MAX", 2)
    await stage.group(publishRateInMsgs=1)
    await stage.call("PUT", f"{GROUPS}/h", {})
    refused = await stage.ask("PUT", f"{GROUPS}/i", {})
    assert (refused.status, "delete one first" in refused.reason) == (412, True)
    await stage.call("PUT", f"{GROUPS}/h", {"publishRateInMsgs": 5})
    await stage.world.store.put("/admin/resourcegroups/a", b"{}")  # by another broker
    groups = stage.side.broker.resource_groups
    await eventually(lambda: sorted(groups.by_name) == ["a", "g"])


# -------------------------------------------------------------------------------------- namespaces


async def test_a_namespace_is_put_into_a_group_that_is_there_and_taken_out(stage: Stage) -> None:
    policy = f"{ONE}/resourcegroup"
    refused = await stage.ask("POST", f"{policy}/g")
    assert (refused.status, refused.reason) == (412, "ResourceGroup does not exist")
    await stage.group()
    assert (await stage.ask("POST", f"{policy}/g")).status == 204
    assert (await stage.call("GET", policy)).text == "g"
    assert (await stage.call("GET", ONE)).json["resource_group_name"] == "g"
    assert (await stage.ask("DELETE", policy)).status == 204
    assert (await stage.call("GET", policy)).text == ""
    assert "resource_group_name" not in (await stage.call("GET", ONE)).json
    assert (await stage.ask("POST", f"{SPACES}/public/none/resourcegroup/g")).status == 404


async def test_a_group_that_a_namespace_is_in_is_not_deleted(stage: Stage) -> None:
    await stage.group()
    await stage.call("POST", f"{OTHER}/resourcegroup/g")
    refused = await stage.ask("DELETE", f"{GROUPS}/g")
    assert refused.status == 412
    assert refused.reason.startswith("ResourceGroup is in use")
    assert "public/other" in refused.reason
    await stage.call("DELETE", f"{OTHER}/resourcegroup")
    await stage.call("DELETE", f"{GROUPS}/g")


async def test_a_policy_that_is_no_name_is_not_stored(stage: Stage) -> None:
    refused = await stage.ask("PUT", f"{SPACES}/public/odd", {"resource_group_name": 7})
    assert refused.status == 412


# ----------------------------------------------------------------------------------------- in force


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a client still has to wait is looked at every few milliseconds."""
    monkeypatch.setattr("broker.binary.flow.HOLD_STEP_MS", 10)


@pytest.mark.usefixtures("looks_often")
async def test_who_publishes_to_one_namespace_of_a_group_holds_those_of_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = stage.world.clock.wall_ms()
    monkeypatch.setattr(stage.world.clock, "wall_ms", lambda: now_ms)
    await stage.group(publishRateInMsgs=20)
    for space in (ONE, OTHER):
        await stage.call("POST", f"{space}/resourcegroup/g")
    first, second = await stage.client(), await stage.client()
    await first.produce(topic_of(ONE))
    await second.produce(topic_of(OTHER))
    await eventually(lambda: stage.is_member(topic_of(ONE)) and stage.is_member(topic_of(OTHER)))
    for number in range(60):
        first.publish(1, number)
    for _ in range(21):  # the last one has used the rate up; its other messages wait
        await first.expect(BaseCommand.SEND_RECEIPT)
    group = stage.known()
    assert group is not None
    assert group.publish_wait_ms(now_ms) > 0
    second.publish(1, 0)
    await second.expect(BaseCommand.SEND_RECEIPT)
    second.publish(1, 1)  # its socket is not read until the group owes nothing
    await asyncio.sleep(0.1)
    assert group.published_messages == 22
    receipt = asyncio.ensure_future(second.expect(BaseCommand.SEND_RECEIPT))

    def a_period_passes() -> bool:
        nonlocal now_ms
        now_ms += 1_000
        return receipt.done()

    await eventually(a_period_passes)
    await receipt
    await eventually(lambda: a_period_passes() and group.published_messages == 62)


async def test_a_group_without_a_publish_rate_limits_no_publisher(stage: Stage) -> None:
    await stage.group(dispatchRateInMsgs=20)
    await stage.call("POST", f"{ONE}/resourcegroup/g")
    client = await stage.client()
    await client.produce(topic_of(ONE))
    await eventually(lambda: stage.is_member(topic_of(ONE)))
    topic = stage.topic(topic_of(ONE))
    assert topic is not None
    assert stage.side.broker.publish_room(topic) is None


async def free_at_once(stage: Stage, act: Any) -> None:
    """A client that would wait for hours publishes again after *act*."""
    await stage.group(publishRateInBytes=1)
    await stage.call("POST", f"{ONE}/resourcegroup/g")
    client = await stage.client()
    await client.produce(topic_of(ONE))
    await eventually(lambda: stage.is_member(topic_of(ONE)))
    client.publish(1, 0, data=LARGE)
    await client.expect(BaseCommand.SEND_RECEIPT)
    client.publish(1, 1)
    await act()
    await client.expect(BaseCommand.SEND_RECEIPT)


@pytest.mark.usefixtures("looks_often")
async def test_a_namespace_that_leaves_its_group_is_free_at_once(stage: Stage) -> None:
    await free_at_once(stage, lambda: stage.call("DELETE", f"{ONE}/resourcegroup"))
    topic = stage.topic(topic_of(ONE))
    assert topic is not None
    assert topic.membership.group is None


@pytest.mark.usefixtures("looks_often")
async def test_a_group_whose_rate_is_taken_back_frees_its_topics(stage: Stage) -> None:
    await free_at_once(stage, lambda: stage.group(publishRateInBytes=-1))
    assert stage.is_member(topic_of(ONE))


@pytest.mark.usefixtures("looks_often")
async def test_a_group_that_another_program_deletes_frees_its_topics_which_join_it_again(stage: Stage) -> None:
    await free_at_once(stage, lambda: stage.world.store.delete(NODE))
    topic = stage.topic(topic_of(ONE))
    assert topic is not None
    assert topic.membership.group is None
    await stage.world.store.put(NODE, b'{"publishRateInMsgs":3}')
    await eventually(lambda: stage.is_member(topic_of(ONE)))
    group = stage.known()
    assert group is not None
    assert group.rates.publish == PublishRate(3, 0)


async def test_consumers_of_all_namespaces_of_a_group_get_no_more_than_its_rate(stage: Stage) -> None:
    topics = [topic_of(space, name) for space in (ONE, OTHER) for name in ("a", "b")]
    for topic in topics:
        await stage.call("PUT", f"/admin/v2/{topic.replace('://', '/')}")
        await stage.call(
            "PUT", f"/admin/v2/{topic.replace('://', '/')}/subscription/s", {"ledgerId": -1, "entryId": -1}
        )
        await published(await stage.client(), topic, 60)
    await stage.group(dispatchRateInMsgs=200)
    for space in (ONE, OTHER):
        await stage.call("POST", f"{space}/resourcegroup/g")
    await eventually(lambda: all(stage.is_member(topic) for topic in topics))
    group = stage.known()
    assert group is not None
    began_ms = stage.side.broker.now_ms()
    clients = [await stage.client() for _ in topics]
    for client, topic in zip(clients, topics, strict=True):
        await client.subscribe(topic, subscription="s", subType=wire.CommandSubscribe.Shared)
    for number in range(60):
        for client in clients:
            message = (await client.expect(BaseCommand.MESSAGE)).message
            assert message.message_id.entryId == number
            passed_s = (stage.side.broker.now_ms() - began_ms) / 1000
            assert group.dispatched_messages <= 201 + 200 * passed_s
    assert group.dispatched_messages == 240


async def test_another_rate_reaches_open_topics_and_is_counted(stage: Stage) -> None:
    await stage.group(publishRateInMsgs=5)
    await eventually(lambda: stage.known() is not None)
    group = stage.known()
    assert group is not None
    await stage.call("PUT", f"{GROUPS}/g", {"publishRateInMsgs": 7, "dispatchRateInBytes": 9})
    await eventually(lambda: group.rates == GroupRates(PublishRate(7, 0), DispatchRate(0, 9, 1)))
    assert group.updates == 1


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
async def test_topics_of_the_brokers_are_in_no_group(stage: Stage, domain: str) -> None:
    await stage.group(publishRateInMsgs=1)
    await stage.call("POST", f"{ONE}/resourcegroup/g")
    client = await stage.client()
    name = topic_of(ONE, "__change_events", domain)
    await client.produce(name)
    topic = stage.topic(name)
    assert topic is not None
    assert topic.membership.group is None


async def test_topics_that_store_nothing_publish_by_the_rate_and_are_counted(stage: Stage) -> None:
    await stage.group(publishRateInMsgs=2, dispatchRateInMsgs=1)
    await stage.call("POST", f"{ONE}/resourcegroup/g")
    topic = topic_of(ONE, domain="non-persistent")
    client = await stage.client()
    await client.subscribe(topic)
    await client.produce(topic)
    assert stage.is_member(topic)
    client.publish(1, *range(5))
    kinds = [(await client.answer()).type for _ in range(10)]
    assert kinds.count(BaseCommand.MESSAGE) == 5, "nothing can wait, so nothing is held back"
    group = stage.known()
    assert group is not None
    assert (group.published_messages, group.dispatched_messages) == (5, 5)
    assert group.publish_wait_ms(stage.side.broker.now_ms()) > 0
    await stage.call("DELETE", f"{ONE}/resourcegroup")
    await eventually(lambda: not stage.is_member(topic))


async def test_a_broker_that_starts_later_knows_the_groups_and_follows_them(stage: Stage) -> None:
    await stage.group(publishRateInMsgs=4)
    other = await stage.world.side()
    group = other.broker.resource_groups.get("g")
    assert group is not None
    assert group.rates.publish == PublishRate(4, 0)
    await stage.group(publishRateInMsgs=5)
    await eventually(lambda: group.rates.publish == PublishRate(5, 0))
    await stage.call("DELETE", f"{GROUPS}/g")
    await eventually(lambda: other.broker.resource_groups.get("g") is None)
    assert group.rates == NO_GROUP_RATES


async def test_groups_are_read_some_at_a_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        await stage.call("PUT", f"{GROUPS}/g{number}", {"publishRateInMsgs": number + 1})
    monkeypatch.setattr(resource_groups, "READS_AT_ONCE", 3)
    under_way, most = 0, 0
    read = resource_groups.ResourceGroups._read

    async def counted(self: resource_groups.ResourceGroups, group: ResourceGroup) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        await read(self, group)
        under_way -= 1

    monkeypatch.setattr(resource_groups.ResourceGroups, "_read", counted)
    groups = (await stage.world.side()).broker.resource_groups.by_name
    assert [groups[f"g{number}"].rates.publish.messages for number in range(7)] == [1, 2, 3, 4, 5, 6, 7]
    assert most == 3


async def test_a_record_that_cannot_be_read_changes_nothing(stage: Stage) -> None:
    await stage.group(publishRateInMsgs=4)
    await eventually(lambda: stage.known() is not None)
    await stage.world.store.put(NODE, b'{"publishRateInMsgs":"a"}')
    await stage.world.store.put("/admin/resourcegroups/h", b"[]")
    await eventually(lambda: stage.side.broker.resource_groups.get("h") is not None)
    group, odd = stage.known(), stage.side.broker.resource_groups.get("h")
    assert group is not None
    assert odd is not None
    assert (group.rates.publish, odd.rates) == (PublishRate(4, 0), NO_GROUP_RATES)


async def test_a_change_is_read_again_until_the_metadata_store_answers(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_groups, "RETRY_FIRST_S", 0.01)
    await stage.group(publishRateInMsgs=4)
    await eventually(lambda: stage.known() is not None)
    store, failures = stage.side.store, 3
    get = store.get

    async def fails_first(path: str) -> Any:
        nonlocal failures
        if path == NODE and failures:
            failures -= 1
            raise StoreUnavailable("not now")
        return await get(path)

    monkeypatch.setattr(store, "get", fails_first)
    await stage.world.store.put(NODE, b'{"publishRateInMsgs":6}')
    group = stage.known()
    assert group is not None
    await eventually(lambda: group.rates.publish == PublishRate(6, 0))
    assert failures == 0


# ------------------------------------------------------------------------------- format and metrics


def test_apaches_record_is_read() -> None:
    stored = b'{"publishRateInMsgs":100,"publishRateInBytes":1048576,"dispatchRateInMsgs":-1}'
    assert parse_resource_group(stored, NODE) == GroupRates(PublishRate(100, 1 << 20), DispatchRate(0, 0, 1))
    assert parse_resource_group(b"", NODE) == NO_GROUP_RATES


@pytest.mark.parametrize("value", [b"[]", b"{", b'{"publishRateInMsgs":1.5}', b'{"dispatchRateInBytes":true}'])
def test_a_damaged_record_is_named(value: bytes) -> None:
    with pytest.raises(Corruption, match=NODE):
        parse_resource_group(value, NODE)


async def test_metrics_tell_what_the_topics_of_a_group_took_and_gave(stage: Stage) -> None:
    await stage.group(publishRateInMsgs=1000)
    await stage.call("POST", f"{ONE}/resourcegroup/g")
    client = await stage.client()
    await client.subscribe(topic_of(ONE))
    await eventually(lambda: stage.is_member(topic_of(ONE)))
    await client.produce(topic_of(ONE))
    client.publish(1, 0, 1, 2)
    for _ in range(6):
        await client.answer()
    told = (await stage.call("GET", "/metrics/")).text
    labels = 'ResourceGroup="g",cluster="lab"'
    for way in ("Publish", "Dispatch"):
        assert f'pulsar_resource_group_messages_used_total{{MonitoringClass="{way}",{labels}}} 3.0' in told
        assert f'pulsar_resource_group_bytes_used_total{{MonitoringClass="{way}",{labels}}}' in told
    assert f"pulsar_resource_group_updates_total{{{labels}}} 0.0" in told
