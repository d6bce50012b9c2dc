"""Copying a fragment: runs, read-back, what is lost, and bookies that lie."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from autorecovery.ledgers.checks import Fragment
from autorecovery.manual import ManualRecovery
from autorecovery.node import AutoRecoveryNode
from autorecovery.repair import attempts as remembered
from autorecovery.repair.attempts import PROBED_MAX, Attempt, Attempts
from autorecovery.repair.outcome import Hindered, Hindrance, Repaired
from magnetar_core.bookkeeper.client.reading.replicas import RUN_BYTES, RUN_ENTRIES
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import Versioned
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.wire.codec_v2 import ADD_ENTRY, BATCH_READ_ENTRY, FLAG_RECOVERY_ADD, READ_ENTRY, V2Error
from tests.support.fake_bookies import FakeBookie
from tests.support.waiting import eventually, settle
from tests.unit.autorecovery.test_node import Nodes, nodes_over


async def repair_without(nodes: Nodes, node: AutoRecoveryNode, ledger_id: int, dead: str) -> Repaired | Hindered:
    """One attempt at a ledger after *dead* is gone; nobody marks it, so only this attempt touches it."""
    await node.marks.set_enabled(False)
    await nodes.cluster.kill(dead)
    await eventually(lambda: dead not in node.repair._bookkeeper.bookies.available)
    return await node.repair.repair(ledger_id, may_recover=False)


async def members(nodes: Nodes, ledger_id: int) -> tuple[str, ...]:
    return (await nodes.writer.read_metadata(ledger_id)).last_segment.ensemble


def spare(nodes: Nodes, ensemble: tuple[str, ...]) -> FakeBookie:
    """The one bookie that is not in the ensemble."""
    (found,) = (bookie for bookie_id, bookie in nodes.cluster.bookies.items() if bookie_id not in ensemble)
    return found


async def test_a_fragment_is_copied_in_runs_of_so_many_entries() -> None:
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(RUN_ENTRIES + 5, ensemble=2)
        ensemble = await members(nodes, ledger_id)
        target = spare(nodes, ensemble)
        outcome = await repair_without(nodes, node, ledger_id, ensemble[0])
        assert outcome == Repaired(RUN_ENTRIES + 5, outcome.copied_bytes)
        source = nodes.cluster.bookies[ensemble[1]]
        firsts = [entry for opcode, _, ledger, entry in source.requests if opcode == BATCH_READ_ENTRY]
        assert firsts == [0, RUN_ENTRIES]
        adds = [flags for opcode, flags, ledger, _ in target.requests if opcode == ADD_ENTRY]
        assert adds == [FLAG_RECOVERY_ADD] * (RUN_ENTRIES + 5)
        assert target.ledgers[ledger_id] == source.ledgers[ledger_id], "byte for byte"
        assert await nodes.is_whole(ledger_id)


async def test_each_new_bookie_gets_what_its_position_holds_and_nothing_else() -> None:
    async with nodes_over(6) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(40, ensemble=4, write=2)
        ensemble = await members(nodes, ledger_id)
        await node.marks.set_enabled(False)
        await nodes.cluster.kill(ensemble[0])
        outcome = await repair_without(nodes, node, ledger_id, ensemble[2])
        assert outcome == Repaired(40, outcome.copied_bytes)
        for index, bookie in enumerate(await members(nodes, ledger_id)):
            held = [one for one in range(40) if index in (one % 4, (one + 1) % 4)]
            assert sorted(nodes.cluster.bookies[bookie].ledgers[ledger_id]) == held


async def test_a_run_has_so_many_bytes() -> None:
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        handle = await nodes.writer.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        for _ in range(4):
            await handle.add(bytes(RUN_BYTES // 2))
        await handle.close()
        ensemble = await members(nodes, handle.ledger_id)
        outcome = await repair_without(nodes, node, handle.ledger_id, ensemble[0])
        assert isinstance(outcome, Repaired)
        source = nodes.cluster.bookies[ensemble[1]]
        assert [entry for opcode, _, _, entry in source.requests if opcode == BATCH_READ_ENTRY] == [0, 1, 2]


async def test_of_a_record_that_only_this_repair_has_changed_only_the_new_copy_is_looked_at_again() -> None:
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(5, ensemble=2)
        ensemble = await members(nodes, ledger_id)
        source, target = nodes.cluster.bookies[ensemble[1]], spare(nodes, ensemble)
        assert isinstance(await repair_without(nodes, node, ledger_id, ensemble[0]), Repaired)

        def looked_at(bookie: FakeBookie) -> list[int]:
            return [entry for opcode, _, _, entry in bookie.requests if opcode == READ_ENTRY and entry >= 0]

        assert (sorted(looked_at(source)), sorted(looked_at(target))) == ([0, 4], [0, 4])


async def test_a_copy_that_vanishes_as_its_record_is_written_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collection of the target keeps to no lock, and read the records before."""
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(5, ensemble=2)
        ensemble = await members(nodes, ledger_id)
        target = spare(nodes, ensemble)
        ledgers = node.repair._bookkeeper.ledgers
        write = ledgers.write

        async def collected(written: int, metadata: LedgerMetadata, version: int) -> Versioned:
            monkeypatch.undo()
            found = await write(written, metadata, version)
            target.ledgers.pop(written)
            return found

        monkeypatch.setattr(ledgers, "write", collected)
        assert isinstance(await repair_without(nodes, node, ledger_id, ensemble[0]), Repaired)
        assert sorted(target.ledgers[ledger_id]) == list(range(5))
        assert await nodes.is_whole(ledger_id)


