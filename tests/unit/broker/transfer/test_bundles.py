"""Bundles that are split and moved while clients work: two brokers, official client, HTTP."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pulsar
import pytest

from broker.errors import NotReady
from broker.names import BundleSet, bundle_hash
from broker.ownership.splitting import RANGE
from broker.records.json_records import RecordChanged
from broker.tenancy.changes import LOCAL_POLICIES_ROOT
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer
from magnetar_core.bookkeeper.metadata.stores.store import StoreUnavailable
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.test_official_client import EARLIEST, QUIET, TIMEOUT_MS

NS = "public/cut"
NAMESPACE = f"/admin/v2/namespaces/{NS}"
WHOLE = "0x00000000_0xffffffff"


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def namespace(world: AdminWorld, side: Side, bundles: int = 1) -> None:
    made = await world.call(side, "PUT", NAMESPACE, {"bundles": {"numBundles": bundles}})
    assert made.status == 204, made.text


async def boundaries(world: AdminWorld, side: Side) -> list[str]:
    found: list[str] = (await world.call(side, "GET", f"{NAMESPACE}/bundles")).json["boundaries"]
    return found


async def owner(world: AdminWorld, text: str) -> str | None:
    node = await world.store.get(f"/namespace/{NS}/{text}")
    return None if node is None else str(json.loads(node.value)["nativeUrl"])


def publish_meanwhile(url: str, topics: list[str], stop: threading.Event) -> dict[str, list[str]]:
    """Publish to all *topics* until *stop*; what got a receipt."""
    client = pulsar.Client(url, logger=QUIET, operation_timeout_seconds=20)
    producers = {topic: client.create_producer(topic) for topic in topics}
    sent: dict[str, list[str]] = {topic: [] for topic in topics}
    number = 0
    while not stop.is_set() or number < 20:
        for topic, producer in producers.items():
            producer.send(b"%d" % number)
            sent[topic].append(str(number))
        number += 1
    client.close()
    return sent


def read_all(url: str, topic: str, count: int) -> list[str]:
    client = pulsar.Client(url, logger=QUIET)
    consumer = client.subscribe(topic, "check", initial_position=EARLIEST)
    found = []
    for _ in range(count):
        found.append(consumer.receive(TIMEOUT_MS).data().decode())
    client.close()
    return found


async def while_published(world: AdminWorld, side: Side, work: Callable[[], Any], *others: Side) -> None:
    """Run *work* while producers publish; everything that was confirmed is there, once and in order."""
    topics = [f"persistent://{NS}/t{number}" for number in range(6)]
    for topic in topics:
        await world.call(side, "PUT", f"/admin/v2/{TopicName.parse(topic).rest_path}/subscription/check", follow=True)
    stop = threading.Event()
    publishing = asyncio.ensure_future(world.run(publish_meanwhile, side.url, topics, stop))
    try:
        await eventually(
            lambda: sum(topic.messages_in for one in (side, *others) for topic in one.broker.topics.values()) > 30
        )
        await work()
    finally:
        stop.set()
    sent = await publishing
    for topic in topics:
        assert await world.run(read_all, side.url, topic, len(sent[topic])) == sent[topic]


async def test_a_split_while_producers_publish_disconnects_nobody_and_loses_nothing(world: AdminWorld) -> None:
    a = await world.side()
    await namespace(world, a)
    closed: list[object] = []

    async def split() -> None:
        open_before = dict(a.broker.topics)
        assert (await world.call(a, "PUT", f"{NAMESPACE}/{WHOLE}/split")).status == 204
        assert (await world.call(a, "PUT", f"{NAMESPACE}/0x00000000_0x7fffffff/split")).status == 204
        closed.extend(name for name, topic in open_before.items() if a.broker.topics.get(name) is not topic)

    await while_published(world, a, split)
    assert closed == []
    assert await boundaries(world, a) == ["0x00000000", "0x3fffffff", "0x7fffffff", "0xffffffff"]
    await eventually(lambda: sorted(a.ownership.owned_bundles) == [
        f"{NS}/0x00000000_0x3fffffff", f"{NS}/0x3fffffff_0x7fffffff", f"{NS}/0x7fffffff_0xffffffff"
    ])  # fmt: skip
    await eventually_async(lambda: owner(world, WHOLE), None)


async def eventually_async(ask: Callable[[], Any], wanted: object) -> None:
    async with asyncio.timeout(10):
        while await ask() != wanted:
            await asyncio.sleep(0.02)


async def test_a_split_with_unload_while_producers_publish_loses_nothing(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    await namespace(world, a)

    async def split() -> None:
        bundle_owner = await owner(world, WHOLE)
        assert bundle_owner is not None
        found = await world.call(a, "PUT", f"{NAMESPACE}/{WHOLE}/split?unload=true", follow=True)
        assert found.status == 204

    await while_published(world, a, split, b)


async def test_both_brokers_find_the_parts_at_the_one_that_split(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    await namespace(world, a)
    topic = TopicName.parse(f"persistent://{NS}/t")
    assert (await a.ownership.locate(topic, authoritative=True)).here
    assert (await b.ownership.locate(topic, authoritative=False)).broker == a.ownership.address
    sent = await world.call(b, "PUT", f"{NAMESPACE}/{WHOLE}/split")
    assert (sent.status, sent.headers["Location"]) == (307, f"{a.http_url}{NAMESPACE}/{WHOLE}/split")
    assert (await world.call(a, "PUT", f"{NAMESPACE}/{WHOLE}/split")).status == 204
    for side in (a, b):
        located = await side.ownership.locate(topic, authoritative=False)
        assert located.here or located.broker == a.ownership.address
        assert not located.redirect
    await eventually_async(lambda: boundaries(world, b), ["0x00000000", "0x7fffffff", "0xffffffff"])


async def test_who_has_not_heard_of_a_split_does_not_take_the_bundle_that_is_gone(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    await namespace(world, a)
    topic = TopicName.parse(f"persistent://{NS}/t")
    before = await b.broker.bundles_of(NS)
    assert (await a.ownership.locate(topic, authoritative=True)).here
    parts = await a.ownership.keeper.split(
        f"{NS}/{WHOLE}", before.cut([1 << 31]), lambda: a.broker.cut_namespace(NS, before, before.cut([1 << 31]))
    )
    await eventually_async(lambda: owner(world, WHOLE), None)
    for part in parts:
        await a.ownership.keeper.unload(part, partial(a.broker.opening.unload_bundle, part))

    async def outdated(namespace: str) -> Any:
        return before

    b.ownership.finder._bundles_of = outdated
    assert (await b.ownership.locate(topic, authoritative=True)).here
    assert BundleSet(b.ownership.owned_bundles).has(topic)
    assert b.ownership.owned_bundles != [f"{NS}/{WHOLE}"]
    assert await owner(world, WHOLE) is None


async def test_a_split_that_cannot_be_stored_changes_nothing(world: AdminWorld) -> None:
    a = await world.side()
    await namespace(world, a)
    topic = TopicName.parse(f"persistent://{NS}/t")
    assert (await a.ownership.locate(topic, authoritative=True)).here
    before = await a.broker.bundles_of(NS)

    async def unavailable() -> None:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await a.ownership.keeper.split(f"{NS}/{WHOLE}", before.cut([1 << 31]), unavailable)
    assert a.ownership.owned_bundles == [f"{NS}/{WHOLE}"]
    assert a.ownership.owns(topic)
    await eventually_async(lambda: owner(world, "0x00000000_0x80000000"), None)
    with pytest.raises(NotReady):
        await a.ownership.keeper.split(f"{NS}/0x00000000_0x10000000", before.cut([1 << 20]), unavailable)


async def test_the_parts_of_a_bundle_are_ours_in_the_session_that_follows_the_split(world: AdminWorld) -> None:
    """The session ends when the nodes of the parts are made, and before the namespace has them."""
    a = await world.side()
    await namespace(world, a)
    assert (await a.ownership.locate(TopicName.parse(f"persistent://{NS}/t"), authoritative=True)).here
    before = await a.broker.bundles_of(NS)
    after = before.cut([1 << 31])

    async def store() -> None:
        a.store.expire()
        await a.broker.cut_namespace(NS, before, after)

    parts = await a.ownership.keeper.split(f"{NS}/{WHOLE}", after, store)
    for part in parts:
        await eventually_async(partial(owner, world, part.rpartition("/")[2]), a.ownership.address.service_url)
    assert a.ownership.owned_bundles == parts
    assert await owner(world, WHOLE) is None


@pytest.mark.parametrize("answer", LostAnswer)
async def test_a_bundle_can_be_split_when_the_answer_about_a_part_was_lost(
    world: AdminWorld, answer: LostAnswer
) -> None:
    a = await world.side()
    await namespace(world, a)
    topic = TopicName.parse(f"persistent://{NS}/t")
    assert (await a.ownership.locate(topic, authoritative=True)).here
    before = await a.broker.bundles_of(NS)
    after = before.cut([1 << 31])

    async def store() -> None:
        await a.broker.cut_namespace(NS, before, after)

    async def is_split() -> bool:
        try:
            return len(await a.ownership.keeper.split(f"{NS}/{WHOLE}", after, store)) == 2
        except NotReady:
            return False

    a.store.lose_next_answer(answer)
    assert await is_split() == (answer is LostAnswer.APPLIED)
    if answer is LostAnswer.NOT_APPLIED:
        assert await is_split(), "what may be there is being removed"
    assert a.ownership.owns(topic)
    assert await owner(world, "0x00000000_0x80000000") == await owner(world, "0x80000000_0xffffffff") == a.url


async def test_of_two_that_cut_a_namespace_at_once_one_does(world: AdminWorld) -> None:
    a = await world.side()
    await namespace(world, a)
    before = await a.broker.bundles_of(NS)
    await a.broker.cut_namespace(NS, before, before.cut([1 << 31]))
    with pytest.raises(RecordChanged):
        await a.broker.cut_namespace(NS, before, before.cut([1 << 30]))
    node = await world.store.get(f"{LOCAL_POLICIES_ROOT}/{NS}")
    assert node is not None
    assert node.value == (
        b'{"bundles":{"boundaries":["0x00000000","0x80000000","0xffffffff"],"numBundles":2},"migrated":false}'
    )


async def test_members_of_local_policies_that_others_wrote_stay(world: AdminWorld) -> None:
    a = await world.side()
    await namespace(world, a)
    value = b'{"bundles":{"boundaries":["0x00000000","0xffffffff"],"numBundles":1},"bookieAffinityGroup":{"x":1}}'
    await world.store.put(f"{LOCAL_POLICIES_ROOT}/{NS}", value)
    before = await a.broker.bundles_now(NS)
    await a.broker.cut_namespace(NS, before, before.cut([1 << 31]))
    node = await world.store.get(f"{LOCAL_POLICIES_ROOT}/{NS}")
    assert node is not None
    assert json.loads(node.value)["bookieAffinityGroup"] == {"x": 1}


async def test_a_split_by_another_broker_is_heard_of(world: AdminWorld) -> None:
    a = await world.side()
    await namespace(world, a)
    assert await boundaries(world, a) == ["0x00000000", "0xffffffff"]
    cut = b'{"bundles":{"boundaries":["0x00000000","0x00000007","0xffffffff"],"numBundles":2},"migrated":false}'
    await world.store.put(f"{LOCAL_POLICIES_ROOT}/{NS}", cut)
    await eventually_async(lambda: boundaries(world, a), ["0x00000000", "0x00000007", "0xffffffff"])


async def test_a_bundle_is_moved_to_the_broker_that_is_named_while_producers_publish(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    await namespace(world, a)
    topic = TopicName.parse(f"persistent://{NS}/t0")
    assert (await a.ownership.locate(topic, authoritative=True)).here

    async def move() -> None:
        path = f"{NAMESPACE}/{WHOLE}/unload?destinationBroker={b.id}"
        assert (await world.call(a, "PUT", path)).status == 204
        assert await owner(world, WHOLE) == b.url

    await while_published(world, a, move)


async def test_the_leader_has_bundles_of_others_moved_and_others_send_the_call_to_the_owner(world: AdminWorld) -> None:
    a, b, c = await world.side(), await world.side(), await world.side()
    await namespace(world, a)
    leader = next(side for side in (a, b, c) if side.ownership.members.is_leader)
    owner_, other = [side for side in (a, b, c) if side is not leader]
    assert await owner_.ownership.keeper.acquire(f"{NS}/{WHOLE}")
    path = f"{NAMESPACE}/{WHOLE}/unload?destinationBroker={other.id}"
    sent = await world.call(other, "PUT", path)
    assert (sent.status, sent.headers["Location"]) == (307, owner_.http_url + path)
    assert (await world.call(leader, "PUT", path)).status == 204
    assert await owner(world, WHOLE) == other.url


async def test_a_bundle_stays_where_it_is_if_that_broker_is_named(world: AdminWorld) -> None:
    """Given back, it would go to whichever broker is asked first."""
    a, b, c = await world.side(), await world.side(), await world.side()
    await namespace(world, a)
    leader = next(side for side in (a, b, c) if side.ownership.members.is_leader)
    owner_ = next(side for side in (a, b, c) if side is not leader)
    assert await owner_.ownership.keeper.acquire(f"{NS}/{WHOLE}")
    for asked in (owner_, leader):
        path = f"{NAMESPACE}/{WHOLE}/unload?destinationBroker={owner_.id}"
        assert (await world.call(asked, "PUT", path)).status == 204
        assert owner_.ownership.owned_bundles == [f"{NS}/{WHOLE}"]
    assert await owner(world, WHOLE) == owner_.url


async def test_a_bundle_that_nobody_owns_is_taken_by_the_broker_that_is_named(world: AdminWorld) -> None:
    a, b = await world.side(), await world.side()
    await namespace(world, a, bundles=4)
    path = f"{NAMESPACE}/0x40000000_0x80000000/unload?destinationBroker={b.id}"
    assert (await world.call(a, "PUT", path)).status == 204
    assert b.ownership.owned_bundles == [f"{NS}/0x40000000_0x80000000"]


async def test_the_largest_and_the_hottest_bundle_can_be_asked_for(world: AdminWorld) -> None:
    a = await world.side()
    await namespace(world, a, bundles=2)
    names = (TopicName.parse(f"persistent://{NS}/t{number}") for number in range(50))
    low = [name for name in names if bundle_hash(name) < 1 << 31][:3]
    for name in low:
        await world.call(a, "PUT", f"/admin/v2/{name.rest_path}")
    assert (await world.call(a, "PUT", f"{NAMESPACE}/LARGEST/split")).status == 204
    assert await boundaries(world, a) == ["0x00000000", "0x40000000", "0x80000000", "0xffffffff"]
    topic = a.broker.topics[low[0]]

    def rates(name: TopicName) -> Any:
        return original(name)._replace(bytes_in=1000.0 if name == topic.name else 0.0)

    original = a.broker.topic_rates
    a.broker.topic_rates = rates  # type: ignore[method-assign]
    assert (await world.call(a, "PUT", f"{NAMESPACE}/HOT/split")).status == 204
    assert len(await boundaries(world, a)) == 5
    assert (await world.call(a, "PUT", f"{NAMESPACE}/HOT/unload")).status == 412


async def test_what_is_no_list_of_positions_is_refused(world: AdminWorld) -> None:
    a = await world.side()
    await namespace(world, a)
    path = f"{NAMESPACE}/{WHOLE}/split?splitAlgorithmName=specified_positions_divide"
    for body in ({"a": 1}, ["x"], [True], [1] * 5_000):
        assert (await world.call(a, "PUT", path, body)).status == 400
    assert (await world.call(a, "PUT", path, [])).status == 412


async def test_a_narrow_bundle_without_topics_is_moved_all_the_same(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can be asked for a topic in it: it is given back, and goes to whoever is asked first."""
    monkeypatch.setattr("broker.transfer.bundles.NAMES_TRIED_MAX", 1)
    a, b = await world.side(), await world.side()
    await namespace(world, a)
    before = await a.broker.bundles_now(NS)
    assert await a.ownership.keeper.acquire(f"{NS}/{WHOLE}")
    after = before.cut([5, 6])
    await a.ownership.keeper.split(f"{NS}/{WHOLE}", after, lambda: a.broker.cut_namespace(NS, before, after))
    path = f"{NAMESPACE}/0x00000005_0x00000006/unload?destinationBroker={b.id}"
    assert (await world.call(a, "PUT", path)).status == 204
    assert await owner(world, "0x00000005_0x00000006") is None


async def test_the_way_to_cut_may_be_set_and_is_checked(world: AdminWorld) -> None:
    a = await world.side(split_algorithms=(RANGE,))
    await namespace(world, a)
    refused = await world.call(a, "PUT", f"{NAMESPACE}/{WHOLE}/split?splitAlgorithmName=topic_count_equally_divide")
    assert (refused.status, refused.reason.endswith("[range_equally_divide]")) == (412, True)
