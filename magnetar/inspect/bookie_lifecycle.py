"""What an operator does to the life of a bookie: begin a drain, follow it, call it off, end it, remove the bookie.

All of it is done in the metadata store, so that it works while the bookie, or every node of auto-recovery, is away.

Rules (I74):

1. A bookie is removed, or a failed drain called drained, only after one reading of all records in which every record
   could be read and none names the bookie, while it is not registered as writable.
2. The state is read before that, and the change is made only if it is still the same.
"""

import getpass
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from autorecovery.reports import read_nodes
from magnetar.inspect.inspector import Inspector
from magnetar_core.bookkeeper.metadata.bookie_states import BookieStates, VersionedState
from magnetar_core.bookkeeper.metadata.lifecycle import Actor, IllegalMove, Lifecycle, State
from magnetar_core.runtime.types import MagnetarError

# Records that are asked for between two calls of *progress*.
_RECORDS_AT_ONCE: Final = 500

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
    """What the auditor tells of the drain; None while it tells nothing."""


class BookieLifecycle:
    """The lives of the bookies of one cluster, over an Inspector whose store may be written."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._states = BookieStates(inspector.store, inspector.root)

    async def drain(self, bookie_id: str, why: str) -> Lifecycle:
        """Begin a drain. Raises IllegalMove, UnknownBookie, MetadataError."""
        return await self._move(bookie_id, State.DRAINING, why)

    async def cancel(self, bookie_id: str, why: str) -> Lifecycle:
        """Make the bookie active again. Raises IllegalMove, UnknownBookie, MetadataError."""
        return await self._move(bookie_id, State.ACTIVE, why)

    async def finish(self, bookie_id: str, why: str, progress: Callable[[int, int], None]) -> Lifecycle:
        """Call a failed drain drained, after its ledgers were mended or deleted (rule 1). Raises StillNeeded,
        IllegalMove, MetadataError."""
        found = await self._states.read(bookie_id)
        if found.lifecycle.state is not State.DRAINING_FAILED:
            raise IllegalMove(f"bookie {bookie_id} is {found.lifecycle.state}; only a failed drain is finished by hand")
        await self._check_free(bookie_id, progress)
        return await self._move(bookie_id, State.DRAINED, why, found)

    async def remove(self, bookie_id: str, progress: Callable[[int, int], None]) -> None:
        """Delete cookie and state. Raises StillNeeded, IllegalMove, UnknownBookie, MetadataError."""
        found = await self._states.read(bookie_id)
        if found.lifecycle.state is not State.DRAINED:
            ledgers, unreadable = await self._naming(bookie_id, progress)
            named = dict.fromkeys(ledgers, "names it") | unreadable
            raise StillNeeded(
                f"bookie {bookie_id} is {found.lifecycle.state}, and only a drained one can be removed; "
                f"{_count(named)}: `magnetar bookies drain {bookie_id} --wait`",
                named,
            )
        await self._check_free(bookie_id, progress)
        await self._states.remove(bookie_id, found, who(), self._inspector.clock.wall_ms())

    async def status(self, bookie_id: str | None = None) -> list[DrainStatus]:
        """Bookies that are not active; or one, whatever it is. Raises Corruption, MetadataError."""
        progress: dict[str, Any] = {}
        for node in await read_nodes(self._inspector.store, self._inspector.root):
            if node.facts.get("is_auditor"):
                progress |= node.facts.get("drains", {})
        wanted = [bookie_id] if bookie_id is not None else await self._states.bookies()
        found = [DrainStatus(one, (await self._states.read(one)).lifecycle, progress.get(one)) for one in wanted]
        return [one for one in found if bookie_id is not None or one.lifecycle.state is not State.ACTIVE]

    async def _move(self, bookie_id: str, to: State, why: str, found: VersionedState | None = None) -> Lifecycle:
        wall_ms = self._inspector.clock.wall_ms()
        return await self._states.move(bookie_id, to, Actor.OPERATOR, who(), why, wall_ms, found=found)

    async def _check_free(self, bookie_id: str, progress: Callable[[int, int], None]) -> None:
        """Rule 1. Raises StillNeeded, MetadataError."""
        if bookie_id in await self._inspector.directory.read_writable():
            raise StillNeeded(
                f"bookie {bookie_id} is registered as writable: it does not follow its state; stop it first", {}
            )
        ledgers, unreadable = await self._naming(bookie_id, progress)
        if ledgers or unreadable:
            named = dict.fromkeys(ledgers, "names it") | unreadable
            raise StillNeeded(
                f"bookie {bookie_id} is still needed: {_count(named)}; `magnetar bookies cancel {bookie_id}` and "
                "another drain move them",
                named,
            )

    async def _naming(self, bookie_id: str, progress: Callable[[int, int], None]) -> tuple[list[int], dict[int, str]]:
        """(ledgers whose record names the bookie, ledgers whose record cannot be read → why)."""
        ids = await self._inspector.ledger_ids()
        naming: list[int] = []
        unreadable: dict[int, str] = {}
        for at in range(0, len(ids), _RECORDS_AT_ONCE):
            progress(at, len(ids))
            for ledger_id, one in (await self._inspector.records_of(ids[at : at + _RECORDS_AT_ONCE])).items():
                if one.metadata is None:
                    unreadable[ledger_id] = one.problem
                elif bookie_id in one.metadata.bookies():
                    naming.append(ledger_id)
        return naming, unreadable


def _count(named: Mapping[int, str]) -> str:
    if not named:
        return "no ledger names it"
    some = ", ".join(map(str, sorted(named)[:_NAMED_MAX]))
    more = f" and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
    return f"{len(named)} ledgers name it or cannot be read ({some}{more})"


def who() -> str:
    """The person at the keyboard, for those who read the state later."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
