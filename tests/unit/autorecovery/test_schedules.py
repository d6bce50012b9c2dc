"""Schedules that went wrong elsewhere, for auto-recovery: each test has the number of its row in docs/invariants.md."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from autorecovery.audit import auditor as auditor_module
from autorecovery.config import AutoRecoveryConfig
from autorecovery.repair import one_ledger as repair_module
from autorecovery.repair import worker as worker_module
from autorecovery.repair.one_ledger import LedgerRepair
from autorecovery.repair.outcome import Hindrance
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import (
    SHORT_ID_LIMIT,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.wire.codec_v2 import ADD_ENTRY
from magnetar_core.bookkeeper.wire.entry import DigestType
from tests.support import lifecycle
from tests.support.waiting import eventually, settle, take_turns
from tests.unit.autorecovery.audit.test_auditor import auditing, marked
from tests.unit.autorecovery.lifecycle.test_draining import becomes, drain
from tests.unit.autorecovery.repair.test_copying import members, spare
from tests.unit.autorecovery.test_node import Nodes, nodes_over


async def empty_ledger(nodes: Nodes, ledger_id: int) -> None:
    """A closed ledger without entries, with an id of the caller's choice, on bookies 0 to 2."""
    metadata = LedgerMetadata(
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        segments=(Segment(0, ("bookie-0", "bookie-1", "bookie-2")),),
        state=LedgerState.CLOSED,
    )
    await nodes.writer.ledgers.create_with_id(ledger_id, metadata)


async def is_replaced(nodes: Nodes, ledger_id: int, dead: str) -> bool:
    """The record names another bookie, which has everything."""
    return dead not in await members(nodes, ledger_id) and await nodes.is_whole(ledger_id)


async def test_r_r2_ledgers_on_both_sides_of_every_boundary_of_ids_are_audited() -> None:
    async with nodes_over(4) as nodes:
        ids = [0, 9_999, 10_000, 99_999_999, 100_000_000, SHORT_ID_LIMIT - 1, SHORT_ID_LIMIT, 2**40, 2**62]
        for ledger_id in ids:
            await empty_ledger(nodes, ledger_id)
        await nodes.cluster.kill("bookie-0")
        node = await auditing(nodes)
        assert sorted(await marked(node)) == ids


async def test_r_r3_a_copy_that_vanished_before_it_is_published_is_not_published() -> None:
    """The target's garbage collection removes the ledger, which no record gives to it yet."""
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(5, ensemble=2)
        ensemble = await members(nodes, ledger_id)
        target = spare(nodes, ensemble)

        def collect(opcode: int, asked: int, entry_id: int) -> int | None:
            if opcode != ADD_ENTRY and asked == ledger_id:
                target.ledgers.pop(ledger_id, None)
            return None

        target.refuse = collect
        await node.marks.set_enabled(False)
        await nodes.cluster.kill(ensemble[0])
        await eventually(lambda: ensemble[0] not in node.repair._bookkeeper.bookies.available)
        await node.repair.repair(ledger_id, may_recover=False)
        assert await members(nodes, ledger_id) == ensemble
        target.refuse = lambda *_: None
        await node.marks.set_enabled(True)
        node.auditor.audit_now()
        await eventually(partial(nodes.is_whole, ledger_id))


async def test_r_r3_a_ledger_is_locked_while_it_is_copied() -> None:
    """Whoever removes ledgers that belong to others takes the same lock first."""
    async with nodes_over(3) as nodes:
        await nodes.start("one")
        ledger_id = await nodes.written(5, ensemble=2)
        ensemble = await members(nodes, ledger_id)
        target = spare(nodes, ensemble)
        locked: list[bool] = []

        def look(opcode: int, asked: int, entry_id: int) -> int | None:
            tree: Any = nodes.cluster.store
            locked.append(tree._tree.record(f"/ledgers/underreplication/locks/urL{ledger_id:010d}") is not None)
            return None

        target.refuse = look
        await nodes.cluster.kill(ensemble[0])
        await eventually(partial(is_replaced, nodes, ledger_id, ensemble[0]))
        assert locked
        assert all(locked)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("is_drained", [False, True])
