"""Makes ready to serve the topics of a broker that is dead or stops, and opens them as soon as they are ours.

    a broker does not answer, or is registered no more ──▶ its topics that shall be ours are prepared, busiest first
    its process is gone, and its session goes on           and their last ledgers are closed
    its session ends, or it gives a bundle back        ──▶ the bundle is taken, and those topics are opened

Which topics a broker serves, and which ledgers they have, it has written into its log (`broker.transfer.rosters`). A
topic that a client asks for while its owner does not answer is prepared as well, log or not. Nothing here decides which
broker owns a bundle, and a failure costs time only: topics are opened when their clients come.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from broker.broker import Broker
from broker.errors import BrokerError
from broker.ownership.membership import BROKERS
from broker.ownership.ownership import BundleOwnership
from broker.ownership.probing import Sign
from broker.ownership.rules import BrokerAddress
from broker.transfer.rosters.log import OtherLogs, OwnLog
from broker.transfer.rosters.roster import traffic_of
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError, MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks, gather_in_turns
from magnetar_core.runtime.turns import Turns
from magnetar_core.runtime.types import Corruption, MagnetarError
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.ledgers.holdings import Holdings
from managed_ledger.state_log.errors import LogUnavailable

log = logging.getLogger(__name__)

# Each of the other brokers is asked so often whether it lives (`ownership.probing`); where there are more than
# LOOKED_AT_QUICKLY of them, less often.
LOOK_S: Final = 0.25
LOOKED_AT_QUICKLY: Final = 5

# A broker that does not answer so often in a row, and is registered, is taken for dead: it, or this process, may be
# busy, and to prepare thousands of topics would make that worse. One whose port refuses is dead at once; one that takes
# connections and says nothing was waited for longer each time (`ANSWER_S` of `ownership.probing`): it counts for more.
MISSES_MAX: Final = 6
HANGS_COUNT: Final = 3

# One that has not answered by then is waited for beside the others.
QUICKLY_S: Final = 0.5

# The list of brokers is read anew so often, beside what a watch reports.
LIST_S: Final = 10.0

# How long a bundle of a broker that is gone is waited for: sessions take 2 to 30 s, a stop up to 20 s.
FREE_S: Final = 60.0

# Topics that nobody has asked for yet and that are opened at the same time; those with clients do not wait for these.
OPENED_AT_ONCE: Final = 16

# An opening that storage keeps waiting for so long goes on beside the next ones.
OPENING_TURN_S: Final = 5.0

# The log of a broker that has been gone for so long is removed.
FORGOTTEN_S: Final = 600.0


def _do_nothing() -> None:
    pass


class Takeovers:
    """Prepares and takes the topics of other brokers, for one broker."""

    def __init__(
        self, broker: Broker, ownership: BundleOwnership, store: MetadataStore, bookkeeper: BookKeeper, clock: Clock
    ) -> None:
        self._broker = broker
        self._ownership = ownership
        self._store = store
        self._clock = clock
        self._tasks = Tasks("takeovers")
        self._preparing: set[TopicName] = set()
        self._openings = Turns(OPENED_AT_ONCE, OPENING_TURN_S, clock)
        self._brokers: dict[str, BrokerAddress] = {}
        self._last_addresses: dict[str, BrokerAddress] = {}  # where they answered
        self._is_list_stale = True
        self._listed_s = 0.0
        self._questions: dict[str, asyncio.Task[Sign]] = {}  # broker id → a question that is not answered yet
        self._misses: dict[str, int] = {}  # broker id → how often in a row it did not answer
        self._gone_since_s: dict[str, float] = {}  # broker id → since when
        self._published_traffic: dict[str, int] = {}
        self._seen_changes = -1
        self._rates_due_s = 0.0  # rates change as seldom as they are taken
        self._stop_watching: Cancel = _do_nothing
        self._bell = Bell()
        own_id, config = ownership.broker_id, broker.config
        self._own_log: OwnLog | None = None
        self._others: OtherLogs | None = None
        if config.tells_what_it_serves:
            traffic, changes = self._traffic_to_publish, broker.ledgers.changes
            self._own_log = OwnLog(own_id, config, traffic, store, bookkeeper, clock, self._holdings, changes)
            self._others = OtherLogs(own_id, config, store, bookkeeper, clock)

    def start(self) -> None:
        self._ownership.finder.on_awaited = self.prepare
        if self._own_log is not None and self._others is not None:
            self._own_log.start()
            self._others.start()
            self._stop_watching = self._store.watch_children(BROKERS, self._on_brokers_changed)
            self._tasks.spawn(self._watch(self._others), "watch the other brokers")

    async def stop(self) -> None:
        self._ownership.finder.on_awaited = lambda topic: None
        self._stop_watching()
        await self._tasks.cancel()
        if self._own_log is not None and self._others is not None:
            await self._own_log.stop()
            await self._others.stop()

    @property
    def takers(self) -> list[str]:
        """Ids of brokers that take bundles that are given back by themselves, as they read what this one serves."""
        return [] if self._others is None else self._others.known

    def prepare(self, topic: TopicName, *, is_dead: bool = True) -> None:
        """Begin to prepare a topic that will be ours. Does not wait. Not *is_dead*: its owner will close it."""
        if topic not in self._preparing:
            self._preparing.add(topic)
            self._tasks.spawn(self._prepare(topic, is_dead), f"prepare {topic}")

    async def _prepare(self, topic: TopicName, is_dead: bool) -> None:
        held = None if self._others is None else self._others.holdings_of(topic.full)
        try:
            await self._broker.opening.prepare(topic, is_dead=is_dead, held=held)
        except BrokerError as error:
            log.info("%s is not prepared: %s", topic, error)
        finally:
            self._preparing.discard(topic)

    def _traffic_to_publish(self) -> dict[str, int] | None:
        """What the own log shall hold, the same object as long as nothing changes. None while bundles are given away,
        since the brokers that take them read the log."""
        if self._ownership.members.is_leaving:
            return None
        topics, now_s = self._broker.topics, self._clock.monotonic()
        if now_s >= self._rates_due_s:
            self._rates_due_s = now_s + self._broker.config.stats_update_s
            rates = {name: self._broker.topic_rates(name) for name in topics}
            messages = {name.full: rate.messages_in + rate.messages_out for name, rate in rates.items()}
            self._published_traffic = {name: traffic_of(rate) for name, rate in messages.items()}
        elif topics.changes != self._seen_changes:
            self._published_traffic = {name.full: self._published_traffic.get(name.full, 0) for name in topics}
        self._seen_changes = topics.changes
        return self._published_traffic

    def _holdings(self, name: str) -> Holdings | None:
        return self._broker.opening.holdings(TopicName.parse(name))

    # ------------------------------------------------------------------------------ brokers that are gone

    def _on_brokers_changed(self) -> None:
        self._is_list_stale = True
        self._bell.ring()

    async def _watch(self, others: OtherLogs) -> None:
        while True:
            pause_s = LOOK_S * max(1.0, len(others.known) / LOOKED_AT_QUICKLY)
            await self._bell.until(lambda: self._is_list_stale, self._clock, pause_s)
            if self._ownership.members.is_leaving:
                return
            try:
                await self._check_brokers(others)
            except (MetadataError, Corruption, LogUnavailable) as error:
                log.info("the other brokers are not watched: %s", error)

    async def _check_brokers(self, others: OtherLogs) -> None:
        """Ask the other brokers once whether they live, and begin to take over from those that do not.

        Raises MetadataError, Corruption, LogUnavailable.
        """
        now_s = self._clock.monotonic()
        if self._is_list_stale or now_s - self._listed_s > LIST_S:
            self._is_list_stale, self._listed_s = False, now_s
            self._brokers = await self._ownership.brokers()
        signs = await self._ask_signs({broker_id: self._brokers.get(broker_id) for broker_id in others.known})
        for broker_id, sign in signs.items():
            address = self._brokers.get(broker_id)  # None: it is not registered any more
            if address is not None:
                if sign is None:
                    continue
                if sign is Sign.ANSWERS:
                    self._gone_since_s.pop(broker_id, None)
                    self._misses.pop(broker_id, None)
                    self._last_addresses[broker_id] = address
                    continue
                if not self._is_gone(broker_id, sign):
                    continue
            if broker_id not in self._gone_since_s:
                self._gone_since_s[broker_id] = now_s
                await self._begin_take_over(broker_id, others.topics_of(broker_id), address, sign)
            elif (
                now_s - self._gone_since_s[broker_id] > FORGOTTEN_S
                and self._ownership.members.is_leader
                and address is None
            ):
                del self._gone_since_s[broker_id]
                await others.remove(broker_id)

    async def _begin_take_over(
        self, broker_id: str, traffic: Mapping[str, int], address: BrokerAddress | None, sign: Sign | None
    ) -> None:
        """*traffic*: that of the broker's topics by its log; *address*: where it is registered still, if it is."""
        if traffic:
            log.info("%s is gone or stops; making ready to serve %d topics", broker_id, len(traffic))
            last_address = self._last_addresses.get(broker_id)
            is_dead = await self._is_dead(last_address)
            refused_at = address if sign is Sign.REFUSES and last_address == address else None
            self._tasks.spawn(self._take_over(traffic, is_dead, refused_at), f"take over from {broker_id}")

    async def _ask_signs(self, addresses: Mapping[str, BrokerAddress | None]) -> dict[str, Sign | None]:
        """What each shows, side by side; None: that is not known yet, since it does not answer quickly, or where it is.

        Each question is asked to its end and its answer is given once: a broker that hangs is waited for, and hides
        from nobody that another one is dead.
        """
        for broker_id, address in addresses.items():
            if address is not None and broker_id not in self._questions:
                asked = self._tasks.spawn(self._ownership.probes.sign(address), f"ask {broker_id}", awaited=True)
                self._questions[broker_id] = asked
        if self._questions:
            await asyncio.wait(self._questions.values(), timeout=QUICKLY_S)
        done = {broker_id: task.result() for broker_id, task in self._questions.items() if task.done()}
        self._questions = {broker_id: task for broker_id, task in self._questions.items() if broker_id not in done}
        return {broker_id: done.get(broker_id) for broker_id in addresses}

    async def _is_dead(self, last_address: BrokerAddress | None) -> bool:
        """Whether a broker that is not registered any more will not close its topics itself."""
        if last_address is None:
            return True
        try:
            async with asyncio.timeout(QUICKLY_S):
                return not await self._ownership.answers(last_address)
        except TimeoutError:
            return True

    def _is_gone(self, broker_id: str, sign: Sign | None) -> bool:
        """Whether a registered broker that does not answer is taken for dead."""
        assert sign is not None, "a broker whose answer is not known yet has missed nothing"
        assert sign is not Sign.ANSWERS, "a broker that answers is not gone"
        self._misses[broker_id] = self._misses.get(broker_id, 0) + (HANGS_COUNT if sign is Sign.HANGS else 1)
        return sign is Sign.REFUSES or self._misses[broker_id] >= MISSES_MAX

    # ------------------------------------------------------------------------------ their topics

    async def _take_over(self, traffic: Mapping[str, int], is_dead: bool, refused_at: BrokerAddress | None) -> None:
        """*traffic*: of the topics by name, the busiest first; those of a dead broker are prepared in this order.

        *refused_at*: the address of the broker, if it is registered there, has answered there, and nobody has the port.
        """
        by_bundle: dict[str, list[TopicName]] = {}
        for text in traffic:
            try:
                topic = TopicName.parse(text)
                bundles = await self._broker.bundles_of(topic.namespace)
            except (BrokerError, ValueError) as error:
                log.info("%s is left to its clients: %s", text, error)
                continue
            by_bundle.setdefault(bundles.bundle_of(topic), []).append(topic)
        # Side by side: where that depends on a broker that hangs, it is asked once.
        are_ours = await asyncio.gather(*map(self._would_take, by_bundle))
        ours = [pair for pair, is_ours in zip(by_bundle.items(), are_ours, strict=True) if is_ours]
        expected = {topic: traffic[topic.full] for _, topics in ours for topic in topics}
        self._broker.opening.expected |= expected
        for bundle, topics in ours:
            self._tasks.spawn(self._take(bundle, topics), f"take {bundle}")
        # A bundle is given away with all its topics, so those of one bundle come together where its owner still lives:
        # in the order in which that gives its bundles away, the ones with most topics first.
        largest_first = sorted(ours, key=lambda pair: (-len(pair[1]), pair[0]))
        order = {bundle: index for index, (bundle, _) in enumerate(largest_first)}
        bundle_of = {topic: bundle for bundle, topics in ours for topic in topics}
        for topic in sorted(expected, key=lambda topic: (0 if is_dead else order[bundle_of[topic]], -expected[topic])):
            self.prepare(topic, is_dead=is_dead)
        if refused_at is not None:
            await self._recover_ahead(refused_at, ours, expected)

    async def _recover_ahead(
        self,
        owner: BrokerAddress,
        bundles: Iterable[tuple[str, Iterable[TopicName]]],
        traffic: Mapping[TopicName, int],
    ) -> None:
        """Close the last ledgers of a dead broker's topics while its session goes on; the busiest topics first.

        That fences their owner. So only where it cannot live: nobody had its ports twice, and the bundle is still its
        own, whatever its log says.
        """
        await self._clock.sleep(LOOK_S)
        if not await self._ownership.probes.is_gone(owner):
            return
        topics: list[TopicName] = []
        try:
            for bundle, own in bundles:
                if await self._ownership.is_owned_by(bundle, owner):
                    topics += own
            for topic in sorted(topics, key=lambda topic: -traffic[topic]):
                await self._broker.opening.recover_ahead(topic)
        except (BrokerError, MetadataError, Corruption) as error:
            log.info("ledgers of %s are closed when its topics are opened: %s", owner.native_url, error)

    async def _would_take(self, bundle: str) -> bool:
        try:
            return await self._ownership.finder.would_take(bundle)
        except MagnetarError as error:
            log.info("%s is left to its clients: %s", bundle, error)
            return False

    async def _take(self, bundle: str, topics: Iterable[TopicName]) -> None:
        try:
            is_ours = await self._ownership.finder.take_when_free(bundle, FREE_S)
        except MagnetarError as error:
            log.info("%s is left to its clients: %s", bundle, error)
            is_ours = False
        if is_ours:
            await gather_in_turns(map(self._open, topics))
        for topic in topics:
            self._broker.opening.expected.pop(topic, None)

    async def _open(self, topic: TopicName) -> None:
        # By traffic over all bundles that came; not by the topic's name, which two brokers may have in their logs.
        async with self._openings.turn(object(), (-self._broker.opening.expected.get(topic, 0),)):
            try:
                await self._broker.opening.open_again(topic)
            except BrokerError as error:
                log.info("%s is not opened until a client asks for it: %s", topic, error)
