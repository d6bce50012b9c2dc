"""Drains over small bookies: everything is moved, nothing is lost, and how it ended is told."""

import asyncio
from collections.abc import Collection
from functools import partial

import pytest

from autorecovery.config import AutoRecoveryConfig
from autorecovery.lifecycle import draining
from autorecovery.lifecycle.drain import Drain
from autorecovery.lifecycle.retirement import BookieLifecycle, StillNeeded
from autorecovery.lifecycle.unproved import UnprovedLedgers
from autorecovery.node import AutoRecoveryNode
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, cookie_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Lifecycle, State
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, ledger_path
from magnetar_core.bookkeeper.metadata.marks.underreplication import drains_path
from magnetar_core.bookkeeper.metadata.stores.store import StoreUnavailable
from magnetar_core.runtime.types import MagnetarError
from tests.support import lifecycle
from tests.support.waiting import eventually
from tests.unit.autorecovery.test_node import FAST, Nodes, nodes_over

pytestmark = pytest.mark.usefixtures("hurried")


async def drain(nodes: Nodes, bookie: str, *, turns: bool = True) -> None:
    """An operator begins it; the bookie follows, if it is there and *turns*."""
    store = nodes.cluster.store
    for one in nodes.cluster.bookies:
        await store.put(cookie_path("/ledgers", one), b"")
    await lifecycle.drain(store, bookie)
    if turns and bookie in nodes.cluster._registrations:
        await nodes.cluster.set_read_only(bookie, True)


async def state_of(nodes: Nodes, bookie: str) -> Lifecycle:
    return (await BookieStates(nodes.cluster.store).read(bookie)).lifecycle


async def becomes(nodes: Nodes, bookie: str, state: State) -> Lifecycle:
    async def is_so() -> bool:
        return (await state_of(nodes, bookie)).state is state

    await eventually(is_so)
    return await state_of(nodes, bookie)


async def names(nodes: Nodes, bookie: str) -> list[int]:
    found = []
    async for ledger_id in nodes.writer.ledgers.list():
        if bookie in (await nodes.writer.read_metadata(ledger_id)).bookies():
            found.append(ledger_id)
    return found


async def test_everything_is_moved_and_the_bookie_was_a_source_to_the_end() -> None:
    async with nodes_over(5) as nodes:
        ledgers = [await nodes.written(count, ensemble=4) for count in (0, 1, 5, 300)]
        while not nodes.cluster.bookies["bookie-0"].ledgers:  # placement is random, and may have left it out
            ledgers.append(await nodes.written(5, ensemble=4))
        node = await nodes.start("one")
        await drain(nodes, "bookie-0")
        found = await becomes(nodes, "bookie-0", State.DRAINED)
        assert (found.by, found.why) == ("one", "no record names it, and its ledgers are whole")
        assert await names(nodes, "bookie-0") == []
        for ledger_id in ledgers:
            assert await nodes.is_whole(ledger_id)
        assert nodes.cluster.bookies["bookie-0"].ledgers, "nothing was taken from it"
        await eventually(partial(nodes.has_no_marks, node))


async def test_a_small_drain_does_not_wait_for_the_usual_pause_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_LOOK_S", 3_600.0)
    async with nodes_over(5) as nodes:
        ledgers = [await nodes.written(5, ensemble=4) for _ in range(4)]
        await nodes.start("one")
        await drain(nodes, "bookie-0")
        await becomes(nodes, "bookie-0", State.DRAINED)
        for ledger_id in ledgers:
            assert await nodes.is_whole(ledger_id)


async def test_a_bookie_that_becomes_writable_while_the_register_is_read_is_not_taken_for_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with nodes_over(5) as nodes:
        await nodes.start("one")
        await drain(nodes, "bookie-0")
        await becomes(nodes, "bookie-0", State.DRAINED)
        found = BookieLifecycle(nodes.cluster.store, "/ledgers", nodes.cluster.clock)
        read_read_only = found._directory.read_read_only

        async def slow() -> frozenset[str]:
            await nodes.cluster.set_read_only("bookie-0", False)
            return await read_read_only()

        monkeypatch.setattr(found._directory, "read_read_only", slow)
        with pytest.raises(StillNeeded, match="registered as writable: it runs still"):
            await found._until_stopped("bookie-0", 0.0, lambda text: None)