async def test_a_record_that_others_change_while_a_ledger_is_copied_is_judged_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(5, ensemble=2)
        ensemble = await members(nodes, ledger_id)
        source = nodes.cluster.bookies[ensemble[1]]
        ledgers = node.repair._bookkeeper.ledgers
        write = ledgers.write

        async def overtaken(written: int, metadata: LedgerMetadata, version: int) -> Versioned:
            monkeypatch.undo()
            now = await ledgers.read(written)
            await write(written, replace(now.metadata, custom_metadata=(("by", b"others"),)), now.version)
            return await write(written, metadata, version)

        monkeypatch.setattr(ledgers, "write", overtaken)
        assert isinstance(await repair_without(nodes, node, ledger_id, ensemble[0]), Repaired)
        found = await nodes.writer.read_metadata(ledger_id)
        assert found.custom_metadata == (("by", b"others"),)
        assert ensemble[0] not in found.bookies()
        looks = [entry for opcode, _, _, entry in source.requests if opcode == READ_ENTRY and entry >= 0]
        assert sorted(looks) == [0, 0, 4, 4], "the whole ledger was looked at again"


async def test_nothing_is_read_ahead_while_as_much_waits_as_may_be_under_way() -> None:
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(5, ensemble=2)
        ensemble = await members(nodes, ledger_id)
        source = nodes.cluster.bookies[ensemble[1]]

        def reads() -> int:
            return sum(opcode == BATCH_READ_ENTRY for opcode, _, _, _ in source.requests)

        pace = node.repair._pace
        async with pace.turn(pace.window_bytes):
            repair = asyncio.ensure_future(repair_without(nodes, node, ledger_id, ensemble[0]))
            await eventually(lambda: any(opcode == READ_ENTRY for opcode, _, _, _ in source.requests))
            await settle()
            assert reads() == 0
        assert isinstance(await repair, Repaired)
        assert reads() > 0


async def test_a_target_that_confirms_and_stores_nothing_is_not_published() -> None:
    """I67: what counts is what is read back."""
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(5, ensemble=2)
        ensemble = await members(nodes, ledger_id)
        liar = spare(nodes, ensemble)
        liar.refuse = lambda opcode, ledger_id, entry_id: V2Error.ENOENTRY if opcode != ADD_ENTRY else None
        outcome = await repair_without(nodes, node, ledger_id, ensemble[0])
        assert isinstance(outcome, Hindered)
        assert outcome.kind is Hindrance.COPY_FAILED
        assert "cannot be read back" in outcome.text
        assert await members(nodes, ledger_id) == ensemble


