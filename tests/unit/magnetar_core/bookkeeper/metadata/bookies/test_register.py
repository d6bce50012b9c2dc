import asyncio

import pytest

from magnetar_core.bookkeeper.metadata.bookies import register as bookies
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import BookieServiceInfo, bookie_endpoint
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory, BookieIdInUse, BookieRegistration
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    MetadataError,
    NoNode,
    StoreUnavailable,
    VersionConflict,
)
from magnetar_core.bookkeeper.metadata.stores.url import open_store, split_service_uri
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import ConfigurationError
from tests.support.manual_clock import ManualClock
from tests.support.waiting import settle

INFO = BookieServiceInfo((bookie_endpoint("127.0.0.1", 3184),))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> MemoryStore:
    store = MemoryStore(clock, session_timeout_s=10.0)
    await initialise_cluster(store, "/ledgers")
    return store


async def test_a_bookie_shows_in_the_directory_and_leaves_it(store: MemoryStore, clock: ManualClock) -> None:
    directory = BookieDirectory(store.session(), "/ledgers", clock)
    calls: list[int] = []
    await directory.start()
    directory.watch(lambda: calls.append(1))
    bookie = BookieRegistration(store.session(), "/ledgers", "node-d", clock)
    await bookie.register(INFO)
    await settle()
    assert directory.writable == {"node-d"}
    assert await directory.address_of("node-d") == ("127.0.0.1", 3184)
    await bookie.set_read_only(True)
    await settle()
    assert not directory.writable
    assert directory.read_only == {"node-d"}
    assert await directory.shortage() == "node-d is read-only"
    await bookie.set_read_only(True, "operator: a new disk")
    assert await directory.shortage() == "node-d is read-only (operator: a new disk)"
    assert await store.children("/ledgers/available/readonly") == ["node-d"]
    await bookie.set_read_only(False)
    await settle()
    assert directory.writable == {"node-d"}
    assert not directory.read_only
    await bookie.unregister()
    await settle()
    assert directory.available == frozenset()
    assert calls
    with pytest.raises(NoNode):
        await directory.address_of("node-d")
    assert await directory.address_of("10.1.2.3:3181") == ("10.1.2.3", 3181)
    await directory.stop()


