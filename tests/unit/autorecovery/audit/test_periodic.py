"""The slow checks: what they find, that they go on where another one stopped, and that silence is no loss."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from autorecovery.audit.periodic import ENDS, ENTRIES, LedgerCheck
from autorecovery.config import AutoRecoveryConfig
from autorecovery.ledgers.checks import Depth
from autorecovery.node import AutoRecoveryNode
from magnetar_core.bookkeeper.metadata.marks.underreplication import PeriodicCheck
from magnetar_core.bookkeeper.wire.codec_v2 import READ_ENTRY, V2Error
from magnetar_core.bookkeeper.wire.codec_v3 import GET_LIST_OF_ENTRIES
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually, settle, take_turns
from tests.unit.autorecovery.test_node import CLIENT, Nodes, nodes_over

NONE = AutoRecoveryConfig(ledger_check_s=0, entry_check_s=0)


async def idle_node(nodes: Nodes, **settings: Any) -> AutoRecoveryNode:
    """An auditor whose checks run only when they are asked to, and whose worker does nothing."""
    node = await nodes.start("one", replace(NONE, **settings))
    await node.worker.stop()
    node.worker.stop = _nothing  # type: ignore[method-assign]
    await eventually(lambda: node.auditor.counts.audits > 0)
    return node


def _never(bookie: str) -> bool:
    return False


async def _nothing() -> None:
    """The worker is stopped already."""


async def marked(node: AutoRecoveryNode) -> list[int]:
    return [ledger_id async for ledger_id in node.marks.marked()]


async def ended(node: AutoRecoveryNode, check: LedgerCheck) -> None:
    await eventually(lambda: check.status.last_ended_ms is not None and not check.status.is_running)


async def test_a_bookie_that_is_gone_and_has_time_left_is_left_to_the_audit() -> None:
    async with nodes_over(4) as nodes:
        node = await idle_node(nodes, lost_bookie_delay_s=3_600)
        ledger_id = await nodes.written(3, ensemble=4)
        await nodes.cluster.kill("bookie-0")
        await eventually(lambda: node.auditor.away == {"bookie-0"})
        ends, *_ = node.checks
        ends.run_now()
        await ended(node, ends)
        assert await marked(node) == []
        await nodes.cluster.kill("bookie-1")
        await eventually(lambda: node.auditor.counts.audits == 2)
        for mark in await marked(node):
            found = await node.marks.read(mark)
            assert found is not None
            await node.marks.take_down(mark, found.version)
        ends.status.last_ended_ms = None
        ends.run_now()
        await ended(node, ends)
        assert await marked(node) == [ledger_id]


@pytest.mark.parametrize("write", [2, 3])
async def test_a_missing_end_is_found_by_all_and_a_hole_by_the_checks_of_entries_and_of_lists(write: int) -> None:
    async with nodes_over(3) as nodes:
        node = await idle_node(nodes)
        whole, cut, holed = [await nodes.written(300, ensemble=3, write=write) for _ in range(3)]
        members = (await nodes.writer.read_metadata(cut)).last_segment.ensemble
        del nodes.cluster.bookies[members[299 % 3]].ledgers[cut][299]
        members = (await nodes.writer.read_metadata(holed)).last_segment.ensemble
        del nodes.cluster.bookies[members[200 % 3]].ledgers[holed][200]
        ends, entries, lists = node.checks
        assert (ends.name, entries.name, lists.name) == ("ledgers", "entries", "lists")
        ends.run_now()
        await ended(node, ends)
        assert await marked(node) == [cut]
        assert (ends.status.looked_at, ends.status.marked) == (3, 1)
        assert await node.marks.last_checked_ms(PeriodicCheck.ALL_LEDGERS) is not None
        entries.run_now()
        await ended(node, entries)
        assert await marked(node) == [cut, holed]
        mark = await node.marks.read(holed)
        assert mark is not None
        assert mark.mark.replicas == (members[200 % 3],)
        assert whole not in await marked(node)
        for ledger_id in (cut, holed):
            mark = await node.marks.read(ledger_id)
            assert mark is not None
            await node.marks.take_down(ledger_id, mark.version)
        read = sum(len(one.requests) for one in nodes.cluster.bookies.values())
        lists.run_now()
        await ended(node, lists)
        assert await marked(node) == [cut, holed]
        assert (lists.status.looked_at, lists.status.marked, lists.status.silent) == (3, 2, 0)
        assert await node.marks.last_checked_ms(PeriodicCheck.REPLICAS) is not None
        assert sum(len(one.requests) for one in nodes.cluster.bookies.values()) == read + 9, "no entry is read"


async def test_bookies_that_never_list_anything_are_unknown_and_asked_once_for_all_ledgers() -> None:
    """As Apache's with `DbLedgerStorage`."""
    async with nodes_over(3, replace(CLIENT, timeout_s=0.5)) as nodes:
        node = await idle_node(nodes)
        for _ in range(4):
            await nodes.written(2, ensemble=3, write=3)
        mute = nodes.cluster.bookies["bookie-1"]
        mute.knows_lists = False
        del nodes.cluster.bookies["bookie-2"].ledgers[0][1]
        lists = node.checks[2]
        lists.run_now()
        await ended(node, lists)
        assert await marked(node) == [0]
        assert (lists.status.looked_at, lists.status.marked, lists.status.silent) == (4, 1, 4)
        assert [one for one, *_ in mute.requests].count(GET_LIST_OF_ENTRIES) == 1