async def test_a_target_that_spoils_what_it_stores_is_not_published() -> None:
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(5, ensemble=2)
        ensemble = await members(nodes, ledger_id)
        target = spare(nodes, ensemble)

        def spoil(opcode: int, ledger_id: int, entry_id: int) -> int | None:
            entries = target.ledgers.get(ledger_id, {})
            if opcode in (READ_ENTRY, BATCH_READ_ENTRY) and 3 in entries:
                entries[3] = entries[3][:-1] + b"?"
            return None

        target.refuse = spoil
        outcome = await repair_without(nodes, node, ledger_id, ensemble[0])
        assert isinstance(outcome, Hindered)
        assert outcome.kind is Hindrance.COPY_FAILED
        assert await members(nodes, ledger_id) == ensemble


async def test_an_entry_that_is_damaged_on_the_last_copy_is_lost_and_the_rest_is_not_published() -> None:
    """R-R18: the ranges are named, and the dead bookie, which may have it, stays in the record."""
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(6, ensemble=2)
        ensemble = await members(nodes, ledger_id)
        entries = nodes.cluster.bookies[ensemble[1]].ledgers[ledger_id]
        entries[2] = entries[2][:-1] + b"?"
        del entries[3]
        outcome = await repair_without(nodes, node, ledger_id, ensemble[0])
        assert isinstance(outcome, Hindered)
        assert (outcome.kind, outcome.lost) == (Hindrance.LOST, ((2, 3),))
        assert await members(nodes, ledger_id) == ensemble


async def test_a_source_that_is_silent_is_not_taken_for_a_loss() -> None:
    async with nodes_over(4) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(6, ensemble=3, write=3)
        ensemble = await members(nodes, ledger_id)
        for bookie_id in ensemble[1:]:
            nodes.cluster.bookies[bookie_id].refuse = lambda *_: V2Error.EIO
        outcome = await repair_without(nodes, node, ledger_id, ensemble[0])
        assert isinstance(outcome, Hindered)
        assert outcome.kind is Hindrance.COPY_FAILED
        assert "cannot be read" in outcome.text


async def test_entries_that_a_living_bookie_lost_are_put_back_where_they_belong() -> None:
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(6, ensemble=3, write=3)
        ensemble = await members(nodes, ledger_id)
        del nodes.cluster.bookies[ensemble[0]].ledgers[ledger_id]
        await node.marks.mark(ledger_id, ensemble[0], 0)
        await eventually(partial(nodes.has_no_marks, node))
        assert await members(nodes, ledger_id) == ensemble
        assert await nodes.is_whole(ledger_id)


async def test_without_a_free_bookie_the_reason_is_told_and_a_new_one_helps() -> None:
    async with nodes_over(2) as nodes:
        node = await nodes.start("one")
        ledger_id = await nodes.written(3, ensemble=2)
        (dead, _) = await members(nodes, ledger_id)
        await nodes.cluster.kill(dead)
        await eventually(lambda: bool(node.worker.waiting))
        (waiting,) = node.worker.waiting
        assert waiting.outcome.kind is Hindrance.NO_TARGET
        assert dead in waiting.outcome.text
        await nodes.cluster.add_bookie("new")
        await eventually(partial(nodes.is_whole, ledger_id))


