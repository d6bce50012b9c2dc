"""A node of auto-recovery over small bookies: what it finds, copies and publishes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from autorecovery.config import AutoRecoveryConfig
from autorecovery.node import AutoRecoveryNode, NodeDied
from autorecovery.repair.outcome import Hindrance
from magnetar.processes.autorecovery import EmbeddedNode
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import LedgerFenced
from magnetar_core.bookkeeper.client.placing.isolation import Isolation
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer, MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import Node, OutcomeUnknown, StoreUnavailable
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.waiting import eventually

FAST = AutoRecoveryConfig(open_grace_ms=200, retry_ms_max=200)
CLIENT = ClientConfig(timeout_s=2.0, speculative_read_timeout_ms=0)


class Nodes:
    """Nodes of auto-recovery over one cluster of small bookies."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.writer: BookKeeper
        self.client_config = CLIENT
        self.deaths: list[NodeDied] = []
        self._nodes: list[AutoRecoveryNode] = []
        self._stores: dict[str, MemoryStore] = {}

    async def start(self, name: str, config: AutoRecoveryConfig = FAST) -> AutoRecoveryNode:
        assert isinstance(self.cluster.store, MemoryStore)
        store = self._stores[name] = self.cluster.store.session()
        client = BookKeeper(store, self.cluster.clock, self.client_config)
        await client.open()
        self.cluster._clients.append(client)
        node = AutoRecoveryNode(name, store, client, self.cluster.clock, config, on_death=self.deaths.append)
        await node.start()
        self._nodes.append(node)
        return node

    def session(self, name: str) -> MemoryStore:
        return self._stores[name]

    async def stop(self) -> None:
        for node in self._nodes:
            await node.stop()

    async def written(
        self,
        count: int,
        *,
        ensemble: int = 3,
        write: int = 2,
        ack: int = 2,
        close: bool = True,
        groups: Isolation | None = None,
    ) -> int:
        """The id of a ledger of *count* entries."""
        handle = await self.writer.create_ledger(
            ensemble_size=ensemble,
            write_quorum=write,
            ack_quorum=ack,
            custom_metadata=() if groups is None else groups.custom_metadata,
        )
        for number in range(count):
            await handle.add(b"entry %d" % number)
        if close:
            await handle.close()
        else:
            await handle.abandon()
        return handle.ledger_id

    async def is_whole(self, ledger_id: int) -> bool:
        """Every entry is, as it was written, on each bookie that the record gives it to, and all of them live."""
        metadata = await self.writer.read_metadata(ledger_id)
        alive = self.writer.bookies.available
        if not metadata.is_closed or not metadata.bookies() <= alive:
            return False
        for entry_id in range(metadata.last_entry_id + 1):
            ensemble = metadata.ensemble_for(entry_id)
            for at in range(metadata.write_quorum):
                bookie = self.cluster.bookies[ensemble[(entry_id + at) % len(ensemble)]]
                stored = bookie.ledgers.get(ledger_id, {}).get(entry_id)
                if stored is None or not bytes(stored).endswith(b"entry %d" % entry_id):
                    return False
        return True

    async def has_no_marks(self, node: AutoRecoveryNode) -> bool:
        return not [one async for one in node.marks.marked()] and not await node.marks.locked()


@asynccontextmanager
async def nodes_over(bookies: int, client_config: ClientConfig = CLIENT) -> AsyncIterator[Nodes]:
    async with fake_cluster(bookies) as cluster:
        nodes = Nodes(cluster)
        nodes.client_config = client_config
        nodes.writer = await cluster.client(client_config)
        try:
            yield nodes
        finally:
            await nodes.stop()


@pytest.mark.parametrize(("ensemble", "write"), [(3, 2), (3, 3), (2, 2), (4, 2)])
async def test_a_bookie_that_dies_is_replaced_everywhere_and_its_entries_are_copied(ensemble: int, write: int) -> None:
    async with nodes_over(6) as nodes:
        ledgers = [await nodes.written(count, ensemble=ensemble, write=write) for count in (0, 1, 2, 7, 300)]
        node = await nodes.start("one")
        await nodes.cluster.kill("bookie-0")
        for ledger_id in ledgers:
            await eventually(partial(nodes.is_whole, ledger_id))
        await eventually(partial(nodes.has_no_marks, node))


