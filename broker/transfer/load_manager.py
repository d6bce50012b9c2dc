"""Reports the load of this broker to the others; as the leader, moves and splits bundles.

    every report interval      measure ──▶ the broker's node, if the load has changed enough (`balancing.is_report_due`)
    every shedding interval    the leader: all nodes ──▶ `balancing` ──▶ splits, then at most one move;
                               with a strategy of Apache's: `shedding` ──▶ what moves, `placement` ──▶ where to
    every quota interval       the leader: averages of bundles and brokers ──▶ nodes that any next leader begins with

The leader asks the owner of a bundle over HTTP, as an administrator would: so owners may be Apache's brokers, and an
Apache leader moves and splits our bundles.
"""

import logging
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from broker.broker import Broker
from broker.errors import BrokerError
from broker.ownership.load.averages import (
    BROKER_AVERAGES,
    BUNDLE_DATA,
    BundleAverages,
    busiest,
    decode_bundle,
    encode_broker,
    encode_bundle,
    loads_of_bundles,
)
from broker.ownership.load.balancing import Balancer, Move, balance_limits, is_report_due
from broker.ownership.load.bundle_placement import PLACEMENTS, Asked, destination
from broker.ownership.load.report import BrokerLoad, BundleLoad, encode_load
from broker.ownership.load.shedding import SHEDDERS, Cluster, Shed, Shedder, SheddingSettings, shedding_settings
from broker.ownership.ownership import BundleOwnership
from broker.ownership.placing.isolation import candidates, host_of
from broker.ownership.rules import BrokerAddress
from broker.records.json_records import parse_record, to_json
from broker.settings.groups.load import ONE_BUNDLE
from broker.topic.topic_rates import TopicRates, sum_rates
from broker.transfer.bundles import Asks, BundleWork
from magnetar_core.bookkeeper.metadata.stores.store import NoNode
from magnetar_core.runtime.process.memory import memory_bytes
from magnetar_core.runtime.process.usage import cpu_seconds, resident_bytes
from magnetar_core.runtime.tasks import FAILED, Tasks, attempt

log = logging.getLogger(__name__)

NAMESPACES: Final = "/admin/v2/namespaces"

MINUTE_S: Final = 60.0

# The processor's use over a shorter time says nothing; the first report of a broker is of the use over so long.
CPU_PERIOD_S: Final = 1.0

# Bundles that are passed over in a round since their anti-affinity groups keep them where they are. Each costs some
# reads of the metadata store; the next round begins anew.
KEPT_MAX: Final = 100

# Topics that are measured between two turns of the loop: some milliseconds.
_PAUSE_EVERY: Final = 500


