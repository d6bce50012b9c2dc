"""What an operator does to the life of a bookie: begin a drain, follow it, call it off, end it, remove the bookie.

All of it is done in the metadata store, so that it works while the bookie, or every node of auto-recovery, is away.
Only a bookie of Apache's that a drain turned is turned back through its HTTP, if that can be reached.

Rules (I74):

1. A bookie is removed, or a failed drain called drained, only after one reading of all records in which every record
   could be read and none names the bookie, while it is not registered as writable.
2. The state is read before that, and the change is made only if it is still the same.
3. A failed drain is called drained only when the copies of all ledgers that were moved were read, or they are deleted.
4. A bookie that is registered in any way runs, or did a moment ago, and is not removed: without its state nothing
   would keep it from taking entries, and without its cookie it could not start again.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from autorecovery.lifecycle.turning import TurnBookie, TurnedBookies
from autorecovery.lifecycle.unproved import UnprovedLedgers
from autorecovery.reporting.reports import drains_of, read_nodes
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, VersionedState
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, IllegalMove, Lifecycle, State
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, NoNode
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Corruption, MagnetarError

# Records that are read at the same time; *progress* is called after each such part.
_RECORDS_AT_ONCE: Final = 64

# Rule 4. The registration of a bookie that was killed ends with its session: 30 s with our settings, and ZooKeeper
# grants 40 s at most unless it is set up otherwise. A wait for that looks so often.
SESSION_WAIT_S: Final = 45.0
_SESSION_LOOK_S: Final = 0.5

# Ledgers that a refusal names.
_NAMED_MAX: Final = 20


class StillNeeded(MagnetarError):
    """The bookie cannot go yet; the text says why, and *ledgers* which records name it or cannot be read."""

    def __init__(self, text: str, ledgers: Mapping[int, str]) -> None:
        super().__init__(text)
        self.ledgers = dict(ledgers)


class DrainStatus(NamedTuple):
    """The life of one bookie, and how far its drain is."""

    bookie_id: str
    lifecycle: Lifecycle
    progress: Mapping[str, Any] | None
    """What the auditor reports about the drain; None while it reports nothing."""


Progress = Callable[[int, int], None]
"""Called with (records read, records in all)."""


def _ignore_progress(done: int, total: int) -> None:
    """Nobody wants to know."""


Waits = Callable[[str], None]
"""Called once with the reason for a wait."""


def _ignore_text(text: str) -> None:
    """Nobody wants to know."""


class BookieLifecycle:
    """The lives of the bookies of one cluster. Used on the loop of the store."""

    def __init__(self, store: MetadataStore, root: str, clock: Clock) -> None:
        self._store = store
        self._root = root
        self._clock = clock
        self._states = BookieStates(store, root)
        self._ledgers = LedgerStore(store, root)
        self._directory = BookieDirectory(store, root, clock)

    async def move(self, bookie_id: str, to: State, by: str, why: str) -> Lifecycle:
        """Any move that needs no reading of records; `finish` makes a bookie drained. Raises as `drain`."""
        assert to is not State.DRAINED
        return await self._move(bookie_id, to, by, why)

    async def drain(self, bookie_id: str, by: str, why: str) -> Lifecycle:
        """Begin a drain. *by*: who does it, for those who read the state later. Raises IllegalMove, UnknownBookie,
        MetadataError."""
        return await self._move(bookie_id, State.DRAINING, by, why)

    async def cancel(self, bookie_id: str, by: str, why: str, turn: TurnBookie) -> tuple[Lifecycle, str]:
        """Make the bookie active again, and writable if the drain turned it through its HTTP.

        The text says what the operator has to do; it is empty if nothing. Raises IllegalMove, UnknownBookie,
        MetadataError.
        """
        lifecycle = await self._move(bookie_id, State.ACTIVE, by, why)
        return lifecycle, await TurnedBookies(self._store, self._root).turn_back(bookie_id, turn)

    async def finish(self, bookie_id: str, by: str, why: str, progress: Progress = _ignore_progress) -> Lifecycle:
        """Call a failed drain drained, after its ledgers were mended or deleted (rule 1). Raises StillNeeded,
        IllegalMove, UnknownBookie, MetadataError."""
        stored = await self._states.read(bookie_id)
        if stored.lifecycle.state is not State.DRAINING_FAILED:
            raise IllegalMove(
                f"bookie {bookie_id} is {stored.lifecycle.state}; only a failed drain is finished by hand"
            )
        await self._check_free(bookie_id, progress)
        await self._check_proved(bookie_id)
        return await self._move(bookie_id, State.DRAINED, by, why, stored)

    async def remove(
        self,
        bookie_id: str,
        by: str,
        progress: Progress = _ignore_progress,
        *,
        wait_s: float = 0.0,
        waits: Waits = _ignore_text,
    ) -> None:
        """Delete cookie and state; *by* stands in the event of it.

        *wait_s*: so long the session of a bookie that was stopped is given to end (rule 4). Raises StillNeeded,
        IllegalMove, UnknownBookie, MetadataError.
        """
        stored = await self._states.read(bookie_id)
        if stored.lifecycle.state is not State.DRAINED:
            ledgers, unreadable = await self._ledgers_naming(bookie_id, progress)
            named = dict.fromkeys(ledgers, "names it") | unreadable
            raise StillNeeded(
                f"bookie {bookie_id} is {stored.lifecycle.state}, and only a drained one can be removed; "
                f"{_count(named)}: `magnetar bookies drain {bookie_id} --wait`",
                named,
            )
        await self._until_stopped(bookie_id, wait_s, waits)
        await self._check_free(bookie_id, progress)
        await self._until_stopped(bookie_id, 0.0, waits)  # the reading may have taken minutes
        await self._states.remove(bookie_id, stored, by, self._clock.wall_ms())

    async def status(self, bookie_id: str | None = None) -> list[DrainStatus]:
        """The bookies that are not active; or the one named, in any state. Raises Corruption, MetadataError."""
        progress = await self.progress()
        wanted = [bookie_id] if bookie_id is not None else await self._states.bookies()
        statuses = [
            DrainStatus(bookie, (await self._states.read(bookie)).lifecycle, progress.get(bookie)) for bookie in wanted
        ]
        return [status for status in statuses if bookie_id is not None or status.lifecycle.state is not State.ACTIVE]

    async def progress(self) -> dict[str, Any]:
        """Bookie → what the auditor reports about its drain. Raises MetadataError."""
        return drains_of(await read_nodes(self._store, self._root))

    async def _move(
        self, bookie_id: str, to: State, by: str, why: str, stored: VersionedState | None = None
    ) -> Lifecycle:
        wall_ms = self._clock.wall_ms()
        return await self._states.move(bookie_id, to, Actor.OPERATOR, by, why, wall_ms, expected=stored)

    async def _until_stopped(self, bookie_id: str, wait_s: float, waits: Waits) -> None:
        """Rule 4. Raises StillNeeded, MetadataError."""
        end_s = self._clock.monotonic() + wait_s
        is_announced = False
        while (mode := await self._registered_as(bookie_id)) is not None:
            if self._clock.monotonic() >= end_s:
                raise StillNeeded(
                    f"bookie {bookie_id} is registered as {mode}: it runs still, so stop it first; if it was stopped "
                    "or killed just now, its session with the metadata store has to end, which takes up to 40 s",
                    {},
                )
            if not is_announced:
                is_announced = True
                waits(f"bookie {bookie_id} is registered as {mode}; waiting up to {wait_s:g} s for that to end")
            await self._clock.sleep(_SESSION_LOOK_S)

    async def _registered_as(self, bookie_id: str) -> str | None:
        if bookie_id in await self._directory.read_writable():
            return "writable"
        if bookie_id in await self._directory.read_read_only():
            return "read-only"
        # A bookie that became writable between these two answers was in neither.
        return "writable" if bookie_id in await self._directory.read_writable() else None

    async def _check_free(self, bookie_id: str, progress: Progress) -> None:
        """Rule 1. Raises StillNeeded, MetadataError."""
        if bookie_id in await self._directory.read_writable():
            raise StillNeeded(
                f"bookie {bookie_id} is registered as writable: it does not follow its state; stop it first", {}
            )
        ledgers, unreadable = await self._ledgers_naming(bookie_id, progress)
        if ledgers or unreadable:
            named = dict.fromkeys(ledgers, "names it") | unreadable
            raise StillNeeded(
                f"bookie {bookie_id} is still needed: {_count(named)}; `magnetar bookies cancel {bookie_id}` and "
                "another drain move them",
                named,
            )

    async def _check_proved(self, bookie_id: str) -> None:
        """Rule 3. Raises StillNeeded, MetadataError."""
        kept = UnprovedLedgers(self._store, self._root, bookie_id)
        unproved = await kept.read()
        if not (unproved.ids or unproved.is_all):
            return
        left = [ledger_id async for ledger_id in self._ledgers.list() if unproved.is_all or ledger_id in unproved.ids]
        if left:
            named = dict.fromkeys(left, "it was moved, and its copies were not all found where they are now")
            first_ids = ", ".join(map(str, sorted(left)[:_NAMED_MAX]))
            raise StillNeeded(
                f"bookie {bookie_id} is still needed: {len(left)} ledgers were moved from it, and not all of their "
                f"copies were found ({first_ids}); `magnetar bookies drain {bookie_id}` reads them again",
                named,
            )
        await kept.drop(unproved.ids, was_all=True)

    async def _ledgers_naming(self, bookie_id: str, progress: Progress) -> tuple[list[int], dict[int, str]]:
        """(ledgers whose record names the bookie, ledgers whose record cannot be read → why)."""
        ids = sorted([ledger_id async for ledger_id in self._ledgers.list()])
        naming: list[int] = []
        unreadable: dict[int, str] = {}

        async def look(ledger_id: int) -> None:
            try:
                record = await self._ledgers.read(ledger_id)
            except NoNode:
                return  # deleted meanwhile
            except Corruption as error:
                unreadable[ledger_id] = str(error)
            else:
                if bookie_id in record.metadata.bookies():
                    naming.append(ledger_id)

        for at in range(0, len(ids), _RECORDS_AT_ONCE):
            progress(at, len(ids))
            await asyncio.gather(*map(look, ids[at : at + _RECORDS_AT_ONCE]))
        return sorted(naming), unreadable


def _count(named: Mapping[int, str]) -> str:
    if not named:
        return "no ledger names it"
    first_ids = ", ".join(map(str, sorted(named)[:_NAMED_MAX]))
    more = f" and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
    return f"{len(named)} ledgers name it or cannot be read ({first_ids}{more})"