@pytest.mark.parametrize(
    "count", [1_000, pytest.param(10_000, marks=pytest.mark.long("each ledger takes a millisecond or two"))]
)
async def test_thousands_of_small_ledgers_are_repaired(count: int) -> None:
    async with nodes_over(5) as nodes:
        ledgers: list[int] = []
        left = iter(range(count))

        async def write() -> None:
            for _ in left:
                ledgers.append(await nodes.written(3, ensemble=2))

        await asyncio.gather(*(write() for _ in range(64)))
        node = await nodes.start("one")
        await nodes.cluster.kill("bookie-2")
        await eventually(lambda: node.worker.counts.repaired)
        await eventually(partial(nodes.has_no_marks, node), timeout_s=300)
        assert node.worker.counts.repaired > count / 5
        for ledger_id in ledgers:
            assert await nodes.is_whole(ledger_id)


async def test_an_open_ledger_is_left_to_its_writer_and_recovered_after_the_grace_period() -> None:
    async with nodes_over(5) as nodes:
        handle = await nodes.writer.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
        await handle.add(b"entry 0")
        node = await nodes.start("one")
        await nodes.cluster.kill(handle.metadata.last_segment.ensemble[0])
        await eventually(lambda: [one.outcome.kind for one in node.worker.waiting] == [Hindrance.OPEN])
        await eventually(lambda: nodes.is_whole(handle.ledger_id))
        with pytest.raises(LedgerFenced):
            await handle.add(b"entry 1")


async def test_the_writer_of_an_open_ledger_is_told_once() -> None:
    """Its record is written for that; attempts that only wait for it write nothing."""
    async with nodes_over(5) as nodes:
        handle = await nodes.writer.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
        await handle.add(b"entry 0")
        before = (await nodes.writer.record_of(handle.ledger_id)).version
        node = await nodes.start("one", AutoRecoveryConfig(open_grace_ms=600_000, retry_ms_max=200))
        await nodes.cluster.kill(handle.metadata.last_segment.ensemble[2])  # it has no copy of the entry
        await eventually(lambda: [one.outcome.kind for one in node.worker.waiting] == [Hindrance.OPEN])
        node.worker.retry_now()
        await eventually(lambda: [one.failures >= 3 for one in node.worker.waiting] == [True])
        assert (await nodes.writer.record_of(handle.ledger_id)).version == before + 1


async def test_an_open_ledger_that_is_closed_is_repaired_before_the_grace_period_is_over() -> None:
    """As a drain meets them: the writer seals a ledger soon after the first look found it open."""
    async with nodes_over(5) as nodes:
        handle = await nodes.writer.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
        await handle.add(b"entry 0")
        node = await nodes.start("one", AutoRecoveryConfig(open_grace_ms=600_000, retry_ms_max=200))
        await nodes.cluster.kill(handle.metadata.last_segment.ensemble[2])  # it has no copy of the entry
        await eventually(lambda: [one.outcome.kind for one in node.worker.waiting] == [Hindrance.OPEN])
        node.worker.retry_now()
        await eventually(lambda: [one.failures >= 2 for one in node.worker.waiting] == [True])
        assert not (await nodes.writer.read_metadata(handle.ledger_id)).is_closed, "looks do not end the grace period"
        await handle.close()
        await eventually(lambda: nodes.is_whole(handle.ledger_id))
        await eventually(partial(nodes.has_no_marks, node))


async def test_a_writer_that_replaces_the_bookie_is_not_disturbed() -> None:
    async with nodes_over(5) as nodes:
        handle = await nodes.writer.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
        await handle.add(b"entry 0")
        node = await nodes.start("one", AutoRecoveryConfig(open_grace_ms=60_000))
        await nodes.cluster.kill(handle.metadata.last_segment.ensemble[0])
        for number in range(1, 6):
            await handle.add(b"entry %d" % number)
        await handle.close()
        node.worker.retry_now()
        await eventually(lambda: nodes.is_whole(handle.ledger_id))


async def test_what_only_a_dead_bookie_has_is_told_as_lost_and_repaired_when_it_is_back() -> None:
    async with nodes_over(3) as nodes:
        ledger_id = await nodes.written(4, ensemble=1, write=1, ack=1)
        holder = (await nodes.writer.read_metadata(ledger_id)).bookies()
        node = await nodes.start("one")
        await nodes.cluster.kill(*holder)
        await eventually(lambda: bool(node.worker.waiting))
        (waiting,) = node.worker.waiting
        assert waiting.outcome.kind is Hindrance.LOST
        assert waiting.outcome.lost == ((0, 3),)
        assert (await nodes.writer.read_metadata(ledger_id)).bookies() == holder, "the only copy is not forgotten"
        await nodes.cluster.revive(*holder)
        await eventually(lambda: nodes.has_no_marks(node))
        assert await nodes.is_whole(ledger_id)