class LoadManager:
    """The load manager of one broker."""

    def __init__(self, broker: Broker, ownership: BundleOwnership, asks: Asks, work: BundleWork) -> None:
        self._broker = broker
        self._config = broker.config
        self._clock = broker.clock
        self._ownership = ownership
        self._asks = asks
        self._work = work
        self._memory_limit = memory_bytes()
        self._balancer = Balancer(balance_limits(broker.config))
        self._strategy = self._config.shedding_strategy
        self._shedder = self._made_shedder()
        self._placement = PLACEMENTS[self._config.placement_strategy]()
        self._sent: dict[str, tuple[int, str]] = {}
        """Bundles that a strategy of Apache's moved within the grace period: when, and to which broker."""
        self.measured = BrokerLoad()
        """The load of this broker when it was last looked at."""
        self.splits = 0
        """Bundles that were split because this broker, as the leader, wanted it."""
        self.moves = 0
        """The same of bundles that were moved."""
        self.sources = 0
        """How often a round of this leader moved bundles of a broker, each broker of the round counted."""
        self._reported = BrokerLoad()
        self._is_changed = True
        self._cpu = 0.0
        self._counted = (self._clock.monotonic(), cpu_seconds())
        self._cpu_period_s = CPU_PERIOD_S
        self._averages: dict[str, BundleAverages] = {}
        """As the leader: the averages of the bundles that brokers have reported."""
        self._written: set[str] = set()
        """Bundles with a node that this leader wrote."""
        self._tasks = Tasks("load manager")

    def _made_shedder(self) -> Shedder | None:
        """None: the strategy is that of `balancing`."""
        return None if self._strategy == ONE_BUNDLE else SHEDDERS[self._strategy]()

    async def start(self) -> None:
        """Begin, unless `loadBalancerEnabled` is off."""
        if not self._config.load_balancer:
            return
        self._work.on_changed = self._on_changed
        self._tasks.spawn(self._reports(), "reports")
        self._tasks.spawn(self._rounds(), "rounds")
        self._tasks.spawn(self._average_rounds(), "averages")

    async def stop(self) -> None:
        await self._tasks.cancel()

    def _on_changed(self) -> None:
        self._is_changed = True

    # -------------------------------------------------------------------------------- reports

    async def measure(self) -> BrokerLoad:
        """The load of this broker now; its rates are those of the last period."""
        rates: dict[str, list[TopicRates]] = {bundle: [] for bundle in self._ownership.owned_bundles}
        names = [*self._broker.topics, *self._broker.non_persistent.by_name]
        for number, name in enumerate(names):
            bundle = self._ownership.bundle_of(name)
            if bundle in rates:
                rates[bundle].append(self._broker.topic_rates(name))
            if number % _PAUSE_EVERY == _PAUSE_EVERY - 1:
                await self._clock.sleep(0)
        return BrokerLoad(
            cpu=self._cpu,
            memory=resident_bytes() / self._memory_limit,
            bundles={name: BundleLoad(*sum_rates(topics).of_bundle, len(topics)) for name, topics in rates.items()},
            at_ms=self._clock.wall_ms(),
        )

    def _count_cpu(self) -> None:
        """The share of one core that this process used in the last period: a broker works on one.

        The first period is short, so that a new broker does not look idle for long; the next ones are those of
        `loadBalancerHostUsageCheckIntervalMinutes`."""
        before_s, used_before_s = self._counted
        now_s, used_s = self._clock.monotonic(), cpu_seconds()
        if now_s - before_s >= self._cpu_period_s:
            self._cpu = (used_s - used_before_s) / (now_s - before_s)
            self._counted = now_s, used_s
            self._cpu_period_s = self._config.usage_interval_minutes * MINUTE_S

    def encoded(self, load: BrokerLoad) -> dict[str, Any]:
        """*load* as the members of a report."""
        return encode_load(load, memory_limit_bytes=self._memory_limit, nic_gbps=self._config.nic_gbps or 0.0)

    async def _reports(self) -> None:
        while True:
            await attempt("reporting the load of this broker", self.report_if_due())
            await self._clock.sleep(self._config.report_interval_min_ms / 1000)

    async def report_if_due(self) -> bool:
        """Report the load, if it has changed enough; returns whether it has. Raises MetadataError."""
        self._count_cpu()
        load, config = await self.measure(), self._config
        self.measured = load
        due = is_report_due(
            load,
            self._reported,
            threshold=config.report_threshold_percent / 100,
            interval_max_ms=config.report_interval_max_minutes * 60_000,
            is_changed=self._is_changed,
        )
        if due:
            self._is_changed = False
            await self._ownership.members.report_load(self.encoded(load))
            self._reported = load
        return due

    # -------------------------------------------------------------------------------- the leader

    async def _rounds(self) -> None:
        while True:
            await self._clock.sleep(self._config.shedding_interval_minutes * MINUTE_S)
            if self._ownership.members.is_leader and (self._config.shedding or self._config.auto_split):
                await attempt("balancing the load of the brokers", self.balance())

    async def _average_rounds(self) -> None:
        due_s = 0.0
        while True:
            await self._clock.sleep(self._config.shedding_interval_minutes * MINUTE_S)
            if not self._ownership.members.is_leader:
                self._averages, self._written = {}, set()
                continue
            now_s = self._clock.monotonic()
            await attempt("averaging the load of bundles", self.sample())
            if now_s >= due_s:
                due_s = now_s + self._config.averages_interval_minutes * MINUTE_S
                await attempt("writing the average load of bundles and brokers", self.write_averages())

    async def sample(self) -> None:
        """Take what all bundles pass now into their averages. Raises MetadataError, Corruption."""
        brokers = await self._ownership.members.loaded_brokers()
        samples = loads_of_bundles({broker_id: load for broker_id, (_, load) in brokers.items()})
        self._averages = {
            bundle: (self._averages.get(bundle) or await self._stored_average(bundle)).with_sample(load)
            for bundle, load in samples.items()
        }

    async def write_averages(self) -> None:
        """Write them, of the busiest bundles and of all brokers. Raises MetadataError, Corruption."""
        store, averages = self._broker.store, self._averages
        brokers = await self._ownership.members.loaded_brokers()
        for bundle in busiest(averages, self._config.stored_averages):
            await store.put(f"{BUNDLE_DATA}/{bundle}", to_json(encode_bundle(averages[bundle])))
            self._written.add(bundle)
        for bundle in self._written - averages.keys():
            await self._delete(f"{BUNDLE_DATA}/{bundle}")
        self._written &= averages.keys()
        for broker_id, (_, load) in brokers.items():
            await store.put(f"{BROKER_AVERAGES}/{broker_id}", to_json(encode_broker(load.bundles, averages)))
        for broker_id in await store.children(BROKER_AVERAGES):
            if broker_id not in brokers:
                await self._delete(f"{BROKER_AVERAGES}/{broker_id}")

    async def _stored_average(self, bundle: str) -> BundleAverages:
        """What the leader before this one wrote."""
        node = await self._broker.store.get(f"{BUNDLE_DATA}/{bundle}")
        return BundleAverages() if node is None else decode_bundle(parse_record(node))

    async def _delete(self, path: str) -> None:
        with suppress(NoNode):  # somebody else was faster
            await self._broker.store.delete(path)

    async def balance(self) -> None:
        """One round of the leader. Raises MetadataError, Corruption."""
        self._balancer.use(balance_limits(self._config))
        brokers = await self._ownership.members.loaded_brokers()
        loads = {broker_id: load for broker_id, (_, load) in brokers.items()}
        addresses = {broker_id: address for broker_id, (address, _) in brokers.items()}
        if self._config.auto_split:
            await self._split(loads, addresses)
        if self._config.shedding:
            policies = await self._ownership.ranking.isolation()
            hosts = {broker_id: host_of(broker_id) for broker_id in loads}

            def may_serve(bundle: str, broker_id: str) -> bool:
                namespace = bundle.rpartition("/")[0]
                return namespace not in self._config.shedding_excluded and broker_id in candidates(
                    namespace, hosts, policies
                )

            if self._strategy != self._config.shedding_strategy:  # it may change while brokers run
                self._strategy = self._config.shedding_strategy
                self._shedder = self._made_shedder()
            if self._shedder is not None:
                await self._shed(self._shedder, loads, addresses, may_serve)
                return
            move = await self._next_move(loads, may_serve)
            if move is not None:
                self.sources += await self._move(move, loads, addresses)

    async def _shed(
        self,
        shedder: Shedder,
        loads: Mapping[str, BrokerLoad],
        addresses: Mapping[str, BrokerAddress],
        may_serve: Callable[[str, str], bool],
    ) -> None:
        """One round by a strategy of Apache's. Raises MetadataError, Corruption."""
        if len(loads) < 2:
            return
        now_ms, grace_ms = self._clock.wall_ms(), self._config.shedding_grace_minutes * 60_000
        self._sent = {bundle: sent for bundle, sent in self._sent.items() if now_ms - sent[0] < grace_ms}
        averages = {
            bundle: self._averages.get(bundle) or BundleAverages().with_sample(load)
            for bundle, load in loads_of_bundles(loads).items()
        }
        excluded = {bundle for bundle in averages if bundle.rpartition("/")[0] in self._config.shedding_excluded}
        cluster, settings = Cluster(loads, averages, self._sent.keys() | excluded), shedding_settings(self._config)
        moved = set[str]()
        for shed in shedder.find(cluster, settings):
            to = self._place(shed, cluster, settings, may_serve)
            if to is None:
                log.info("%s stays on %s: %s", shed.bundle, shed.source, "the placement strategy has no other broker")
            elif not await self._ownership.ranking.may_move(shed.bundle, shed.source, to):
                log.info("%s stays: its anti-affinity group would be less apart on %s", shed.bundle, to)
            else:
                assert to in addresses, "the placement strategy chooses among the brokers of this round"
                assert to != shed.source, "a bundle that stays is not moved"
                if await self._move(Move(shed.bundle, shed.source, to), loads, addresses):
                    moved.add(shed.source)
                self._sent[shed.bundle] = (self._clock.wall_ms(), to)
        self.sources += len(moved)

    def _place(
        self, shed: Shed, cluster: Cluster, settings: SheddingSettings, may_serve: Callable[[str, str], bool]
    ) -> str | None:
        arriving: dict[str, list[str]] = {}
        for bundle, (_, broker) in self._sent.items():
            if bundle not in cluster.loads.get(broker, BrokerLoad()).bundles:
                arriving.setdefault(broker, []).append(bundle)
        asked = Asked(shed, cluster, arriving, settings, self._config.placement_difference_percent / 100, random.choice)
        return destination(
            self._placement,
            [broker_id for broker_id in cluster.loads if may_serve(shed.bundle, broker_id)],
            asked,
            topics_max=self._config.broker_max_topics,
            distribute_evenly=self._config.distribute_evenly,
        )

    async def _next_move(self, loads: Mapping[str, BrokerLoad], may_serve: Callable[[str, str], bool]) -> Move | None:
        """The move of this round that keeps anti-affinity groups as far apart as they are. Raises MetadataError,
        Corruption."""
        kept: set[str] = set()
        while len(kept) < KEPT_MAX:
            move = self._balancer.next_move(
                loads, self._clock.wall_ms(), lambda bundle, broker: bundle not in kept and may_serve(bundle, broker)
            )
            if move is None or await self._ownership.ranking.may_move(move.bundle, move.source, move.destination):
                return move
            log.info("%s stays: its anti-affinity group would be less apart on %s", move.bundle, move.destination)
            kept.add(move.bundle)
        return None

    async def _split(self, loads: Mapping[str, BrokerLoad], addresses: Mapping[str, BrokerAddress]) -> None:
        """Split the bundles that are above the limits of a bundle, each at its owner, where their namespaces may have
        more."""
        crowded = {
            bundle.rpartition("/")[0]
            for load in loads.values()
            for bundle, bundle_load in load.bundles.items()
            if self._balancer.excess(bundle_load) > 1
        }
        counts = {}
        for namespace in crowded:
            try:
                counts[namespace] = len((await self._broker.bundles_of(namespace)).ranges)
            except BrokerError:
                continue  # deleted since the load was reported
        config = self._config
        for bundle, owner in self._balancer.splits(loads, counts):
            log.info("%s is above the limits of a bundle and is split", bundle)
            if owner == self._ownership.broker_id:
                work: Any = self._work.split(bundle, config.split_algorithm, unload=config.auto_split_unload)
            else:
                unload = str(config.auto_split_unload).lower()
                query = f"split?unload={unload}&splitAlgorithmName={config.split_algorithm}"
                work = self._ask(addresses[owner], bundle, query)
            self.splits += _is_done(await attempt(f"splitting {bundle}", work))

    async def _move(self, move: Move, loads: Mapping[str, BrokerLoad], addresses: Mapping[str, BrokerAddress]) -> bool:
        """Whether it was done."""
        log.info(
            "%s moves from %s (usage %.0f %%) to %s (%.0f %%)",
            move.bundle,
            move.source,
            100 * loads[move.source].usage,
            move.destination,
            100 * loads[move.destination].usage,
        )
        if move.source == self._ownership.broker_id:
            work: Any = self._work.move(move.bundle, addresses[move.destination])
        else:
            work = self._ask(addresses[move.source], move.bundle, f"unload?destinationBroker={move.destination}")
        is_done = _is_done(await attempt(f"moving {move.bundle}", work))
        self.moves += is_done
        self._balancer.on_moved(move, self._clock.wall_ms(), is_done=is_done)
        return is_done

    async def _ask(self, owner: BrokerAddress, bundle: str, what: str) -> bool:
        return await self._asks.try_ask("PUT", f"{self._asks.web_url(owner)}{NAMESPACES}/{bundle}/{what}", bundle)


def _is_done(result: object) -> bool:
    """Whether a bundle was moved or split: the owner did what it was asked, and the bundle was not left whole."""
    return result is not FAILED and result is not False and result != []
