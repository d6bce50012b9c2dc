"""What is known of auto-recovery in a cluster, for people: read from the metadata store when somebody asks."""

import asyncio
from dataclasses import dataclass
from typing import Final

from autorecovery.audit.election import auditor
from autorecovery.reporting.reports import NodeReport, Problem, read_nodes, read_problems
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.ledgers.owners import owner_of
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, NoNode
from magnetar_core.runtime.types import Corruption

# Marks that are read for one overview: each is two requests at most. The others are only counted.
MARKS_TOLD: Final = 1_000

_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class MarkedLedger:
    """A ledger that lacks copies, as far as is known why."""

    ledger_id: int
    replicas: tuple[str, ...]
    """Bookies whose copies are missing; empty where the mark does not say, or cannot be read."""
    marked_ms: int | None
    is_locked: bool
    """Somebody works on it."""
    problem: Problem | None
    owner: str
    """The owner of its entries (`owners`); empty where that is not known."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Auto-recovery of one cluster at a moment."""

    is_enabled: bool
    lost_bookie_delay_s: int | None
    auditor: str | None
    nodes: tuple[NodeReport, ...]
    """Our nodes; Apache's do not report about themselves."""
    marked_total: int
    marked: tuple[MarkedLedger, ...]
    """The first MARKS_TOLD of them, ids ascending."""


async def read_overview(store: MetadataStore, root: str, owners: dict[int, str] | None = None) -> Overview:
    """What is known now. *owners*: those that are known from former calls, to be filled. Raises MetadataError."""
    marks = MarkBoard(store, root)
    total, marked, _ = await read_marked(store, root, owners=owners)
    try:
        delay_s = await marks.lost_bookie_delay_s()
    except Corruption:
        delay_s = None
    return Overview(
        is_enabled=await marks.is_enabled(),
        lost_bookie_delay_s=delay_s,
        auditor=await auditor(store, root),
        nodes=tuple(await read_nodes(store, root)),
        marked_total=total,
        marked=tuple(marked),
    )


async def read_marked(
    store: MetadataStore, root: str, *, after: int = -1, most: int = MARKS_TOLD, owners: dict[int, str] | None = None
) -> tuple[int, list[MarkedLedger], int | None]:
    """(marked ledgers in all, those behind *after*, ids ascending, *most* at most, the last of them where more follow).

    *owners*: those that are known from former calls, to be filled. Raises MetadataError.
    """
    marks = MarkBoard(store, root)
    ledgers = LedgerStore(store, root)
    known = owners if owners is not None else {}
    ids = sorted([ledger_id async for ledger_id in marks.marked()])
    locked = await marks.locked()
    problems = {problem.ledger_id: problem async for problem in read_problems(store, root)}

    async def owner_in_record(ledger_id: int) -> str:
        if ledger_id not in known:
            try:
                known[ledger_id] = owner_of((await ledgers.read(ledger_id)).metadata)
            except (NoNode, Corruption):
                return ""
        return known[ledger_id]

    async def read_one(ledger_id: int) -> MarkedLedger | None:
        try:
            marked = await marks.read(ledger_id)
            if marked is None:
                return None
            replicas, marked_ms = marked.mark
        except Corruption:
            replicas, marked_ms = (), None
        owner = await owner_in_record(ledger_id)
        return MarkedLedger(ledger_id, replicas, marked_ms, ledger_id in locked, problems.get(ledger_id), owner)

    behind = [ledger_id for ledger_id in ids if ledger_id > after]
    wanted = behind[:most]
    listed: list[MarkedLedger] = []
    for first in range(0, len(wanted), _AT_ONCE):
        chunk = await asyncio.gather(*map(read_one, wanted[first : first + _AT_ONCE]))
        listed += [ledger for ledger in chunk if ledger is not None]
    return len(ids), listed, wanted[-1] if len(behind) > most else None
