"""One suite for every metadata store."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest

from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore, _Write
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer, MemoryStore
from magnetar_core.bookkeeper.metadata.stores.rocks_tree import StoreInUse
from magnetar_core.bookkeeper.metadata.stores.secondary import StoreReadOnly, open_secondary
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Check,
    Delete,
    MetadataError,
    MetadataStore,
    NoNode,
    NotEmpty,
    OutcomeUnknown,
    Put,
    SessionEvent,
    StoreUnavailable,
    VersionConflict,
    delete_empty_parents,
)
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.bookkeeper.metadata.stores.zookeeper import ZooKeeperStore
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.clock import LoopClock
from tests.support.faulty_store import FaultyStore
from tests.support.waiting import eventually
from tests.support.zookeeper import ZooKeeperServer, why_not

Opener = Callable[[], Awaitable[MetadataStore]]

# Waiting for something that must happen: long enough for a loaded machine, never reached when all is well.
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


def own_tree() -> str:
    """A path of a server that no other test uses."""
    return f"/test-{uuid.uuid4()}"


@pytest.fixture(params=["memory", "embedded", pytest.param("zookeeper", marks=pytest.mark.process)])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens a session over one tree; each test has a tree of its own."""
    opened: list[MetadataStore] = []
    memory = MemoryStore(LoopClock())
    chroot = own_tree()

    async def open_one() -> MetadataStore:
        store: MetadataStore
        if request.param == "memory":
            store = memory.session()
        elif request.param == "embedded":
            store = await EmbeddedStore.open(tmp_path / "metadata", LoopClock())
        else:
            server = request.getfixturevalue("zookeeper")
            store = await ZooKeeperStore.open(server.hosts + chroot, 4.0, LoopClock())
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


async def two_sessions(reopen: Opener) -> tuple[MetadataStore, MetadataStore]:
    """Twice the same one where the tree belongs to one process."""
    store = await reopen()
    return store, store if isinstance(store, EmbeddedStore) else await reopen()


@pytest.fixture
async def store(reopen: Opener) -> MetadataStore:
    return await reopen()


