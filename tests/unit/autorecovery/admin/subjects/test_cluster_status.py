"""What is gathered for the dashboard."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from autorecovery.admin.calls import PREFIX, Caller, CheckedCall
from autorecovery.admin.subjects.cluster_status import PAGE_LEDGERS_TOLD, ClusterStatus
from autorecovery.admin.subjects.overview import OverviewCalls
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, State
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import DiskUsage
from tests.support.waiting import eventually
from tests.unit.autorecovery.test_node import Nodes, nodes_over


class Disks:
    """Answers for the bookies, and counts how often they were asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.silent = False

    async def __call__(self, host: str, port: int) -> DiskUsage:
        self.asked += 1
        if self.silent:
            await asyncio.sleep(3_600)
        return DiskUsage(1_000, 400)


@asynccontextmanager
async def status_over(nodes: Nodes, disks: Disks, clock: LoopClock) -> AsyncIterator[ClusterStatus]:
    status = ClusterStatus(nodes.cluster.store, nodes.writer.bookies, clock, ask=disks)
    try:
        yield status
    finally:
        await status.stop()


async def test_bookies_show_how_they_serve_their_state_and_their_disks() -> None:
    async with nodes_over(3) as nodes, status_over(nodes, Disks(), LoopClock()) as status:
        one, two, three = sorted(nodes.cluster.bookies)
        store = nodes.cluster.store
        for bookie in (one, two, three):
            await store.put(f"/ledgers/cookies/{bookie}", b"")
        states = BookieStates(store)
        await states.move(two, State.DRAINING, Actor.OPERATOR, "anna", "old disk", 5)
        await nodes.cluster.kill(three)
        await eventually(lambda: three not in nodes.writer.bookies.available)
        found = {bookie["id"]: bookie for bookie in (await status.read())["bookies"]}
        assert [found[each]["serving"] for each in (one, two, three)] == ["writable", "writable", "away"]
        assert (found[two]["state"], found[two]["by"], found[two]["why"]) == ("draining", "anna", "old disk")
        assert found[one]["state"] == "active"

        async def is_known() -> bool:
            status._made_s = float("-inf")
            now = {bookie["id"]: bookie for bookie in (await status.read())["bookies"]}
            return now[one]["disk"] == {"total_bytes": 1_000, "free_bytes": 400} and now[three]["disk"] is None

        await eventually(is_known)


async def test_a_state_that_cannot_be_read_is_told_as_such_and_never_as_active() -> None:
    async with nodes_over(1) as nodes, status_over(nodes, Disks(), LoopClock()) as status:
        (one,) = nodes.cluster.bookies
        await nodes.cluster.store.put(f"/ledgers/cookies/{one}", b"")
        await nodes.cluster.store.put(f"/ledgers/cookies/{one}/state", b"\xff")
        (found,) = (await status.read())["bookies"]
        assert found["state"] is None
        assert "state" in found["state_problem"]


async def test_ledgers_that_lack_copies_are_named_with_their_owner_and_the_others_counted() -> None:
    async with nodes_over(3) as nodes, status_over(nodes, Disks(), LoopClock()) as status:
        marks = MarkBoard(nodes.cluster.store, "/ledgers")
        await marks.prepare()
        handle = await nodes.writer.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1,
            custom_metadata=(("pulsar/managed-ledger", b"public/default/persistent/t"),),
        )  # fmt: skip
        await marks.mark(handle.ledger_id, "b1", 7)
        for number in range(PAGE_LEDGERS_TOLD):
            await marks.mark(1_000 + number, "b1", 7)
        told = (await status.read())["under_replicated"]
        assert told["total"] == PAGE_LEDGERS_TOLD + 1
        assert len(told["ledgers"]) == PAGE_LEDGERS_TOLD
        assert told["ledgers"][0]["owner"] == "persistent://public/default/t"
        assert told["ledgers"][0]["missing_on"] == ["b1"]
        assert told["ledgers"][1]["owner"] == ""
        await handle.close()


async def test_what_a_node_copied_stands_in_the_history() -> None:
    async with nodes_over(4) as nodes, status_over(nodes, Disks(), LoopClock()) as status:
        ledger_id = await nodes.written(4)
        node = await nodes.start("one")
        holder = min((await nodes.writer.read_metadata(ledger_id)).bookies())
        await nodes.cluster.kill(holder)
        await eventually(lambda: node.worker.counts.repaired == 1)
        await node._reporter._report()
        told = await status.read()
        (step,) = [step for step in told["history"] if step[1]]
        assert step[1] * 30 == node.worker.counts.copied_entries
        assert told["auditor"]["name"] == "one"
        assert told["auditor"]["tells"]["audits"] >= 1
        assert told["nodes"][0]["repaired"] == 1


async def test_many_viewers_cost_what_one_costs_and_a_silent_bookie_delays_nobody() -> None:
    disks = Disks()
    disks.silent = True
    async with nodes_over(2) as nodes, status_over(nodes, disks, LoopClock()) as status:
        (call,) = OverviewCalls(status).calls()
        assert PREFIX + call.path == "/manage/v1/overview"
        asked = CheckedCall(Caller("somebody", may_write=False), {}, {}, {})
        answers = await asyncio.gather(*(call.handler(asked) for _ in range(10)))
        assert all(answer is answers[0] for answer in answers)
        assert [bookie["disk"] for bookie in answers[0]["bookies"]] == [None, None]
        await eventually(lambda: disks.asked == 2)
