"""Copying a fragment: runs, read-back, what is lost, and bookies that lie."""

from functools import partial

from autorecovery.node import AutoRecoveryNode
from autorecovery.outcome import Hindered, Hindrance, Repaired
from magnetar_core.bookkeeper.client.replicas import RUN_BYTES, RUN_ENTRIES
from magnetar_core.bookkeeper.wire.codec_v2 import ADD_ENTRY, BATCH_READ_ENTRY, FLAG_RECOVERY_ADD, READ_ENTRY, V2Error
from tests.support.fake_bookies import FakeBookie
from tests.support.waiting import eventually
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