async def test_r_r19_while_writers_go_on_open_ledgers_move_with_their_writers_or_are_closed() -> None:
    async with nodes_over(5) as nodes:
        busy = await nodes.writer.create_ledger(ensemble_size=4, write_quorum=2, ack_quorum=2)
        idle = await nodes.writer.create_ledger(ensemble_size=4, write_quorum=2, ack_quorum=2)
        await idle.add(b"entry 0")
        for number in range(8):
            await busy.add(b"entry %d" % number)
        bookie = next(iter(set(busy.metadata.bookies()) & set(idle.metadata.bookies())))
        await nodes.start("one", AutoRecoveryConfig(open_grace_ms=300, retry_ms_max=200))
        await drain(nodes, bookie)
        for number in range(8, 60):
            await busy.add(b"entry %d" % number)
        late = await nodes.writer.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
        await late.add(b"entry 0")
        await becomes(nodes, bookie, State.DRAINED)
        await busy.close()
        await late.close()
        for ledger_id in (busy.ledger_id, idle.ledger_id, late.ledger_id):
            assert await nodes.is_whole(ledger_id)
        assert await names(nodes, bookie) == []


@pytest.mark.parametrize("entries", [0, 1])
async def test_idle_writers_that_follow_their_records_leave_a_bookie_when_they_are_told(entries: int) -> None:
    """Long before the grace period is over: no ledger is closed under its writer."""
    async with nodes_over(5) as nodes:
        idle = [await nodes.writer.create_ledger(ensemble_size=4, write_quorum=2, ack_quorum=2) for _ in range(6)]
        for handle in idle:
            for number in range(entries):
                await handle.add(b"entry %d" % number)
            handle.follow_record()
        await nodes.start("one", AutoRecoveryConfig(open_grace_ms=600_000, retry_ms_max=200))
        await drain(nodes, "bookie-0")
        await becomes(nodes, "bookie-0", State.DRAINED)
        assert await names(nodes, "bookie-0") == []
        for handle in idle:
            assert await handle.add(b"entry %d" % entries) == entries
            await handle.close()
            assert await nodes.is_whole(handle.ledger_id)


async def test_r_r18_a_bookie_whose_data_was_deleted_by_hand_ends_with_a_list_of_what_is_lost() -> None:
    async with nodes_over(5) as nodes:
        single = await nodes.written(4, ensemble=1, write=1, ack=1)
        (bookie,) = (await nodes.writer.read_metadata(single)).bookies()
        others = [await nodes.written(6, ensemble=4) for _ in range(3)]
        nodes.cluster.bookies[bookie].ledgers.clear()
        await nodes.start("one")
        await drain(nodes, bookie)
        found = await becomes(nodes, bookie, State.DRAINING_FAILED)
        assert [ledger_id for ledger_id, _ in found.reasons] == [single]
        assert "entries 0 to 3" in found.reasons[0][1]
        for ledger_id in others:
            assert await nodes.is_whole(ledger_id)
        assert await names(nodes, bookie) == [single], "the record of a lost ledger is not changed"


async def test_r_r20_a_bookie_made_active_while_its_last_ledgers_are_published_leaves_no_hollow_fragment() -> None:
    async with nodes_over(5) as nodes:
        ledgers = [await nodes.written(20, ensemble=4) for _ in range(12)]
        node = await nodes.start("one")
        for _ in range(4):
            await drain(nodes, "bookie-0")
            await eventually(lambda: bool(node.drains.facts().get("bookie-0", {}).get("ledgers")))
            await lifecycle.cancel(nodes.cluster.store, "bookie-0")
            await nodes.cluster.set_read_only("bookie-0", False)
            assert (await state_of(nodes, "bookie-0")).state is State.ACTIVE
            await eventually(partial(nodes.has_no_marks, node))
            for ledger_id in ledgers:
                assert await nodes.is_whole(ledger_id)
            ledgers += [await nodes.written(20, ensemble=5)]
        await drain(nodes, "bookie-0")
        assert (await becomes(nodes, "bookie-0", State.DRAINING_FAILED)).reasons_total == 4


