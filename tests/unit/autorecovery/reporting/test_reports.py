"""What nodes tell of themselves and of ledgers that they could not repair."""

from autorecovery.node import AutoRecoveryNode
from autorecovery.repair.outcome import Hindered, Hindrance
from autorecovery.repair.worker import Waiting
from autorecovery.reporting.overview import MARKS_TOLD, read_overview
from autorecovery.reporting.reports import PROBLEMS_MAX, Problem, Reporter, read_nodes, read_problems
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from tests.support.waiting import eventually
from tests.unit.autorecovery.test_node import Nodes, nodes_over

LOST = Hindered(Hindrance.LOST, "nobody has all of it", lost=((0, 3),))


async def problems_of(nodes: Nodes) -> list[Problem]:
    return [one async for one in read_problems(nodes.cluster.store, "/ledgers")]


async def told(nodes: Nodes, node: AutoRecoveryNode) -> None:
    await node._reporter._report()


async def test_a_problem_is_told_until_it_is_solved() -> None:
    async with nodes_over(3) as nodes:
        ledger_id = await nodes.written(4, ensemble=1, write=1, ack=1)
        (holder,) = (await nodes.writer.read_metadata(ledger_id)).bookies()
        node = await nodes.start("one")
        await nodes.cluster.kill(holder)
        await eventually(lambda: bool(node.worker.waiting))
        await told(nodes, node)
        (problem,) = await problems_of(nodes)
        assert (problem.ledger_id, problem.kind, problem.lost) == (ledger_id, "lost", ((0, 3),))
        assert problem.worker == "one"
        assert "entries 0 to 3" in problem.text
        overview = await read_overview(nodes.cluster.store, "/ledgers")
        assert overview.auditor == "one"
        (marked,) = overview.marked
        assert marked.problem == problem
        await nodes.cluster.revive(holder)
        await eventually(lambda: not node.worker.waiting and not node.mark_watch.marked)
        await told(nodes, node)
        assert await problems_of(nodes) == []


async def test_the_auditor_sweeps_away_what_a_dead_worker_told() -> None:
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        await eventually(lambda: node.election.is_elected)
        path = "/ledgers/underreplication/magnetar/problems/urL0000000077"
        await nodes.cluster.store.put(path, b'{"kind": "lost", "text": "x"}')
        await told(nodes, node)
        assert await problems_of(nodes) == []


async def test_a_node_tells_of_itself_while_it_is_there() -> None:
    async with nodes_over(3) as nodes:
        node = await nodes.start("one")
        await eventually(lambda: node.election.is_elected)
        await told(nodes, node)
        (report,) = await read_nodes(nodes.cluster.store, "/ledgers")
        assert report.name == "one"
        assert report.facts["is_auditor"] is True
        await node.stop()
        assert await read_nodes(nodes.cluster.store, "/ledgers") == []


async def test_a_node_tells_of_itself_after_the_session_of_a_former_one_has_ended() -> None:
    """A process was killed and started again, and has nothing to do: what it tells stays the same."""
    store = MemoryStore(LoopClock())
    former, session = store.session(), store.session()
    for one in (former, session):
        reporter = Reporter(one, "/ledgers", "one", LoopClock(), lambda: {"version": 1}, list, lambda: None)
        await reporter._report()
    assert [one.name for one in await read_nodes(store, "/ledgers")] == ["one"]
    former.expire()
    await reporter._report()
    assert [one.name for one in await read_nodes(store, "/ledgers")] == ["one"]
    puts: list[str] = []
    session.before_change = puts.append
    await reporter._report()
    assert puts == [], "it says nothing new"


async def test_what_a_newer_or_a_broken_node_tells_is_shown_as_far_as_it_goes() -> None:
    async with nodes_over(3) as nodes:
        root = "/ledgers/underreplication/magnetar"
        await nodes.cluster.store.put(f"{root}/problems/urL0000000005", b"\xff")
        await nodes.cluster.store.put(f"{root}/problems/notes", b"{}")
        await nodes.cluster.store.put(f"{root}/nodes/new", b'{"version": 2, "wheels": 4}')
        (problem,) = await problems_of(nodes)
        assert (problem.ledger_id, problem.text) == (5, "the report cannot be read")
        (report,) = await read_nodes(nodes.cluster.store, "/ledgers")
        assert report.facts["wheels"] == 4


async def test_so_many_problems_are_told_of() -> None:
    store = MemoryStore(LoopClock())
    waiting = [Waiting(number, LOST, 1, 0, None) for number in range(PROBLEMS_MAX + 1)]
    reporter = Reporter(store, "/ledgers", "one", LoopClock(), dict, lambda: waiting, lambda: None)
    await reporter._report()
    assert len([one async for one in read_problems(store, "/ledgers")]) == PROBLEMS_MAX


async def test_an_overview_reads_so_many_marks() -> None:
    store = MemoryStore(LoopClock())
    marks = MarkBoard(store)
    for ledger_id in range(MARKS_TOLD + 1):
        await marks.mark(ledger_id, "a", 0)
    overview = await read_overview(store, "/ledgers")
    assert overview.marked_total == MARKS_TOLD + 1
    assert len(overview.marked) == MARKS_TOLD
