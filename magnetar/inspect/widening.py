"""More copies of ledgers that have fewer than new ones get: as where a standalone becomes a cluster.

    closed, each bookie has each entry ──▶ lock ──▶ record names more bookies ──▶ mark ──▶ auto-recovery copies to them

Rules:

1. Only closed ledgers change, whose bookies all have all entries: nobody writes to them, and nobody recovers them. A
   bookie that is named and has not got its entries yet denies them, and readers go on to the others.
2. The lock of auto-recovery is held from before the record changes until the ledger is marked: a repair that had judged
   the former record would take the mark down.
3. Until its copies are made a ledger is marked: `magnetar ledgers lacking` names it.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from magnetar.inspect.inspector import Inspector
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import NoNode, VersionConflict
from magnetar_core.runtime.types import MagnetarError


class Widened(NamedTuple):
    """What became of the ledgers that had fewer copies than asked for."""

    ledgers: tuple[int, ...]
    """They name more bookies now."""
    open: tuple[int, ...]
    """They are written to; when they are closed they can be widened."""
    striped: tuple[int, ...]
    """Their entries are spread over more bookies than there are copies; they stay as they are."""
    busy: tuple[int, ...]
    """Auto-recovery works on them, or their record changed meanwhile; to be tried again."""
    unreadable: tuple[int, ...]


async def widen(
    inspector: Inspector, copies: int, holder: str, on_ledgers: Callable[[int, int], None] = lambda done, total: None
) -> Widened:
    """Let every closed ledger with fewer have *copies*. *holder* stands in the locks; *on_ledgers(done, total)* is
    called on the way. Raises MagnetarError, also where fewer bookies take entries."""
    writable = sorted(inspector.directory.writable)
    if len(writable) < copies:
        raise MagnetarError(
            f"{len(writable)} bookies take entries ({', '.join(writable) or 'none'}); {copies} copies need as many"
        )
    board = MarkBoard(inspector.store, inspector.root)
    await board.prepare()
    outcome: dict[str, list[int]] = {name: [] for name in Widened._fields}
    ids = await inspector.ledger_ids()
    for number, ledger_id in enumerate(ids):
        on_ledgers(number, len(ids))
        record = (await inspector.records_of([ledger_id])).get(ledger_id)
        if record is None:
            continue
        metadata = record.metadata
        if metadata is None:
            outcome["unreadable"].append(ledger_id)
        elif metadata.write_quorum >= copies:
            continue
        elif not metadata.is_closed:
            outcome["open"].append(ledger_id)
        elif metadata.ensemble_size != metadata.write_quorum:
            outcome["striped"].append(ledger_id)
        elif not await board.lock(ledger_id, holder):
            outcome["busy"].append(ledger_id)
        else:
            try:
                is_done = await _widen_one(inspector, board, ledger_id, copies, writable)
            finally:
                await board.unlock(ledger_id)
            outcome["ledgers" if is_done else "busy"].append(ledger_id)
    return Widened(**{name: tuple(ledger_ids) for name, ledger_ids in outcome.items()})


async def _widen_one(
    inspector: Inspector, board: MarkBoard, ledger_id: int, copies: int, writable: Sequence[str]
) -> bool:
    """The caller holds the ledger's lock. False: its record is another one by now. Raises MagnetarError."""
    try:
        versioned = await inspector.ledgers.read(ledger_id)
        if not versioned.metadata.is_closed:
            return False
        metadata, added = widened(versioned.metadata, copies, writable, ledger_id)
        await inspector.ledgers.write(ledger_id, metadata, versioned.version)
    except (NoNode, VersionConflict):
        return False
    for bookie_id in added:
        await board.mark(ledger_id, bookie_id, inspector.clock.wall_ms())
    return True


def widened(
    metadata: LedgerMetadata, copies: int, writable: Sequence[str], ledger_id: int
) -> tuple[LedgerMetadata, Collection[str]]:
    """The record with *copies* bookies in each ensemble, and the bookies that were added to any. They are taken from
    *writable* in turn, so that many ledgers spread over all."""
    ensembles: dict[int, tuple[str, ...]] = {}
    added: set[str] = set()
    for first_entry_id, ensemble in metadata.segments:
        others = [bookie for bookie in writable if bookie not in ensemble]
        at = ledger_id % (len(others) or 1)
        more = (others[at:] + others[:at])[: copies - len(ensemble)]
        if len(ensemble) + len(more) < copies:
            raise MagnetarError(
                f"ledger {ledger_id}: of its bookies ({', '.join(ensemble)}) some take no entries, and beside them "
                f"there are {len(others)}; {copies} copies need more"
            )
        ensembles[first_entry_id] = (*ensemble, *more)
        added |= set(more)
    return metadata.with_more_copies(copies, ensembles), sorted(added)
