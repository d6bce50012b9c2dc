"""One broker: opens, closes and deletes topics, and runs periodic work.

Rules:

1. However many clients ask for a topic at the same moment, it is opened once; all wait for the same task.
2. A topic is open only while this broker owns its bundle; that is checked before it is opened, and again after.
3. A topic that is being closed or deleted is opened again only when that has ended.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, Final, Protocol

from broker.arrivals import Arrivals
from broker.binary.connection import LookupAnswer
from broker.binary.server import BinaryServer
from broker.binary.watches import WatchedNames
from broker.errors import (
    BrokerError,
    MetadataFailure,
    NotAllowed,
    NotReady,
    TopicNotFound,
    TopicUnreadable,
    storage_error,
)
from broker.memory_budget import MemoryBudget
from broker.names import Bundles, BundleSet
from broker.ownership.rules import BrokerAddress, Ownership
from broker.policies.namespace import NamespacePolicies
from broker.policies.permissions import Permissions
from broker.records.json_records import RecordError, RecordExists
from broker.security.access import Access
from broker.security.authorization import Rules
from broker.security.broker_client import BrokerClient
from broker.security.doors import Doors, port_context
from broker.security.rechecks import recheck
from broker.serving.creation import Creation
from broker.serving.in_force import InForce
from broker.serving.lookups import Lookups
from broker.serving.non_persistent_topics import NonPersistentTopics
from broker.serving.open_topics import OpenTopics
from broker.serving.periodic import Periodic
from broker.serving.schemas import SchemaRules, Schemas, has_no_schema
from broker.serving.storage import ledger_config, open_storage
from broker.serving.topic_lists import TopicLists
from broker.settings.config import BrokerConfig, parse_listeners
from broker.settings.dynamic import DynamicSettings
from broker.system_client import Dialed, SystemClient
from broker.tenancy.administrators import TenantAdmins
from broker.tenancy.changes import Tenancy
from broker.tenancy.partitions import Partitions
from broker.topic.clients.producer import ProducerTopic
from broker.topic.clients.properties import KeptBytes
from broker.topic.non_persistent.subscription import NonPersistentSubscription
from broker.topic.non_persistent.topic import NonPersistentTopic
from broker.topic.ports import NOT_KNOWN, NextBroker
from broker.topic.rates.throttling import PublishHold, PublishThrottle
from broker.topic.reading.subscription import Subscription
from broker.topic.topic import Topic
from broker.topic.topic_rates import NO_RATES, TopicRates, rates_of
from broker.topic.trace_context import Tracing
from broker.topic.traced_topic import TracedTopic
from broker.topic.unacked import UnackedBudget
from broker.wire import pulsar_pb2 as wire
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.damage.reports import OnDamage, ignore_damage
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError, MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.distribution import Distribution
from magnetar_core.runtime.process.memory import memory_bytes
from magnetar_core.runtime.tasks import SingleFlight, Tasks
from magnetar_core.runtime.turns import Rank, Turns
from magnetar_core.runtime.types import MIB, Cancellable, ConfigurationError, Corruption
from magnetar_core.security.tls.contexts import Certificates
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import ManagedLedgerError, ManagedLedgerNotFound
from managed_ledger.ledger import ManagedLedger
from managed_ledger.ledgers.holdings import Changes, Holdings
from managed_ledger.ledgers.tails import Tails
from managed_ledger.reading.entry_cache import EntryCache
from managed_ledger.topic_name import TopicName

log = logging.getLogger(__name__)

# Topics that are compacted at the same time; each reads and writes as fast as it can, with pauses for others.
COMPACTIONS_MAX: Final = 2

# Topics whose opening begins at the same time. What hundreds ask of the metadata store and of bookies goes in few
# requests, so fewer at a time take longer in all (with 500 topics, 48 at a time: half as long again); of thousands the
# first ones are there when the last ones begin. An opening that storage keeps waiting for so long goes on beside the
# next ones.
OPENED_AT_ONCE: Final = 1_000
OPENING_TURN_S: Final = 2.0

# Names of topics of a namespace that are read in one turn: some 20 µs each.
NAMES_PER_TURN: Final = 1_000

# Topics that are closed at the same time when the broker stops.
CLOSING_MAX: Final = 100

_PRODUCER_NAMES: Final = "/counters/producer-name/-"


class _NotStored(TopicNotFound, code=TopicNotFound.code):
    """A topic was to be opened without being made, and is not there."""


class Ledgers(Protocol):
    """Opens managed ledgers (`managed_ledger.factory.ManagedLedgerFactory`)."""

    cache: EntryCache
    changes: Changes
    tails: Tails

    async def open(
        self, name: str, config: ManagedLedgerConfig | None = None, *, create: bool = True
    ) -> ManagedLedger: ...

    def prepare(
        self,
        name: str,
        config: ManagedLedgerConfig | None = None,
        *,
        is_dead: bool = True,
        held: Holdings | None = None,
    ) -> None: ...

    def recover(self, name: str, config: ManagedLedgerConfig | None = None) -> None: ...

    async def exists(self, name: str) -> bool: ...

    async def list(self, namespace: str) -> list[str]: ...

    def watch(self, namespace: str, changed: Callable[[], None]) -> Cancel: ...

    async def discard(self, name: str) -> None: ...

    async def close(self) -> None: ...


class Broker:
    """Serves topics to the clients of one cluster.

    *ledgers* and *schemas* are made from *bookkeeper* unless they are given, as by tests.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        bookkeeper: BookKeeper | None,
        clock: Clock,
        *,
        ownership: Ownership,
        ledgers: Ledgers | None = None,
        schemas: Schemas | None = None,
        on_damage: OnDamage = ignore_damage,
        doors: Doors | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """*on_damage* is told of entries of topics that no bookie can give; *doors* authenticate clients; *tracing* is
        told of messages whose senders trace them."""
        if ledgers is None or schemas is None:
            assert bookkeeper is not None, "topics need ledgers"
            ledgers, schemas = open_storage(config, bookkeeper, store, clock, on_damage)
        self.config = config
        self.store = store
        self.clock = clock
        self.doors = doors
        self._topic_class = Topic if tracing is None else partial(TracedTopic, tracing=tracing)
        self.certificates = (
            None if config.port_tls is None else Certificates(config.port_tls, port_context(config), clock)
        )
        self.web_certificates = (
            self.certificates
            if config.web_tls == config.port_tls or config.web_tls is None
            else Certificates(config.web_tls, port_context(config), clock)
        )
        self.ownership = ownership
        self.ledgers = ledgers
        self.schemas = schemas
        self.tenancy = Tenancy(store, config)
        self._tenant_admins = TenantAdmins(store, self._on_tenant_changed)
        self.access = Access(rules_of(config), self._tenant_admins.of, self._permissions)
        self.on_permissions_changed: list[Callable[[str], Coroutine[Any, Any, None]]] = []
        """Called with the name of a namespace where rights may have changed, for clients that topics do not know."""
        self.load_times = Distribution()
        """Milliseconds until topics were open, the time in which they waited for their turn included."""
        self.publish_latencies = Distribution()
        """Milliseconds until entries of persistent topics were stored, from when their messages had come."""
        self.loads_failed = 0
        self.arrivals = Arrivals(clock)
        self.partitioned = Partitions(store, ledgers, self.arrivals.making)
        self._schema_rules = SchemaRules(schemas, config)
        self.address = BrokerAddress("")
        memory = memory_bytes()
        self.publishes = MemoryBudget(config.publish_buffer_bytes(memory), clock.call_later)
        self.reads = MemoryBudget(config.read_buffer_bytes(memory), clock.call_later)
        self.kept_properties = KeptBytes.of_broker()
        self.watched_names = WatchedNames()
        self.unacked = UnackedBudget(config.max_unacked_per_broker, config.max_unacked_part)
        self.publish_throttle = PublishThrottle()
        """The rate of all topics together."""
        self.publish_throttle.use(config.broker_publish_rate, self.now_ms())
        self.topics = OpenTopics()
        """The persistent topics that are open."""
        self.non_persistent = NonPersistentTopics(config, clock, ownership)
        self._topic_lists = TopicLists(self._persistent_topics, ledgers.watch, clock)
        self.server = BinaryServer(self, clock, config)
        self.peers = BrokerClient(config, clock)
        """As whom other brokers are asked."""
        system = SystemClient(
            self._dial, self._own_urls, self.now_ms, config.max_message_bytes, prefers_tls=lambda: self.peers.uses_tls
        )
        self._tasks = Tasks("broker")
        self.in_force = InForce(
            config,
            store,
            clock,
            self._tasks,
            self.tenancy,
            system,
            self.topics,
            self.non_persistent,
            self._recheck,
        )
        self.namespaces = self.in_force.namespaces
        self.topic_policies = self.in_force.topic_policies
        self.resource_groups = self.in_force.resource_groups
        self.lookups = Lookups(
            self.namespaces,
            ownership,
            lambda: self.address,
            lambda: config.max_concurrent_lookups,
            clock.monotonic,
        )
        self.creation = Creation(config, clock, self.namespaces, self.partitioned, self._persistent_topics)
        self.periodic = Periodic(config, clock, self.topics, self.non_persistent, self.topic_policies, self)
        self.settings = DynamicSettings(config, store, self._on_settings_changed, self._tasks)
        self._loading: SingleFlight[TopicName, Topic] = SingleFlight(self._tasks, "open")
        self._ending: dict[TopicName, asyncio.Task[Any]] = {}
        self._compactions = asyncio.Semaphore(COMPACTIONS_MAX)
        self._loads_max = config.max_concurrent_topic_loads
        self._load_slots = asyncio.Semaphore(self._loads_max)
        self._openings = Turns(OPENED_AT_ONCE, OPENING_TURN_S, clock)
        self.expected: dict[TopicName, int] = {}
        """Topics that come to this broker from another one → their traffic there (`broker.transfer.rosters.roster`)."""
        self._name_prefix: str | None = None
        self._name_lock = asyncio.Lock()
        self._names = 0
        self._is_stopping = False
        self._stop_watching: Cancel | None = None

    # -------------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Open the binary port and start the periodic work."""
        config, host = self.config, self.config.advertised_host
        plain = tls = ""
        if config.service_port is not None:
            plain = f"pulsar://{host}:{await self.server.listen(config.bind_address, config.service_port)}"
        if config.service_port_tls is not None:
            assert self.certificates is not None, "a port with TLS needs certificates"
            port = await self.server.listen(config.bind_address, config.service_port_tls, self.certificates)
            tls = f"pulsar+ssl://{host}:{port}"
        listeners = parse_listeners(config.advertised_listeners)
        plain, tls = listeners.get(config.internal_listener_name, (plain, tls))
        http = f"http://{host}:{config.web_port}" if config.web_port else ""
        https = f"https://{host}:{config.web_port_tls}" if config.web_port_tls else ""
        self.address = BrokerAddress(plain, tls, http, https, listeners)
        self._stop_watching = self.ownership.watch_lost(self._on_lost)
        await self.settings.start()
        await self.resource_groups.start()
        self.periodic.start(self._tasks)

    @property
    def port(self) -> int:
        """The port that the binary protocol is served on; that of TLS if there is no other."""
        return int((self.address.service_url or self.address.service_url_tls).rpartition(":")[2])

    async def close(self) -> None:
        """Take no new clients, close all topics, disconnect the clients, close the managed ledgers."""
        self._is_stopping = True
        self.in_force.stop()
        if self._stop_watching is not None:
            self._stop_watching()
        self.settings.close()
        self.resource_groups.close()
        await self.server.stop_listening()
        slots = asyncio.Semaphore(CLOSING_MAX)

        async def close(name: TopicName) -> None:
            async with slots:
                await self.unload(name)

        await self.topic_policies.close()
        await asyncio.gather(*(close(name) for name in [*self.topics, *self._loading.under_way]))
        await self.non_persistent.close_all()
        await self.server.close()
        await self._topic_lists.close()
        await self._tasks.cancel()
        self.namespaces.close()
        self._tenant_admins.close()
        await self.ledgers.close()

    def now_ms(self) -> int:
        return self.clock.wall_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable:
        return self.clock.call_later(delay_ms / 1000, callback)

    # -------------------------------------------------------------------------------- namespaces

    async def namespace(self, name: str) -> NamespacePolicies:
        """The policies of `tenant/namespace`. Raises TopicNotFound, MetadataFailure."""
        return await self.namespaces.policies(name)

    async def bundles_of(self, namespace: str) -> Bundles:
        """The bundles of `tenant/namespace`. Raises TopicNotFound, MetadataFailure."""
        return (await self.namespace(namespace)).bundles

    async def bundles_now(self, namespace: str) -> Bundles:
        """The same, read anew. Raises TopicNotFound, MetadataError, Corruption."""
        policies = await self.tenancy.policies(namespace)
        if policies is None:
            raise TopicNotFound("Namespace not found")
        return policies.bundles

    async def cut_namespace(self, namespace: str, before: Bundles, after: Bundles) -> None:
        """Store the bundles *after* instead of *before*. Raises RecordError, MetadataError, Corruption."""
        try:
            await self.tenancy.cut_namespace(namespace, before, after)
        finally:
            self.namespaces.forget(namespace)

    def _on_tenant_changed(self, tenant: str) -> None:
        self._tenant_admins.forget(tenant)
        if not self._is_stopping:
            every: list[Topic | NonPersistentTopic] = [*self.topics.values(), *self.non_persistent.by_name.values()]
            own = [topic for topic in every if topic.name.tenant == tenant]
            self._tasks.spawn(self._recheck(own), f"administrators of {tenant}")

    async def _recheck(self, topics: Sequence[Topic | NonPersistentTopic]) -> None:
        """Who may do what may have changed: disconnect those who may not use *topics* any more."""
        for topic in topics:
            await recheck(self.access, topic)
        for namespace in {topic.name.namespace for topic in topics}:
            for changed in self.on_permissions_changed:
                await changed(namespace)

    async def _on_settings_changed(self) -> None:
        self.access.use(rules_of(self.config))
        config = self.config
        self.publish_throttle.use(config.broker_publish_rate, self.now_ms())
        self.publishes.limit_bytes = config.publish_buffer_bytes(memory_bytes())
        self.ledgers.cache.bytes_max = config.cache_mbytes * MIB
        if config.max_concurrent_topic_loads != self._loads_max:
            self._loads_max = config.max_concurrent_topic_loads
            self._load_slots = asyncio.Semaphore(self._loads_max)  # those that are being opened keep their old ones
        try:
            self.peers.use(config)
        except ConfigurationError as error:
            log.error("other brokers are asked as before: %s", error)
        await self.in_force.reload_all()

    async def _permissions(self, name: str) -> Permissions | None:
        """What was granted in `tenant/namespace`; None if there is no such namespace. Raises MetadataFailure."""
        try:
            return (await self.namespace(name)).permissions
        except TopicNotFound:
            return None

    # -------------------------------------------------------------------------------- lookups

    async def lookup(self, topic: TopicName, *, authoritative: bool, listener: str) -> LookupAnswer:
        """Where *topic* is served. Raises TopicNotFound, NotReady, TooManyRequests, MetadataFailure."""
        found = await self.lookups.find_for_client(topic, authoritative=authoritative)
        plain, tls = found.service_urls(listener)
        return LookupAnswer(plain, tls, found.is_redirect, found.authoritative)

    async def partitions(self, topic: TopicName, *, create: bool) -> int:
        """How many partitions *topic* has; 0 for one that is not partitioned. Raises TopicNotFound, MetadataFailure."""
        policies = await self.namespace(topic.namespace)
        if topic.partition >= 0:
            return 0
        partitions = await self.creation.partitions_of_base(topic)
        if partitions:
            return partitions
        automatic = self.creation.automatic(policies)
        if create and automatic.allowed:
            if not automatic.partitions or topic.is_system or await self._exists(topic):
                return 0
            return await self._create_partitioned(topic, automatic.partitions)
        if not await self._exists(topic):
            raise TopicNotFound(f"Topic {topic} does not exist")
        return 0

    async def _create_partitioned(self, topic: TopicName, partitions: int) -> int:
        await self.creation.check_new(topic, partitions)
        most = self.config.partitions_max
        if not 1 <= partitions <= most:
            raise NotAllowed(
                f"{topic} is not made: autoTopicCreation of its namespace, or defaultNumPartitions, says {partitions} "
                f"partitions; set it to 1 to {most}"
            )
        try:
            await self.partitioned.create(topic, partitions)
        except RecordExists:
            return await self.creation.partitions_of_base(topic)  # another request made it meanwhile
        except (MetadataError, ManagedLedgerError) as error:
            raise MetadataFailure(str(error)) from error
        return partitions

    async def _exists(self, topic: TopicName) -> bool:
        if topic in self.topics or self.non_persistent.get(topic) is not None:
            return True
        try:
            return topic.is_persistent and await self.ledgers.exists(topic.managed_ledger_name)
        except (MetadataError, ManagedLedgerError) as error:
            raise MetadataFailure(str(error)) from error

    async def topics_of_namespace(
        self, namespace: str, *, persistent: bool, non_persistent: bool, system: bool = False
    ) -> list[str]:
        """Full names of the topics of *namespace*; each partition is listed, topics of the system only with *system*.

        Of non-persistent topics those that are open here.
        """
        passing = self.non_persistent.names(namespace) if non_persistent else []
        if not persistent:
            return passing
        try:
            names = await self.ledgers.list(namespace)
        except (MetadataError, ManagedLedgerError) as error:
            raise MetadataFailure(str(error)) from error
        found = [*passing]
        for first in range(0, len(names), NAMES_PER_TURN):
            if first:
                await asyncio.sleep(0)  # others have their turn
            topics = [TopicName.of_managed_ledger(name) for name in names[first : first + NAMES_PER_TURN]]
            found += (topic.full for topic in topics if system or not topic.is_system)
        return sorted(found)

    async def _persistent_topics(self, namespace: str) -> list[str]:
        return await self.topics_of_namespace(namespace, persistent=True, non_persistent=False)

    async def watch_topics(self, namespace: str, changed: Callable[[list[str]], None]) -> tuple[list[str], Cancel]:
        """The persistent topics of *namespace*; *changed* gets all of them after each change. Raises BrokerError."""
        return await self._topic_lists.watch(namespace, changed)

    # -------------------------------------------------------------------------------- topics

    async def topic_for_producer(self, topic: TopicName) -> Topic | NonPersistentTopic:
        """The open topic; created if policies allow it. Raises BrokerError."""
        return await self._topic(topic, create=True, missing=f"Topic not found {topic}")

    async def topic_for_consumer(self, topic: TopicName, *, create: bool) -> Topic | NonPersistentTopic:
        """The open topic; created if *create* and policies allow it. Raises BrokerError."""
        return await self._topic(topic, create=create, missing=f"Topic {topic} does not exist")

    async def persistent_topic(self, topic: TopicName, *, create: bool) -> Topic:
        """As above, for those who need what is stored. Raises BrokerError."""
        found = await self._topic(topic, create=create, missing=f"Topic {topic} does not exist")
        if isinstance(found, NonPersistentTopic):
            raise NotAllowed(f"{topic} is non-persistent; only the binary protocol serves such topics")
        return found

    async def _topic(self, name: TopicName, *, create: bool, missing: str) -> Topic | NonPersistentTopic:
        loaded = self.topics.get(name) or self.non_persistent.get(name)
        if loaded is not None and not loaded.is_closed:
            self._check_here(name)  # rule 2
            return loaded
        if self._is_stopping:
            raise NotReady("This broker is stopping")
        if name.is_persistent and not self.config.enable_persistent_topics:
            raise NotAllowed(f"{name}: this broker has enablePersistentTopics=false")
        policies = await self.namespace(name.namespace)
        await self._check_owned(name)
        if name.is_persistent:
            with contextlib.suppress(_NotStored):
                return await self._load(name, policies, create=False)
        if not await self._may_make(name, policies, create):
            raise TopicNotFound(missing)
        return await self._made(name)

    async def _made(self, name: TopicName) -> Topic | NonPersistentTopic:
        """A new topic, when it is its turn. Raises BrokerError."""
        async with self.arrivals.making():
            await self.creation.check_new(name)
            # While it waited a bundle may have been given away, and a non-persistent topic is told of nothing before it
            # is there.
            policies = await self.namespace(name.namespace)
            await self._check_owned(name)
            if name.is_persistent:
                return await self._load(name, policies)
            return self._open_non_persistent(name, policies)

    async def _check_owned(self, name: TopicName) -> None:
        """Raises NotReady unless the topic's bundle is ours, or comes to us now; MetadataFailure."""
        if self.ownership.owns(name):
            return
        try:
            is_ours = await self.ownership.is_coming(name)
        except (MetadataError, Corruption) as error:
            raise MetadataFailure(str(error)) from error
        if not is_ours:
            raise _not_here(name)

    def _check_here(self, name: TopicName) -> None:
        """Raises NotReady unless the topic's bundle is ours."""
        if not self.ownership.owns(name):
            raise _not_here(name)

    async def _may_make(self, name: TopicName, policies: NamespacePolicies, create: bool) -> bool:
        if name.partition >= 0:
            partitions = await self.creation.partitions_of_base(name)
            if partitions:
                return name.partition < partitions
        elif await self.creation.partitions_of_base(name):
            return True
        return create and (name.is_system or self.creation.automatic(policies).allowed)

    async def _load(
        self, name: TopicName, policies: NamespacePolicies, *, create: bool = True, is_awaited: bool = True
    ) -> Topic:
        """The open topic; it is opened if it is not (rule 1). Topics that a client waits for are opened first, then
        those with more traffic. Raises _NotStored if it is not to be made."""
        # Another request may have opened it since the caller looked. A second object on the same ledger would share the
        # cursors with the first, so that each delivers only part of the entries; and it would get the answers to
        # messages that were published through the first.
        loaded = self.topics.get(name)
        if loaded is not None and not loaded.is_closed:
            return loaded
        rank = (0 if is_awaited else 1, -self.expected.get(name, 0))
        self._openings.hurry(name, rank)
        try:
            async with asyncio.timeout(self.config.topic_load_s):
                while True:
                    try:
                        return await self._loading.do(name, lambda: self._open(name, policies, create, rank))
                    except _NotStored:
                        if not create:
                            raise
                        # Joined one who only looked whether there is such a topic.
        except TimeoutError:  # it is opened all the same, for those who come later
            raise NotReady(f"Failed to load topic {name} within {self.config.topic_load_s} s; retry") from None

    async def prepare(self, name: TopicName, *, is_dead: bool, held: Holdings | None) -> None:
        """Begin to get what opening a topic will need, whose owner is dead or will close it, and told *held* of it.

        Raises BrokerError.
        """
        if name.is_persistent and name not in self.topics and not self._is_stopping:
            policies = await self.in_force.of(name)
            settings = ledger_config(self.config, policies, is_system=name.is_system)
            self.ledgers.prepare(name.managed_ledger_name, settings, is_dead=is_dead, held=held)

    async def recover_ahead(self, name: TopicName) -> None:
        """Begin to close the last ledger of a topic whose owner's process is gone, before its session ends.

        Raises BrokerError.
        """
        if name.is_persistent and name not in self.topics and not self._is_stopping:
            policies = await self.in_force.of(name)
            self.ledgers.recover(
                name.managed_ledger_name, ledger_config(self.config, policies, is_system=name.is_system)
            )

    async def open_again(self, name: TopicName) -> None:
        """Open a topic that another broker served, if it is still there and ours. Raises BrokerError."""
        with contextlib.suppress(_NotStored):
            if self.ownership.owns(name) and not self._is_stopping:
                await self._load(name, await self.namespace(name.namespace), create=False, is_awaited=False)

    def holdings(self, name: TopicName) -> Holdings | None:
        """What a successor needs of a topic that is open here; None: nothing is known."""
        topic = self.topics.get(name)
        return None if topic is None else topic.ledger.holdings()

    @property
    def loads_pending(self) -> int:
        """Topics that are being opened, or wait for it."""
        return len(self._loading.under_way)

    async def _open(self, name: TopicName, policies: NamespacePolicies, create: bool, rank: Rank) -> Topic:
        began_s = self.clock.monotonic()
        try:
            topic = await self._opened(name, policies, create, rank)
        except _NotStored:
            raise
        except Exception:
            self.loads_failed += 1
            raise
        self.load_times.add((self.clock.monotonic() - began_s) * 1000)
        return topic

    async def _opened(self, name: TopicName, policies: NamespacePolicies, create: bool, rank: Rank) -> Topic:
        while (ending := self._ending.get(name)) is not None:  # rule 3
            await asyncio.wait([ending])
        policies = await self.in_force.of_new(name, policies)
        async with self._load_slots, self._openings.turn(name, rank):
            try:
                settings = ledger_config(self.config, policies, is_system=name.is_system)
                ledger = await self.ledgers.open(name.managed_ledger_name, settings, create=create)
            except ManagedLedgerNotFound as error:
                raise _NotStored(f"Topic {name} does not exist") from error
            except ManagedLedgerError as error:
                log.warning("%s cannot be opened: %s", name, error)
                raise storage_error(error) from error
            except MetadataError as error:
                log.warning("%s cannot be opened: %s", name, error)
                raise MetadataFailure(str(error)) from error
            topic = self._topic_class(
                name,
                ledger,
                self.config,
                policies,
                self.ownership,
                self.clock,
                self._on_dropped,
                self.reads,
                self._compactions,
                self.unacked,
                self.publish_latencies,
            )
            try:
                await topic.load()
                if not self.ownership.owns(name) or self._is_stopping:  # rule 2
                    raise NotReady(f"The bundle of {name} was lost while it was opened; look it up again")
                if topic.is_closed or not (ledger.is_open or ledger.is_terminated):
                    raise NotReady(f"{name} was taken over by another broker while it was opened")
            except BrokerError:
                topic.abandon("it was not opened")
                await topic.finish()
                raise
            self.in_force.join(topic)
            self.topics[name] = topic
            self.creation.is_made(name)
            self.expected.pop(name, None)
            # Opening may have waited for its turn: what changed meanwhile found no topic to tell.
            await self.in_force.bring_up_to_date(topic, policies)
            return topic

    def _open_non_persistent(self, name: TopicName, policies: NamespacePolicies) -> NonPersistentTopic:
        """Raises NotAllowed."""
        topic = self.non_persistent.open(name, policies)
        self.in_force.join(topic)
        return topic

    def _end(self, name: TopicName, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[Any]:
        """Run the task that closes or deletes a topic; the topic is not opened again before it has ended (rule 3)."""
        task = self._tasks.spawn(work, f"{what} {name}")
        self._ending[name] = task

        def done(_: object) -> None:
            if self._ending.get(name) is task:
                del self._ending[name]

        task.add_done_callback(done)
        return task

    def _on_dropped(self, topic: Topic) -> None:
        """A topic ended by itself: another broker owns its ledger, or storage failed."""
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
        self._end(topic.name, topic.finish(), "drop")

    def _on_lost(self, bundles: list[str]) -> None:
        """The topics of these bundles stop at once, before anything else is written (ownership rule 3)."""
        lost = BundleSet(bundles)
        self.non_persistent.drop_lost(lost)
        for name, topic in list(self.topics.items()):
            if lost.has(name) or not self.ownership.owns(name):
                topic.abandon("its bundle is not ours any more")
                self._on_dropped(topic)

    async def unload(self, name: TopicName, next_broker: NextBroker = NOT_KNOWN) -> None:
        """Close a topic; its clients go on at *next_broker*, or look it up. Does nothing if it is not open."""
        await self._loading.settle(name)
        topic = self.topics.pop(name, None)
        if topic is not None:
            await self._end(name, topic.close(next_broker), "close")

    async def unload_bundle(self, bundle: str, next_broker: NextBroker = NOT_KNOWN) -> None:
        """Close all topics of `tenant/namespace/range`, as `unload`."""
        here = BundleSet([bundle])
        names = [name for name in self.topics if here.has(name)]
        closing = [self.unload(name, next_broker) for name in names]
        await asyncio.gather(*closing, self.non_persistent.close_bundle(bundle, next_broker))

    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with its data and subscriptions. Raises TopicNotFound, NotAllowed (it is in use)."""
        if name not in self.topics and not await self._exists(name):
            raise TopicNotFound(f"Topic {name} does not exist")
        try:
            topic = await self.persistent_topic(name, create=False)
        except TopicUnreadable as error:
            if not force:
                raise TopicUnreadable(f"{error}; it can only be deleted by force") from error
            await self._discard(name)
            await self._forget_schema(name)
            await self._forget_permissions(name)
            await self.forget_topic_policies(name)
            return
        if not force and (topic.is_in_use or topic.has_subscriptions):
            raise NotAllowed(f"Topic {name} has connected clients or subscriptions; use force")
        self.topics.pop(name, None)
        self.creation.is_made(name)
        await self._end(name, self._delete(topic), "delete")
        await self._forget_permissions(name)
        await self.forget_topic_policies(name)

    async def _delete(self, topic: Topic) -> None:
        """Delete a topic and its schema, before a producer may make it again with another one. Raises BrokerError."""
        await topic.delete()
        await self._forget_schema(topic.name)

    async def delete_partitioned(self, name: TopicName) -> None:
        """Delete what is stored of a partitioned topic whose partitions are deleted.

        Raises RecordInUse (one is not), MetadataError, Corruption.
        """
        await self.partitioned.delete(name)
        await self._forget_schema(name)
        await self._forget_permissions(name, with_partitions=True)
        await self.forget_topic_policies(name)

    async def _forget_schema(self, name: TopicName) -> None:
        """A topic that is made later under the same name takes any schema. A partition has that of its topic."""
        if name.partition >= 0:
            return
        try:
            await self._schema_rules.forget(name)
        except (BrokerError, MetadataError) as error:
            log.warning("%s was deleted; its schema could not be removed: %s", name, error)

    async def forget_topic_policies(self, name: TopicName) -> None:
        """A topic that is made later under the same name begins without policies."""
        try:
            await self.topic_policies.forget(name)
        except BrokerError as error:
            log.warning("%s was deleted; its policies could not be removed: %s", name, error)

    async def _forget_permissions(self, name: TopicName, *, with_partitions: bool = False) -> None:
        """A topic that is made later under the same name must not be open to those who were granted this one."""
        try:
            await self.tenancy.forget_topic_permissions(name, with_partitions=with_partitions)
        except (RecordError, MetadataError, Corruption) as error:
            log.warning("%s was deleted; what was granted on it could not be removed: %s", name, error)

    async def _discard(self, name: TopicName) -> None:
        log.warning("%s cannot be opened and is deleted by force", name)
        try:
            await self.ledgers.discard(name.managed_ledger_name)
        except ManagedLedgerError as error:
            raise storage_error(error) from error

    async def create_topic(self, name: TopicName) -> Topic:
        """Make and open a persistent topic, even where policies forbid automatic creation. Raises BrokerError."""
        async with self.arrivals.making():
            await self.creation.check_new(name)
            policies = await self.namespace(name.namespace)
            self._check_here(name)
            return await self._load(name, policies)

    async def stored_topic(self, name: TopicName) -> Topic:
        """The open persistent topic; opened if it is stored, and never made. Raises BrokerError."""
        policies = await self.namespace(name.namespace)
        self._check_here(name)
        try:
            return await self._load(name, policies, create=False)
        except _NotStored:
            raise TopicNotFound(f"Topic {name} not found") from None

    async def open_non_persistent(self, name: TopicName) -> NonPersistentTopic:
        """Make a non-persistent topic, even where policies forbid automatic creation. Raises BrokerError."""
        async with self.arrivals.making():
            policies = await self.namespace(name.namespace)
            self._check_here(name)
            return self._open_non_persistent(name, policies)

    async def delete_non_persistent(self, topic: TopicName) -> None:
        """Disconnect the clients of a non-persistent topic and forget it, with what was granted on it."""
        await self.non_persistent.close(topic)
        await self._forget_permissions(topic)

    # -------------------------------------------------------------------------------- other brokers

    def _own_urls(self) -> tuple[str, ...]:
        return self.address.service_url, self.address.service_url_tls

    async def _dial(self, url: str) -> Dialed:
        """A connection to the broker with that service URL; empty: to this one. Raises OSError."""
        if not url:
            return Dialed(*await self.server.open_own())
        scheme, _, rest = url.partition("://")
        host, _, port = rest.split(",")[0].rpartition(":")
        context = self.peers.context if scheme == "pulsar+ssl" else None
        method, data = self.peers.shown()
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
        return Dialed(reader, writer, method, data)

    def publish_room(self, topic: ProducerTopic) -> tuple[float, float] | None:
        """(messages, bytes) that the rates let into *topic* now; None: there is no rate."""
        group = topic.membership.group
        if group is None and not topic.publish_throttle.is_on and not self.publish_throttle.is_on:
            return None
        now_ms = self.now_ms()
        rooms = [topic.publish_throttle.room(now_ms), self.publish_throttle.room(now_ms)]
        if group is not None:
            rooms.append(group.publish_room())
        messages, size_bytes = (min(one[place] for one in rooms) for place in (0, 1))
        return None if messages == size_bytes == inf else (messages, size_bytes)

    def count_published(
        self, topic: ProducerTopic, messages: int, size_bytes: int, hold: Callable[[PublishHold], None]
    ) -> None:
        """A client has published so much; *hold* is called with a rate that is used up."""
        for throttle in (topic.publish_throttle, self.publish_throttle):
            if throttle.is_on and throttle.spend(messages, size_bytes, self.now_ms()) > 0:
                hold(throttle)
        group = topic.membership.group
        if group is not None and group.count_published(messages, size_bytes) > 0:
            hold(topic.membership)

    # -------------------------------------------------------------------------------- names

    async def producer_name(self) -> str:
        """A name that no other producer of the cluster has or had."""
        async with self._name_lock:
            if self._name_prefix is None:
                try:
                    path = await self.store.put_sequential(_PRODUCER_NAMES, b"", ephemeral=True)
                except MetadataError as error:
                    raise MetadataFailure(f"cannot get a number for producer names: {error}") from error
                number = int(path.rpartition("-")[2])
                self._name_prefix = f"{self.config.cluster_name}-{number}-"
        name = f"{self._name_prefix}{self._names}"
        self._names += 1
        return name

    def consumer_name(self) -> str:
        """A name for a consumer whose client gave none."""
        return secrets.token_hex(5)

    # -------------------------------------------------------------------------------- schemas

    async def producer_schema(self, topic: TopicName, schema: wire.Schema | None) -> bytes:
        """Register a producer's schema; returns its version (empty for none). Raises IncompatibleSchema."""
        return await self._schema_rules.admit_producer(topic, schema, await self.in_force.of(topic))

    async def check_consumer_schema(self, topic: TopicName, schema: wire.Schema) -> None:
        """Raises IncompatibleSchema unless a consumer can read *topic* with *schema* (`SchemaRules.admit_consumer`)."""
        if has_no_schema(schema):
            return
        policies = await self.in_force.of(topic)
        await self._schema_rules.admit_consumer(topic, schema, policies, lambda: self._has_been_used(topic))

    def _has_been_used(self, topic: TopicName) -> bool:
        """By producers, by consumers (but those that find the schema out), or by messages."""
        found = self.non_persistent.get(topic) or self.topics.get(topic)
        if found is None:
            return False
        subscriptions: list[Subscription | NonPersistentSubscription] = [*found.subscriptions.values()]
        if found.producers or any(not one.takes_any_schema for each in subscriptions for one in each.consumers):
            return True
        return isinstance(found, Topic) and bool(found.ledger.entries_total)

    async def put_schema(self, topic: TopicName, schema: wire.Schema) -> bytes:
        """The version of *schema*, registered if it is new. Raises TopicNotFound, IncompatibleSchema."""
        if topic not in self.topics and self.non_persistent.get(topic) is None:
            raise TopicNotFound(f"Topic not found {topic}")
        return await self._schema_rules.register(topic, schema, await self.in_force.of(topic))

    async def get_schema(self, topic: TopicName, version: bytes | None) -> tuple[wire.Schema, bytes]:
        """A version of the topic's schema, or the latest. Raises TopicNotFound, IncompatibleSchema."""
        return await self._schema_rules.get(topic, version)

    def topic_rates(self, name: TopicName) -> TopicRates:
        """What passes a topic that is open here, over the last period; zeros if it is not open."""
        topic = self.topics.get(name) or self.non_persistent.get(name)
        return NO_RATES if topic is None else rates_of(topic)


def _not_here(name: TopicName) -> NotReady:
    return NotReady(f"The bundle of {name} is not owned by this broker; look it up again")


def rules_of(config: BrokerConfig) -> Rules | None:
    """Who may do what by the broker's settings; None: everybody may do everything."""
    if not config.authorization_enabled:
        return None
    return Rules(frozenset(config.super_users), frozenset(config.proxy_roles), config.role_wildcards)
