"""What nodes of auto-recovery say about themselves and about ledgers that they could not repair, for people and tools.

    <root>/underreplication/magnetar/nodes/<name>              ephemeral: role, counts, what is under way
    <root>/underreplication/magnetar/problems/urL0000000007    why ledger 7 is not repaired; goes when it is

Both are JSON. They are reports: the one decision that rests on them is that a drain has failed, since only the workers
know why a ledger cannot be copied. Apache's leave them alone, and what a newer version adds is ignored by an older one.
"""

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Set
from typing import Any, Final, NamedTuple

from autorecovery.repair.outcome import describe
from autorecovery.repair.worker import Waiting
from magnetar_core.bookkeeper.metadata.marks import underreplication as board
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore, NoNode
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.tasks import Tasks

log = logging.getLogger(__name__)

# How old a report may be. A person looks at a page for seconds; a node writes one value in this time.
_REPORT_S: Final = 2.0

# Ranges of lost entries that a report names: a value must stay small, and nobody reads more.
_RANGES_TOLD: Final = 100

# Problems of one worker that stand there at a time; the others are only counted.
PROBLEMS_MAX: Final = 1_000


class Problem(NamedTuple):
    """Why a ledger is not repaired."""

    ledger_id: int
    kind: str
    """A value of `outcome.Hindrance`, or of a newer version's."""
    text: str
    since_ms: int
    attempts: int
    worker: str
    lost: tuple[tuple[int, int], ...] = ()
    """Ranges of entries that no living bookie has, first and last included."""


class NodeReport(NamedTuple):
    """What one node says about itself."""

    name: str
    facts: Mapping[str, Any]


def problem_of(waiting: Waiting, worker: str) -> Problem:
    """What a worker reports about a ledger that waits."""
    outcome = waiting.outcome
    return Problem(
        waiting.ledger_id, outcome.kind, describe(outcome), waiting.since_ms, waiting.failures, worker, outcome.lost
    )


class Reporter:
    """Writes the reports of one node. Used on the loop."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        name: str,
        clock: Clock,
        facts: Callable[[], Mapping[str, Any]],
        waiting: Callable[[], list[Waiting]],
        marked: Callable[[], Set[int] | None],
    ) -> None:
        """*facts* returns what is known of the node, *waiting* the ledgers that wait; both are called for each report.
        *marked* returns the marked ledgers if this node is to remove the solved problems of other nodes, else None."""
        self._store = store
        self._root = root
        self._name = name
        self._clock = clock
        self._facts = facts
        self._waiting = waiting
        self._marked = marked
        self._tasks = Tasks(f"reports of {name}")
        self._reported: dict[int, Problem] = {}
        self._last_facts = b""

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        self._tasks.on_failure = on_failure
        self._tasks.spawn(self._run(), "run")

    async def stop(self) -> None:
        """End. The node's own report goes; problems stay until somebody has solved them."""
        await self._tasks.cancel()
        try:
            await self._store.delete(self._own_path)
        except NoNode:
            pass
        except MetadataError as error:
            log.info("the report of %s goes with its session: %s", self._name, error)

    @property
    def _own_path(self) -> str:
        return f"{board.nodes_path(self._root)}/{self._name}"

    async def _run(self) -> None:
        while True:
            try:
                await self._report()
            except MetadataError as error:
                log.debug("reports are late: %s", error)
            await self._clock.sleep(_REPORT_S)

    async def _report(self) -> None:
        facts = json.dumps(self._facts(), sort_keys=True).encode()
        if facts != self._last_facts:
            await self._store.put(self._own_path, facts, ephemeral=True)
            node = await self._store.get(self._own_path)
            # The report of a former process of this name goes with its session: then ours is written again.
            self._last_facts = facts if node is not None and node.own else b""
        current = {attempt.ledger_id: problem_of(attempt, self._name) for attempt in self._waiting()[:PROBLEMS_MAX]}
        for ledger_id in self._reported.keys() - current.keys():
            await forget_problem(self._store, self._root, ledger_id)
            del self._reported[ledger_id]
        for ledger_id, problem in current.items():
            if self._reported.get(ledger_id) != problem:
                await self._store.put(_path_of(self._root, ledger_id), _encode(problem))
                self._reported[ledger_id] = problem
        await self._sweep()

    async def _sweep(self) -> None:
        """Remove problems of ledgers without a mark: a worker that ended cannot take back what it reported."""
        marked = self._marked()
        if marked is None:
            return
        for name in await self._store.children(board.problems_path(self._root)):
            ledger_id = board.ledger_id_of(name)
            if ledger_id is not None and ledger_id not in marked and ledger_id not in self._reported:
                await forget_problem(self._store, self._root, ledger_id)


async def forget_problem(store: MetadataStore, root: str, ledger_id: int) -> None:
    """Take the problem of a ledger off the list, if it is there. Raises MetadataError."""
    try:
        await store.delete(_path_of(root, ledger_id))
    except NoNode:
        return


async def read_problems(store: MetadataStore, root: str) -> AsyncIterator[Problem]:
    """Every ledger that some worker could not repair, ids ascending. Raises MetadataError."""
    for name in await store.children(board.problems_path(root)):
        ledger_id = board.ledger_id_of(name)
        node = None if ledger_id is None else await store.get(f"{board.problems_path(root)}/{name}")
        if node is None or ledger_id is None:
            continue
        facts = _facts_of(node.value)
        lost = facts.get("lost", [])
        yield Problem(
            ledger_id,
            str(facts.get("kind", "unknown")),
            str(facts.get("text", "the report cannot be read")),
            int(facts.get("since_ms", node.created_ms)),
            int(facts.get("attempts", 0)),
            str(facts.get("worker", "")),
            tuple((int(span[0]), int(span[1])) for span in lost),
        )


async def read_nodes(store: MetadataStore, root: str) -> list[NodeReport]:
    """Our nodes that are there, by name. Raises MetadataError."""
    reports = []
    for name in await store.children(board.nodes_path(root)):
        node = await store.get(f"{board.nodes_path(root)}/{name}")
        if node is not None:
            reports.append(NodeReport(name, _facts_of(node.value)))
    return reports


def drains_of(nodes: Iterable[NodeReport]) -> dict[str, dict[str, Any]]:
    """Bookie → how far its drain is, as the auditor among *nodes* reports it; Apache's reports nothing."""
    by_bookie: dict[str, dict[str, Any]] = {}
    for node in nodes:
        drains = node.facts.get("drains")
        if isinstance(drains, dict) and node.facts.get("is_auditor"):
            by_bookie |= drains
    return by_bookie


def _path_of(root: str, ledger_id: int) -> str:
    return f"{board.problems_path(root)}/urL{ledger_id:010d}"


def _encode(problem: Problem) -> bytes:
    facts = problem._asdict()
    del facts["ledger_id"]
    facts["lost"] = list(problem.lost[:_RANGES_TOLD])
    return json.dumps(facts).encode()


def _facts_of(value: bytes) -> dict[str, Any]:
    try:
        facts = parse_json(value)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