async def test_a_recovery_by_hand_keeps_to_its_rate() -> None:
    async with nodes_over(3) as nodes:
        handle = await nodes.writer.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        for _ in range(8):
            await handle.add(bytes(RUN_BYTES // 4))
        await handle.close()
        (bookie, _) = await members(nodes, handle.ledger_id)
        clock = nodes.cluster.clock
        recovery = ManualRecovery(
            "hand", nodes.cluster.store, nodes.writer, clock, root="/ledgers", bytes_per_s=16 * RUN_BYTES
        )
        began_s = clock.monotonic()
        assert (await recovery.recover([bookie])).repaired == 1
        assert clock.monotonic() - began_s >= 0.1, "2 MiB at 16 MiB a second"


async def test_a_recovery_by_hand_waits_for_a_worker_of_its_process_and_leaves_it_its_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autorecovery.manual._LOCK_TRIES", 2)
    monkeypatch.setattr("autorecovery.manual._LOCK_WAIT_S", 0.01)
    async with nodes_over(3) as nodes:
        ledger_id = await nodes.written(4, ensemble=2)
        (bookie, _) = await members(nodes, ledger_id)
        store = nodes.cluster.store
        worker = MarkBoard(store)
        assert await worker.lock(ledger_id, "worker")
        recovery = ManualRecovery("hand", store, nodes.writer, nodes.cluster.clock, root="/ledgers")
        done = await recovery.recover([bookie])
        assert "worker repairs it" in done.failed[ledger_id]
        assert await worker.locked() == {ledger_id}
        await worker.unlock(ledger_id)
        assert (await recovery.recover([bookie])).repaired == 1
        assert await worker.locked() == frozenset()


# ------------------------------------------------------------------------------------ trying again and again


def adds(nodes: Nodes) -> int:
    """Copies that were written to any bookie."""
    requests = (one for bookie in nodes.cluster.bookies.values() for one in bookie.requests)
    return sum(opcode == ADD_ENTRY and bool(flags & FLAG_RECOVERY_ADD) for opcode, flags, _, _ in requests)


async def unrepaired(nodes: Nodes, node: AutoRecoveryNode, entries: int) -> tuple[int, tuple[str, ...], FakeBookie]:
    """A ledger, its ensemble, and the one bookie of it that is left; nobody but the test repairs it."""
    for bookie in nodes.cluster.bookies.values():
        bookie.knows_batches = False  # each entry is a run
    ledger_id = await nodes.written(entries, ensemble=2)
    ensemble = await members(nodes, ledger_id)
    await node.marks.set_enabled(False)
    await nodes.cluster.kill(ensemble[0])
    await eventually(lambda: ensemble[0] not in node.repair._bookkeeper.bookies.available)
    return ledger_id, ensemble, nodes.cluster.bookies[ensemble[1]]


async def attempts(node: AutoRecoveryNode, ledger_id: int, count: int) -> set[Hindrance]:
    kinds = set()
    for _ in range(count):
        outcome = await node.repair.repair(ledger_id, may_recover=False)
        assert isinstance(outcome, Hindered)
        kinds.add(outcome.kind)
    return kinds


@pytest.mark.parametrize("is_lost", [False, True])
async def test_an_entry_that_cannot_be_copied_does_not_fill_disks(is_lost: bool) -> None:
    """I72: what can be copied is written once, however often it is tried, and used when the entry is back."""
    async with nodes_over(8) as nodes:
        node = await nodes.start("one")
        ledger_id, ensemble, source = await unrepaired(nodes, node, 21)
        if is_lost:
            entry = source.ledgers[ledger_id].pop(20)
            source.ledgers[ledger_id][20] = entry[:-1] + b"?"
        else:
            source.refuse = lambda opcode, ledger, entry_id: V2Error.EIO if entry_id == 20 else None
        kind = Hindrance.LOST if is_lost else Hindrance.COPY_FAILED
        assert await attempts(node, ledger_id, 1) == {kind}
        asked = len(source.requests)
        assert await attempts(node, ledger_id, 9) == {kind}
        assert adds(nodes) == 20
        assert len(source.requests) - asked <= 9 * 5, "its ends, and the entry that stopped it"
        assert await members(nodes, ledger_id) == ensemble
        if is_lost:
            source.ledgers[ledger_id][20] = entry
        source.refuse = lambda *_: None
        outcome = await node.repair.repair(ledger_id, may_recover=False)
        assert (type(outcome), outcome.copied_entries) == (Repaired, 1)
        assert adds(nodes) == 21
        assert await nodes.is_whole(ledger_id)


async def test_another_node_chooses_the_same_target() -> None:
    """Each node, and each restart, would leave copies on another bookie otherwise."""
    async with nodes_over(9) as nodes:
        node = await nodes.start("one")
        ledger_id, ensemble, source = await unrepaired(nodes, node, 5)
        source.refuse = lambda opcode, ledger, entry_id: V2Error.EIO if entry_id == 4 else None
        await attempts(node, ledger_id, 1)
        for name in ("two", "three", "four"):
            await attempts(await nodes.start(name), ledger_id, 1)
        holders = [one.bookie_id for one in nodes.cluster.bookies.values() if ledger_id in one.ledgers]
        assert len(set(holders) - set(ensemble)) == 1


async def test_what_a_target_does_not_have_any_more_is_written_again() -> None:
    """I67: its garbage collection takes what no record gives it."""
    async with nodes_over(6) as nodes:
        node = await nodes.start("one")
        ledger_id, ensemble, source = await unrepaired(nodes, node, 6)
        source.refuse = lambda opcode, ledger, entry_id: V2Error.EIO if entry_id == 5 else None
        await attempts(node, ledger_id, 2)
        (target,) = (one for one in nodes.cluster.bookies.values()
                     if ledger_id in one.ledgers and one.bookie_id not in ensemble)  # fmt: skip
        target.ledgers[ledger_id].pop(2)
        target.ledgers[ledger_id][3] = b"spoilt"
        source.refuse = lambda *_: None
        outcome = await node.repair.repair(ledger_id, may_recover=False)
        assert (type(outcome), outcome.copied_entries) == (Repaired, 3)
        assert target.bookie_id in await members(nodes, ledger_id)
        assert await nodes.is_whole(ledger_id)


async def test_a_target_that_takes_nothing_is_tried_last_and_others_get_each_entry_once() -> None:
    async with nodes_over(6) as nodes:
        node = await nodes.start("one")
        ledger_id, ensemble, _ = await unrepaired(nodes, node, 10)
        spares = [one for one in nodes.cluster.bookies.values() if one.bookie_id not in ensemble]
        for bookie in spares:
            bookie.refuse = lambda opcode, ledger, entry_id: (
                V2Error.EIO if opcode == ADD_ENTRY and entry_id >= 5 else None
            )
        assert await attempts(node, ledger_id, 20) == {Hindrance.COPY_FAILED}
        written = sum(len(one.ledgers.get(ledger_id, ())) for one in spares)
        assert written == len(spares) * 5, "each of them was tried"
        refused = 20 * 4  # runs that are under way when the first of them is refused
        assert adds(nodes) <= written + refused
        spares[0].refuse = lambda *_: None
        for _ in range(len(spares)):
            if isinstance(await node.repair.repair(ledger_id, may_recover=False), Repaired):
                break
        assert await nodes.is_whole(ledger_id)


def test_fragments_that_are_remembered_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "ATTEMPTS_MAX", 2)
    found = Attempts()
    fragment = Fragment(0, 9, ("a", "b"), 2, True)
    for ledger_id in (1, 2, 1, 3):
        found.attempt_at(ledger_id, fragment).failed.add("x")
    assert [bool(found.attempt_at(ledger_id, fragment).failed) for ledger_id in (1, 3)] == [True, True]
    assert not found.attempt_at(2, fragment).failed
    found.forget(2, fragment)
    assert not found.attempt_at(2, fragment).failed


def test_so_many_lost_entries_are_looked_for_first() -> None:
    assert Attempt(lost=[(3, 4), (9, 9)]).probed() == [3, 4, 9]
    assert Attempt(lost=[(5, 6), (10, 10**12)]).probed() == [5, 6, *range(10, 10 + PROBED_MAX - 2)]
