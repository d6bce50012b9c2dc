"""Moves of a bookie, as operators and auditors make them."""

from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, State
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore


async def drain(store: MetadataStore, bookie_id: str, by: str = "me", why: str = "") -> None:
    """An operator begins the drain of a bookie."""
    await BookieStates(store).move(bookie_id, State.DRAINING, Actor.OPERATOR, by, why, 1)


async def cancel(store: MetadataStore, bookie_id: str) -> None:
    """An operator makes a bookie active again."""
    await BookieStates(store).move(bookie_id, State.ACTIVE, Actor.OPERATOR, "me", "", 2)
