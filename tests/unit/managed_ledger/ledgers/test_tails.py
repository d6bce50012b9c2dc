"""What was acknowledged behind the end at which somebody else closed a ledger goes to another one (I131).

Writers notice in time that their ledger was closed
(`tests/unit/magnetar_core/bookkeeper/client/deciding/test_belief.py`): here they do not.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from magnetar_core.bookkeeper.client.deciding.belief import Belief
from magnetar_core.bookkeeper.metadata.damage.rules import Kind, Range
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerState
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.ledgers import tails
from managed_ledger.position import EARLIEST
from managed_ledger.records.pulsar_records import decode_ledger_info
from managed_ledger.retention import RetentionRule
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.waiting import eventually
from tests.unit.managed_ledger.test_ledger import Recorder, read_all

NAME = "public/default/persistent/t"
CONFIG = ManagedLedgerConfig(
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=2,
    retention=RetentionRule(time_ms=-1, bytes_max=-1),
    append_timeout_s=2.0,
)


class _Owner:
    """One process."""

    def __init__(self, factory: ManagedLedgerFactory, damage: list[tuple[int, Kind, list[Range], str]]) -> None:
        self.factory = factory
        self.damage = damage
        self.recorder = Recorder()
        self.ledger: ManagedLedger

    async def open(self) -> "_Owner":
        self.ledger = await self.factory.open(NAME)
        self.recorder = Recorder()
        self.ledger.listener = self.recorder
        return self

    async def publish(self, *payloads: bytes) -> None:
        wanted = len(self.recorder.appended) + len(payloads)
        self.ledger.append(payloads, payloads)
        await eventually(lambda: len(self.recorder.appended) == wanted)

    async def payloads(self) -> list[bytes]:
        return [bytes(entry.data) for entry in await read_all(self.ledger)]


class _World:
    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    async def owner(self, cache_bytes_max: int = 1 << 20) -> _Owner:
        damage: list[tuple[int, Kind, list[Range], str]] = []

        def tell(ledger_id: int, kind: Kind, ranges: Sequence[Range], text: str) -> None:
            damage.append((ledger_id, kind, list(ranges), text))

        client = await self.cluster.client()
        factory = ManagedLedgerFactory(
            client, self.cluster._session(), self.cluster.clock, CONFIG, cache_bytes_max=cache_bytes_max, on_damage=tell
        )
        return await _Owner(factory, damage).open()

    async def close_at_its_end(self, ledger_id: int) -> None:
        """As auto-recovery does. Then each bookie loses its disks, gets its copies again, and knows of no fence."""
        client = await self.cluster.client()
        await client.open_ledger(ledger_id, recovery=True)
        for bookie in self.cluster.bookies.values():
            await bookie.stop()
            bookie.fenced.clear()
            await bookie.start()

    async def listed(self) -> list[tuple[int, int]]:
        node = await self.cluster.store.get(f"/managed-ledgers/{NAME}")
        assert node is not None
        return [(info.ledgerId, info.entries) for info in decode_ledger_info(node.value, NAME).ledgerInfo]


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_World]:
    monkeypatch.setattr(Belief, "on_answer", lambda belief, channel, socket: False)
    async with fake_cluster(2) as cluster:
        yield _World(cluster)


def written(owner: _Owner) -> int:
    present = owner.ledger._lifecycle.present
    assert present is not None
    return present.ledger_id


async def acknowledged_behind_the_end(world: _World, owner: _Owner, *before: bytes) -> int:
    """The ledger was closed behind *before*, and b, c, d are acknowledged in it."""
    if before:
        await owner.publish(*before)
    ledger_id = written(owner)
    await world.close_at_its_end(ledger_id)
    await owner.publish(b"b", b"c", b"d")
    return ledger_id


@pytest.mark.parametrize("before", [(b"a",), ()], ids=["one entry", "empty"])
async def test_an_unload_saves_them_before_the_topic_is_left(world: _World, before: tuple[bytes, ...]) -> None:
    owner = await world.owner()
    ledger_id = await acknowledged_behind_the_end(world, owner, *before)
    await owner.ledger.close()
    listed = await world.listed()
    assert [entries for _, entries in listed] == ([1, 3] if before else [3])
    next_owner = await world.owner()
    assert await next_owner.payloads() == [*before, b"b", b"c", b"d"]
    assert owner.factory.tails.saved_entries == 3
    assert owner.factory.tails.lost_entries == 0
    assert owner.damage == []
    client = await world.cluster.client()
    assert (await client.read_metadata(listed[-1][0])).state is LedgerState.CLOSED
    assert (ledger_id in dict(listed)) == bool(before)


async def test_a_fence_that_comes_later_saves_them_before_the_topic_is_opened_anew(world: _World) -> None:
    owner = await world.owner()
    ledger_id = await acknowledged_behind_the_end(world, owner, b"a")
    for bookie in world.cluster.bookies.values():
        bookie.fenced.add(ledger_id)
    owner.ledger.append([b"e"], [b"e"])
    await eventually(lambda: owner.recorder.closed)
    await owner.open()
    assert await owner.payloads() == [b"a", b"b", b"c", b"d"]
    await owner.publish(b"e")
    assert await owner.payloads() == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_ledger_that_is_full_is_followed_by_them(world: _World) -> None:
    owner = await world.owner()
    await acknowledged_behind_the_end(world, owner, b"a")
    owner.ledger._writing._do(owner.ledger._appending.begin_rollover())
    await eventually(lambda: owner.recorder.closed)
    await owner.open()
    assert await owner.payloads() == [b"a", b"b", b"c", b"d"]


async def test_what_memory_does_not_have_comes_from_the_bookies_that_took_it(world: _World) -> None:
    owner = await world.owner(cache_bytes_max=0)
    await acknowledged_behind_the_end(world, owner, b"a")
    await owner.ledger.close()
    assert await (await world.owner()).payloads() == [b"a", b"b", b"c", b"d"]


async def test_a_long_tail_is_moved_in_runs(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "_READ_BYTES", 25)
    owner = await world.owner()
    await acknowledged_behind_the_end(world, owner, b"a")
    more = [b"entry %d" % number for number in range(20)]
    await owner.publish(*more)
    runs: list[int] = []
    get_run = owner.factory.cache.get_run

    def noting(ledger_id: int, first: int, last: int, bytes_max: int) -> list[Any]:
        found = get_run(ledger_id, first, last, bytes_max)
        runs.append(len(found))
        return found

    monkeypatch.setattr(owner.factory.cache, "get_run", noting)
    await owner.ledger.close()
    assert sum(runs) == 23
    assert max(runs) <= 8
    assert await (await world.owner()).payloads() == [b"a", b"b", b"c", b"d", *more]


async def test_what_nobody_has_is_told(world: _World, caplog: pytest.LogCaptureFixture) -> None:
    owner = await world.owner(cache_bytes_max=0)
    ledger_id = await acknowledged_behind_the_end(world, owner, b"a")
    for bookie in world.cluster.bookies.values():
        bookie.ledgers[ledger_id].pop(2, None)
    with caplog.at_level(logging.WARNING):
        await owner.ledger.close()
    assert await (await world.owner()).payloads() == [b"a", b"b", b"d"]
    assert owner.factory.tails.saved_entries == 2
    assert owner.factory.tails.lost_entries == 1
    ((told_of, kind, ranges, text),) = owner.damage
    assert (told_of, kind, ranges) == (ledger_id, Kind.DATA_LOSS, [(2, 2)])
    assert text.startswith(f"{NAME}: acknowledged behind the end")
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert (
        f"ledger {ledger_id} was closed at entry 0, and entries up to 3 are acknowledged; 1 of them are lost" in error
    )


async def test_behind_another_owner_they_are_lost_and_told(world: _World) -> None:
    owner = await world.owner()
    ledger_id = await acknowledged_behind_the_end(world, owner, b"a")
    other = await world.owner()
    await owner.ledger.close()
    assert await other.payloads() == [b"a"]
    await other.publish(b"x")
    assert owner.factory.tails.saved_entries == 0
    assert owner.factory.tails.lost_entries == 3
    ((told_of, _, ranges, text),) = owner.damage
    assert (told_of, ranges) == (ledger_id, [(1, 3)])
    assert "another owner" in text
    client = await world.cluster.client()
    live = {ledger_id for ledger_id, _ in await world.listed()}
    assert {one async for one in client.ledgers.list()} == live, "the ledger that was made for them is deleted"


async def test_a_takeover_that_loses_nothing_saves_nothing(world: _World) -> None:
    owner = await world.owner()
    await owner.publish(b"a", b"b")
    other = await world.owner()
    owner.ledger.append([b"c"], [b"c"])
    await eventually(lambda: owner.recorder.closed)
    await owner.ledger.close()
    assert await other.payloads() == [b"a", b"b"]
    assert (owner.factory.tails.saved_entries, owner.factory.tails.lost_entries, owner.damage) == (0, 0, [])


async def test_an_open_ledger_is_left_to_the_next_owner(world: _World) -> None:
    """Its closing failed for another reason."""
    owner = await world.owner()
    await owner.publish(b"a")
    handle: Any = owner.ledger._lifecycle.present
    await owner.factory.tails.save(NAME, handle, 1, owner.ledger._record, CONFIG)
    assert owner.factory.tails.saved_entries == 0


async def test_cursors_go_on_where_they_were(world: _World) -> None:
    owner = await world.owner()
    cursor = await owner.ledger.open_cursor("s", EARLIEST)
    await acknowledged_behind_the_end(world, owner, b"a")
    entries = await read_all(owner.ledger)
    cursor.mark_delete(entries[0].position)
    await owner.ledger.close()
    next_owner = await world.owner()
    after = next_owner.ledger.cursors["s"]
    assert (
        next_owner.ledger.ledgers.entries_between(after.mark_delete_position, next_owner.ledger.ledgers.last_confirmed)
        == 3
    )
