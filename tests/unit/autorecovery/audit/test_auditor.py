"""What the auditor finds, and when it looks."""

from functools import partial
from typing import Any

import pytest

from autorecovery.audit import auditor
from autorecovery.config import AutoRecoveryConfig
from autorecovery.ledgers.index import LedgerIndex
from autorecovery.node import AutoRecoveryNode
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, cookie_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, State
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import ledger_path
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.tasks import Tasks
from tests.support.waiting import eventually, settle
from tests.unit.autorecovery.test_node import Nodes, nodes_over


async def auditing(nodes: Nodes, name: str = "one", **settings: Any) -> AutoRecoveryNode:
    """A node that audits and repairs nothing."""
    node = await nodes.start(name, AutoRecoveryConfig(open_grace_ms=200, **settings))
    await node.worker.stop()
    node.worker._tasks = Tasks("stopped")
    await eventually(lambda: node.auditor.counts.audits > 0)
    return node


async def marked(node: AutoRecoveryNode) -> list[int]:
    return [ledger_id async for ledger_id in node.marks.marked()]


async def test_r_r9_a_bookie_that_was_gone_before_the_auditor_came_is_found() -> None:
    async with nodes_over(4) as nodes:
        ledger_id = await nodes.written(3)
        (dead, *_) = (await nodes.writer.read_metadata(ledger_id)).bookies()
        await nodes.cluster.kill(dead)
        node = await auditing(nodes)
        assert await marked(node) == [ledger_id]
        mark = await node.marks.read(ledger_id)
        assert mark is not None
        assert mark.mark.replicas == (dead,)


async def test_r_r14_a_record_that_cannot_be_read_is_told_and_stops_nothing() -> None:
    async with nodes_over(4) as nodes:
        first, second, third = [await nodes.written(3, ensemble=4) for _ in range(3)]
        await nodes.cluster.store.put(ledger_path("/ledgers", second), b"")
        await nodes.cluster.kill("bookie-0")
        node = await auditing(nodes)
        assert await marked(node) == [first, third]
        assert list(node.auditor.counts.unreadable) == [second]


async def test_a_bookie_alone_may_be_away_for_the_delay_and_two_may_not() -> None:
    async with nodes_over(5) as nodes:
        ledger_id = await nodes.written(3, ensemble=5)
        node = await auditing(nodes, lost_bookie_delay_s=3_600)
        await nodes.cluster.kill("bookie-0")
        await eventually(lambda: node.auditor.away == {"bookie-0"})
        assert await marked(node) == []
        await nodes.cluster.kill("bookie-1")
        await eventually(lambda: node.auditor.counts.audits == 2)
        mark = await node.marks.read(ledger_id)
        assert mark is not None
        assert set(mark.mark.replicas) == {"bookie-0", "bookie-1"}


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_new_auditor_gives_a_bookie_that_is_away_the_delay(comes_back: bool) -> None:
    async with nodes_over(4) as nodes:
        ledger_id = await nodes.written(3, ensemble=4)
        for bookie in nodes.cluster.bookies:
            await nodes.cluster.store.put(cookie_path("/ledgers", bookie), b"")
        await nodes.cluster.kill("bookie-0")
        node = await nodes.start("one", AutoRecoveryConfig(ledger_check_s=0, lost_bookie_delay_s=3_600))
        await node.worker.stop()
        node.worker._tasks = Tasks("stopped")
        await eventually(lambda: node.auditor.away == {"bookie-0"})
        await settle()
        assert node.auditor.counts.audits == 0, "it may be the one in which the former auditor ran"
        if comes_back:
            await nodes.cluster.revive("bookie-0")
            await eventually(lambda: node.auditor.counts.audits == 1)
            assert await marked(node) == []
        else:
            await nodes.cluster.kill("bookie-1")
            await eventually(lambda: node.auditor.counts.audits == 1)
            assert await marked(node) == [ledger_id]


@pytest.mark.parametrize("is_asked", [False, True])
async def test_a_bookie_that_goes_while_an_audit_reads_the_records_has_its_delay(is_asked: bool) -> None:
    async with nodes_over(4) as nodes:
        ledger_id = await nodes.written(3, ensemble=4)
        node = await auditing(nodes, lost_bookie_delay_s=3_600)
        read = node.catalogue.read

        async def slow() -> LedgerIndex:
            index = await read()
            await nodes.cluster.kill("bookie-0")
            await eventually(lambda: "bookie-0" not in node.auditor._bookies.available)
            return index

        node.catalogue.read = slow  # type: ignore[method-assign]
        await node.auditor.audit(at_once=is_asked)
        assert await marked(node) == ([ledger_id] if is_asked else [])
        node.catalogue.read = read  # type: ignore[method-assign]
        if not is_asked:
            node.auditor._lost.delay_s = 0.05
            node.auditor._wake()

            async def is_marked() -> bool:
                return await marked(node) == [ledger_id]

            await eventually(is_marked)