@pytest.mark.parametrize("check", [1, 2])
async def test_a_hole_that_a_check_found_is_filled_although_the_ends_of_the_copy_are_there(check: int) -> None:
    async with nodes_over(3) as nodes:
        node = await nodes.start("one", NONE)
        await eventually(lambda: node.auditor.counts.audits > 0)
        holed = await nodes.written(300, ensemble=3, write=3)
        del nodes.cluster.bookies["bookie-1"].ledgers[holed][150]
        node.checks[check].run_now()
        await ended(node, node.checks[check])
        assert node.checks[check].status.marked == 1
        await eventually(partial(nodes.has_no_marks, node))
        assert await nodes.is_whole(holed)


async def test_a_damaged_entry_that_the_check_of_all_entries_found_is_replaced() -> None:
    async with nodes_over(3) as nodes:
        config = AutoRecoveryConfig(ledger_check_s=0, entry_check_s=86_400)
        node = await nodes.start("one", config)
        entries = node.checks[1]
        await ended(node, entries)
        damaged = await nodes.written(300, ensemble=3, write=3)
        stored = nodes.cluster.bookies["bookie-1"].ledgers[damaged]
        stored[150] = bytes(stored[150])[:-1] + b"?"
        entries.run_now()
        await eventually(lambda: entries.status.marked == 1)
        await eventually(partial(nodes.has_no_marks, node))
        assert await nodes.is_whole(damaged)


async def test_silence_marks_nothing_and_is_told_of() -> None:
    async with nodes_over(3) as nodes:
        node = await idle_node(nodes)
        await nodes.written(4, ensemble=3, write=3)
        nodes.cluster.bookies["bookie-1"].refuse = lambda *_: V2Error.EIO
        ends = node.checks[0]
        ends.run_now()
        await ended(node, ends)
        assert await marked(node) == []
        assert ends.status.silent == 1


async def test_what_a_writer_has_just_written_is_not_asked_for() -> None:
    """Entries of the last segment of an open ledger may not be on all of their bookies yet."""
    async with nodes_over(3) as nodes:
        node = await idle_node(nodes)
        nodes.cluster.bookies["bookie-1"].silent = True
        handle = await nodes.writer.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for number in range(3):
            await handle.add(b"entry %d" % number)
        ends = node.checks[0]
        ends.run_now()
        await ended(node, ends)
        assert await marked(node) == []


