"""Two brokers' ownership over two sessions of one metadata store; their addresses are real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broker.errors import TopicNotFound
from broker.names import Bundles
from broker.ownership import finding, probing
from broker.ownership.entries import Entries
from broker.ownership.load.report import BrokerLoad, BundleLoad, encode_load
from broker.ownership.membership import BROKERS, LEADER
from broker.ownership.nodes import encode_owner
from broker.ownership.ownership import BundleOwnership
from broker.ownership.placing.isolation import isolation_path
from broker.ownership.placing.preference import preference
from broker.ownership.rules import BrokerAddress, NoBrokerAvailable
from broker.records.json_records import RecordChanged
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer, MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, Node, OutcomeUnknown, StoreUnavailable
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import Corruption, MagnetarError
from magnetar_core.topics.topic_name import TopicName
from tests.support.faulty_store import FaultyStore
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually, take_turns

NAMESPACE = "public/default"
BUNDLES = Bundles.equal(4)


async def bundles_of(namespace: str) -> Bundles:
    if namespace != NAMESPACE:
        raise TopicNotFound("Namespace not found")
    return BUNDLES


def topic_in(bundle: str) -> TopicName:
    """A topic that falls into *bundle*."""
    names = (TopicName.parse(f"persistent://{NAMESPACE}/t{number}") for number in range(1000))
    return next(name for name in names if BUNDLES.bundle_of(name) == bundle)


def another_topic_in(bundle: str) -> TopicName:
    names = (TopicName.parse(f"persistent://{NAMESPACE}/u{number}") for number in range(1000))
    return next(name for name in names if BUNDLES.bundle_of(name) == bundle)


def _equal(found: object, expected: object) -> None:
    assert found == expected


ALL = [f"{NAMESPACE}/{text}" for text in BUNDLES.ranges]
TOPICS = [topic_in(bundle) for bundle in ALL]


class Side:
    """One broker: its session, its address, its ownership, what it was told."""

    def __init__(self, store: MemoryStore, *, stops: bool = False) -> None:
        """*stops*: when its session has ended."""
        self.store = store
        self.lost: list[list[str]] = []
        self.expired = 0
        self.faults = FaultyStore(store)
        self.bundles: Bundles | None = BUNDLES
        """What the namespace has now; None: it is deleted."""
        self.before_bundles_are_read: Callable[[], Awaitable[None]] | None = None
        self.ownership = BundleOwnership(
            self.faults, LoopClock(), bundles_of=bundles_of, bundles_now=self._bundles_now, version="0.1.0",
            cluster="lab",
            on_expired=self._on_expired if stops else None,
        )  # fmt: skip
        self.ownership.watch_lost(self.lost.append)

    async def start(self, port: int, host: str = "127.0.0.1") -> None:
        self.id = f"{host}:{port + 1}"
        await self.ownership.start(self.id, BrokerAddress(f"pulsar://127.0.0.1:{port}", "", f"http://{self.id}"))

    async def _bundles_now(self, namespace: str) -> Bundles:
        if self.before_bundles_are_read is not None:
            await self.before_bundles_are_read()
        if self.bundles is None:
            raise TopicNotFound("Namespace not found")
        return self.bundles

    def _on_expired(self) -> None:
        self.expired += 1

    async def die(self) -> None:
        """Its process does nothing any more, and its session ends."""
        await self.store.close()
        await self.ownership._tasks.cancel()

    async def take(self, topic: TopicName) -> None:
        assert (await self.ownership.locate(topic, authoritative=True)).here


class Brokers:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.root = MemoryStore(LoopClock())
        self._held: dict[int, socket.socket] = {}

    async def side(self, port: int | None = None, host: str = "127.0.0.1", *, stops: bool = False) -> Side:
        """Another broker, on a port where somebody listens unless *port* is given; *host* is that of its id."""
        made = Side(self.root.session(), stops=stops)
        if port is None:
            port = await self.listening_port()
        await made.start(port, host)
        self._stack.push_async_callback(made.ownership.stop)
        return made

    async def listening_port(self) -> int:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        self._stack.callback(server.close)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def dead_port(self) -> int:
        """A port where nobody listens, and nobody else can."""
        holder = self._stack.enter_context(socket.socket())
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        self._held[port] = holder
        return port

    async def revive(self, port: int) -> None:
        """From now on somebody answers there."""
        server = await asyncio.start_server(lambda _, writer: writer.close(), sock=self._held[port])
        self._stack.callback(server.close)

    def hang(self, port: int) -> None:
        """From now on connections are taken there, as for a process that stands still."""
        self._held[port].listen()

    async def owner(self, bundle: str) -> str | None:
        node = await self.root.get(f"/namespace/{bundle}")
        return None if node is None else str(json.loads(node.value)["nativeUrl"])


@pytest.fixture
async def world() -> AsyncIterator[Brokers]:
    async with AsyncExitStack() as stack:
        yield Brokers(stack)


# ------------------------------------------------------------------------------------------ lookups


async def test_a_free_bundle_goes_to_the_broker_that_stands_first_in_its_order(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    for bundle, topic in zip(ALL, TOPICS, strict=True):
        first, second = (a, b) if preference(bundle, [a.id, b.id], {})[0] == a.id else (b, a)
        sent = await second.ownership.locate(topic, authoritative=False)
        assert (sent.here, sent.redirect, sent.authoritative) == (False, True, True)
        assert sent.broker == first.ownership.address
        assert await world.owner(bundle) is None  # whoever only redirects takes nothing
    assert a.ownership.owned_bundles == b.ownership.owned_bundles == []


async def test_an_authoritative_lookup_takes_the_bundle_whoever_would_stand_first(world: Brokers) -> None:
    a, _ = await world.side(), await world.side()
    for bundle, topic in zip(ALL, TOPICS, strict=True):
        located = await a.ownership.locate(topic, authoritative=True)
        assert located.here
        assert located.broker == a.ownership.address
        assert a.ownership.owns(topic)
        assert await world.owner(bundle) == a.ownership.address.service_url
    assert a.ownership.owned_bundles == sorted(ALL)


async def test_whoever_is_asked_the_brokers_get_as_many_bundles_of_the_namespace_each(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    await a.take(TOPICS[0])
    chosen: list[set[str]] = []
    for topic in TOPICS[1:]:
        told = set()
        for asked in (a, b):
            found = await asked.ownership.locate(topic, authoritative=False)
            assert found.broker is not None
            told.add(found.broker.service_url)
            if found.here:  # nobody has them while the others are asked for
                await asked.ownership.keeper.unload(BUNDLES.bundle_of(topic), _nothing)
        chosen.append(told)
    (url_a, url_b) = (side.ownership.address.service_url for side in (a, b))
    assert sorted(chosen, key=str) == sorted([{url_a}, {url_b}, {url_b}], key=str)
    await b.take(TOPICS[1])
    await b.take(TOPICS[2])
    assert (await a.ownership.locate(TOPICS[3], authoritative=False)).here


async def test_a_registered_broker_that_does_not_listen_is_passed_over(world: Brokers) -> None:
    a, _ = await world.side(), await world.side(world.dead_port())
    for topic in TOPICS:
        assert (await a.ownership.locate(topic, authoritative=False)).here


async def test_a_bundle_that_is_owned_elsewhere_is_answered_with_its_owner(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    await a.take(TOPICS[0])
    for authoritative in (False, True):
        located = await b.ownership.locate(TOPICS[0], authoritative=authoritative)
        assert (located.here, located.redirect) == (False, False)
        assert located.broker == a.ownership.address
    assert not b.ownership.owns(TOPICS[0])


async def test_many_lookups_at_once_take_a_bundle_once(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    located = await asyncio.gather(
        *(side.ownership.locate(TOPICS[0], authoritative=True) for side in (a, b) for _ in range(20))
    )
    assert a.ownership.owns(TOPICS[0]) != b.ownership.owns(TOPICS[0])
    owner = a if a.ownership.owns(TOPICS[0]) else b
    assert all(one.broker == owner.ownership.address for one in located)
    node = await world.root.get(f"/namespace/{ALL[0]}")
    assert node is not None
    assert node.version == 0


async def test_a_namespace_that_does_not_exist_is_said_so(world: Brokers) -> None:
    a = await world.side()
    with pytest.raises(TopicNotFound):
        await a.ownership.locate(TopicName.parse("persistent://none/none/t"), authoritative=True)


async def test_before_it_is_started_nobody_is_available(world: Brokers) -> None:
    early = Side(world.root.session())
    with pytest.raises(NoBrokerAvailable, match="starting"):
        await early.ownership.locate(TOPICS[0], authoritative=True)


async def test_a_change_whose_answer_is_lost_is_looked_at_again(world: Brokers) -> None:
    a = await world.side()
    for fate, topic in zip(LostAnswer, TOPICS, strict=False):
        a.store.lose_next_answer(fate)
        await a.take(topic)
        assert await world.owner(BUNDLES.bundle_of(topic)) == a.ownership.address.service_url


async def test_a_broken_owner_is_named(world: Brokers) -> None:
    a = await world.side()
    await world.root.put(f"/namespace/{ALL[0]}", b"not json")
    with pytest.raises(Corruption, match=f"/namespace/{ALL[0]}: .*not json"):
        await a.ownership.locate(TOPICS[0], authoritative=True)
    await a.take(TOPICS[1])


async def test_a_broken_registration_is_named(world: Brokers) -> None:
    a = await world.side()
    await world.root.put(f"{BROKERS}/other:8080", b"{}}")
    with pytest.raises(Corruption, match=f"{BROKERS}/other:8080"):
        await a.ownership.locate(TOPICS[0], authoritative=False)


# ---------------------------------------------------------------------------------------- takeover


async def test_a_lookup_waits_until_the_session_of_a_dead_owner_ends(world: Brokers) -> None:
    dead, a = await world.side(world.dead_port()), await world.side()
    await dead.take(TOPICS[0])
    waiting = asyncio.create_task(a.ownership.locate(TOPICS[0], authoritative=False))
    another = asyncio.create_task(a.ownership.locate(TOPICS[0], authoritative=True))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert not another.done()
    await dead.store.close()
    assert (await waiting).here
    assert (await another).here
    assert await world.owner(ALL[0]) == a.ownership.address.service_url


async def test_topics_that_wait_for_a_dead_owner_are_told(world: Brokers) -> None:
    dead, a = await world.side(world.dead_port()), await world.side()
    told: list[TopicName] = []
    a.ownership.finder.on_awaited = told.append
    await dead.take(TOPICS[0])
    waiting = [asyncio.create_task(a.ownership.locate(TOPICS[0], authoritative=False))]
    await eventually(lambda: _equal(told, [TOPICS[0]]))
    another = another_topic_in(ALL[0])
    waiting.append(asyncio.create_task(a.ownership.locate(another, authoritative=False)))
    await eventually(lambda: _equal(told, [TOPICS[0], another]))
    await dead.store.close()
    assert all([(await one).here for one in waiting])
    assert a.ownership.under_way == []


async def test_a_topic_whose_owner_lives_or_that_another_will_take_is_not_told(world: Brokers) -> None:
    dead, a, b = await world.side(world.dead_port()), await world.side(), await world.side()
    told: list[TopicName] = []
    a.ownership.finder.on_awaited = b.ownership.finder.on_awaited = told.append
    await b.take(TOPICS[1])
    assert not (await a.ownership.locate(TOPICS[1], authoritative=False)).here
    await dead.take(TOPICS[0])
    free = [one for one in (a, b) if one.id == preference(ALL[0], [a.id, b.id], {b.id: 1})[0]]
    (other,) = {a, b} - set(free)
    waiting = asyncio.create_task(other.ownership.locate(TOPICS[0], authoritative=False))
    await asyncio.sleep(0.1)
    assert told == []
    await dead.store.close()
    sent = await waiting
    assert (sent.redirect, sent.broker) == (True, free[0].ownership.address)


async def test_who_waits_too_long_is_told_which_broker_does_not_answer(world: Brokers) -> None:
    dead, a = await world.side(world.dead_port()), await world.side()
    a.ownership.finder.takeover_wait_s = 0.05
    await dead.take(TOPICS[0])
    with pytest.raises(NoBrokerAvailable, match=f"{dead.ownership.address.service_url} does not answer"):
        await a.ownership.locate(TOPICS[0], authoritative=False)


async def test_thousands_of_lookups_of_one_bundle_ask_the_store_once(
    world: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure each client of the dead broker asks at the same moment."""
    dead, a = await world.side(world.dead_port()), await world.side()
    await dead.take(TOPICS[0])
    asked: list[str] = []
    get = a.store.get

    async def counted(path: str) -> Node | None:
        asked.append(path)
        return await get(path)

    monkeypatch.setattr(a.store, "get", counted)
    waiting = [asyncio.create_task(a.ownership.locate(TOPICS[0], authoritative=False)) for _ in range(1_000)]
    await asyncio.sleep(0.05)
    await dead.store.close()
    assert all([(await one).here for one in waiting])
    assert len(asked) < 30, f"{len(asked)} reads"


