"""Bookies that were turned read-only through their HTTP for a drain, so that calling it off turns them back.

    <root>/underreplication/magnetar/turned/<bookie>    empty

Our own bookies follow their state and are not listed here; a bookie of Apache's does not know it.

Rules:

1. A bookie stands here before it is turned. One that was read-only before its drain is not turned, and stays as it is.
2. Whoever makes it active turns it back, once. Where that fails the operator gets a message; it is not tried later,
   when the bookie may be read-only for another reason.
"""

from collections.abc import Awaitable, Callable

from magnetar_core.bookkeeper.metadata.marks import underreplication as board
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, NoNode
from magnetar_core.runtime.types import MagnetarError

TurnBookie = Callable[[str, bool], Awaitable[None]]
"""(bookie, whether it is to be read-only): turn a bookie of Apache's. Raises MagnetarError with the reason why that
cannot be done."""


class TurnedBookies:
    """The turned bookies of one cluster. Every call but `turn_back` raises MetadataError."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._path = board.turned_path(root)

    async def note(self, bookie_id: str) -> None:
        """It is going to be turned read-only for its drain (rule 1)."""
        await self._store.put(f"{self._path}/{bookie_id}", b"")

    async def take(self, bookie_id: str) -> bool:
        """Whether it was turned; it does not stand here any more."""
        try:
            await self._store.delete(f"{self._path}/{bookie_id}")
        except NoNode:
            return False
        return True

    async def turn_back(self, bookie_id: str, turn: TurnBookie) -> str:
        """Make a bookie writable that was turned and is active now. Returns what the operator has to do; empty:
        nothing (rule 2)."""
        try:
            if not await self.take(bookie_id):
                return ""
            await turn(bookie_id, False)
        except MagnetarError as error:
            return (
                f"bookie {bookie_id} was turned read-only for its drain through its HTTP, and it is not known to be "
                f'writable again ({error}); send it PUT /api/v1/bookie/state/readonly with {{"readOnly": false}}'
            )
        return ""

    async def forget_others(self, bookies: frozenset[str]) -> None:
        """Remove the entries of bookies that are not among *bookies*."""
        for bookie_id in await self._store.children(self._path):
            if bookie_id not in bookies:
                await self.take(bookie_id)