async def test_a_new_node_has_version_zero_and_each_put_adds_one(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    assert not await store.exists("/a")
    assert await store.put("/a", b"one") == 0
    assert await store.put("/a", b"two") == 1
    assert await store.put("/a", b"", 1) == 2
    node = await store.get("/a")
    assert node is not None
    assert (node.path, node.value, node.version, node.ephemeral, node.own) == ("/a", b"", 2, False, False)
    assert 0 < node.created_ms <= node.modified_ms


async def test_behind_a_sync_all_is_seen_that_was_stored_before(reopen: Opener) -> None:
    writer, reader = await two_sessions(reopen)
    for number in range(5):
        await writer.put("/a/b", b"%d" % number)
        await reader.sync()
        node = await reader.get("/a/b")
        assert node is not None
        assert node.value == b"%d" % number


async def test_put_compares_the_version(store: MetadataStore) -> None:
    with pytest.raises(VersionConflict):
        await store.put("/a", b"", 0)
    await store.put("/a", b"one", NO_NODE)
    with pytest.raises(VersionConflict):
        await store.put("/a", b"two", NO_NODE)
    with pytest.raises(VersionConflict):
        await store.put("/a", b"two", 1)
    node = await store.get("/a")
    assert node is not None
    assert node.value == b"one"


async def test_only_one_of_many_writers_wins(store: MetadataStore) -> None:
    await store.put("/a", b"")
    answers = await asyncio.gather(*(store.put("/a", str(i).encode(), 0) for i in range(20)), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["VersionConflict"] * 19 + ["int"]


async def test_parents_are_made_and_kept(store: MetadataStore) -> None:
    await store.put("/a/b/c", b"deep")
    assert await store.children("/") == ["a"]
    assert await store.children("/a") == ["b"]
    assert await store.children("/a/b/c") == []
    assert await store.children("/nothing/there") == []
    with pytest.raises(NotEmpty):
        await store.delete("/a/b")
    await store.delete("/a/b/c", 0)
    await store.delete("/a/b")
    assert await store.children("/a") == []


async def test_directories_go_with_the_last_that_was_in_them(store: MetadataStore) -> None:
    for path in ("/root/a/b/one", "/root/a/b/two"):
        await store.put(path, b"")
    directory = await store.get("/root/a/b")
    assert directory is not None
    assert directory.children in (2, None)  # or the store does not tell
    await store.delete("/root/a/b/one")
    await delete_empty_parents(store, "/root/a/b/one", "/root")
    assert await store.children("/root/a/b") == ["two"]
    await store.delete("/root/a/b/two")
    await delete_empty_parents(store, "/root/a/b/two", "/root")
    await delete_empty_parents(store, "/root/a/b/two", "/root")
    assert await store.children("/root") == []
    assert await store.exists("/root")


async def test_children_are_not_grandchildren_or_neighbours(store: MetadataStore) -> None:
    for path in ("/a/x", "/a/x/deep", "/a!/y", "/aa/y", "/a/w", "/a0"):
        await store.put(path, b"")
    assert await store.children("/a") == ["w", "x"]
    assert await store.children("/") == ["a", "a!", "a0", "aa"]


async def test_delete_compares_the_version(store: MetadataStore) -> None:
    with pytest.raises(NoNode):
        await store.delete("/a")
    await store.put("/a", b"")
    with pytest.raises(VersionConflict):
        await store.delete("/a", 1)
    await store.delete("/a", 0)
    assert await store.get("/a") is None
    assert await store.put("/a", b"again") == 0


async def test_paths_must_be_absolute_and_clean(store: MetadataStore) -> None:
    for path in ("a", "/a/", "", "/a//b"):
        with pytest.raises(MetadataError):
            await store.get(path)
    with pytest.raises(MetadataError):
        await store.put("/a", bytes(2_000_000))


async def test_sequential_nodes_get_growing_numbers_of_ten_digits(store: MetadataStore) -> None:
    first = await store.put_sequential("/queue/n-", b"x")
    await store.delete(first)
    rest = await asyncio.gather(*(store.put_sequential("/queue/n-", b"y") for _ in range(5)))
    paths = [first, *rest]
    assert len(set(paths)) == 6
    assert paths == sorted(paths)
    assert all(path.startswith("/queue/n-") and len(path) == len("/queue/n-") + 10 for path in paths)


async def test_the_next_number_is_told_without_using_it_up(store: MetadataStore) -> None:
    assert await store.next_number("/queue") == 0
    paths = [await store.put_sequential("/queue/n-", b"", ephemeral=ephemeral) for ephemeral in (False, True, False)]
    await store.delete(paths[1])
    await store.sync()
    assert await store.next_number("/queue") == await store.next_number("/queue") == 3
    assert await store.put_sequential("/queue/n-", b"") == "/queue/n-0000000003"


async def test_sequential_numbers_outlive_the_session(reopen: Opener) -> None:
    store = await reopen()
    first = await store.put_sequential("/ids/ID-", b"", ephemeral=True)
    await store.delete(first)
    await store.close()
    store = await reopen()
    assert await store.put_sequential("/ids/ID-", b"", ephemeral=True) > first


async def test_ephemeral_nodes_end_with_their_session(reopen: Opener) -> None:
    store = await reopen()
    await store.put("/here/me", b"I", NO_NODE, ephemeral=True)
    await store.put("/here/stays", b"")
    node = await store.get("/here/me")
    assert node is not None
    assert node.ephemeral
    assert node.own
    await store.close()
    store = await reopen()
    assert await store.children("/here") == ["stays"]


async def test_an_ephemeral_node_has_no_children(store: MetadataStore) -> None:
    await store.put("/e", b"", ephemeral=True)
    with pytest.raises(MetadataError):
        await store.put("/e/child", b"")


async def test_everything_outlives_the_session(reopen: Opener) -> None:
    store = await reopen()
    await store.put("/kept", b"1")
    await store.put("/kept", b"2")
    before = await store.get("/kept")
    await store.close()
    assert await (await reopen()).get("/kept") == before


async def test_node_watches_see_creation_change_and_removal(store: MetadataStore) -> None:
    calls: list[str] = []
    cancel = store.watch_node("/w", lambda: calls.append("w"))
    for step in (store.put("/w", b"1"), store.put("/w", b"2"), store.delete("/w"), store.put("/w", b"3")):
        calls.clear()
        await step
        await eventually(lambda: calls)
    cancel()
    calls.clear()
    await store.put("/w", b"4")
    await store.get("/w")
    await asyncio.sleep(0.05)
    assert not calls


async def test_child_watches_see_children_come_and_go(store: MetadataStore) -> None:
    calls: list[int] = []
    store.watch_children("/p", lambda: calls.append(1))
    for step in (
        store.put("/p", b""),
        store.put("/p/a", b""),
        store.put("/p/b", b""),
        store.delete("/p/a"),
        store.delete("/p/b"),
        store.delete("/p"),
        store.put("/p/c", b""),
    ):
        await asyncio.sleep(0.02)
        calls.clear()
        await step
        await eventually(lambda: calls)


async def test_the_watch_of_a_tree_tells_which_nodes_changed(reopen: Opener) -> None:
    store, other = await two_sessions(reopen)
    await store.put("/t/old", b"1")
    told: set[str] = set()

    def changed(paths: Collection[str] | None) -> None:
        assert paths is not None
        told.update(paths)

    cancel = await store.watch_tree("/t", changed)
    await other.put("/t/deep/new", b"")
    await eventually(lambda: {"/t/deep", "/t/deep/new"} <= told)
    for step in (other.put("/t/old", b"2"), other.delete("/t/old"), other.put("/t/old", b"3")):
        told.clear()
        await step
        await eventually(lambda: "/t/old" in told)
    await other.put("/tother", b"")
    await other.put("/elsewhere/t/old", b"")
    told.clear()
    await other.put("/t", b"itself")
    await eventually(lambda: told)
    assert told == {"/t"}
    cancel()
    cancel()
    told.clear()
    await other.put("/t/old", b"4")
    assert await store.get("/t/old") is not None
    await asyncio.sleep(0.05)
    assert not told


async def test_what_a_read_shows_the_watch_of_its_tree_has_told(reopen: Opener) -> None:
    store, other = await two_sessions(reopen)
    told: set[str] = set()
    await store.watch_tree("/t", lambda paths: told.update(paths or ()))
    for number in range(100):
        await other.put(f"/t/{number}", b"")
        while not await store.exists(f"/t/{number}"):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert f"/t/{number}" in told


async def test_two_watches_of_a_tree_and_one_of_a_node_in_it_do_not_disturb_each_other(store: MetadataStore) -> None:
    tree: set[str] = set()
    upper: set[str] = set()
    node: list[int] = []
    cancel = await store.watch_tree("/a/t", lambda paths: tree.update(paths or ()))
    await store.watch_tree("/a", lambda paths: upper.update(paths or ()))
    store.watch_node("/a/t/1", lambda: node.append(1))
    await store.put("/a/t/1", b"")
    await eventually(lambda: "/a/t/1" in tree and "/a/t/1" in upper and node)
    cancel()
    for told in (tree, upper):
        told.clear()
    node.clear()
    await store.put("/a/t/1", b"2")
    await eventually(lambda: "/a/t/1" in upper and node)
    assert not tree


async def test_a_reader_woken_by_a_watch_never_misses_the_last_state(store: MetadataStore) -> None:
    seen: list[bytes] = []
    changed = asyncio.Event()
    store.watch_node("/w", changed.set)

    async def follow() -> None:
        while not seen or seen[-1] != b"99":
            await changed.wait()
            changed.clear()
            node = await store.get("/w")
            if node is not None:
                seen.append(node.value)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(follow())
        for i in range(100):
            await store.put("/w", str(i).encode())
    assert seen[-1] == b"99"


async def test_a_reader_woken_by_children_that_come_and_go_fast_never_misses_the_last_state(
    store: MetadataStore,
) -> None:
    """ZooKeeper's watch is set again at a pace; what happens meanwhile is told of afterwards."""
    seen: list[list[str]] = []
    changed = asyncio.Event()
    store.watch_children("/w", changed.set)

    async def follow() -> None:
        while not seen or seen[-1] != ["150"]:
            await changed.wait()
            changed.clear()
            seen.append(await store.children("/w"))

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(follow())
        for number in range(150):
            await store.put(f"/w/{number}", b"")
        for number in range(150):
            await store.delete(f"/w/{number}")
        await store.put("/w/150", b"")


async def test_one_watch_that_fails_does_not_stop_the_others(store: MetadataStore) -> None:
    calls: list[int] = []

    def fail() -> None:
        raise RuntimeError("a watch that fails")

    store.watch_node("/w", fail)
    store.watch_node("/w", lambda: calls.append(1))
    await store.put("/w", b"")
    await eventually(lambda: calls)


def metadata(**fields: object) -> LedgerMetadata:
    defaults: dict[str, object] = {
        "ensemble_size": 3,
        "write_quorum": 3,
        "ack_quorum": 2,
        "digest_type": DigestType.CRC32C,
        "segments": (Segment(0, ("b1:1", "b2:2", "b3:3")),),
    }
    return LedgerMetadata(**(defaults | fields))  # type: ignore[arg-type]


async def test_ledgers_are_created_listed_changed_and_deleted(store: MetadataStore) -> None:
    await initialise_cluster(store, "/ledgers")
    ledgers = LedgerStore(store)
    made = [await ledgers.create(metadata()) for _ in range(5)]
    ids = [ledger_id for ledger_id, _ in made]
    assert ids == sorted(set(ids))
    await ledgers.create_with_id(9999999999, metadata())
    await ledgers.create_with_id(2147483647, metadata())
    assert [i async for i in ledgers.list()] == [*ids, 2147483647, 9999999999]
    assert await store.children("/ledgers/idgen") == []

    first = await ledgers.read(ids[0])
    assert first.created_ms > 0
    changed = await ledgers.write(ids[0], first.metadata.in_recovery(), first.version)
    assert (await ledgers.read(ids[0])).metadata.state is LedgerState.IN_RECOVERY
    with pytest.raises(VersionConflict):
        await ledgers.write(ids[0], first.metadata.closed(3, 10), first.version)
    await ledgers.write(ids[0], changed.metadata.closed(3, 10), changed.version)

    for ledger_id in (*ids, 2147483647, 9999999999):
        await ledgers.delete(ledger_id)
        await ledgers.delete(ledger_id)
    assert [i async for i in ledgers.list()] == []
    assert "00" not in await store.children("/ledgers")
    with pytest.raises(NoNode):
        await ledgers.write(ids[0], changed.metadata.closed(3, 10), changed.version)
    assert (await ledgers.create(metadata()))[0] > ids[-1]


async def test_a_cluster_is_initialised_once_however_often_it_is_tried(store: MetadataStore) -> None:
    names = await asyncio.gather(*(initialise_cluster(store, "/ledgers") for _ in range(4)))
    assert len(set(names)) == 1
    await store.put("/ledgers/LAYOUT", b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1")
    with pytest.raises(MetadataError, match="only org"):
        await initialise_cluster(store, "/ledgers")


async def test_long_ids_once_idgen_long_is_there(store: MetadataStore) -> None:
    await store.put("/ledgers/idgen-long", b"")
    ledger_id, _ = await LedgerStore(store).create(metadata())
    assert ledger_id == 1 << 32
    ledger_id, _ = await LedgerStore(store).create(metadata())
    assert ledger_id >> 32 == 1
    assert ledger_id & 0xFFFFFFFF > 0


async def test_r_r1_a_listing_goes_on_past_parents_that_are_empty_or_go_away(store: MetadataStore) -> None:
    await initialise_cluster(store)
    direct = LedgerStore(store)
    staying = [1, 30_001, 2**40]
    leaving = [10_001, 20_001, 100_000_001]
    for ledger_id in (*staying, *leaving):
        await direct.create_with_id(ledger_id, metadata())
    await store.put("/ledgers/00/0000", b"")
    await store.put("/ledgers/00/0004", b"")  # its first ledger is on its way
    await store.put("/ledgers/07", b"")

    async def on_step(what: str, path: str) -> None:
        if what == "children" and path == "/ledgers/00":
            await direct.delete(10_001)
        if what == "children" and path == "/ledgers/00/0002":
            for ledger_id in (20_001, 100_000_001):
                await direct.delete(ledger_id)

    listed = [ledger_id async for ledger_id in LedgerStore(FaultyStore(store, on_step)).list()]
    assert listed == staying


async def test_r_r12_a_ledger_whose_creation_or_deletion_was_not_answered_is_made_and_removed_once(
    store: MetadataStore,
) -> None:
    await initialise_cluster(store)
    lost: list[str] = []

    async def on_step(what: str, path: str) -> None:
        if what in lost and "/L" in path:
            lost.remove(what)
            raise OutcomeUnknown(f"{path}: the connection broke")

    direct, ledgers = LedgerStore(store), LedgerStore(FaultyStore(store, on_step))
    lost.append("multi done")
    first, made = await ledgers.create(metadata())
    assert [one async for one in direct.list()] == [first]
    assert (await direct.read(first)).metadata.ctoken == made.metadata.ctoken
    # The request did not arrive, and somebody else was faster with the same id.
    others = await direct.create_with_id(first + 1, metadata())
    lost.append("multi")
    second, made = await ledgers.create(metadata())
    assert await store.children("/ledgers/idgen") == []  # nothing is left of the id that was taken
    assert second not in (first, first + 1)
    assert (await direct.read(first + 1)).metadata.ctoken == others.metadata.ctoken != made.metadata.ctoken
    lost.append("delete done")
    await ledgers.delete(first)
    lost.append("delete")
    await ledgers.delete(second)
    assert lost == []
    assert [one async for one in direct.list()] == [first + 1]
    third, _ = await ledgers.create(metadata())
    assert third > second, "no id is given twice"


async def test_many_changes_at_once_have_each_their_own_outcome(store: MetadataStore) -> None:
    """Stores may send them together; one that is refused must not harm the others."""
    await store.put("/there", b"")
    for number in range(300):
        await store.put(f"/old/{number}", b"first")

    async def change(number: int) -> object:
        try:
            match number % 6:
                case 0:
                    return await store.put(f"/new/{number}", b"%d" % number, NO_NODE)
                case 1:
                    return await store.put(f"/old/{number}", b"second", 0)
                case 2:
                    return await store.put("/there", b"", NO_NODE) if number % 100 == 2 else None
                case 3:
                    await store.delete(f"/old/{number}")
                    return None
                case 4:
                    return await store.put_sequential("/ids/n-", b"")
                case _:
                    await store.multi([Put(f"/both/{number}", b"", NO_NODE), Delete(f"/old/{number}")])
                    return None
        except MetadataError as error:
            return type(error)

    found = await asyncio.gather(*(change(number) for number in range(300)))
    for number, outcome in enumerate(found):
        old, new = await store.get(f"/old/{number}"), await store.get(f"/new/{number}")
        match number % 6:
            case 0:
                assert outcome == 0
                assert new is not None
                assert new.value == b"%d" % number
            case 1:
                assert outcome == 1
                assert old is not None
                assert (old.value, old.version) == (b"second", 1)
            case 2:
                assert outcome == (VersionConflict if number % 100 == 2 else None)
            case 3:
                assert old is None
            case 4:
                assert isinstance(outcome, str)
            case _:
                assert old is None
                assert await store.exists(f"/both/{number}")
    numbers = [outcome for number, outcome in enumerate(found) if number % 6 == 4]
    assert len(set(numbers)) == 50
    assert await store.children("/ids") == sorted(str(one).rpartition("/")[2] for one in numbers)


# Tests of what only one store has.


async def test_memory_a_lost_answer_is_cleared_up_by_the_token() -> None:
    store = MemoryStore(LoopClock())
    ledgers = LedgerStore(store)
    for fate in LostAnswer:
        store.lose_next_answer(fate)
        made = await ledgers.create_with_id(fate is LostAnswer.APPLIED, metadata())
        assert made.version == 0
        store.lose_next_answer(fate)
        changed = await ledgers.write(fate is LostAnswer.APPLIED, made.metadata.in_recovery(), made.version)
        assert changed.version == 1
        store.lose_next_answer(fate)
        await ledgers.delete(fate is LostAnswer.APPLIED)


async def test_memory_a_session_that_expires_loses_its_nodes_and_is_told() -> None:
    store = MemoryStore(LoopClock())
    other = store.session()
    events: list[SessionEvent] = []
    store.watch_session(events.append)
    await store.put("/e", b"", ephemeral=True)
    store.suspend()
    with pytest.raises(StoreUnavailable):
        await store.get("/e")
    store.expire()
    assert events == [SessionEvent.SUSPENDED, SessionEvent.LOST]
    assert await other.get("/e") is None


async def test_embedded_the_directory_has_one_owner(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path / "m", LoopClock())
    with pytest.raises(StoreInUse, match=str(tmp_path / "m")):
        await EmbeddedStore.open(tmp_path / "m", LoopClock())
    await store.close()
    await (await EmbeddedStore.open(tmp_path / "m", LoopClock())).close()


async def test_embedded_a_secondary_follows_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar_core.bookkeeper.metadata.stores.secondary.POLL_S", 0.02)
    store = await EmbeddedStore.open(tmp_path / "m", LoopClock())
    await store.put("/a/b", b"1")
    reader = await open_store(f"rocksdb:{tmp_path / 'm'}", LoopClock(), read_only=True)
    calls: list[int] = []
    reader.watch_node("/a/b", lambda: calls.append(1))
    assert await reader.children("/a") == ["b"]
    await store.put("/a/b", b"2")
    node = await reader.get("/a/b")
    assert node is not None
    assert (node.value, node.version) == (b"2", 1)
    await eventually(lambda: calls)
    with pytest.raises(StoreReadOnly):
        await reader.put("/a/b", b"3")
    with pytest.raises(StoreReadOnly):
        await reader.multi([Put("/a/b", b"3")])
    await reader.close()
    await store.close()
    with pytest.raises(MetadataError, match="holds no metadata store"):
        await open_secondary(tmp_path / "nothing", LoopClock())


async def snapshot(store: MetadataStore, *paths: str) -> list[tuple[bytes, int] | None]:
    found = [await store.get(path) for path in paths]
    return [None if node is None else (node.value, node.version) for node in found]


async def test_several_changes_are_made_together(store: MetadataStore) -> None:
    await store.put("/a", b"old")
    await store.put("/parent/child", b"")
    await store.multi(
        [
            Check("/a", 0),
            Put("/a", b"new", 0),
            Put("/new/deep", b"made", NO_NODE),
            Put("/any", b"either"),
            Delete("/parent/child", 0),
            Delete("/parent"),
        ]
    )
    paths = ("/a", "/new/deep", "/any", "/parent", "/parent/child")
    assert await snapshot(store, *paths) == [(b"new", 1), (b"made", 0), (b"either", 0), None, None]
    await store.multi([])


async def test_each_of_several_changes_sees_those_before_it(store: MetadataStore) -> None:
    await store.multi([Put("/a", b"1", NO_NODE), Put("/a", b"2", 0), Put("/a/b", b"", NO_NODE), Check("/a", 1)])
    assert await snapshot(store, "/a", "/a/b") == [(b"2", 1), (b"", 0)]
    await store.multi([Delete("/a/b"), Delete("/a", 1), Put("/a", b"again", NO_NODE)])
    assert await snapshot(store, "/a", "/a/b") == [(b"again", 0), None]
    await store.multi([Put("/x", b"1"), Put("/x", b"2"), Delete("/a"), Put("/a", b"3"), Delete("/x")])
    assert await snapshot(store, "/a", "/x") == [(b"3", 0), None]


@pytest.mark.parametrize(
    ("refused", "error", "text"),
    [
        (Put("/there", b"", NO_NODE), VersionConflict, "/there "),
        (Put("/there", b"", 7), VersionConflict, "/there "),
        (Put("/missing", b"", 0), VersionConflict, "/missing "),
        (Delete("/there", 7), VersionConflict, "/there "),
        (Delete("/missing"), NoNode, "/missing "),
        (Delete("/there", NO_NODE), VersionConflict, "/there"),
        (Delete("/full"), NotEmpty, "/full "),
        (Check("/there", 7), VersionConflict, "/there "),
        (Check("/missing", 0), VersionConflict, "/missing "),
        (Check("/there", NO_NODE), VersionConflict, "/there"),
        (Put("no path", b""), MetadataError, "no path"),
        (Put("/there", bytes(1_000_001)), MetadataError, "/there"),
    ],
)
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_one_refusal_undoes_all_and_names_its_path(
    store: MetadataStore, refused: Put | Delete | Check, error: type[MetadataError], text: str, at: int
) -> None:
    await store.put("/there", b"as it was")
    await store.put("/full/child", b"")
    operations: list[Put | Delete | Check] = [Put("/new", b""), Delete("/full/child")]
    if refused.path == "/full":
        operations[1] = Put("/other", b"")
    operations.insert(at, refused)
    with pytest.raises(error, match=text):
        await store.multi(operations)
    paths = ("/there", "/new", "/other", "/full/child")
    assert await snapshot(store, *paths) == [(b"as it was", 0), None, None, (b"", 0)]


async def test_values_that_are_too_much_together_are_refused(store: MetadataStore) -> None:
    half = bytes(600_000)
    await store.put("/a", half)
    with pytest.raises(MetadataError, match="2 changes at once of 1200004 bytes; the limit is 1000000"):
        await store.multi([Put("/a", half), Put("/b", half)])
    assert not await store.exists("/b")


async def test_watches_tell_of_several_changes_once_for_each_node(store: MetadataStore) -> None:
    await store.put("/w/a", b"")
    await store.put("/w/b", b"")
    calls: list[str] = []
    store.watch_node("/w/a", lambda: calls.append("a"))
    store.watch_node("/w/b", lambda: calls.append("b"))
    store.watch_node("/w/c", lambda: calls.append("c"))
    store.watch_node("/w", lambda: calls.append("w"))
    await store.exists("/w")  # the server has set the watches: it answers in order
    await store.multi([Put("/w/a", b"2", 0), Delete("/w/b"), Put("/w/c", b"", NO_NODE)])
    await eventually(lambda: len(calls) >= 3)
    calls.clear()
    with pytest.raises(VersionConflict):
        await store.multi([Put("/w/a", b"3"), Check("/w/c", 5)])
    await store.multi([Delete("/w/c"), Put("/w/a", b"4")])
    await eventually(lambda: len(calls) >= 2)
    await store.put("/end", b"")
    assert sorted(calls) == ["a", "c"]


async def test_only_one_of_many_who_change_the_same_nodes_wins(store: MetadataStore) -> None:
    await store.put("/a", b"")
    await store.put("/b", b"")
    answers = await asyncio.gather(
        *(store.multi([Put("/a", b"%d" % i, 0), Put("/b", b"%d" % i, 0)]) for i in range(20)), return_exceptions=True
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["NoneType"] + ["VersionConflict"] * 19
    first, second = await snapshot(store, "/a", "/b")
    assert first == second


async def test_several_changes_whose_answer_is_lost_are_made_or_not_and_are_told_as_unknown() -> None:
    store = MemoryStore(LoopClock())
    for fate in LostAnswer:
        store.lose_next_answer(fate)
        with pytest.raises(OutcomeUnknown):
            await store.multi([Put(f"/{fate.name}/a", b""), Put(f"/{fate.name}/b", b"")])
    assert await store.children("/APPLIED") == ["a", "b"]
    assert await store.children("/NOT_APPLIED") == []


async def test_embedded_several_changes_are_one_batch_and_survive_a_kill(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path / "m", LoopClock())
    await store.put("/gone/child", b"")
    await store.put("/e", b"", ephemeral=True)
    groups: list[int] = []
    write = store._worker._work

    def count(writes: Sequence[_Write]) -> None:
        groups.append(len(writes))
        write(writes)

    store._worker._work = count
    await store.multi([Put("/a", b"1"), Put("/e", b"2"), Delete("/gone/child"), Delete("/gone"), Put("/b/c", b"3")])
    assert groups == [1]
    store._database.close()  # like a kill: nothing is closed in order
    again = await EmbeddedStore.open(tmp_path / "m", LoopClock())
    assert await snapshot(again, "/a", "/e", "/gone", "/b/c") == [(b"1", 0), None, None, (b"3", 0)]
    await again.close()


async def test_embedded_what_a_killed_process_left_is_cleared_up(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path / "m", LoopClock())
    await store.put("/kept", b"")
    await store.put("/e", b"", ephemeral=True)
    store._database.close()  # like a kill: nothing is closed in order
    again = await EmbeddedStore.open(tmp_path / "m", LoopClock())
    assert await again.children("/") == ["kept"]
    await again.close()


async def test_embedded_a_failed_write_ends_all_changes(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path / "m", LoopClock())
    await store.put("/a", b"1")

    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    store._worker._work = fail
    with pytest.raises(StoreUnavailable, match="No space left"):
        await store.put("/a", b"2")
    with pytest.raises(StoreUnavailable):
        await store.get("/a")
    await store.close()


@pytest.mark.process
async def test_zookeeper_a_frozen_server_is_noticed_by_our_own_clock(zookeeper: ZooKeeperServer) -> None:
    clock = LoopClock()
    store = await ZooKeeperStore.open(zookeeper.hosts + own_tree(), 1.0, clock)
    events: list[SessionEvent] = []
    store.watch_session(events.append)
    assert store.session_timeout_s == 1.0
    await store.put("/e", b"", ephemeral=True)
    await eventually(lambda: clock.monotonic() - store.last_answer < 0.2)
    zookeeper.freeze()
    try:
        await eventually(lambda: clock.monotonic() - store.last_answer > store.session_timeout_s)
        got, put = await asyncio.gather(store.get("/e"), store.put("/x", b""), return_exceptions=True)
        assert isinstance(got, StoreUnavailable)
        assert isinstance(put, OutcomeUnknown | StoreUnavailable)
        assert SessionEvent.SUSPENDED in events
    finally:
        zookeeper.thaw()
    await eventually(lambda: clock.monotonic() - store.last_answer < 0.5)
    await eventually(lambda: events[-1] is SessionEvent.CONNECTED)
    # A thawed server may hear of the client before it counts the time that has passed: then the session lives.
    node = await store.get("/e")
    assert (node is None) == (SessionEvent.LOST in events)
    if node is None:
        await store.put("/e", b"", NO_NODE, ephemeral=True)
    await store.close()


@pytest.mark.process
@pytest.mark.parametrize(("asked_s", "granted_s"), [(0.5, 1.0), (2.0, 2.0), (30.0, 10.0)])
async def test_a_local_zookeeper_grants_sessions_of_one_to_ten_seconds(
    zookeeper: ZooKeeperServer, asked_s: float, granted_s: float
) -> None:
    store = await ZooKeeperStore.open(zookeeper.hosts, asked_s, LoopClock())
    assert store.session_timeout_s == granted_s
    await store.close()


@pytest.mark.process
async def test_zookeeper_watches_survive_a_restart_of_the_server(zookeeper: ZooKeeperServer) -> None:
    store = await ZooKeeperStore.open(zookeeper.hosts + own_tree(), 30.0, LoopClock())
    calls: list[int] = []
    await store.put("/w", b"1")
    store.watch_node("/w", lambda: calls.append(1))
    zookeeper.stop()
    zookeeper.start()
    await eventually(lambda: calls)
    calls.clear()
    await store.put("/w", b"2")
    await eventually(lambda: calls)
    await store.close()


@pytest.mark.process
async def test_the_watch_of_a_tree_in_zookeeper_is_set_again_and_says_that_anything_may_have_changed(
    zookeeper: ZooKeeperServer,
) -> None:
    store = await ZooKeeperStore.open(zookeeper.hosts + own_tree(), 30.0, LoopClock())
    told: list[Collection[str] | None] = []
    await store.watch_tree("/t", told.append)
    zookeeper.stop()
    zookeeper.start()
    await eventually(lambda: None in told)
    told.clear()
    await store.put("/t/1", b"")
    await eventually(lambda: any("/t/1" in paths for paths in told if paths is not None))
    await store.close()