async def test_r_r5_a_ledger_whose_lac_is_behind_its_last_but_one_segment_is_closed_and_copied(
    is_drained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody writes it any more, so that LAC stays at 13, and entry 14 is the end of the first segment."""

    async def behind(repair: LedgerRepair, ledger_id: int) -> int:
        return 13

    monkeypatch.setattr(LedgerRepair, "_last_add_confirmed", behind)
    async with nodes_over(6) as nodes:
        ledger_id = await nodes.written(15, ensemble=3, write=3, close=False)
        versioned = await nodes.writer.ledgers.read(ledger_id)
        (first,) = versioned.metadata.segments
        spares = sorted(set(nodes.cluster.bookies) - set(first.ensemble))
        second = Segment(15, (spares[0], *first.ensemble[1:]))
        changed = replace(versioned.metadata, segments=(first, second))
        await nodes.writer.ledgers.write(ledger_id, changed, versioned.version)
        leaving = first.ensemble[0]
        node = await nodes.start("one", AutoRecoveryConfig(open_grace_ms=300, retry_ms_max=200))
        if is_drained:
            await drain(nodes, leaving)
        else:
            await nodes.cluster.kill(leaving)
        await eventually(lambda: [one.outcome.kind for one in node.worker.waiting] == [Hindrance.OPEN])
        assert not (await nodes.writer.read_metadata(ledger_id)).is_closed, "its writer has the grace period"
        if is_drained:
            await becomes(nodes, leaving, State.DRAINED)
        await eventually(partial(nodes.is_whole, ledger_id))
        metadata = await nodes.writer.read_metadata(ledger_id)
        assert (metadata.last_entry_id, leaving in metadata.bookies()) == (14, False)
        await eventually(partial(nodes.has_no_marks, node))


async def test_r_r6_an_empty_ledger_of_a_dead_bookie_gets_another_one() -> None:
    async with nodes_over(4) as nodes:
        await empty_ledger(nodes, 7)
        node = await nodes.start("one")
        await nodes.cluster.kill("bookie-0")
        await eventually(partial(is_replaced, nodes, 7, "bookie-0"))
        await eventually(partial(nodes.has_no_marks, node))
        assert node.worker.counts.copied_entries == 0


async def test_r_r8_a_worker_that_the_store_interrupts_goes_on_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_LOOK_S", 0.05)
    async with nodes_over(4) as nodes:
        ledgers = [await nodes.written(3, ensemble=3) for _ in range(5)]
        node = await nodes.start("one")
        store: MemoryStore = nodes.session("one")
        await eventually(lambda: not node.worker.waiting)
        store.suspend()
        await nodes.cluster.kill("bookie-0")
        for ledger_id in ledgers:
            await MarkBoard(nodes.cluster.store).mark(ledger_id, "bookie-0", 0)
        node.worker.retry_now()
        await settle()
        assert node.worker.counts.repaired == 0
        store.resume()
        for ledger_id in ledgers:
            await eventually(partial(nodes.is_whole, ledger_id))
        await eventually(partial(nodes.has_no_marks, node))


async def test_r_r7_an_audit_and_a_repair_with_one_permit_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor_module, "_AT_ONCE", 1)
    monkeypatch.setattr(repair_module, "_READS_MAX", 1)
    async with nodes_over(5) as nodes:
        ledgers = [await nodes.written(7) for _ in range(6)]
        node = await nodes.start("one", AutoRecoveryConfig(open_grace_ms=200, ledgers_max=1))
        await nodes.cluster.kill("bookie-0")
        for ledger_id in ledgers:
            await eventually(partial(nodes.is_whole, ledger_id))
        await eventually(partial(nodes.has_no_marks, node))


async def test_r_r10_a_lock_is_given_back_after_an_error_that_nobody_thought_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger waits with that reason, and the others are repaired."""
    async with nodes_over(4) as nodes:
        broken_id, other_id = await nodes.written(3, ensemble=4), await nodes.written(3)
        node = await nodes.start("one")
        repair = LedgerRepair.repair

        async def broken(self: LedgerRepair, ledger_id: int, **options: Any) -> Any:
            if ledger_id == broken_id:
                raise RuntimeError("a defect")
            return await repair(self, ledger_id, **options)

        monkeypatch.setattr(LedgerRepair, "repair", broken)
        (dead, *_) = await members(nodes, other_id)
        await nodes.cluster.kill(dead)
        await eventually(partial(is_replaced, nodes, other_id, dead))
        await eventually(lambda: [one.outcome.kind for one in node.worker.waiting] == [Hindrance.DEFECT])

        async def is_free() -> bool:
            return not await node.marks.locked()

        await eventually(is_free)
        assert nodes.deaths == []


async def test_r_r10_a_node_that_is_stopped_in_the_middle_gives_its_locks_back() -> None:
    async with nodes_over(4) as nodes:
        ledger_id = await nodes.written(3)
        (dead, other, _) = await members(nodes, ledger_id)
        node = await nodes.start("one")
        for bookie in nodes.cluster.bookies.values():
            bookie.silent = True
        await nodes.cluster.kill(dead)
        await eventually(lambda: node.worker.under_way == {ledger_id})
        await node.stop()
        assert await node.marks.locked() == frozenset()
        assert other in await members(nodes, ledger_id)


async def test_r_r11_a_ledger_whose_only_copy_is_gone_is_lost_until_it_is_deleted_and_then_cleared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with nodes_over(3) as nodes:
        ledger_id = await nodes.written(4, ensemble=1, write=1, ack=1)
        node = await nodes.start("one")
        await nodes.cluster.kill(*(await nodes.writer.read_metadata(ledger_id)).bookies())
        await eventually(lambda: [one.outcome.kind for one in node.worker.waiting] == [Hindrance.LOST])
        assert [one.due_s for one in node.worker.waiting] == [None], "it is not tried by time"
        monkeypatch.setattr(worker_module, "_DELETED_LOOK_S", 0.05)
        monkeypatch.setattr(worker_module, "_LOOK_S", 0.05)
        node.worker._deleted_look_s = 0.0
        node.worker._wake()
        await settle()
        assert node.worker.counts.failures[Hindrance.LOST] == 1
        await nodes.writer.delete_ledger(ledger_id)
        await eventually(partial(nodes.has_no_marks, node))
        await eventually(lambda: not node.worker.waiting)
        assert (node.worker.counts.deleted, node.worker.counts.repaired) == (1, 0)


async def test_r_r15_a_segment_behind_the_end_of_a_closed_ledger_is_neither_marked_nor_copied() -> None:
    async with nodes_over(6) as nodes:
        ledger_id = await nodes.written(5, ensemble=2)
        kept = await nodes.writer.ledgers.read(ledger_id)
        (first,) = kept.metadata.segments
        behind = tuple(sorted(nodes.cluster.bookies.keys() - set(first.ensemble)))[:2]
        changed = replace(kept.metadata, segments=(first, Segment(5, behind)))
        await nodes.writer.ledgers.write(ledger_id, changed, kept.version)
        node = await nodes.start("one")
        await nodes.cluster.kill(behind[0])
        await eventually(lambda: behind[0] in node.auditor.away)
        audits = node.auditor.counts.audits
        node.auditor.audit_now()
        await eventually(lambda: node.auditor.counts.audits > audits)
        assert await marked(node) == []
        (check, *_) = node.checks
        check.run_now()
        await eventually(lambda: check.status.last_ended_ms is not None)
        assert check.status.marked == 0
        assert (await nodes.writer.read_metadata(ledger_id)).segments == changed.segments
        await node.marks.mark(ledger_id, behind[0], 0)  # as another brand's auditor may
        node.mark_watch.look_again()
        await eventually(lambda: node.worker.counts.repaired == 1)
        assert node.worker.counts.copied_entries == 0
        assert await nodes.is_whole(ledger_id)


async def test_r_r16_a_rolling_restart_during_an_audit_leaves_no_marks_and_no_fewer_copies() -> None:
    async with nodes_over(5) as nodes:
        ledgers = [await nodes.written(20, ensemble=3, write=3) for _ in range(8)]
        node = await nodes.start("one")
        for number in range(5):
            await nodes.cluster.kill(f"bookie-{number}")
            await settle()
            await nodes.cluster.revive(f"bookie-{number}")
            await settle()
        node.auditor.audit_now()
        await eventually(partial(nodes.has_no_marks, node))
        for ledger_id in ledgers:
            await eventually(partial(nodes.is_whole, ledger_id))


async def test_r_r17_a_bookie_that_returns_after_it_was_replaced_is_not_asked_and_keeps_what_it_has() -> None:
    """Its stale copies go by its own garbage collection, which sees that the record names others."""
    async with nodes_over(4) as nodes:
        ledger_id = await nodes.written(10, ensemble=3, write=3)
        node = await nodes.start("one")
        (first, *_) = await members(nodes, ledger_id)
        await nodes.cluster.kill(first)
        await eventually(partial(is_replaced, nodes, ledger_id, first))
        await eventually(partial(nodes.has_no_marks, node))
        replaced = await members(nodes, ledger_id)
        await nodes.cluster.revive(first)
        returned = nodes.cluster.bookies[first]
        asked = len(returned.requests)
        node.auditor.audit_now()
        await eventually(lambda: node.auditor.counts.audits >= 2)
        handle = await nodes.writer.open_ledger(ledger_id, recovery=False)
        assert len(await handle.read(0, 9)) == 10
        assert len(returned.requests) == asked
        assert sorted(returned.ledgers[ledger_id]) == list(range(10))
        assert await members(nodes, ledger_id) == replaced


async def test_two_workers_and_two_repairs_of_one_ledger_at_once_do_no_harm() -> None:
    """I70: the lock saves work, nothing else. Here both repair without it."""
    async with nodes_over(6) as nodes:
        first, second = await nodes.start("one"), await nodes.start("two")
        await first.marks.set_enabled(False)
        ledgers = [await nodes.written(50, ensemble=3, write=3) for _ in range(6)]
        await nodes.cluster.kill("bookie-0")
        await eventually(lambda: "bookie-0" not in second.repair._bookkeeper.bookies.available)
        await eventually(lambda: "bookie-0" not in first.repair._bookkeeper.bookies.available)
        await asyncio.gather(
            *(node.repair.repair(ledger_id, may_recover=True) for ledger_id in ledgers for node in (first, second))
        )
        for ledger_id in ledgers:
            assert await nodes.is_whole(ledger_id)


@pytest.mark.usefixtures("hurried")
async def test_r_r20_a_drained_bookie_that_is_made_active_takes_entries_again_and_no_ledger_is_hollow() -> None:
    async with nodes_over(4) as nodes:
        ledgers = [await nodes.written(10, ensemble=3) for _ in range(6)]
        node = await nodes.start("one")
        for _ in range(2):
            await drain(nodes, "bookie-0")
            await becomes(nodes, "bookie-0", State.DRAINED)
            for ledger_id in ledgers:
                assert "bookie-0" not in (await nodes.writer.read_metadata(ledger_id)).bookies()
            await lifecycle.cancel(nodes.cluster.store, "bookie-0")
            await nodes.cluster.set_read_only("bookie-0", False)
            await eventually(lambda: "bookie-0" in nodes.writer.bookies.writable)
            spread = await nodes.written(10, ensemble=4)
            assert "bookie-0" in (await nodes.writer.read_metadata(spread)).bookies()
            for ledger_id in (*ledgers, spread):
                assert await nodes.is_whole(ledger_id)
            await nodes.writer.delete_ledger(spread)  # there is no fifth bookie for it in the next drain
        await eventually(partial(nodes.has_no_marks, node))


async def test_a_worker_does_not_go_round_in_a_loop_while_nothing_may_begin() -> None:
    """Ledgers are due, and auto-recovery is off, or as many as may be are under way."""
    async with nodes_over(3) as nodes:
        ledger_id = await nodes.written(4, ensemble=3, write=3)
        node = await nodes.start("one")
        worker = node.worker
        await nodes.cluster.kill("bookie-0")
        await eventually(lambda: [one.outcome.kind for one in worker.waiting] == [Hindrance.NO_TARGET])
        rounds, wait_s = 0, worker._wait_s

        def counted(began_s: float) -> float:
            nonlocal rounds
            rounds += 1
            return wait_s(began_s)

        worker._wait_s = counted  # type: ignore[method-assign]
        worker._under_way.add(-1)
        worker._ledgers_max = 1
        worker.retry_now()
        await take_turns(200)
        assert rounds <= 2
        await nodes.cluster.add_bookie("bookie-3")
        worker._under_way.discard(-1)
        worker._wake()
        await eventually(lambda: not worker.waiting)
        assert await nodes.is_whole(ledger_id)