@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_drained_bookie_that_was_stopped_is_not_a_second_one_that_is_away(is_removed: bool) -> None:
    async with nodes_over(5) as nodes:
        store = nodes.cluster.store
        states = BookieStates(store)
        for bookie in nodes.cluster.bookies:
            await store.put(cookie_path("/ledgers", bookie), b"")
        await nodes.cluster.set_read_only("bookie-0", True)
        await nodes.written(3, ensemble=4)
        await states.move("bookie-0", State.DRAINING, Actor.OPERATOR, "me", "", 1)
        await states.move("bookie-0", State.DRAINED, Actor.AUDITOR, "me", "", 2)
        node = await auditing(nodes, lost_bookie_delay_s=3_600)
        await eventually(lambda: node.state_watch.drained == {"bookie-0"})
        node.auditor._wake()
        await settle()
        await nodes.cluster.kill("bookie-0")
        await eventually(lambda: "bookie-0" not in node.auditor._bookies.available)
        if is_removed:
            await states.remove("bookie-0", await states.read("bookie-0"), "me", 3)
            await eventually(lambda: not node.state_watch.drained)
        await nodes.cluster.kill("bookie-1")
        await eventually(lambda: node.auditor.away == {"bookie-1"})
        await settle()
        assert node.auditor.counts.audits == 1, "bookie-1 alone may be restarting"
        assert await marked(node) == []
        if not is_removed:
            await states.move("bookie-0", State.ACTIVE, Actor.OPERATOR, "me", "", 4)
            await eventually(lambda: not node.state_watch.drained)
            node.auditor._wake()
            await eventually(lambda: node.auditor.counts.audits == 2)


async def test_the_same_delay_again_asks_for_an_audit() -> None:
    async with nodes_over(4) as nodes:
        ledger_id = await nodes.written(3, ensemble=4)
        node = await auditing(nodes, lost_bookie_delay_s=3_600)
        await nodes.cluster.kill("bookie-0")
        await eventually(lambda: node.auditor.away == {"bookie-0"})
        await node.marks.set_lost_bookie_delay(3_600)
        await eventually(lambda: node.auditor.counts.audits == 2)
        assert await marked(node) == [ledger_id]


async def test_while_auto_recovery_is_off_nothing_is_marked_and_afterwards_it_is() -> None:
    async with nodes_over(4) as nodes:
        ledger_id = await nodes.written(3, ensemble=4)
        node = await auditing(nodes)
        await node.marks.set_enabled(False)
        await nodes.cluster.kill("bookie-0")
        await settle()
        assert await marked(node) == []
        await node.marks.set_enabled(True)

        async def is_marked() -> bool:
            return await marked(node) == [ledger_id]

        await eventually(is_marked)


async def test_a_read_only_bookie_is_not_lost() -> None:
    async with nodes_over(4) as nodes:
        await nodes.written(3, ensemble=4)
        node = await auditing(nodes)
        await nodes.cluster._registrations["bookie-0"].set_read_only(True)
        await eventually(lambda: "bookie-0" in nodes.writer.bookies.read_only)
        await node.auditor.audit()
        assert await marked(node) == []


async def test_r_r8_an_audit_that_the_store_interrupts_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """I71"""
    monkeypatch.setattr(auditor, "_RETRY_S", 0.05)
    async with nodes_over(4) as nodes:
        ledger_id = await nodes.written(3, ensemble=4)
        node = await auditing(nodes)
        store: MemoryStore = nodes.session("one")
        store.suspend()
        await nodes.cluster.kill("bookie-0")
        node.auditor.audit_now()
        await eventually(lambda: node.auditor.counts.last_problem is not None)
        store.resume()
        await eventually(lambda: node.auditor.counts.last_problem is None)

        async def is_marked() -> bool:
            return await marked(node) == [ledger_id]

        await eventually(is_marked)


async def test_without_candidates_before_it_one_is_elected_and_the_next_one_waits() -> None:
    async with nodes_over(3) as nodes:
        first = await auditing(nodes, "one")
        second = await nodes.start("two")
        await settle()
        assert not second.election.is_elected
        node = await nodes.cluster.store.get("/ledgers/underreplication/auditorelection")
        assert node is not None
        assert node.value == b'bookieId: "one"\n'
        await first.stop()
        await eventually(lambda: second.election.is_elected)
        await eventually(partial(_votes_for, nodes, "two"))


async def _votes_for(nodes: Nodes, name: str) -> bool:
    node = await nodes.cluster.store.get("/ledgers/underreplication/auditorelection")
    return node is not None and node.value == b'bookieId: "%s"\n' % name.encode()