async def test_the_next_auditor_goes_on_where_the_former_one_was() -> None:
    async with nodes_over(3) as nodes:
        node = await idle_node(nodes)
        ledgers = [await nodes.written(2, ensemble=3, write=3) for _ in range(4)]
        await node.marks.set_progress("ledgers", b'{"next_ledger_id": %d}' % ledgers[2])
        ends = node.checks[0]
        ends.run_now()
        await ended(node, ends)
        assert ends.status.looked_at == 2
        assert await node.marks.progress("ledgers") is None


async def test_a_check_is_due_a_period_after_the_last_one_and_spread_over_half_of_it() -> None:
    async with nodes_over(3) as nodes:
        node = await idle_node(nodes)
        for _ in range(3):
            await nodes.written(2, ensemble=3, write=3)
        clock = ManualClock()
        ledgers = nodes.writer.ledgers
        check = LedgerCheck(ENDS, 600.0, node.catalogue, ledgers, node.marks, node.repair, clock, has_time_left=_never)
        await node.marks.set_last_checked(PeriodicCheck.ALL_LEDGERS, clock.wall_ms() - 500_000)
        check.start(lambda error: None)
        reads = nodes.cluster.bookies["bookie-0"].requests

        async def looked_at(count: int) -> None:
            await eventually(lambda: check.status.looked_at >= count)

        async def pass_s(seconds: int) -> None:
            for _ in range(seconds):
                clock.advance(1)
                await take_turns(20)
            await settle()

        await settle()
        await pass_s(98)
        assert check.status.looked_at == 0
        await pass_s(32)
        await looked_at(1)
        assert check.status.looked_at == 1
        await pass_s(110)
        assert check.status.looked_at == 2, "the three are 100 s apart"
        await pass_s(110)
        await looked_at(3)
        assert [opcode for opcode, *_ in reads if opcode == READ_ENTRY]
        await check.stop()


@pytest.mark.parametrize(("write", "entries"), [(2, 640), (3, 60)])
async def test_the_entries_of_one_ledger_are_spread_over_its_share_of_the_time(write: int, entries: int) -> None:
    async with nodes_over(3) as nodes:
        node = await idle_node(nodes)
        for bookie in nodes.cluster.bookies.values():
            bookie.knows_batches = False  # each entry is a run
        handle = await nodes.writer.create_ledger(ensemble_size=3, write_quorum=write, ack_quorum=2)
        for _ in range(entries):
            await handle.add(bytes(1_000))
        await handle.close()
        clock = ManualClock()
        check = LedgerCheck(
            ENTRIES, 200.0, node.catalogue, nodes.writer.ledgers, node.marks, node.repair, clock, has_time_left=_never
        )
        before = sum(len(one.requests) for one in nodes.cluster.bookies.values())

        def share() -> float:
            read = sum(len(one.requests) for one in nodes.cluster.bookies.values()) - before
            return read / (entries * write)

        check.start(lambda error: None)
        await eventually(lambda: share() > 0)
        await settle()
        assert share() < 0.35
        for _ in range(50):
            clock.advance(1)
            await settle(20)
        assert 0.35 < share() < 0.85
        check.run_now()
        await eventually(lambda: check.status.last_ended_ms is not None)
        assert share() >= 1, "an operator does not wait"
        await check.stop()


async def test_a_check_whose_progress_is_damaged_begins_anew() -> None:
    async with nodes_over(3) as nodes:
        node = await idle_node(nodes)
        await nodes.written(2, ensemble=3, write=3)
        await node.marks.set_progress("entries", b"nonsense")
        entries = node.checks[1]
        assert ENTRIES.depth is Depth.ALL
        entries.run_now()
        await ended(node, entries)
        assert entries.status.looked_at == 1
        await eventually(partial(_is_empty, node))


async def _is_empty(node: AutoRecoveryNode) -> bool:
    return await node.marks.progress("entries") is None