async def test_several_bookies_that_share_quorums_are_drained_at_once() -> None:
    async with nodes_over(6) as nodes:
        ledgers = [await nodes.written(10, ensemble=4, write=3) for _ in range(8)]
        await nodes.start("one")
        await nodes.start("two")
        await drain(nodes, "bookie-0")
        await drain(nodes, "bookie-1")
        for bookie in ("bookie-0", "bookie-1"):
            await becomes(nodes, bookie, State.DRAINED)
            assert await names(nodes, bookie) == []
        for ledger_id in ledgers:
            assert await nodes.is_whole(ledger_id)


async def test_a_drain_while_another_bookie_is_dead() -> None:
    async with nodes_over(6) as nodes:
        ledgers = [await nodes.written(10, ensemble=4) for _ in range(8)]
        await nodes.start("one")
        await nodes.cluster.kill("bookie-1")
        await drain(nodes, "bookie-0")
        await becomes(nodes, "bookie-0", State.DRAINED)
        for ledger_id in ledgers:
            await eventually(partial(nodes.is_whole, ledger_id))


async def test_a_bookie_that_is_dead_already_is_drained_from_the_other_copies() -> None:
    async with nodes_over(5) as nodes:
        ledgers = [await nodes.written(10, ensemble=4) for _ in range(5)]
        await nodes.start("one", AutoRecoveryConfig(open_grace_ms=200, lost_bookie_delay_s=3_600))
        await nodes.cluster.kill("bookie-0")
        await drain(nodes, "bookie-0")
        await becomes(nodes, "bookie-0", State.DRAINED)
        for ledger_id in ledgers:
            assert await nodes.is_whole(ledger_id)


async def test_where_every_bookie_has_a_copy_already_the_drain_fails_and_says_why_and_can_be_run_again() -> None:
    async with nodes_over(3) as nodes:
        ledger_id = await nodes.written(5, ensemble=3, write=3, ack=3)
        await nodes.start("one")
        await drain(nodes, "bookie-0")
        found = await becomes(nodes, "bookie-0", State.DRAINING_FAILED)
        ((told, why),) = found.reasons
        assert (told, "add a bookie" in why) == (ledger_id, True)
        await nodes.cluster.add_bookie("bookie-3")
        await drain(nodes, "bookie-0")
        await becomes(nodes, "bookie-0", State.DRAINED)
        assert await nodes.is_whole(ledger_id)


async def test_a_record_that_cannot_be_read_keeps_the_drain_from_ending_well() -> None:
    async with nodes_over(4) as nodes:
        ledger_id, other = await nodes.written(5), await nodes.written(5)
        await nodes.cluster.store.put(ledger_path("/ledgers", ledger_id), b"")
        await nodes.start("one")
        await drain(nodes, "bookie-0")
        found = await becomes(nodes, "bookie-0", State.DRAINING_FAILED)
        assert [one for one, _ in found.reasons] == [ledger_id]
        assert await nodes.is_whole(other)


async def test_the_next_auditor_goes_on_with_a_drain() -> None:
    async with nodes_over(5) as nodes:
        ledgers = [await nodes.written(50, ensemble=4) for _ in range(10)]
        first = await nodes.start("one")
        await nodes.start("two")
        await eventually(lambda: first.election.is_elected)
        await drain(nodes, "bookie-0")
        await eventually(lambda: bool(first.drains.facts()))
        nodes.session("one").expire()
        await first.stop()
        assert (await becomes(nodes, "bookie-0", State.DRAINED)).by in ("one", "two")
        for ledger_id in ledgers:
            assert await nodes.is_whole(ledger_id)


async def test_a_bookie_that_does_not_follow_is_turned_or_the_drain_says_why_it_cannot_begin() -> None:
    async with nodes_over(5) as nodes:
        ledger_id = await nodes.written(5, ensemble=4)
        tries: list[str] = []

        async def turn(bookie: str, read_only: bool) -> None:
            tries.append(bookie)
            if len(tries) == 1:
                raise MagnetarError("its HTTP does not answer")
            await nodes.cluster.set_read_only(bookie, read_only)

        node = await nodes.start("one")
        node.drains._turn = turn
        await drain(nodes, "bookie-0", turns=False)
        await eventually(lambda: "its HTTP does not answer" in str(node.drains.facts()))
        await becomes(nodes, "bookie-0", State.DRAINED)
        assert tries == ["bookie-0"] * 2
        assert await nodes.is_whole(ledger_id)


