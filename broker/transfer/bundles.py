"""Bundles that are split, given back and handed to another broker: for the admin API and for the load manager.

    split     the parts stay here and their topics open, unless the caller has them unloaded
    unload    the topics are closed, and the broker that is asked for one of them takes the bundle
    move      unload, while the broker that shall have it already waits for it

A move needs no protocol of its own: the destination is asked where a topic of the bundle is, as by a client that
another broker sent there. It waits for the end of the unload and then takes the bundle. So an Apache broker may be the
destination.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from broker.broker import Broker
from broker.errors import NotAllowed
from broker.names import Bundles, BundleSet, bundle_hash
from broker.ownership.ownership import BundleOwnership
from broker.ownership.rules import BrokerAddress
from broker.ownership.splitting import TOPIC_COUNT, TRAFFIC, cuts, limits_of_range
from magnetar_core.runtime.types import do_nothing
from magnetar_core.topics.topic_name import PERSISTENT, TopicName

log = logging.getLogger(__name__)

# Names that are tried to find one in a bundle. Each takes a microsecond; a namespace of 4,096 equal bundles needs some
# 4,000, and a narrower bundle without a single topic is not worth more.
NAMES_TRIED_MAX: Final = 200_000

# So many names between two turns of the loop: some milliseconds.
_PAUSE_EVERY: Final = 5_000


class Asks(Protocol):
    """Asks other brokers over HTTP (`broker.admin.owners.Owners`)."""

    def web_url(self, owner: BrokerAddress) -> str: ...

    async def try_ask(self, method: str, url: str, about: str) -> bool:
        """Whether it was done; why not is logged."""
        ...


class BundleWork:
    """What is done with the bundles of one broker."""

    def __init__(self, broker: Broker, ownership: BundleOwnership, asks: Asks) -> None:
        self._broker = broker
        self._ownership = ownership
        self._asks = asks
        self.on_changed: Callable[[], None] = do_nothing
        """Called when this broker has other bundles than before: load reports are due then."""

    # -------------------------------------------------------------------------------- split

    async def split(
        self, bundle: str, algorithm: str, *, positions: Sequence[int] = (), unload: bool = False
    ) -> list[str]:
        """Split a bundle of this broker; returns the parts, none if it stays whole (`splitting`). Raises BrokerError,
        RecordError, MetadataError, Corruption."""
        namespace, _, text = bundle.rpartition("/")
        former = await self._broker.bundles_now(namespace)
        check_range(former, text)
        places = cuts(
            algorithm,
            text,
            hashes=[bundle_hash(name) for name in await self.topics(bundle)] if algorithm == TOPIC_COUNT else (),
            positions=positions,
            traffic=self._traffic(bundle) if algorithm == TRAFFIC else None,
        )
        if not places:
            log.info("%s stays whole: %s finds no place to cut it", bundle, algorithm)
            return []
        cut = former.cut(places)
        assert len(cut.ranges) > len(former.ranges), "all places are inside the range, so each makes one bundle more"
        parts = await self._ownership.keeper.split(
            bundle, cut, lambda: self._broker.cut_namespace(namespace, former, cut)
        )
        self.on_changed()
        if unload:
            await asyncio.gather(*(self.unload(part) for part in parts))
        return parts

    async def topics(self, bundle: str) -> list[TopicName]:
        """The topics in a bundle: those that are stored, and the non-persistent ones that are open here."""
        namespace, here = bundle.rpartition("/")[0], BundleSet([bundle])
        stored = [TopicName.of_managed_ledger(name) for name in await self._broker.ledgers.list(namespace)]
        return [name for name in (*stored, *self._broker.non_persistent.by_name) if here.has(name)]

    def open_topics(self, bundle: str) -> list[TopicName]:
        """The topics in a bundle that are open here."""
        here = BundleSet([bundle])
        return [name for name in (*self._broker.topics, *self._broker.non_persistent.by_name) if here.has(name)]

    def _traffic(self, bundle: str) -> dict[int, float]:
        """Hash of each open topic → bytes a second in and out."""
        traffic: dict[int, float] = {}
        for name in self.open_topics(bundle):
            traffic[bundle_hash(name)] = traffic.get(bundle_hash(name), 0.0) + self._broker.topic_rates(name).bytes_rate
        return traffic

    def hottest(self, namespace: str, bundles: Bundles) -> str:
        """The range of *namespace* with the most traffic here."""
        return max(bundles.ranges, key=lambda text: sum(self._traffic(f"{namespace}/{text}").values()))

    async def largest(self, namespace: str, bundles: Bundles) -> str:
        """The range of *namespace* with the most topics."""
        counts = dict.fromkeys(bundles.ranges, 0)
        for name in await self._broker.ledgers.list(namespace):
            counts[bundles.range_of(TopicName.of_managed_ledger(name))] += 1
        return max(counts, key=lambda text: counts[text])

    # -------------------------------------------------------------------------------- unload and move

    async def unload(self, bundle: str) -> None:
        """Give a bundle of this broker back. Raises NotReady, MetadataError."""
        await self._ownership.keeper.unload(bundle, lambda: self._broker.opening.unload_bundle(bundle))
        self.on_changed()

    async def move(self, bundle: str, destination: BrokerAddress) -> None:
        """Give a bundle of this broker to another one. Raises NotReady, MetadataError.

        If the other one does not take it, the broker that is asked next takes it.
        """
        name = await self._name_in(bundle)
        if name is None:
            log.warning("no name of a topic in %s was found, so %s cannot be asked to take it", bundle, destination)
            await self.unload(bundle)
            return
        asking = asyncio.ensure_future(self.hand_over(name, bundle, destination))
        await asyncio.sleep(0)  # it is under way when the bundle is given back
        with self._ownership.promised(bundle, destination):
            try:
                await self.unload(bundle)
            except BaseException:
                asking.cancel()
                raise
            await asking
            # Apache's brokers do not wait for the end of an unload, but answer that we have the bundle.
            await self.hand_over(name, bundle, destination)

    async def move_from(self, owner: BrokerAddress, bundle: str, destination: BrokerAddress) -> None:
        """Have a bundle of another broker given to a third one, or to this one."""
        name = await self._name_in(bundle)
        url = f"{self._asks.web_url(owner)}/admin/v2/namespaces/{bundle}/unload"
        with self._ownership.promised(bundle, destination):
            if await self._asks.try_ask("PUT", url, bundle) and name is not None:
                await self.hand_over(name, bundle, destination)

    async def take(self, bundle: str, destination: BrokerAddress) -> None:
        """A bundle that nobody owns: have another broker take it."""
        name = await self._name_in(bundle)
        if name is not None:
            await self.hand_over(name, bundle, destination)

    async def hand_over(self, name: TopicName, bundle: str, destination: BrokerAddress) -> bool:
        """Have another broker look *name* up at itself; whether it answered."""
        url = f"{self._asks.web_url(destination)}/lookup/v2/topic/{name.rest_path}?authoritative=true"
        return await self._asks.try_ask("GET", url, bundle)

    async def _name_in(self, bundle: str) -> TopicName | None:
        """The name of a topic in the bundle, whether there is such a topic or not."""
        names = self.open_topics(bundle) or await self.topics(bundle)
        if names:
            return names[0]
        namespace, _, text = bundle.rpartition("/")
        tenant, _, local = namespace.partition("/")
        low, high = limits_of_range(text)
        for number in range(NAMES_TRIED_MAX):
            name = TopicName(PERSISTENT, tenant, local, f"__bundle-{number}")
            if low <= bundle_hash(name) < high:
                return name
            if number % _PAUSE_EVERY == 0:
                await asyncio.sleep(0)
        return None


class NoSuchBundle(NotAllowed, code=NotAllowed.code):
    """The namespace has no bundle with this range."""


def check_range(bundles: Bundles, text: str) -> None:
    """Raises NoSuchBundle."""
    if text not in bundles.ranges:
        raise NoSuchBundle(f"Invalid bundle range {text}: it is none of the namespace's bundles")
