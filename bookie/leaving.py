"""A bookie that is stopped lets its writers go first.

    registration shows it read-only ──▶ Magnetar's clients write to others, a few ledgers at a time
                                        meanwhile it takes and answers adds as before
    no add for a while, or the time is over ──▶ it stops

Every writer would otherwise lose a bookie at the same moment, and each entry under way would wait for all their changes
of ensembles. Rules:

1. Only the registration says read-only. No add is refused, and nothing of it survives a restart.
2. It waits for nobody where nobody can go (no other bookie is writable), where nothing is written, and where the
   metadata store does not answer in time.
3. Clients that do not know this (Apache's) go on until the bookie stops; then they change their ensembles as usual.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory, BookieRegistration
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.clock import Clock

log = logging.getLogger(__name__)

# How often it looks whether adds have come. A bookie that got none in the first of these times stops without more.
LOOK_S: Final = 0.1

# Without an add for so many looks, whoever writes has gone elsewhere.
QUIET_LOOKS: Final = 4

# How long the metadata store may take for the change, and for saying who else is there.
_STORE_S: Final = 1.0

_REASON: Final = "stopping"


async def let_writers_go(
    adds: Callable[[], int],
    registration: BookieRegistration,
    directory: BookieDirectory,
    bookie_id: str,
    wait_s: float,
    clock: Clock,
) -> None:
    """Return when writers have left bookie *bookie_id*, after *wait_s* seconds at most. Does not raise.

    *adds*: how many adds it has taken so far.
    """
    if wait_s <= 0 or registration.read_only:
        return
    began_s, before = clock.monotonic(), adds()
    await clock.sleep(min(LOOK_S, wait_s))
    if adds() == before:
        return
    try:
        async with asyncio.timeout(_STORE_S):
            if not await directory.read_writable() - {bookie_id}:
                return
            await registration.set_read_only(True, _REASON)
    except (MetadataError, TimeoutError) as error:
        log.info("bookie %s stops without waiting for its writers: %s", bookie_id, str(error) or "no answer in time")
        return
    quiet, before = 0, adds()
    while quiet < QUIET_LOOKS and clock.monotonic() - began_s < wait_s:
        await clock.sleep(LOOK_S)
        now = adds()
        quiet = quiet + 1 if now == before else 0
        before = now
    log.info(
        "bookie %s: %s after %.1f s", bookie_id,
        "its writers have left" if quiet == QUIET_LOOKS else "writers are still there", clock.monotonic() - began_s,
    )  # fmt: skip