@pytest.mark.parametrize("was_read_only", [False, True])
async def test_a_bookie_that_the_drain_turned_is_turned_back_when_it_is_called_off(was_read_only: bool) -> None:
    """One that was read-only before stays so: somebody wanted that."""
    async with nodes_over(4) as nodes:
        turns: list[tuple[str, bool]] = []

        async def turn(bookie: str, read_only: bool) -> None:
            turns.append((bookie, read_only))
            await nodes.cluster.set_read_only(bookie, read_only)

        node = await nodes.start("one")
        node.drains._turn = turn
        await nodes.cluster.set_read_only("bookie-0", was_read_only)
        await drain(nodes, "bookie-0", turns=False)
        await becomes(nodes, "bookie-0", State.DRAINED)
        lives = BookieLifecycle(nodes.cluster.store, "/ledgers", nodes.cluster.clock)
        assert (await lives.cancel("bookie-0", "me", "", turn))[1] == ""
        assert turns == ([] if was_read_only else [("bookie-0", True), ("bookie-0", False)])
        assert nodes.cluster.bookies["bookie-0"].read_only is was_read_only


async def test_a_drain_that_is_called_off_while_the_bookie_is_being_turned_leaves_it_writable() -> None:
    async with nodes_over(4) as nodes:
        store, turns = nodes.cluster.store, list[bool]()
        lives = BookieLifecycle(store, "/ledgers", nodes.cluster.clock)

        async def turn(bookie: str, read_only: bool) -> None:
            if not turns:
                turns.append(read_only)
                await lives.cancel(bookie, "me", "", turn)
            turns.append(read_only)
            await nodes.cluster.set_read_only(bookie, read_only)

        node = await nodes.start("one")
        node.drains._turn = turn
        await drain(nodes, "bookie-0", turns=False)
        await eventually(lambda: len(turns) == 4)
        assert turns == [True, False, True, False]
        await eventually(lambda: not nodes.cluster.bookies["bookie-0"].read_only)


async def test_at_no_moment_a_ledger_has_fewer_copies_than_its_write_quorum() -> None:
    async with nodes_over(5) as nodes:
        ledgers = [await nodes.written(40, ensemble=4) for _ in range(6)]
        await nodes.start("one", FAST)
        await drain(nodes, "bookie-0")
        while (await state_of(nodes, "bookie-0")).state is not State.DRAINED:
            for ledger_id in ledgers:
                assert await nodes.is_whole(ledger_id)
            await asyncio.sleep(0.005)


async def test_a_copy_that_is_not_whole_on_its_new_bookie_is_mended_before_the_drain_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with nodes_over(5) as nodes:
        ledger_id = await nodes.written(10, ensemble=4)
        node = await nodes.start("one")
        told: list[str] = []
        look = node.drains._why_not_whole

        async def spoilt(drained: Drain, number: int, metadata: LedgerMetadata) -> str:
            if not told:
                holder = metadata.ensemble_for(0)[0]
                del nodes.cluster.bookies[holder].ledgers[number][0]
            told.append(await look(drained, number, metadata))
            return told[-1]

        monkeypatch.setattr(node.drains, "_why_not_whole", spoilt)
        bookie = (await nodes.writer.read_metadata(ledger_id)).last_segment.ensemble[1]
        await drain(nodes, bookie)
        await becomes(nodes, bookie, State.DRAINED)
        assert "lacks entries of it" in told[0]
        assert told[-1] == ""
        assert await nodes.is_whole(ledger_id)


async def test_while_auto_recovery_is_off_a_drain_waits_and_says_so() -> None:
    async with nodes_over(5) as nodes:
        await nodes.written(5, ensemble=4)
        node: AutoRecoveryNode = await nodes.start("one")
        await node.marks.set_enabled(False)
        await drain(nodes, "bookie-0")
        await eventually(lambda: "switched off" in str(node.drains.facts()))
        await node.marks.set_enabled(True)
        await becomes(nodes, "bookie-0", State.DRAINED)