async def test_a_lookup_that_came_later_waits_longer(world: Brokers) -> None:
    """Those that wait for the same bundle share the work, not the end of the first one's patience."""
    dead, a = await world.side(world.dead_port()), await world.side()
    await dead.take(TOPICS[0])
    a.ownership.finder.takeover_wait_s = 0.2
    first = asyncio.create_task(a.ownership.locate(TOPICS[0], authoritative=False))
    await asyncio.sleep(0.1)
    a.ownership.finder.takeover_wait_s = 20.0
    second = asyncio.create_task(a.ownership.locate(TOPICS[0], authoritative=False))
    with pytest.raises(NoBrokerAvailable):
        await first
    assert not second.done()
    await dead.store.close()
    assert (await second).here


async def test_an_owner_that_comes_back_ends_the_wait(world: Brokers) -> None:
    """A restart at the same address removes the node of the former process and takes the bundle anew."""
    port = world.dead_port()
    dead, a = await world.side(port), await world.side()
    await dead.take(TOPICS[0])
    waiting = asyncio.create_task(a.ownership.locate(TOPICS[0], authoritative=False))
    await asyncio.sleep(0.02)
    await world.revive(port)
    restarted = Side(world.root.session())
    await restarted.start(port)
    await restarted.take(TOPICS[0])
    located = await waiting
    assert not located.here
    assert located.broker == restarted.ownership.address
    await restarted.ownership.stop()


