"""One broker: starts and stops its parts, and names them. Lists of topics and schemas are asked for here."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, Final

from broker.arrivals import Arrivals
from broker.binary.connection import LookupAnswer
from broker.binary.server import BinaryServer
from broker.binary.watches import WatchedNames
from broker.errors import (
    MetadataFailure,
    NotAllowed,
    TopicNotFound,
    metadata_errors,
)
from broker.memory_budget import SET_ASIDE_BYTES_MAX, MemoryBudget
from broker.names import Bundles
from broker.ownership.rules import BrokerAddress, Ownership
from broker.policies.namespace import NamespacePolicies
from broker.policies.permissions import Permissions
from broker.records.json_records import RecordExists
from broker.security.access import Access
from broker.security.authorization import Rules
from broker.security.broker_client import BrokerClient
from broker.security.doors import Doors, port_context
from broker.security.rechecks import recheck
from broker.serving.creation import Creation
from broker.serving.deleting import Deleting
from broker.serving.in_force import InForce
from broker.serving.lookups import Lookups
from broker.serving.non_persistent_topics import NonPersistentTopics
from broker.serving.open_topics import OpenTopics
from broker.serving.opening import Ledgers, Opening
from broker.serving.periodic import Periodic
from broker.serving.schemas import SchemaRules, Schemas, has_no_schema
from broker.serving.storage import open_storage
from broker.serving.topic_lists import TopicLists
from broker.settings.config import BrokerConfig
from broker.settings.dynamic import DynamicSettings
from broker.settings.groups.ports import parse_listeners
from broker.system_client import Dialed, SystemClient
from broker.tenancy.administrators import TenantAdmins
from broker.tenancy.changes import Tenancy
from broker.tenancy.partition_counts import PartitionCounts
from broker.tenancy.partitions import Partitions
from broker.topic.clients.producer import ProducerTopic
from broker.topic.clients.properties import KeptBytes
from broker.topic.non_persistent.subscription import NonPersistentSubscription
from broker.topic.non_persistent.topic import NonPersistentTopic
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
from magnetar_core.runtime.tasks import Tasks, gather_in_turns
from magnetar_core.runtime.types import MIB, Cancellable, ConfigurationError
from magnetar_core.security.tls.contexts import Certificates
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger import ManagedLedger

log = logging.getLogger(__name__)

# Topics that are compacted at the same time; each reads and writes as fast as it can, with pauses for others.
COMPACTIONS_MAX: Final = 2

# Names of topics of a namespace that are read in one turn: some 20 µs each.
NAMES_PER_TURN: Final = 1_000

# Topics that are closed at the same time when the broker stops.
CLOSING_MAX: Final = 100

_PRODUCER_NAMES: Final = "/counters/producer-name/-"


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
        """*on_damage* gets the entries of topics that no bookie can give; *doors* authenticate clients; *tracing* gets
        the messages whose senders trace them."""
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
        self.access = Access(rules_of(config), self._tenant_admins.admins_of, self._permissions)
        self.on_permissions_changed: list[Callable[[str], Coroutine[Any, Any, None]]] = []
        """Called with the name of a namespace where rights may have changed, for clients that topics do not know."""
        self.publish_latencies = Distribution()
        """Milliseconds until entries of persistent topics were stored, from when their messages had come."""
        self.arrivals = Arrivals(clock)
        self.partitioned = Partitions(store, ledgers, self.arrivals.making)
        self.partition_counts = PartitionCounts(self.partitioned.count_of_base, store.watch_node, clock)
        self._schema_rules = SchemaRules(schemas, config)
        self.address = BrokerAddress("")
        memory = memory_bytes()
        self.publishes = MemoryBudget(config.publish_buffer_bytes(memory), clock.call_later)
        self.reads = MemoryBudget(config.read_buffer_bytes(memory), clock.call_later)
        self.set_aside = MemoryBudget(SET_ASIDE_BYTES_MAX, clock.call_later)
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
        """The identity with which other brokers are asked."""
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
        self._compactions = asyncio.Semaphore(COMPACTIONS_MAX)
        self.opening = Opening(
            config,
            clock,
            ownership,
            ledgers,
            self.in_force,
            self.creation,
            self.arrivals,
            self.topics,
            self.non_persistent,
            self._tasks,
            self._new_topic,
        )
        self.deleting = Deleting(
            ledgers,
            self.opening,
            self.creation,
            self.topics,
            self.non_persistent,
            self._schema_rules,
            self.topic_policies,
            self.tenancy,
            self.partitioned,
            clock,
        )
        self.periodic = Periodic(config, clock, self.topics, self.non_persistent, self.topic_policies, self.deleting)
        self.settings = DynamicSettings(config, store, self._on_settings_changed, self._tasks)
        self._name_prefix: str | None = None
        self._name_lock = asyncio.Lock()
        self._names = 0
        self._is_stopping = False
        self._stop_watching: Cancel | None = None

    # -------------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Open the binary ports, set `address`, and start what runs in the background."""
        # The ports first: where 0 is configured, the system chooses the port that the address names.
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
        self._stop_watching = self.ownership.watch_lost(self.opening.on_lost)
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
        self.opening.stop()
        if self._stop_watching is not None:
            self._stop_watching()
        self.settings.close()
        self.resource_groups.close()
        await self.server.stop_listening()
        slots = asyncio.Semaphore(CLOSING_MAX)

        async def close(name: TopicName) -> None:
            async with slots:
                await self.opening.unload(name)

        await self.topic_policies.close()
        await gather_in_turns(close(name) for name in [*self.topics, *self.opening.under_way])
        await self.non_persistent.close_all()
        await self.server.close()
        await self._topic_lists.close()
        await self.partition_counts.close()
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
            self.in_force.look_again(namespace)  # nothing watches it until it is read

    def _on_tenant_changed(self, tenant: str) -> None:
        """The administrators of *tenant* may have changed: check the clients of its topics again."""
        self._tenant_admins.forget(tenant)
        if not self._is_stopping:
            topics: list[Topic | NonPersistentTopic] = [*self.topics.values(), *self.non_persistent.by_name.values()]
            own = [topic for topic in topics if topic.name.tenant == tenant]
            self._tasks.spawn(self._recheck(own), f"administrators of {tenant}")

    async def _recheck(self, topics: Sequence[Topic | NonPersistentTopic]) -> None:
        """Who may do what may have changed: disconnect those who may not use *topics* any more."""
        for topic in topics:
            await recheck(self.access, topic)
        for namespace in {topic.name.namespace for topic in topics}:
            for changed in self.on_permissions_changed:
                await changed(namespace)

    async def _on_settings_changed(self) -> None:
        """Hand the changed settings to the parts that keep a copy of them."""
        self.access.use(rules_of(self.config))
        config = self.config
        self.publish_throttle.use(config.broker_publish_rate, self.now_ms())
        self.publishes.limit_bytes = config.publish_buffer_bytes(memory_bytes())
        self.ledgers.cache.bytes_max = config.cache_mbytes * MIB
        self.opening.use(config.max_concurrent_topic_loads)
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
        answer = await self.lookups.find_for_client(topic, authoritative=authoritative)
        plain, tls = answer.service_urls(listener)
        return LookupAnswer(plain, tls, answer.is_redirect, answer.authoritative)

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
            if not automatic.partitions or topic.is_system or await self.opening.exists(topic):
                return 0
            return await self._create_partitioned(topic, automatic.partitions)
        if not await self.opening.exists(topic):
            raise TopicNotFound(f"Topic {topic} does not exist")
        return 0

    async def _create_partitioned(self, topic: TopicName, partitions: int) -> int:
        """Create a partitioned topic that policies say is to be created; returns how many partitions it has. Raises
        BrokerError."""
        await self.creation.check_new(topic, partitions)
        partitions_max = self.config.partitions_max
        if not 1 <= partitions <= partitions_max:
            raise NotAllowed(
                f"{topic} is not made: autoTopicCreation of its namespace, or defaultNumPartitions, says {partitions} "
                f"partitions; set it to 1 to {partitions_max}"
            )
        try:
            await self.partitioned.create(topic, partitions)
        except RecordExists:
            return await self.creation.partitions_of_base(topic)  # another request made it meanwhile
        except (MetadataError, ManagedLedgerError) as error:
            raise MetadataFailure(str(error)) from error
        return partitions

    async def topics_of_namespace(
        self, namespace: str, *, persistent: bool, non_persistent: bool, system: bool = False
    ) -> list[str]:
        """Full names of the topics of *namespace*; each partition is listed, topics of the system only with *system*.

        Non-persistent topics are listed if they are open here.
        """
        passing = self.non_persistent.names(namespace) if non_persistent else []
        if not persistent:
            return passing
        with metadata_errors():
            names = await self.ledgers.list(namespace)
        full_names = [*passing]
        for first in range(0, len(names), NAMES_PER_TURN):
            if first:
                await asyncio.sleep(0)  # others have their turn
            topics = [TopicName.of_managed_ledger(name) for name in names[first : first + NAMES_PER_TURN]]
            full_names += (topic.full for topic in topics if system or not topic.is_system)
        return sorted(full_names)

    async def _persistent_topics(self, namespace: str) -> list[str]:
        return await self.topics_of_namespace(namespace, persistent=True, non_persistent=False)

    async def watch_topics(self, namespace: str, changed: Callable[[list[str]], None]) -> tuple[list[str], Cancel]:
        """The persistent topics of *namespace*; *changed* gets all of them after each change. Raises BrokerError."""
        return await self._topic_lists.watch(namespace, changed)

    # -------------------------------------------------------------------------------- topics

    def _new_topic(
        self, name: TopicName, ledger: ManagedLedger, policies: NamespacePolicies, dropped: Callable[[Topic], None]
    ) -> Topic:
        return self._topic_class(
            name,
            ledger,
            self.config,
            policies,
            self.ownership,
            self.clock,
            dropped,
            self.reads,
            self._compactions,
            self.unacked,
            self.publish_latencies,
            self.arrivals.subscribing,
        )

    async def topic_for_producer(self, topic: TopicName) -> Topic | NonPersistentTopic:
        """The open topic; created if policies allow it. Raises BrokerError."""
        return await self.opening.topic(topic, create=True, missing=f"Topic not found {topic}")

    async def topic_for_consumer(self, topic: TopicName, *, create: bool) -> Topic | NonPersistentTopic:
        """The open topic; created if *create* and policies allow it. Raises BrokerError."""
        return await self.opening.topic(topic, create=create, missing=f"Topic {topic} does not exist")

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
        messages, size_bytes = (min(room[place] for room in rooms) for place in (0, 1))
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
        return await self._schema_rules.admit_producer(topic, schema, await self.in_force.policies_of(topic))

    async def check_consumer_schema(self, topic: TopicName, schema: wire.Schema, durable_subscription: str) -> None:
        """Raises IncompatibleSchema unless a consumer can read *topic* with *schema* (`SchemaRules.admit_consumer`).

        *durable_subscription*: what it subscribes to; empty: not a durable one. One that it may not create is refused
        first, SubscriptionNotFound: the topic must not take its schema (Apache's ServerCnx.handleSubscribe, 4.0.8).
        """
        if has_no_schema(schema):
            return
        opened = self.topics.get(topic)
        if opened is not None and durable_subscription:
            opened.check_subscription(durable_subscription)
        policies = await self.in_force.policies_of(topic)
        await self._schema_rules.admit_consumer(topic, schema, policies, lambda: self._has_been_used(topic))

    def _has_been_used(self, topic: TopicName) -> bool:
        """Whether it has producers, messages, or consumers other than those that take any schema."""
        opened = self.non_persistent.get(topic) or self.topics.get(topic)
        if opened is None:
            return False
        subscriptions: list[Subscription | NonPersistentSubscription] = [*opened.subscriptions.values()]
        if opened.producers or any(
            not consumer.takes_any_schema for subscription in subscriptions for consumer in subscription.consumers
        ):
            return True
        return isinstance(opened, Topic) and bool(opened.ledger.ledgers.entries_total)

    async def put_schema(self, topic: TopicName, schema: wire.Schema) -> bytes:
        """The version of *schema*, registered if it is new. Raises TopicNotFound, IncompatibleSchema."""
        if topic not in self.topics and self.non_persistent.get(topic) is None:
            raise TopicNotFound(f"Topic not found {topic}")
        return await self._schema_rules.register(topic, schema, await self.in_force.policies_of(topic))

    async def get_schema(self, topic: TopicName, version: bytes | None) -> tuple[wire.Schema, bytes]:
        """A version of the topic's schema, or the latest. Raises TopicNotFound, IncompatibleSchema."""
        return await self._schema_rules.get(topic, version)

    def topic_rates(self, name: TopicName) -> TopicRates:
        """What passes a topic that is open here, over the last period; zeros if it is not open."""
        topic = self.topics.get(name) or self.non_persistent.get(name)
        return NO_RATES if topic is None else rates_of(topic)


def rules_of(config: BrokerConfig) -> Rules | None:
    """Who may do what by the broker's settings; None: everybody may do everything."""
    if not config.authorization_enabled:
        return None
    return Rules(frozenset(config.super_users), frozenset(config.proxy_roles), config.role_wildcards)
