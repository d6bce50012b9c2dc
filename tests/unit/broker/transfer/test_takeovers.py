"""A broker makes ready for the topics of others that die or stop, and opens them before anybody asks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from broker.ownership.probing import Sign
from broker.ownership.rules import BrokerAddress
from broker.transfer import takeovers
from broker.transfer.handing_over import hand_over
from broker.transfer.rosters import log as serving
from broker.transfer.takeovers import Takeovers
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.ledgers.holdings import Holdings
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side

TOPICS = [TopicName.parse(f"persistent://public/default/t{number}") for number in range(12)]


class World:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.lab = AdminWorld(stack)

    async def side(self, **changes: object) -> tuple[Side, Takeovers]:
        side = await self.lab.side(**changes)
        bookkeeper = self.lab.bookkeeper.session()
        made = Takeovers(side.broker, side.ownership, side.store, bookkeeper.client, self.lab.clock)
        made.start()
        self._stack.push_async_callback(made.stop)
        return side, made


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    for name in ("WRITE_S", "RETRY_S", "PAUSE_S"):
        monkeypatch.setattr(serving, name, 0.01)
    monkeypatch.setattr(takeovers, "LOOK_S", 0.05)
    monkeypatch.setattr("broker.transfer.handing_over.READY_S", 0.05)
    async with AsyncExitStack() as stack:
        made = World(stack)
        await made.lab.open()
        yield made


async def serve(side: Side) -> None:
    for name in TOPICS:
        assert (await side.ownership.locate(name, authoritative=True)).here
        await side.broker.opening.create_topic(name)


def _knows(reader: Takeovers, side: Side, names: list[TopicName]) -> None:
    assert reader._others is not None
    assert sorted(reader._others.topics_of(side.id)) == sorted(name.full for name in names)


def _has_open(side: Side, names: list[TopicName]) -> None:
    assert set(side.broker.topics) == set(names)


async def test_the_topics_of_a_dead_broker_are_open_before_a_client_asks(world: World) -> None:
    (dying, told), (staying, heard) = await world.side(), await world.side()
    await serve(dying)
    await eventually(lambda: _knows(heard, dying, TOPICS))
    await told.stop()
    await dying.broker.server.stop_listening()
    await eventually(lambda: _prepared(staying, len(TOPICS)))
    assert staying.broker.topics == {}, "the session of the dead one has not ended"
    await dying.store.close()
    await eventually(lambda: _has_open(staying, TOPICS))
    assert staying.broker.ledgers.preparations.names == []  # type: ignore[attr-defined]


async def test_what_the_topics_hold_is_known_when_they_are_prepared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dying, told), (staying, heard) = await world.side(), await world.side()
    await serve(dying)
    expected = {name.managed_ledger_name: dying.broker.opening.holdings(name) for name in TOPICS}
    assert None not in expected.values()
    await eventually(lambda: _knows(heard, dying, TOPICS))
    cursor = await dying.broker.topics[TOPICS[0]].ledger.open_cursor("s")
    expected[TOPICS[0].managed_ledger_name] = dying.broker.opening.holdings(TOPICS[0])
    await eventually(lambda: _holds(heard, dying, TOPICS[0]))
    prepared: dict[str, Holdings | None] = {}

    def prepare(name: str, config: object, *, is_dead: bool, held: Holdings | None) -> None:
        prepared[name] = held

    monkeypatch.setattr(staying.broker.ledgers, "prepare", prepare)
    await told.stop()
    await dying.broker.server.stop_listening()
    await eventually(lambda: _equal(prepared, expected))
    assert cursor.name in dict(expected[TOPICS[0].managed_ledger_name].cursors)  # type: ignore[union-attr]


def _holds(heard: Takeovers, side: Side, name: TopicName) -> None:
    assert heard._others is not None
    assert heard._others.holdings_of(name.full) == side.broker.opening.holdings(name)


def _equal(found: object, expected: object) -> None:
    assert found == expected


async def test_the_topics_of_a_broker_that_stops_are_open_as_soon_as_it_gave_them_away(world: World) -> None:
    (going, _), (staying, heard) = await world.side(), await world.side()
    await serve(going)
    await eventually(lambda: _knows(heard, going, TOPICS))
    await hand_over(going.broker, going.ownership)
    await eventually(lambda: _has_open(staying, TOPICS))
    _knows(heard, going, TOPICS)  # what it told stays until it starts again


async def test_a_topic_that_was_deleted_meanwhile_is_not_made_again(world: World) -> None:
    (dying, told), (staying, heard) = await world.side(), await world.side()
    await serve(dying)
    await eventually(lambda: _knows(heard, dying, TOPICS))
    await told.stop()
    await dying.broker.deleting.delete_topic(TOPICS[0], force=True)
    await dying.broker.server.stop_listening()
    await dying.store.close()
    await eventually(lambda: _has_open(staying, TOPICS[1:]))
    assert not await staying.broker.ledgers.exists(TOPICS[0].managed_ledger_name)


async def test_two_that_stay_open_each_topic_of_the_dead_one_once(world: World) -> None:
    (dying, told), (a, heard_a), (b, heard_b) = await world.side(), await world.side(), await world.side()
    await serve(dying)
    await eventually(lambda: _knows(heard_a, dying, TOPICS))
    await eventually(lambda: _knows(heard_b, dying, TOPICS))
    await told.stop()
    await dying.broker.server.stop_listening()
    await dying.store.close()
    await eventually(lambda: _share(a, b))


async def test_so_many_topics_that_nobody_asked_for_are_opened_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeovers, "OPENED_AT_ONCE", 3)
    (dying, told), (staying, heard) = await world.side(), await world.side()
    await serve(dying)
    await eventually(lambda: _knows(heard, dying, TOPICS))
    waiting, opening = asyncio.Event(), list[TopicName]()

    async def slow(topic: TopicName) -> None:
        opening.append(topic)
        await waiting.wait()

    monkeypatch.setattr(staying.broker.opening, "open_again", slow)
    await told.stop()
    await dying.broker.server.stop_listening()
    await dying.store.close()
    await eventually(lambda: _count(opening, 3))
    await asyncio.sleep(0.1)
    _count(opening, 3)
    waiting.set()
    await eventually(lambda: _count(opening, len(TOPICS)))


async def test_the_busiest_topics_are_prepared_and_opened_first_whatever_their_bundle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeovers, "OPENED_AT_ONCE", 1)
    (dying, told), (staying, heard) = await world.side(), await world.side()
    await serve(dying)
    traffic = {name: 20 - number for number, name in enumerate(reversed(TOPICS))}
    await eventually(lambda: _knows(heard, dying, TOPICS))
    prepared: list[TopicName] = []
    monkeypatch.setattr(heard, "prepare", lambda topic, *, is_dead: prepared.append(topic))
    await told.stop()
    assert heard._others is not None
    monkeypatch.setattr(heard._others, "topics_of", lambda broker_id: {t.full: n for t, n in traffic.items()})
    await dying.broker.server.stop_listening()
    await eventually(lambda: _count(prepared, len(TOPICS)))
    assert prepared == list(reversed(TOPICS))
    assert staying.broker.opening.expected == traffic
    await dying.store.close()
    await eventually(lambda: _has_open(staying, TOPICS))
    assert staying.broker.opening.expected == {}


async def test_what_waits_to_be_opened_comes_by_its_traffic_over_all_bundles(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeovers, "OPENED_AT_ONCE", 1)
    (dying, told), (staying, heard) = await world.side(), await world.side()
    await serve(dying)
    traffic = {name: 20 - number for number, name in enumerate(reversed(TOPICS))}
    await eventually(lambda: _knows(heard, dying, TOPICS))
    assert len({dying.ownership.bundle_of(name) for name in TOPICS}) > 1
    may_open, opening = asyncio.Event(), list[TopicName]()

    async def slow(topic: TopicName) -> None:
        opening.append(topic)
        await may_open.wait()

    monkeypatch.setattr(staying.broker.opening, "open_again", slow)
    await told.stop()
    assert heard._others is not None
    monkeypatch.setattr(heard._others, "topics_of", lambda broker_id: {t.full: n for t, n in traffic.items()})
    await dying.broker.server.stop_listening()
    await dying.store.close()
    await eventually(lambda: _equal(heard._openings.waiting, len(TOPICS) - 1))
    may_open.set()
    await eventually(lambda: _count(opening, len(TOPICS)))
    first, *others = opening
    assert others == [name for name in traffic if name != first]


async def test_with_the_setting_off_nothing_is_told_and_clients_come_first(world: World) -> None:
    (dying, told), (staying, heard) = await world.side(tells_what_it_serves=False), await world.side()
    await serve(dying)
    await told.stop()
    await dying.broker.server.stop_listening()
    await dying.store.close()
    assert heard._others is not None
    assert heard._others.topics_of(dying.id) == {}
    assert (await staying.ownership.locate(TOPICS[0], authoritative=False)).here
    assert staying.broker.topics == {}


async def test_the_log_of_a_broker_that_does_not_come_back_is_removed_by_the_leader(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeovers, "FORGOTTEN_S", 0.2)
    (staying, heard), (dying, told) = await world.side(), await world.side()
    assert staying.ownership.members.is_leader
    assert heard._others is not None
    await serve(dying)
    await eventually(lambda: _listed(heard, dying))
    await told.stop()
    await dying.broker.server.stop_listening()
    await dying.store.close()
    for _ in range(1_000):
        if await staying.store.children(serving.ROOT) == [staying.id]:
            break
        await asyncio.sleep(0.01)
    assert await staying.store.children(serving.ROOT) == [staying.id]


def _count(found: list[TopicName], expected: int) -> None:
    assert len(found) == expected


def _prepared(side: Side, count: int) -> None:
    assert len(side.broker.ledgers.preparations.names) == count  # type: ignore[attr-defined]


def _share(a: Side, b: Side) -> None:
    assert set(a.broker.topics) | set(b.broker.topics) == set(TOPICS)
    assert not set(a.broker.topics) & set(b.broker.topics)
    for side in (a, b):  # who takes how many depends on their loads
        assert all(side.ownership.owns(name) for name in side.broker.topics)


def _listed(heard: Takeovers, side: Side) -> None:
    assert heard._others is not None
    assert side.id in heard._others.known


async def test_a_broker_that_is_slow_to_answer_is_not_taken_for_dead_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (busy, _), (other, heard) = await world.side(), await world.side()
    await serve(busy)
    await eventually(lambda: _knows(heard, busy, TOPICS))
    looks, enough, is_over = 0, asyncio.Event(), asyncio.Event()

    async def silent(address: object) -> Sign:
        nonlocal looks
        looks += 1
        if looks == takeovers.MISSES_MAX:  # the last look before it would be taken for dead
            enough.set()
            await is_over.wait()
        return Sign.AWAY

    monkeypatch.setattr(other.ownership.probes, "sign", silent)
    await enough.wait()
    assert other.broker.ledgers.preparations.names == []  # type: ignore[attr-defined]
    is_over.set()
    await eventually(lambda: _prepared(other, len(TOPICS)))


async def test_a_broker_that_hangs_is_taken_for_dead_when_it_was_waited_for_more_than_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hangs, _), (other, heard) = await world.side(), await world.side()
    await serve(hangs)
    await eventually(lambda: _knows(heard, hangs, TOPICS))
    looks, enough, is_over = 0, asyncio.Event(), asyncio.Event()

    async def silent(address: object) -> Sign:
        nonlocal looks
        looks += 1
        if looks * takeovers.HANGS_COUNT >= takeovers.MISSES_MAX:
            enough.set()
            await is_over.wait()
        return Sign.HANGS

    monkeypatch.setattr(other.ownership.probes, "sign", silent)
    await enough.wait()
    assert looks > 1
    assert other.broker.ledgers.preparations.names == []  # type: ignore[attr-defined]
    is_over.set()
    await eventually(lambda: _prepared(other, len(TOPICS)))
    assert hangs.ownership.owns(TOPICS[0]), "who owns what is what the metadata store says"


async def test_one_that_hangs_does_not_keep_others_from_being_seen_dead_and_is_heard_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeovers, "QUICKLY_S", 0.05)
    (side, asking) = await world.side(tells_what_it_serves=False)
    addresses = {"hangs": BrokerAddress("pulsar://a:1"), "dead": BrokerAddress("pulsar://b:1"), "left": None}
    is_over, asked = asyncio.Event(), list[BrokerAddress]()

    async def sign(address: BrokerAddress) -> Sign:
        asked.append(address)
        if address == addresses["hangs"]:
            await is_over.wait()
            return Sign.HANGS
        return Sign.REFUSES

    monkeypatch.setattr(side.ownership.probes, "sign", sign)
    for _ in range(2):
        assert await asking._ask_signs(addresses) == {"hangs": None, "dead": Sign.REFUSES, "left": None}
    is_over.set()
    assert await asking._ask_signs(addresses) == {"hangs": Sign.HANGS, "dead": Sign.REFUSES, "left": None}
    assert asked.count(BrokerAddress("pulsar://a:1")) == 1


async def test_a_broker_that_lives_is_left_alone(world: World) -> None:
    (serving_it, _), (other, heard) = await world.side(), await world.side()
    await serve(serving_it)
    await eventually(lambda: _knows(heard, serving_it, TOPICS))
    await asyncio.sleep((takeovers.MISSES_MAX + 2) * takeovers.LOOK_S)
    assert other.broker.ledgers.preparations.names == []  # type: ignore[attr-defined]
    assert len(serving_it.broker.topics) == len(TOPICS)


async def test_what_is_served_is_looked_through_only_when_it_changes(world: World) -> None:
    side, told = await world.side()
    await serve(side)
    first = told._traffic_to_publish()
    assert first is not None
    assert first.keys() == {name.full for name in TOPICS}
    assert told._traffic_to_publish() is first
    await side.broker.opening.unload(TOPICS[0])
    second = told._traffic_to_publish()
    assert second is not None
    assert second.keys() == {name.full for name in TOPICS[1:]}
    assert told._traffic_to_publish() is second
    await side.broker.opening.create_topic(TOPICS[0])
    third = told._traffic_to_publish()
    assert third is not None
    assert third.keys() == first.keys()


async def _stopped_listening(
    dying: Side, staying: Side, monkeypatch: pytest.MonkeyPatch, *, is_gone: bool
) -> list[str]:
    """The ledgers that the one that stays closes ahead are gathered in the list."""
    closed: list[str] = []

    async def gone(broker: BrokerAddress) -> bool:
        return is_gone

    monkeypatch.setattr(staying.ownership.probes, "is_gone", gone)
    monkeypatch.setattr(staying.broker.ledgers, "recover", lambda name, config: closed.append(name))
    await dying.broker.server.stop_listening()
    await eventually(lambda: _prepared(staying, len(TOPICS)))
    return closed


def _has_answered(heard: Takeovers, side: Side) -> None:
    assert side.id in heard._last_addresses


async def test_of_a_process_that_is_gone_the_last_ledgers_are_closed_while_its_session_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dying, told), (staying, heard) = await world.side(), await world.side()
    await serve(dying)
    await eventually(lambda: _knows(heard, dying, TOPICS))
    await eventually(lambda: _has_answered(heard, dying))
    await told.stop()
    moved = dying.ownership.bundle_of(TOPICS[0])
    owned_by = staying.ownership.is_owned_by

    async def is_owned_by(bundle: str, broker: BrokerAddress) -> bool:
        return bundle != moved and await owned_by(bundle, broker)

    monkeypatch.setattr(staying.ownership, "is_owned_by", is_owned_by)
    closed = await _stopped_listening(dying, staying, monkeypatch, is_gone=True)
    own = [name.managed_ledger_name for name in TOPICS if dying.ownership.bundle_of(name) != moved]
    assert 0 < len(own) < len(TOPICS), "its log may be old: what is another's by now is left alone"
    await eventually(lambda: _equal(sorted(closed), sorted(own)))


async def test_who_never_answered_at_its_address_is_not_fenced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address may be one that refuses whoever comes from within, and serves clients well."""
    (dying, told), (staying, heard) = await world.side(), await world.side()
    await serve(dying)
    await eventually(lambda: _knows(heard, dying, TOPICS))
    await told.stop()

    async def refused(addresses: dict[str, BrokerAddress | None]) -> dict[str, Sign | None]:
        heard._last_addresses.clear()  # also what a look that was under way has seen
        return await _refused(addresses)

    monkeypatch.setattr(heard, "_ask_signs", refused)
    closed = await _stopped_listening(dying, staying, monkeypatch, is_gone=True)
    await asyncio.sleep(4 * takeovers.LOOK_S)
    assert closed == []


async def _refused(addresses: dict[str, BrokerAddress | None]) -> dict[str, Sign | None]:
    return dict.fromkeys(addresses, Sign.REFUSES)


async def test_who_may_live_is_not_fenced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (dying, told), (staying, heard) = await world.side(), await world.side()
    await serve(dying)
    await eventually(lambda: _knows(heard, dying, TOPICS))
    await eventually(lambda: _has_answered(heard, dying))
    await told.stop()
    bundle = dying.ownership.bundle_of(TOPICS[0])
    assert bundle is not None
    assert await staying.ownership.is_owned_by(bundle, dying.ownership.address)
    assert not await staying.ownership.is_owned_by(bundle, staying.ownership.address)
    closed = await _stopped_listening(dying, staying, monkeypatch, is_gone=False)
    await asyncio.sleep(4 * takeovers.LOOK_S)
    assert closed == []