async def test_an_owner_that_did_not_answer_once_is_asked_again(
    world: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was too busy for a moment; nothing about its node changes."""
    monkeypatch.setattr(finding, "PROBE_AGAIN_S", 0.05)
    port = world.dead_port()
    busy, a = await world.side(port), await world.side()
    await busy.take(TOPICS[0])
    waiting = asyncio.create_task(a.ownership.locate(TOPICS[0], authoritative=False))
    await asyncio.sleep(0.02)
    await world.revive(port)
    assert (await waiting).broker == busy.ownership.address


async def test_an_owner_that_hangs_is_waited_for_until_its_session_ends(
    world: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "QUICKLY_S", 0.02)
    monkeypatch.setattr(probing, "ANSWER_S", 0.1)
    port = world.dead_port()
    hangs, a = await world.side(port), await world.side()
    await hangs.take(TOPICS[0])
    world.hang(port)
    awaited: list[TopicName] = []
    a.ownership.finder.on_awaited = awaited.append
    waiting = asyncio.create_task(a.ownership.locate(TOPICS[0], authoritative=True))
    await eventually(lambda: _equal(awaited, [TOPICS[0]]))
    assert not waiting.done()
    await hangs.die()
    assert (await waiting).here


async def test_the_end_of_a_session_is_seen_while_its_broker_is_still_being_asked(
    world: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "QUICKLY_S", 0.02)
    monkeypatch.setattr(probing, "ANSWER_S", 3_600.0)
    port = world.dead_port()
    hangs, a = await world.side(port), await world.side()
    await hangs.take(TOPICS[0])
    world.hang(port)
    waiting = asyncio.create_task(a.ownership.locate(TOPICS[0], authoritative=True))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await hangs.die()
    assert (await waiting).here


async def test_an_owner_that_hung_for_a_moment_is_found_where_it_is(
    world: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "PROBE_AGAIN_S", 0.05)
    monkeypatch.setattr(probing, "ANSWER_S", 0.1)
    monkeypatch.setattr(probing, "HANGS_VALID_S", 0.05)
    port = world.dead_port()
    busy, a = await world.side(port), await world.side()
    await busy.take(TOPICS[0])
    world.hang(port)
    waiting = asyncio.create_task(a.ownership.locate(TOPICS[0], authoritative=True))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await world.revive(port)
    assert (await waiting).broker == busy.ownership.address


async def test_a_restart_at_the_same_address_takes_over_its_own_former_nodes(world: Brokers) -> None:
    former = await world.side()
    await former.take(TOPICS[0])
    await former.take(TOPICS[1])
    port = int(former.ownership.address.service_url.rpartition(":")[2])
    restarted = Side(world.root.session())  # the former session has not ended yet
    await restarted.start(port)
    await restarted.take(TOPICS[0])
    assert restarted.ownership.owned_bundles == [ALL[0]]
    assert list(await restarted.ownership.brokers()) == [former.id]
    await former.die()
    assert restarted.ownership.owns(TOPICS[0])
    assert await world.owner(ALL[0]) == restarted.ownership.address.service_url
    assert restarted.lost == []
    await restarted.ownership.stop()


# ------------------------------------------------------------------------------------------- losing


async def test_with_the_policy_shutdown_a_broker_whose_session_has_ended_stops(world: Brokers) -> None:
    a, b = await world.side(stops=True), await world.side()
    for topic in TOPICS[:3]:
        await a.take(topic)
    a.store.expire()
    assert a.lost == [sorted(ALL[:3])]
    assert a.expired == 1
    assert not any(a.ownership.owns(topic) for topic in TOPICS)
    await asyncio.sleep(0.02)  # the watches of the removed nodes have fired as well
    assert a.lost == [sorted(ALL[:3])]
    assert list(await b.ownership.brokers()) == [b.id]
    await b.take(TOPICS[0])


async def test_what_was_owned_is_taken_up_again_in_the_next_session(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    for topic in TOPICS[:3]:
        await a.take(topic)
    a.store.suspend()
    assert a.ownership.may_acknowledge()
    a.store.expire()
    await eventually(lambda: _registered(b, {a.id, b.id}))
    await eventually(lambda: _own_again(world, a, ALL[:3]))
    assert a.lost == []
    assert all(a.ownership.owns(topic) for topic in TOPICS[:3])
    located = await b.ownership.locate(TOPICS[0], authoritative=True)
    assert (located.here, located.broker) == (False, a.ownership.address)
    await world.root.delete(f"/namespace/{ALL[0]}")
    await eventually(lambda: a.lost == [[ALL[0]]])  # its node is watched in this session, too


async def _own_again(world: Brokers, side: Side, bundles: Sequence[str]) -> bool:
    return [await world.owner(one) for one in bundles] == [side.ownership.address.service_url] * len(bundles)


async def test_what_another_broker_took_meanwhile_is_lost_and_nothing_else(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    a.ownership.members.retry_s = 0.01
    for topic in TOPICS[:3]:
        await a.take(topic)
    is_away = True

    def fail(_: str) -> None:
        if is_away:
            raise StoreUnavailable("away")

    a.store.before_change = fail
    a.store.expire()
    await b.take(TOPICS[1])
    await asyncio.sleep(0.02)
    assert a.lost == []  # nobody could tell us
    assert a.ownership.owns(TOPICS[0])
    is_away = False
    await eventually(lambda: _own_again(world, a, [ALL[0], ALL[2]]))
    await eventually(lambda: a.lost == [[ALL[1]]])
    assert await world.owner(ALL[1]) == b.ownership.address.service_url
    assert (b.lost, b.ownership.owns(TOPICS[1])) == ([], True)


async def test_a_second_session_that_ends_while_the_first_is_taken_up_loses_nothing(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    a.ownership.members.retry_s = 0.01
    for topic in TOPICS[:3]:
        await a.take(topic)
    claims = 0

    def expire_once(path: str) -> None:
        nonlocal claims
        if path == f"/namespace/{sorted(ALL[:3])[1]}":
            claims += 1
            if claims == 1:
                a.store.expire()

    a.store.before_change = expire_once
    a.store.expire()
    await eventually(lambda: _own_again(world, a, ALL[:3]))
    await eventually(lambda: _registered(b, {a.id, b.id}))
    assert a.lost == []


async def test_a_session_that_ends_while_a_bundle_is_taken_leaves_it_ours_in_the_next(world: Brokers) -> None:
    a = await world.side()

    async def expire() -> None:
        if await world.owner(ALL[0]) is not None and not a.ownership.owned_bundles:
            a.before_bundles_are_read = None
            a.store.expire()

    a.before_bundles_are_read = expire
    await a.take(TOPICS[0])
    await eventually(lambda: _own_again(world, a, ALL[:1]))
    assert a.lost == []


async def test_a_bundle_that_another_broker_has_split_meanwhile_is_not_taken_up_again(world: Brokers) -> None:
    a = await world.side()
    await a.take(TOPICS[0])
    a.bundles = BUNDLES.cut([1 << 29])
    a.store.expire()
    await eventually(lambda: a.lost == [[ALL[0]]])
    await eventually(lambda: _is_free(world, ALL[0]))
    assert not a.ownership.owns(TOPICS[0])


async def test_a_namespace_that_was_deleted_meanwhile_is_not_taken_up_again(world: Brokers) -> None:
    a = await world.side()
    await a.take(TOPICS[0])
    a.bundles = None
    a.store.expire()
    await eventually(lambda: a.lost == [[ALL[0]]])
    await eventually(lambda: _is_free(world, ALL[0]))


async def test_the_node_of_a_bundle_that_is_cut_while_it_is_taken_up_again_goes(world: Brokers) -> None:
    a = await world.side()
    await a.take(TOPICS[0])
    after = BUNDLES.cut([1 << 29])
    taking, goes_on = asyncio.Event(), asyncio.Event()

    async def wait(what: str, path: str) -> None:
        if what == "put" and path == f"/namespace/{ALL[0]}":
            taking.set()
            await goes_on.wait()

    async def store() -> None:
        a.bundles = after

    a.faults.on_step = wait
    a.store.expire()
    await taking.wait()
    assert len(await a.ownership.keeper.split(ALL[0], after, store)) == 2
    goes_on.set()
    await eventually(lambda: a.ownership.under_way == [])
    assert await _is_free(world, ALL[0])
    assert a.ownership.owns(TOPICS[0])


async def test_a_split_whose_end_nobody_knows_is_looked_at_until_it_is_known(world: Brokers) -> None:
    a = await world.side()
    a.ownership.members.retry_s = 0.01
    await a.take(TOPICS[0])
    after = BUNDLES.cut([1 << 29])
    reads = iter([StoreUnavailable("away"), StoreUnavailable("away")])

    async def fail() -> None:
        for error in reads:
            raise error

    async def store() -> None:
        a.bundles = after
        a.before_bundles_are_read = fail
        raise OutcomeUnknown("the answer was lost")

    assert len(await a.ownership.keeper.split(ALL[0], after, store)) == 2
    assert (a.ownership.owns(TOPICS[0]), a.lost) == (True, [])


@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), RecordChanged("the policies were changed at the same time")]
)
async def test_a_split_that_is_stored_is_done_whatever_came_behind_it(world: Brokers, error: MagnetarError) -> None:
    """The bundles are stored before the policies that repeat them, and others split theirs at the same time."""
    a = await world.side()
    await a.take(TOPICS[0])
    after = BUNDLES.cut([1 << 29])

    async def store() -> None:
        a.bundles = after.cut([3 << 30 | 1 << 29])
        raise error

    parts = await a.ownership.keeper.split(ALL[0], after, store)
    assert a.ownership.owned_bundles == sorted(parts)
    assert a.ownership.owns(TOPICS[0])
    await eventually(lambda: _is_free(world, ALL[0]))


async def test_a_split_that_is_not_stored_changes_nothing_where_another_one_is(world: Brokers) -> None:
    a = await world.side()
    await a.take(TOPICS[0])

    async def store() -> None:
        a.bundles = BUNDLES.cut([3 << 30 | 1 << 29])
        raise RecordChanged("the bundles were changed at the same time")

    with pytest.raises(RecordChanged):
        await a.ownership.keeper.split(ALL[0], BUNDLES.cut([1 << 29]), store)
    assert a.ownership.owned_bundles == ALL[:1]
    assert a.ownership.owns(TOPICS[0])
    await eventually(lambda: a.ownership.under_way == [])


async def test_a_node_for_a_bundle_that_does_not_exist_goes_also_where_it_cannot_be_removed_at_once(
    world: Brokers,
) -> None:
    a = await world.side()
    a.ownership.members.retry_s = 0.01
    a.bundles = BUNDLES.cut([1 << 29])
    failures = iter([StoreUnavailable("away"), StoreUnavailable("away")])

    async def fail(what: str, path: str) -> None:
        if what == "delete":
            for error in failures:
                raise error

    a.faults.on_step = fail
    assert not await a.ownership.keeper.acquire(ALL[0])
    assert not await _is_free(world, ALL[0])
    await eventually(lambda: _is_free(world, ALL[0]))


async def test_a_broker_that_is_leaving_takes_nothing_up_again(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    await a.take(TOPICS[0])
    await a.ownership.leave()
    a.store.expire()
    assert a.lost == [[ALL[0]]]
    await b.take(TOPICS[0])


async def test_a_bundle_whose_node_somebody_removed_is_reported_once(world: Brokers) -> None:
    a = await world.side()
    await a.take(TOPICS[0])
    await a.take(TOPICS[1])
    await world.root.delete(f"/namespace/{ALL[0]}")
    await eventually(lambda: a.lost)
    await asyncio.sleep(0.01)
    assert a.lost == [[ALL[0]]]
    assert a.ownership.owned_bundles == [ALL[1]]


async def test_a_bundle_that_another_took_while_we_did_not_look_is_lost(world: Brokers) -> None:
    a = await world.side()
    await a.take(TOPICS[0])
    a.store.suspend()
    other = encode_owner(BrokerAddress("pulsar://127.0.0.1:1"))
    await world.root.delete(f"/namespace/{ALL[0]}")
    await world.root.put(f"/namespace/{ALL[0]}", other, ephemeral=True)
    await asyncio.sleep(0.01)
    assert a.ownership.owns(TOPICS[0])  # nobody could tell us
    a.store.resume()
    await eventually(lambda: a.lost == [[ALL[0]]])


async def test_after_its_session_ended_a_broker_shows_itself_again(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    a.store.expire()
    await eventually(lambda: _registered(b, {a.id, b.id}))
    await a.take(TOPICS[0])
    assert a.ownership.owns(TOPICS[0])


async def _registered(side: Side, ids: set[str]) -> bool:
    return set(await side.ownership.brokers()) == ids


async def test_one_who_cannot_register_again_at_once_tries_until_he_can(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    a.ownership.members.retry_s = 0.01
    failures = iter([StoreUnavailable("away"), StoreUnavailable("away")])

    def fail(_: str) -> None:
        for error in failures:
            raise error

    a.store.before_change = fail
    a.store.expire()
    await eventually(lambda: _registered(b, {a.id, b.id}))


# ---------------------------------------------------------------------------------------- unloading


async def _nothing() -> None:
    pass


async def test_an_unloaded_bundle_is_free_after_its_topics_are_closed(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    await a.take(TOPICS[0])
    steps: list[Any] = []

    async def close_topics() -> None:
        node = await world.root.get(f"/namespace/{ALL[0]}")
        assert node is not None
        steps.append(json.loads(node.value)["disabled"])
        steps.append(a.ownership.owns(TOPICS[0]))  # takes no clients any more

    await a.ownership.keeper.unload(ALL[0], close_topics)
    assert steps == [True, False]
    assert await world.owner(ALL[0]) is None
    assert a.ownership.owned_bundles == []
    assert a.lost == []  # its topics are closed already
    await b.take(TOPICS[0])


async def test_lookups_wait_for_a_bundle_that_is_being_unloaded(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    await a.take(TOPICS[0])
    closed = asyncio.Event()

    async def close_topics() -> None:
        await closed.wait()

    unloading = asyncio.create_task(a.ownership.keeper.unload(ALL[0], close_topics))
    await asyncio.sleep(0.01)
    lookups = [asyncio.create_task(side.ownership.locate(TOPICS[0], authoritative=True)) for side in (a, b)]
    await asyncio.sleep(0.02)
    assert not any(one.done() for one in lookups)
    closed.set()
    await unloading
    first, second = await asyncio.gather(*lookups)
    assert first.broker == second.broker
    assert [first.here, second.here].count(True) == 1


async def test_a_lookup_does_not_wait_for_ever_for_an_unload(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    a.ownership.finder.takeover_wait_s = b.ownership.finder.takeover_wait_s = 0.02
    await a.take(TOPICS[0])
    closed = asyncio.Event()

    async def close_topics() -> None:
        await closed.wait()

    unloading = asyncio.create_task(a.ownership.keeper.unload(ALL[0], close_topics))
    await asyncio.sleep(0.01)
    for side in (a, b):
        with pytest.raises(NoBrokerAvailable, match=f"{ALL[0]} is being unloaded"):
            await side.ownership.locate(TOPICS[0], authoritative=True)
    closed.set()
    await unloading


@pytest.mark.parametrize("answer", LostAnswer)
async def test_an_unload_goes_on_when_nobody_knows_whether_it_was_announced(world: Brokers, answer: LostAnswer) -> None:
    """Else the bundle would stay ours, and others would wait for it as for one that is being given back."""
    a, b = await world.side(), await world.side()
    b.ownership.finder.takeover_wait_s = 0.02
    await a.take(TOPICS[0])
    a.store.lose_next_answer(answer)
    await a.ownership.keeper.unload(ALL[0], _nothing)
    assert not a.ownership.owns(TOPICS[0])
    await b.take(TOPICS[0])


async def test_two_unloads_at_once_close_the_topics_once(world: Brokers) -> None:
    a = await world.side()
    await a.take(TOPICS[0])
    closings = 0

    async def close_topics() -> None:
        nonlocal closings
        closings += 1
        await asyncio.sleep(0.01)

    await asyncio.gather(*(a.ownership.keeper.unload(ALL[0], close_topics) for _ in range(3)))
    assert closings == 1
    assert await world.owner(ALL[0]) is None
    await a.ownership.keeper.unload(ALL[0], close_topics)  # not ours: nothing to do
    assert closings == 1


async def test_an_unload_that_outlives_the_session_leaves_the_next_owner_alone(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    await a.take(TOPICS[0])

    async def close_topics() -> None:
        a.store.expire()
        await b.take(TOPICS[0])

    await a.ownership.keeper.unload(ALL[0], close_topics)
    await asyncio.sleep(0.01)
    assert await world.owner(ALL[0]) == b.ownership.address.service_url
    assert b.ownership.owns(TOPICS[0])
    assert b.lost == []


async def test_a_bundle_whose_topics_do_not_close_is_given_back_and_reported(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    await a.take(TOPICS[0])

    async def close_topics() -> None:
        raise RuntimeError("a topic hangs")

    with pytest.raises(RuntimeError):
        await a.ownership.keeper.unload(ALL[0], close_topics)
    assert a.lost == [[ALL[0]]]
    await b.take(TOPICS[0])


async def test_a_node_that_cannot_be_removed_at_once_is_removed_later(world: Brokers) -> None:
    a = await world.side()
    a.ownership.members.retry_s = 0.01
    await a.take(TOPICS[0])

    async def close_topics() -> None:
        a.store.lose_next_answer(LostAnswer.NOT_APPLIED)

    await a.ownership.keeper.unload(ALL[0], close_topics)
    assert not a.ownership.owns(TOPICS[0])
    await eventually(lambda: _is_free(world, ALL[0]))


async def _is_free(world: Brokers, bundle: str) -> bool:
    return await world.owner(bundle) is None


async def test_who_stops_gives_everything_back(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    await a.take(TOPICS[0])
    await a.take(TOPICS[1])
    assert a.ownership.members.is_leader
    await a.ownership.stop()
    assert await world.root.children(f"/namespace/{NAMESPACE}") == []
    assert list(await b.ownership.brokers()) == [b.id]
    await eventually(lambda: b.ownership.members.is_leader)


async def test_who_stops_without_a_metadata_store_asks_it_once(world: Brokers) -> None:
    a = await world.side()
    for topic in TOPICS[:3]:
        await a.take(topic)
    asked: list[str] = []

    async def away(what: str, path: str) -> None:
        asked.append(path)
        raise StoreUnavailable("no server answers")

    a.faults.on_step = away
    await a.ownership.stop()
    assert len(asked) == 1, "each would wait as long as a session lives"


# ------------------------------------------------------------------------------------------- leader


async def test_the_first_broker_leads_until_its_session_ends(world: Brokers) -> None:
    a, b = await world.side(), await world.side()
    assert (a.ownership.members.is_leader, b.ownership.members.is_leader) == (True, False)
    assert await b.ownership.members.leader() == (a.id, f"http://{a.id}")
    a.store.expire()
    await eventually(lambda: a.ownership.members.is_leader or b.ownership.members.is_leader)
    await asyncio.sleep(0.01)
    assert a.ownership.members.is_leader != b.ownership.members.is_leader
    leader = a if a.ownership.members.is_leader else b
    assert (await a.ownership.members.leader())[0] == leader.id


async def test_without_a_leader_there_is_no_name(world: Brokers) -> None:
    a = await world.side()
    await a.ownership.stop()
    assert await a.ownership.members.leader() == ("", "")


async def test_a_broken_leader_is_named(world: Brokers) -> None:
    a = await world.side()
    await world.root.put(LEADER, b"?")
    with pytest.raises(Corruption, match=LEADER):
        await a.ownership.members.leader()


# -------------------------------------------------------------------------------------- session rule


async def test_receipts_stop_when_the_session_may_have_ended_by_our_own_clock() -> None:
    clock = ManualClock()
    store = MemoryStore(clock, session_timeout_s=2.0)
    ownership = BundleOwnership(store, clock, bundles_of=bundles_of, version="0.1.0", on_expired=lambda: None)
    assert ownership.may_acknowledge()
    clock.advance(100)
    assert ownership.may_acknowledge()  # the store answers all the time
    store.suspend()
    clock.advance(1.9)
    assert ownership.may_acknowledge()
    clock.advance(0.1)
    assert not ownership.may_acknowledge()
    clock.advance(60)
    assert not ownership.may_acknowledge()
    store.resume()
    assert ownership.may_acknowledge()


async def test_a_store_that_is_away_is_said_to_be_away(world: Brokers) -> None:
    a = await world.side()
    a.store.suspend()
    with pytest.raises(MetadataError, match="does not answer"):
        await a.ownership.locate(TOPICS[0], authoritative=True)
    a.store.resume()
    await a.take(TOPICS[0])


async def test_a_node_that_goes_before_it_is_watched_is_not_waited_for(world: Brokers) -> None:
    former = await world.side()
    entries = Entries(world.root.session(), LoopClock())
    await former.take(TOPICS[0])
    path = f"/namespace/{ALL[0]}"
    node = await entries.owner_node(ALL[0])
    assert node is not None
    await former.store.delete(path, node.version)  # after we read it, before we watch it
    # A deadline that is over: who does not look again has nothing to go by.
    assert await entries.wait_for_change(ALL[0], node, LoopClock().monotonic())


# ---------------------------------------------------------------------------------- isolation policies


async def isolate(world: Brokers, *, namespaces: str, primary: str, secondary: str = "none", least: int = 1) -> None:
    failover = {"policy_type": "min_available", "parameters": {"min_limit": str(least), "usage_threshold": "80"}}
    policy = {
        "namespaces": [namespaces], "primary": [primary], "secondary": [secondary], "auto_failover_policy": failover
    }  # fmt: skip
    await world.root.session().put(isolation_path("lab"), json.dumps({"p": policy}).encode())


async def sent_to(side: Side, topic: TopicName) -> str:
    """The id of the broker to which *side* sends a lookup, maybe its own."""
    located = await side.ownership.locate(topic, authoritative=False)
    assert located.broker is not None
    return side.id if located.here else located.broker.http_url.removeprefix("http://")


async def test_a_namespace_of_an_isolation_policy_is_served_by_its_primary_brokers(world: Brokers) -> None:
    a, b = await world.side(), await world.side(host="primary")
    await isolate(world, namespaces="public/.*", primary="primary", secondary="127.*")
    assert {await sent_to(a, topic) for topic in TOPICS} == {b.id}
    assert {await sent_to(b, topic) for topic in TOPICS} == {b.id}
    assert b.ownership.owned_bundles == sorted(ALL)


async def test_a_broker_of_an_isolation_policy_serves_no_other_namespaces(world: Brokers) -> None:
    a, b = await world.side(), await world.side(host="primary")
    await isolate(world, namespaces="other/.*", primary="primary")
    assert {await sent_to(b, topic) for topic in TOPICS} == {a.id}
    await isolate(world, namespaces="public/.*", primary="primary", secondary="127.*", least=2)
    assert not b.ownership.owned_bundles


async def test_secondary_brokers_serve_when_the_primary_ones_do_not_answer(world: Brokers) -> None:
    a, b = await world.side(), await world.side(host="shared")
    await world.side(world.dead_port(), host="primary")
    await isolate(world, namespaces="public/.*", primary="primary", secondary="shared")
    assert {await sent_to(a, topic) for topic in TOPICS} == {b.id}


async def test_a_namespace_without_a_broker_that_may_serve_it_is_refused_and_served_elsewhere_stays_there(
    world: Brokers,
) -> None:
    a = await world.side()
    await a.take(TOPICS[0])
    await isolate(world, namespaces="public/.*", primary="primary", secondary="shared")
    with pytest.raises(NoBrokerAvailable, match="isolation policies"):
        await a.ownership.locate(TOPICS[1], authoritative=False)
    assert await sent_to(a, TOPICS[0]) == a.id


async def test_the_bundles_of_a_namespace_that_is_unloaded_do_not_all_go_to_the_broker_that_told_the_least(
    world: Brokers,
) -> None:
    busy, idle = await world.side(), await world.side()
    for topic in TOPICS:
        await busy.take(topic)
    told = BrokerLoad(0.9, bundles={bundle: BundleLoad(bytes_in=100.0) for bundle in ALL})
    await busy.ownership.members.report_load(encode_load(told, memory_limit_bytes=1 << 30))
    for bundle in ALL:
        await busy.ownership.keeper.unload(bundle, lambda: asyncio.sleep(0))
    for topic in TOPICS:
        await busy.ownership.locate(topic, authoritative=False)
        await idle.ownership.locate(topic, authoritative=False)
    assert (len(busy.ownership.owned_bundles), len(idle.ownership.owned_bundles)) == (2, 2)


async def test_a_client_that_another_broker_sends_while_a_bundle_is_taken_is_waited_with(world: Brokers) -> None:
    """The node is seen by all before its maker knows that the bundle is its own. The official C++ client does not ask
    again where its first SUBSCRIBE is refused: it waits for the whole of its time limit."""
    taking, other = await world.side(), await world.side()
    topic = TOPICS[0]
    came: list[asyncio.Task[bool]] = []

    async def sent_here() -> None:
        taking.before_bundles_are_read = None
        found = await other.ownership.locate(topic, authoritative=False)
        assert (found.broker, found.redirect) == (taking.ownership.members.address, False)
        came.append(asyncio.create_task(taking.ownership.is_coming(topic)))
        await take_turns()

    taking.before_bundles_are_read = sent_here
    await taking.take(topic)
    assert await came[0]


async def test_a_client_that_another_broker_sends_to_a_broker_that_was_restarted_is_taken(world: Brokers) -> None:
    """The session of the former process has not ended yet, so others see its nodes."""
    former, other = await world.side(), await world.side()
    for topic in TOPICS[:2]:
        await former.take(topic)
    await other.take(TOPICS[2])
    restarted = Side(world.root.session())
    await restarted.start(int(former.ownership.address.service_url.rpartition(":")[2]))
    found = await other.ownership.locate(TOPICS[0], authoritative=False)
    assert (found.broker, found.redirect) == (restarted.ownership.address, False)
    assert await restarted.ownership.is_coming(TOPICS[0])
    assert not await restarted.ownership.is_coming(TOPICS[2]), "it is another broker's"
    assert not await restarted.ownership.is_coming(TOPICS[3]), "nobody sent the client here"
    assert restarted.ownership.owned_bundles == [ALL[0]]
    await restarted.ownership.stop()
