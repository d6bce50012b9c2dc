"""A broker that is stopped gives its bundles to the others, one by one, while it goes on serving the rest.

    leave: clients are sent to others ──▶ for each bundle: close its topics ──▶ give it back ──▶ give others time

All at once would be quicker for the broker and worse for its clients: each topic would be away for as long as all of
them take to be closed here and opened there. Where there is no other broker nothing is handed over.
"""

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import Final

from broker.broker import Broker
from broker.errors import BrokerError
from broker.ownership.ownership import BundleOwnership
from magnetar_core.bookkeeper.metadata.store import MetadataError
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# How long the metadata store may take to say who else is there. One that is away would keep the broker from stopping.
ASK_S: Final = 3.0

# After so long the rest is closed at once; service managers kill after 30 s or more.
HAND_OVER_S: Final = 20.0

# Time for the others to make ready (`broker.takeovers`), while everything is served here; they prepare some 500 topics
# a second.
READY_S: Final = 0.3
READY_PER_TOPIC_S: Final = 0.002
READY_S_MAX: Final = 5.0

# Time for the others to open a topic, some 200 a second, before the next bundle follows.
PAUSE_PER_TOPIC_S: Final = 0.005


async def hand_over(broker: Broker, ownership: BundleOwnership) -> None:
    """Give away all bundles if there is anybody to take them. What cannot be given stays, and goes when all is
    closed."""
    try:
        async with asyncio.timeout(ASK_S):
            has_others = await ownership.leave()
    except (MetadataError, Corruption, TimeoutError) as error:
        log.warning("stopping without handing bundles over: %s", error or "the metadata store does not answer")
        return
    if not has_others:
        return
    if broker.config.tells_what_it_serves:
        await broker.clock.sleep(min(READY_S + len(broker.topics) * READY_PER_TOPIC_S, READY_S_MAX))
    deadline = broker.clock.monotonic() + HAND_OVER_S
    open_topics = Counter(ownership.bundle_of(name) for name in broker.topics)
    going = sorted((-open_topics[bundle], bundle) for bundle in ownership.owned_bundles)
    try:
        async with asyncio.timeout(HAND_OVER_S):
            for number, (negative, bundle) in enumerate(going):  # a bundle without open topics is missed by nobody
                await _give(broker, ownership, bundle)
                left_s = (deadline - broker.clock.monotonic()) / (len(going) - number)
                await broker.clock.sleep(min(-negative * PAUSE_PER_TOPIC_S, max(left_s, 0.0)))
    except TimeoutError:
        left = len(ownership.owned_bundles)
        log.warning("%d bundles could not be handed over within %.0f s; they are closed now", left, HAND_OVER_S)


async def _give(broker: Broker, ownership: BundleOwnership, bundle: str) -> None:
    try:
        await ownership.unload(bundle, partial(broker.unload_bundle, bundle))
    except (BrokerError, MetadataError, Corruption) as error:
        log.warning("%s could not be handed over: %s", bundle, error)
