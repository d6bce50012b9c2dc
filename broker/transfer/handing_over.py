"""A broker that is stopped gives its bundles to the others, one by one, while it goes on serving the rest.

    cut large bundles ──▶ leave: clients are sent to others
                      ──▶ for each bundle: close its topics ──▶ give it back ──▶ give others time

All at once would be quicker for the broker and worse for its clients: each topic would be away for as long as all of
them take to be closed here and opened there. For the same reason a bundle with very many open topics is cut before, if
bundles may be split by themselves (`loadBalancerAutoBundleSplitEnabled`, `loadBalancerNamespaceMaximumBundles`).

Clients get the name of the broker that will have the topic (PIP-307), if that is a broker that is already waiting for
it: they go there at once, without the back-off and the lookup that they do otherwise. Where there is no other broker
nothing is handed over.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from broker.broker import Broker
from broker.errors import BrokerError
from broker.names import bundle_hash
from broker.ownership.ownership import BundleOwnership
from broker.ownership.rules import NoBrokerAvailable
from broker.ownership.splitting import even_cuts
from broker.topic.ports import NOT_KNOWN, NextBroker
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# How long the metadata store may take to name the other brokers: one that is away would keep this one from stopping.
ASK_S: Final = 3.0

# After so long from the beginning the rest is closed at once, earlier if `brokerShutdownTimeoutMs` says so; service
# managers kill after 30 s or more.
HAND_OVER_S: Final = 24.0

# Time for the others to make ready (`broker.transfer.takeovers`), while everything is served here; they prepare some
# 500 topics a second.
READY_S: Final = 0.3
READY_PER_TOPIC_S: Final = 0.002
READY_S_MAX: Final = 5.0

# They get at most so much of the whole time.
READY_SHARE: Final = 0.25

# A bundle with more open topics is cut. With so many a topic is away for some 0.2 s.
TOPICS_MAX: Final = 250

# After so long no further bundle is cut. One took 0.2 to 0.3 s on a busy broker with 5,000 topics.
CUT_S: Final = 3.0

# Time for the others to open a topic, some 200 a second, before the next bundle follows.
PAUSE_PER_TOPIC_S: Final = 0.005


async def hand_over(
    broker: Broker, ownership: BundleOwnership, takers: Callable[[], Collection[str]] = lambda: ()
) -> None:
    """Give away all bundles if there is anybody to take them. What cannot be given stays, and goes when all is
    closed. *takers*: ids of the brokers that wait for bundles which are given back, and take them unasked."""
    limit_s = min(HAND_OVER_S, broker.config.shutdown_timeout_ms / 1000)
    deadline = broker.clock.monotonic() + limit_s
    try:
        async with asyncio.timeout(ASK_S):
            has_others = await ownership.has_others()
        if has_others and broker.config.auto_split:
            # Not broken off half-way: a bundle that is still being cut after that is closed at the end, like all that
            # cannot be given.
            await asyncio.wait({asyncio.ensure_future(_cut_large(broker, ownership))}, timeout=CUT_S + ASK_S)
        async with asyncio.timeout(ASK_S):
            has_others = await ownership.leave()
    except (MetadataError, Corruption, TimeoutError) as error:
        log.warning("stopping without handing bundles over: %s", error or "the metadata store does not answer")
        return
    if not has_others:
        return
    if broker.config.tells_what_it_serves:
        ready_s = READY_S + len(broker.topics) * READY_PER_TOPIC_S
        await broker.clock.sleep(min(ready_s, READY_S_MAX, READY_SHARE * limit_s))
    open_topics = Counter(ownership.bundle_of(name) for name in broker.topics)
    # Those with most open topics first; one without open topics is missed by nobody.
    bundles = sorted(ownership.owned_bundles, key=lambda bundle: (-open_topics[bundle], bundle))
    among = frozenset(takers())
    successors = {bundle: await _successor(ownership, bundle, among) for bundle in bundles if open_topics[bundle]}
    try:
        async with asyncio.timeout(deadline - broker.clock.monotonic()):
            for index, bundle in enumerate(bundles):
                await _give(broker, ownership, bundle, successors.get(bundle, NOT_KNOWN))
                left_s = (deadline - broker.clock.monotonic()) / (len(bundles) - index)
                await broker.clock.sleep(min(open_topics[bundle] * PAUSE_PER_TOPIC_S, max(left_s, 0.0)))
    except TimeoutError:
        bundles_left = len(ownership.owned_bundles)
        log.warning("%d bundles could not be handed over within %.1f s; they are closed now", bundles_left, limit_s)


async def _cut_large(broker: Broker, ownership: BundleOwnership) -> None:
    """The bundles that have more than TOPICS_MAX open topics, the largest first, as long as their namespaces may have
    more."""
    until_s = broker.clock.monotonic() + CUT_S
    hashes: dict[str, list[int]] = {bundle: [] for bundle in ownership.owned_bundles}
    for name in broker.topics:
        bundle = ownership.bundle_of(name)
        if bundle in hashes:
            hashes[bundle].append(bundle_hash(name))
    for bundle in sorted(hashes, key=lambda bundle: -len(hashes[bundle])):
        if len(hashes[bundle]) <= TOPICS_MAX or broker.clock.monotonic() >= until_s:
            return
        try:
            await _cut(broker, ownership, bundle, hashes[bundle])
        except (BrokerError, MetadataError, Corruption) as error:
            log.info("%s is handed over as a whole: %s", bundle, error)


async def _cut(broker: Broker, ownership: BundleOwnership, bundle: str, hashes: Sequence[int]) -> None:
    namespace, _, text = bundle.rpartition("/")
    former = await broker.bundles_now(namespace)
    parts_max = broker.config.namespace_max_bundles - len(former.ranges) + 1
    places = even_cuts(text, hashes, min(math.ceil(len(hashes) / TOPICS_MAX), max(parts_max, 1)))
    if places and text in former.ranges:
        cut = former.cut(places)
        assert len(cut.ranges) <= broker.config.namespace_max_bundles, "it is cut into at most `parts_max` parts"
        await ownership.keeper.split(bundle, cut, lambda: broker.cut_namespace(namespace, former, cut))


async def _successor(ownership: BundleOwnership, bundle: str, takers: Collection[str]) -> NextBroker:
    """Who will take the bundle. Others work it out in the same way (`BundleOwnership.would_take`), from what has not
    changed since; a client that was sent to the wrong one looks the topic up."""
    if not takers:
        return NOT_KNOWN
    try:
        taker = await ownership.finder.better_broker(bundle)
    except (NoBrokerAvailable, MetadataError, Corruption):
        return NOT_KNOWN
    if taker is None or taker[0] not in takers:
        return NOT_KNOWN
    address = taker[1]
    if address.has_listeners:
        return NOT_KNOWN  # which of its addresses a client can reach is known from its lookups only
    return NextBroker(address.service_url, address.service_url_tls)


async def _give(broker: Broker, ownership: BundleOwnership, bundle: str, successor: NextBroker) -> None:
    try:
        await ownership.keeper.unload(bundle, partial(broker.opening.unload_bundle, bundle, successor))
    except (BrokerError, MetadataError, Corruption) as error:
        log.warning("%s could not be handed over: %s", bundle, error)
