"""A broker that is stopped hands its bundles over, with others that are brokers with their HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broker.errors import NotReady
from broker.ownership.membership import BROKERS, LEADER
from broker.ownership.rules import NoBrokerAvailable
from broker.topic.ports import NextBroker
from broker.transfer.handing_over import CUT_S, hand_over
from broker.wire import pulsar_pb2 as wire
from magnetar_core.bookkeeper.metadata.stores.store import StoreUnavailable
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.raw_client import RawClient


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdminWorld]:
    """Nobody is given time to make ready, as there is little to do."""
    monkeypatch.setattr("broker.transfer.handing_over.READY_S", 0.0)
    monkeypatch.setattr("broker.transfer.handing_over.READY_PER_TOPIC_S", 0.0)
    monkeypatch.setattr("broker.transfer.handing_over.PAUSE_PER_TOPIC_S", 0.0)
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


def topics(count: int) -> list[TopicName]:
    return [TopicName.parse(f"persistent://public/default/t{number}") for number in range(count)]


async def filled(side: Side, count: int) -> list[TopicName]:
    """So many topics, open at *side*, which owns all bundles."""
    names = topics(count)
    for name in names:
        assert (await side.ownership.locate(name, authoritative=True)).here
        await side.broker.opening.create_topic(name)
    return names


async def test_the_bundles_go_one_by_one_while_the_rest_is_served(world: AdminWorld) -> None:
    going, staying = await world.side(), await world.side()
    names = await filled(going, 40)
    served: list[int] = []
    unload = going.broker.opening.unload_bundle

    async def watched(bundle: str, next_broker: NextBroker) -> None:
        await unload(bundle, next_broker)
        served.append(len(going.broker.topics))

    going.broker.opening.unload_bundle = watched  # type: ignore[method-assign, assignment]
    await hand_over(going.broker, going.ownership)
    assert len(served) > 2, "more than two bundles had topics"
    assert sorted(served, reverse=True) == served
    assert served[0] > 0, "the others were served meanwhile"
    assert served[-1] == 0
    assert going.ownership.owned_bundles == []
    for name in names:
        found = await staying.ownership.locate(name, authoritative=False)
        assert found.here, "nobody is sent back to the one that goes"


def sizes_of_bundles(side: Side) -> list[int]:
    """The number of topics in each bundle as it goes."""
    found: list[int] = []
    unload = side.broker.opening.unload_bundle

    async def watched(bundle: str, next_broker: NextBroker) -> None:
        before = len(side.broker.topics)
        await unload(bundle, next_broker)
        found.append(before - len(side.broker.topics))

    side.broker.opening.unload_bundle = watched  # type: ignore[method-assign, assignment]
    return found


async def test_a_bundle_with_very_many_topics_is_cut_before_it_goes(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.transfer.handing_over.TOPICS_MAX", 5)
    going, staying = await world.side(), await world.side()
    names = await filled(going, 60)
    await staying.ownership.locate(names[0], authoritative=False)  # it knows the bundles of before
    sizes = sizes_of_bundles(going)
    await hand_over(going.broker, going.ownership, lambda: [staying.id])
    assert max(sizes) <= 5
    assert sum(sizes) == len(names)
    assert going.ownership.owned_bundles == []
    for name in names:
        assert (await staying.ownership.locate(name, authoritative=False)).here


async def test_a_bundle_that_is_not_large_stays_whole(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.transfer.handing_over.TOPICS_MAX", 60)
    going, _ = await world.side(), await world.side()
    await filled(going, 60)
    before = (await going.broker.bundles_now("public/default")).ranges
    await hand_over(going.broker, going.ownership)
    assert (await going.broker.bundles_now("public/default")).ranges == before


async def test_no_bundle_is_cut_where_nobody_is_left(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.transfer.handing_over.TOPICS_MAX", 5)
    going = await world.side()
    await filled(going, 60)
    before = (await going.broker.bundles_now("public/default")).ranges
    await hand_over(going.broker, going.ownership)
    assert (await going.broker.bundles_now("public/default")).ranges == before


@pytest.mark.parametrize(
    ("changes", "more"),
    [({"auto_split": False}, 0), ({"namespace_max_bundles": 17}, 1), ({"namespace_max_bundles": 18}, 2)],
)
async def test_bundles_are_cut_as_far_as_they_may_be(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], more: int
) -> None:
    monkeypatch.setattr("broker.transfer.handing_over.TOPICS_MAX", 2)
    going, _ = await world.side(**changes), await world.side()
    await filled(going, 60)
    before = (await going.broker.bundles_now("public/default")).ranges
    assert len(before) == 16
    sizes = sizes_of_bundles(going)
    await hand_over(going.broker, going.ownership)
    after = await going.broker.bundles_now("public/default")
    assert len(after.ranges) == 16 + more
    assert sum(sizes) == 60


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_bundle_that_cannot_be_cut_keeps_no_broker_from_stopping(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    monkeypatch.setattr("broker.transfer.handing_over.TOPICS_MAX", 5)
    monkeypatch.setattr("broker.transfer.handing_over.CUT_S", 0.1)
    monkeypatch.setattr("broker.transfer.handing_over.ASK_S", 0.5)
    going, _ = await world.side(), await world.side()
    await filled(going, 60)
    sizes = sizes_of_bundles(going)
    may_end = asyncio.Event()

    async def split(bundle: str, after: object, store: object) -> list[str]:
        if is_slow:
            await may_end.wait()
        raise NotReady(f"a part of {bundle} has an owner already; retry")

    monkeypatch.setattr(going.ownership.keeper, "split", split)
    await hand_over(going.broker, going.ownership)
    assert sum(sizes) == 60
    assert max(sizes) > 5
    may_end.set()


async def test_after_a_while_no_further_bundle_is_cut(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.transfer.handing_over.TOPICS_MAX", 2)
    going, staying = await world.side(), await world.side()
    names = await filled(going, 60)
    split, monotonic = going.ownership.keeper.split, going.broker.clock.monotonic

    async def slow(*args: Any) -> list[str]:
        monkeypatch.setattr(going.broker.clock, "monotonic", lambda: monotonic() + CUT_S)
        return await split(*args)

    monkeypatch.setattr(going.ownership.keeper, "split", slow)
    sizes = sizes_of_bundles(going)
    await hand_over(going.broker, going.ownership, lambda: [staying.id])
    assert sum(sizes) == len(names), "all of them went"
    assert going.ownership.owned_bundles == []
    assert 16 < len((await going.broker.bundles_now("public/default")).ranges) < 24, "one was cut"


async def test_one_that_goes_sends_clients_to_the_others_and_takes_nothing(world: AdminWorld) -> None:
    going, staying = await world.side(), await world.side()
    assert await going.ownership.leave()
    name = topics(1)[0]
    for authoritative in (False, True):
        found = await going.ownership.locate(name, authoritative=authoritative)
        assert (found.here, found.redirect) == (False, True)
        assert found.broker == staying.broker.address
    bundle = going.ownership.bundle_of(name)
    assert bundle is not None
    assert not await going.ownership.keeper.acquire(bundle)
    assert await world.store.children(BROKERS) == [staying.id]


async def test_the_leader_that_goes_is_followed_by_another(world: AdminWorld) -> None:
    going, staying = await world.side(), await world.side()
    assert going.ownership.members.is_leader
    await going.ownership.leave()
    async with asyncio.timeout(10):
        while not staying.ownership.members.is_leader:
            await asyncio.sleep(0.01)
    node = await world.store.get(LEADER)
    assert node is not None
    assert staying.id.encode() in node.value
    assert not going.ownership.members.is_leader


@pytest.mark.parametrize("is_on", [True, False])
async def test_the_others_are_given_time_to_make_ready(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    monkeypatch.setattr("broker.transfer.handing_over.READY_S_MAX", 0.5)
    monkeypatch.setattr("broker.transfer.handing_over.READY_PER_TOPIC_S", 1.0)
    going, staying = await world.side(tells_what_it_serves=is_on), await world.side()
    names = await filled(going, 4)
    slept: list[tuple[float, int]] = []

    async def sleep(seconds: float) -> None:
        slept.append((seconds, len(going.broker.topics)))
        await asyncio.sleep(0)  # others use this clock, too, and would go round for ever

    monkeypatch.setattr(going.broker.clock, "sleep", sleep)
    await hand_over(going.broker, going.ownership)
    assert ((0.5, len(names)) in slept) is is_on, "all of them are served meanwhile"
    assert (await staying.ownership.locate(names[0], authoritative=False)).here


async def test_a_broker_on_its_own_hands_nothing_over(world: AdminWorld) -> None:
    going = await world.side()
    names = await filled(going, 5)
    await hand_over(going.broker, going.ownership)
    assert set(going.broker.topics) == set(names)
    with pytest.raises(NoBrokerAvailable, match="this one is stopping"):
        await going.ownership.locate(
            next(one for one in topics(1000) if not going.ownership.owns(one)), authoritative=True
        )


async def test_others_that_are_dead_are_nobody_to_hand_over_to(world: AdminWorld) -> None:
    going, dead = await world.side(), await world.side()
    names = await filled(going, 5)
    await dead.broker.server.stop_listening()
    await hand_over(going.broker, going.ownership)
    assert set(going.broker.topics) == set(names)


async def test_a_store_that_is_away_does_not_keep_it_from_stopping(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    going, _ = await world.side(), await world.side()
    names = await filled(going, 5)

    async def away(path: str) -> None:
        raise StoreUnavailable(f"{path}: no server")

    monkeypatch.setattr(going.store, "get", away)
    with caplog.at_level(logging.WARNING):
        await hand_over(going.broker, going.ownership)
    assert "stopping without handing bundles over" in caplog.text
    assert set(going.broker.topics) == set(names)


async def test_a_bundle_that_cannot_be_given_does_not_keep_the_others(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    going, _ = await world.side(), await world.side()
    await filled(going, 20)
    held = going.ownership.owned_bundles[0]
    unload = going.ownership.keeper.unload

    async def refusing(bundle: str, close: object) -> None:
        if bundle == held:
            raise NotReady(f"Namespace bundle {bundle} is being split; retry")
        await unload(bundle, close)  # type: ignore[arg-type]

    monkeypatch.setattr(going.ownership.keeper, "unload", refusing)
    with caplog.at_level(logging.WARNING):
        await hand_over(going.broker, going.ownership)
    assert going.ownership.owned_bundles == [held]
    assert f"{held} could not be handed over" in caplog.text


async def test_what_takes_too_long_is_left_to_the_end(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("broker.transfer.handing_over.HAND_OVER_S", 0.1)
    going, _ = await world.side(), await world.side()
    await filled(going, 20)
    owned = len(going.ownership.owned_bundles)

    async def slow(bundle: str, next_broker: NextBroker) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(going.broker.opening, "unload_bundle", slow)
    with caplog.at_level(logging.WARNING):
        await hand_over(going.broker, going.ownership)
    assert "could not be handed over within 0.1 s" in caplog.text
    assert len(going.ownership.owned_bundles) >= owned - 1


async def test_a_setting_that_may_change_shortens_the_time(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    going, _ = await world.side(), await world.side()
    await filled(going, 5)
    path = "/admin/v2/brokers/configuration/brokerShutdownTimeoutMs/100"
    assert (await world.call(going, "POST", path)).status == 200
    await eventually(lambda: going.broker.config.shutdown_timeout_ms == 100)

    async def held(bundle: str, next_broker: NextBroker) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(going.broker.opening, "unload_bundle", held)
    with caplog.at_level(logging.WARNING):
        await hand_over(going.broker, going.ownership)
    assert "could not be handed over within 0.1 s" in caplog.text


async def told(going: Side, takers: list[str]) -> set[tuple[str, str]]:
    """(kind of command, URL in it) that the clients of a producer and of a consumer get as *going* hands over."""
    (name,) = await filled(going, 1)
    client = await RawClient.connect(going.broker.port)
    await client.produce(name.full)
    await client.subscribe(name.full, permits=1)
    await hand_over(going.broker, going.ownership, lambda: takers)
    found = set()
    for _ in range(2):
        answer = await client.answer()
        body = answer.close_producer if answer.type == wire.BaseCommand.CLOSE_PRODUCER else answer.close_consumer
        found.add((wire.BaseCommand.Type.Name(answer.type), body.assignedBrokerServiceUrl))
        assert body.request_id == 2**64 - 1
    client.close()
    return found


def both(url: str) -> set[tuple[str, str]]:
    return {("CLOSE_PRODUCER", url), ("CLOSE_CONSUMER", url)}


async def test_clients_are_told_who_will_have_the_topic(world: AdminWorld) -> None:
    going, staying = await world.side(), await world.side()
    assert await told(going, [staying.id]) == both(staying.broker.address.service_url)


async def test_clients_are_not_sent_to_a_broker_that_does_not_wait_for_bundles(world: AdminWorld) -> None:
    going, _ = await world.side(), await world.side()
    assert await told(going, ["apache.example:8080"]) == both("")


async def test_clients_are_not_told_where_it_depends_on_their_listener(world: AdminWorld) -> None:
    going, staying = await world.side(), await world.side()
    address = staying.broker.address._replace(listeners={"outside": ("pulsar://pulsar.example:6650", "")})
    staying.ownership.members.address = address
    await staying.ownership.members.report_load({})
    assert await told(going, [staying.id]) == both("")


async def test_a_client_that_comes_before_the_bundle_does_is_waited_with(world: AdminWorld) -> None:
    going, staying = await world.side(), await world.side()
    (name,) = await filled(going, 1)
    bundle = going.ownership.bundle_of(name)
    assert bundle is not None
    assert not await staying.ownership.is_coming(name), "it takes only what it waits for"
    await going.ownership.leave()
    taking = asyncio.ensure_future(staying.ownership.finder.take_when_free(bundle, 30))
    closing, may_close = asyncio.Event(), asyncio.Event()

    async def close() -> None:
        closing.set()
        await may_close.wait()
        await going.broker.opening.unload_bundle(bundle)

    giving = asyncio.ensure_future(going.ownership.keeper.unload(bundle, close))
    await closing.wait()
    client = await RawClient.connect(staying.broker.port)
    client.send(wire.BaseCommand.PRODUCER, topic=name.full, producer_id=1, request_id=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.answer(), 0.2)
    may_close.set()
    assert (await client.expect(wire.BaseCommand.PRODUCER_SUCCESS)).producer_success.request_id == 1
    assert await taking
    await giving
    client.close()