@pytest.mark.parametrize("how", ["another auditor", "called off and begun again"])
async def test_what_was_moved_is_proved_by_whoever_goes_on_with_the_drain(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes_over(5) as nodes:
        ledgers = [await nodes.written(10, ensemble=4) for _ in range(6)]
        first = await nodes.start("one", AutoRecoveryConfig(ledger_check_s=0))
        await eventually(lambda: first.election.is_elected)

        async def unsure(drained: Drain, number: int, metadata: LedgerMetadata) -> str:
            return "nobody has looked yet"

        with monkeypatch.context() as patched:
            patched.setattr(first.drains, "_why_not_whole", unsure)
            await drain(nodes, "bookie-0")

            async def is_moved() -> bool:
                facts = first.drains.facts().get("bookie-0", {})
                return facts.get("phase") == "reading the copies" and not await names(nodes, "bookie-0")

            await eventually(is_moved)
            await eventually(partial(nodes.has_no_marks, first))
            if how == "another auditor":
                nodes.session("one").expire()
                await first.stop()
            else:
                await lifecycle.cancel(nodes.cluster.store, "bookie-0")
                await eventually(lambda: not first.drains.facts())
        moved = [one for one in ledgers if one in nodes.cluster.bookies["bookie-0"].ledgers]
        for ledger_id in moved:
            holder = (await nodes.writer.read_metadata(ledger_id)).ensemble_for(0)[0]
            del nodes.cluster.bookies[holder].ledgers[ledger_id][0]
        if how == "another auditor":
            await nodes.start("two", AutoRecoveryConfig(ledger_check_s=0))
        else:
            await lifecycle.drain(nodes.cluster.store, "bookie-0")
        await becomes(nodes, "bookie-0", State.DRAINED)
        assert moved
        for ledger_id in ledgers:
            assert await nodes.is_whole(ledger_id)
        assert await nodes.cluster.store.children(drains_path("/ledgers")) == []


async def test_a_failed_drain_is_not_called_drained_while_a_moved_ledger_is_not_whole() -> None:
    async with nodes_over(3) as nodes:
        store = nodes.cluster.store
        ledger_id = await nodes.written(5, ensemble=3, write=3, ack=3)
        await nodes.start("one")
        await drain(nodes, "bookie-0")
        await becomes(nodes, "bookie-0", State.DRAINING_FAILED)
        lives = BookieLifecycle(store, "/ledgers", nodes.cluster.clock)
        versioned = await nodes.writer.ledgers.read(ledger_id)
        elsewhere = versioned.metadata.with_segment_replaced(0, ("bookie-1", "bookie-2", "bookie-3"))
        await nodes.writer.ledgers.write(ledger_id, elsewhere, versioned.version)
        with pytest.raises(StillNeeded, match="1 ledgers were moved from it, and not all of their copies were found"):
            await lives.finish("bookie-0", "me", "")
        await nodes.writer.delete_ledger(ledger_id)
        assert (await lives.finish("bookie-0", "me", "")).state is State.DRAINED
        assert await store.children(drains_path("/ledgers")) == []


async def test_a_failed_drain_is_finished_when_what_it_could_not_move_is_deleted() -> None:
    async with nodes_over(5) as nodes:
        lonely = await nodes.written(4, ensemble=1, write=1, ack=1)
        (bookie,) = (await nodes.writer.read_metadata(lonely)).bookies()
        others = [await nodes.written(6, ensemble=4) for _ in range(6)]
        nodes.cluster.bookies[bookie].ledgers[lonely].clear()
        await nodes.start("one")
        await drain(nodes, bookie)
        await becomes(nodes, bookie, State.DRAINING_FAILED)
        assert await names(nodes, bookie) == [lonely], others
        await nodes.writer.delete_ledger(lonely)
        lives = BookieLifecycle(nodes.cluster.store, "/ledgers", nodes.cluster.clock)
        assert (await lives.finish(bookie, "me", "")).state is State.DRAINED
        assert await nodes.cluster.store.children(drains_path("/ledgers")) == []


async def test_a_store_that_fails_before_ledgers_are_marked_holds_a_drain_up_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with nodes_over(5) as nodes:
        ledgers = [await nodes.written(5, ensemble=4) for _ in range(4)]
        failures: list[str] = []
        add = UnprovedLedgers.add

        async def fail_once(kept: UnprovedLedgers, ids: Collection[int]) -> None:
            if not failures:
                failures.append("the store does not answer")
                raise StoreUnavailable(failures[0])
            await add(kept, ids)

        monkeypatch.setattr(UnprovedLedgers, "add", fail_once)
        await nodes.start("one")
        await drain(nodes, "bookie-0")
        await becomes(nodes, "bookie-0", State.DRAINED)
        assert failures
        for ledger_id in ledgers:
            assert await nodes.is_whole(ledger_id)