async def test_a_bookie_that_changes_its_mode_while_the_register_is_read_is_not_taken_for_gone(
    store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An auditor without a delay would mark all of its ledgers."""
    session = store.session()
    directory = BookieDirectory(session, "/ledgers", clock)
    bookie = BookieRegistration(store.session(), "/ledgers", "node-d", clock)
    await bookie.register(INFO)
    await bookie.set_read_only(True)
    await directory.start()
    seen: list[frozenset[str]] = []
    directory.watch(lambda: seen.append(directory.available))
    children = session.children

    async def slow(path: str) -> list[str]:
        found = await children(path)
        if path == "/ledgers/available":
            await bookie.set_read_only(False)
        return found

    monkeypatch.setattr(session, "children", slow)
    await directory._read()
    await settle()
    assert directory.writable == {"node-d"}
    assert seen == [{"node-d"}]
    await bookie.unregister()
    await settle()
    assert directory.available == frozenset()
    await directory.stop()


async def test_a_change_of_mode_that_the_store_did_not_take_is_made_by_the_next_try(
    store: MemoryStore, clock: ManualClock
) -> None:
    """Else the bookie would count as writable for ever, and its drain would never begin."""
    session = store.session()
    bookie = BookieRegistration(session, "/ledgers", "node-d", clock)
    await bookie.register(INFO)
    for read_only in (True, False):
        for refused_after in (0, 1):  # nothing was done; or the new node was made, and the old one not removed
            await bookie.set_read_only(not read_only)
            left = [refused_after]

            def refuse(path: str, left: list[int] = left) -> None:
                if not left[0]:
                    raise StoreUnavailable(f"{path}: no answer")
                left[0] -= 1

            session.before_change = refuse
            with pytest.raises(StoreUnavailable):
                await bookie.set_read_only(read_only)
            session.before_change = None
            await bookie.set_read_only(read_only)
            writable = [] if read_only else ["node-d"]
            assert await store.children("/ledgers/available") == [*writable, "readonly"]
            assert await store.children("/ledgers/available/readonly") == (["node-d"] if read_only else [])


async def test_a_bookie_registers_again_in_its_mode_after_its_session_was_lost(
    store: MemoryStore, clock: ManualClock
) -> None:
    session = store.session()
    bookie = BookieRegistration(session, "/ledgers", "node-d", clock)
    await bookie.register(INFO)
    await bookie.set_read_only(True)
    session.expire()
    assert await store.children("/ledgers/available/readonly") == []
    await settle()
    assert await store.children("/ledgers/available/readonly") == ["node-d"]
    assert await store.children("/ledgers/available") == ["readonly"]


async def test_registering_waits_for_the_dying_session_of_a_former_process(
    store: MemoryStore, clock: ManualClock
) -> None:
    former = store.session()
    await BookieRegistration(former, "/ledgers", "node-d", clock).register(INFO)
    session = store.session()
    bookie = BookieRegistration(session, "/ledgers", "node-d", clock)
    registering = asyncio.create_task(bookie.register(INFO))
    await settle()
    assert not registering.done()
    await former.close()
    await registering
    node = await session.get("/ledgers/available/node-d")
    assert node is not None
    assert node.own


async def test_two_living_bookies_with_one_id_are_refused_after_the_session_time(
    store: MemoryStore, clock: ManualClock
) -> None:
    other = BookieServiceInfo((bookie_endpoint("127.0.0.1", 3185),))
    await BookieRegistration(store.session(), "/ledgers", "node-d", clock).register(other)
    registering = asyncio.create_task(BookieRegistration(store.session(), "/ledgers", "node-d", clock).register(INFO))
    await settle()
    clock.advance(10.1)
    with pytest.raises(BookieIdInUse, match="bookieId"):
        await registering


async def test_a_former_process_at_the_same_address_may_have_had_a_longer_session(
    store: MemoryStore, clock: ManualClock
) -> None:
    """Apache's bookie, or ours with another zkTimeout, was killed on this port."""
    former = store.session()
    await former.put("/ledgers/available/node-d", INFO.encode(), NO_NODE, ephemeral=True)
    registering = asyncio.create_task(BookieRegistration(store.session(), "/ledgers", "node-d", clock).register(INFO))
    await settle()
    clock.advance(30)
    await settle()
    assert not registering.done()
    former.expire()
    await registering


async def test_cookies_are_compared_and_set(store: MemoryStore, clock: ManualClock) -> None:
    bookie = BookieRegistration(store, "/ledgers", "b:1", clock)
    assert await bookie.read_cookie() is None
    await bookie.write_cookie(b"one", NO_NODE)
    with pytest.raises(VersionConflict):
        await bookie.write_cookie(b"two", NO_NODE)
    cookie = await bookie.read_cookie()
    assert cookie is not None
    await bookie.write_cookie(b"two", cookie.version)
    assert len(await bookie.instance_id()) == 36


def test_an_impossible_bookie_id_is_refused(clock: ManualClock) -> None:
    for bookie_id in ("readonly", "a/b", "", ".", ".."):
        with pytest.raises(MetadataError):
            BookieRegistration(MemoryStore(clock), "/ledgers", bookie_id, clock)


async def test_the_directory_keeps_what_it_knew_while_the_store_is_away(store: MemoryStore, clock: ManualClock) -> None:
    session = store.session()
    directory = BookieDirectory(session, "/ledgers", clock)
    bookie = BookieRegistration(store.session(), "/ledgers", "b:1", clock)
    await bookie.register(INFO)
    await directory.start()
    session.suspend()
    await bookie.unregister()
    await settle()
    assert directory.writable == {"b:1"}
    session.resume()
    await settle()
    assert directory.writable == frozenset()
    await directory.stop()


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_bookie_that_leaves_does_not_wait_long_for_a_store_that_is_away(
    store: MemoryStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hangs: bool,
) -> None:
    session = store.session()
    bookie = BookieRegistration(session, "/ledgers", "b:1", clock)
    await bookie.register(INFO)
    monkeypatch.setattr(bookies, "LEAVE_MAX_S", 0.01)
    asked: list[str] = []

    async def away(path: str) -> None:
        asked.append(path)
        if hangs:
            await asyncio.Event().wait()
        raise StoreUnavailable("nobody answers")

    monkeypatch.setattr(session, "get", away)
    await bookie.unregister()
    assert len(asked) == 1
    (line,) = caplog.messages
    assert "b:1 stays registered until its session ends" in line


async def test_urls() -> None:
    first = await open_store("memory:test-urls", LoopClock())
    second = await open_store("memory:test-urls", LoopClock())
    await first.put("/a", b"1")
    assert await second.exists("/a")
    for url in ("nonsense", "zk:", "etcd:host", "zk:host:1,,/x"):
        with pytest.raises(ConfigurationError):
            await open_store(url, LoopClock())
    assert split_service_uri("zk+hierarchical://a:1;b:2/ledgers") == ("zk:a:1,b:2", "/ledgers")
    assert split_service_uri("zk://a:1") == ("zk:a:1", "/ledgers")
    assert split_service_uri("metadata-store:zk:a:1,b:2/chroot/ledgers") == ("zk:a:1,b:2/chroot", "/ledgers")
    assert split_service_uri("zk:a:1/chroot") == ("zk:a:1/chroot", "/ledgers")
    assert split_service_uri("rocksdb:/data") == ("rocksdb:/data", "/ledgers")
    with pytest.raises(ConfigurationError):
        split_service_uri("zk+flat://a:1/ledgers")