@pytest.mark.parametrize(
    ("part", "method", "told"),
    [
        (lambda node: node.worker, "_begin_some", "the replication worker broke"),
        (lambda node: node.auditor, "_compare_bookies", "the auditor broke"),
        (lambda node: node.checks[0], "_due_s", "a periodic check broke"),
        (lambda node: node.drains, "_run_round", "the drains broke"),
        (lambda node: node.placement_check, "_run", "the placement check broke"),
    ],
)
async def test_a_node_of_which_a_part_breaks_is_dead(
    part: Callable[[AutoRecoveryNode], Any], method: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends then, or starts it anew; half a node would keep others from auditing."""

    async def broken(self: object, *rest: object) -> None:
        raise RuntimeError("a mistake")

    async with nodes_over(3) as nodes:
        probe = await nodes.start("probe")
        await eventually(lambda: probe.election.is_elected)
        await probe.stop()
        monkeypatch.setattr(type(part(probe)), method, broken)
        await nodes.start("one", AutoRecoveryConfig(open_grace_ms=200, retry_ms_max=1_000))
        await eventually(lambda: bool(nodes.deaths))
        assert str(nodes.deaths[0]) == f"auto-recovery node one: {told}: a mistake"
        assert len(nodes.deaths) == 1


@pytest.mark.parametrize("fate", list(LostAnswer))
async def test_a_lock_that_was_perhaps_not_given_back_is_given_back_later(fate: LostAnswer) -> None:
    """The session lives on, and nobody else could take it."""
    async with nodes_over(4) as nodes:
        node = await nodes.start("a")
        store = nodes.session("a")
        assert await node.marks.lock(7, "a")
        store.lose_next_answer(fate)
        with pytest.raises(OutcomeUnknown):
            await node.marks.unlock(7)
        node.worker.retry_now()
        await eventually(lambda: not node.marks.held)
        assert await node.marks.locked() == frozenset()


async def test_a_worker_that_stops_gives_back_what_it_was_just_asking_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookie whose process it shares goes on, and so does the session."""
    async with nodes_over(4) as nodes:
        node = await nodes.start("a")
        store = nodes.session("a")
        put = store.put

        async def unanswered(path: str, *arguments: Any, **options: Any) -> int:
            version = await put(path, *arguments, **options)
            if "/locks/" in path:
                await asyncio.Event().wait()
            return version

        monkeypatch.setattr(store, "put", unanswered)
        ledger_id = await nodes.written(3)
        await node.marks.mark(ledger_id, "nobody", 0)

        async def is_locked() -> bool:
            return bool(await node.marks.locked())

        await eventually(is_locked)
        await node.worker.stop()
        assert await node.marks.locked() == frozenset()


async def test_a_lock_that_a_node_left_at_its_death_is_given_back_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bookie in whose process both live goes on, and so does the session (seed 138 of the simulation)."""
    started: list[AutoRecoveryNode] = []

    class Recorded(AutoRecoveryNode):
        async def start(self) -> None:
            await super().start()
            started.append(self)

    monkeypatch.setattr("autorecovery.node.AutoRecoveryNode", Recorded)
    monkeypatch.setattr("magnetar.processes.autorecovery._RESTART_S", 0.01)
    async with fake_cluster(4) as cluster:
        assert isinstance(cluster.store, MemoryStore)
        store = cluster.store.session()
        is_away = False
        get = store.get

        async def answered(path: str) -> Node | None:
            if is_away and "/locks/" in path:
                raise StoreUnavailable("the store is away")
            return await get(path)

        monkeypatch.setattr(store, "get", answered)
        embedded = EmbeddedNode("a", store, await cluster.client(CLIENT), cluster.clock, FAST, root="/ledgers")
        embedded.start()
        try:
            await eventually(lambda: len(started) == 1)
            board = started[0].marks
            assert await board.lock(7, "a")
            is_away = True
            started[0]._on_process_failure("a part broke")
            await eventually(lambda: len(started) == 2)
            assert await board.locked() == {7}
            is_away = False
            started[1].worker.retry_now()
            await eventually(lambda: not started[1].marks.held)
            assert await board.locked() == frozenset()
        finally:
            await embedded.stop()


async def test_the_successor_of_an_auditor_goes_on() -> None:
    async with nodes_over(5) as nodes:
        ledger_id = await nodes.written(10)
        first = await nodes.start("one")
        await nodes.start("two")
        await eventually(lambda: first.election.is_elected)
        nodes.session("one").expire()
        assert [str(death) for death in nodes.deaths] == [
            "auto-recovery node one: the session with the metadata store was lost"
        ]
        await first.stop()
        (dead, *_) = (await nodes.writer.read_metadata(ledger_id)).last_segment.ensemble
        await nodes.cluster.kill(dead)
        await eventually(lambda: nodes.is_whole(ledger_id))
