"""Topics are opened and closed.

Rules:

1. However many clients ask for a topic at the same moment, it is opened once; all wait for the same task.
2. A topic is open only while this broker owns its bundle; that is checked before it is opened, and again after.
3. A topic that is being closed or deleted is opened again only when that has ended.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, Protocol

from broker.arrivals import Arrivals
from broker.errors import (
    BrokerError,
    MetadataFailure,
    NotAllowed,
    NotReady,
    TopicNotFound,
    metadata_errors,
    storage_error,
)
from broker.names import BundleSet
from broker.ownership.rules import Ownership
from broker.policies.namespace import NamespacePolicies
from broker.serving.creation import Creation
from broker.serving.in_force import InForce
from broker.serving.non_persistent_topics import NonPersistentTopics
from broker.serving.open_topics import OpenTopics
from broker.serving.storage import ledger_config
from broker.settings.config import BrokerConfig
from broker.topic.non_persistent.topic import NonPersistentTopic
from broker.topic.ports import NOT_KNOWN, NextBroker
from broker.topic.topic import Topic
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.distribution import Distribution
from magnetar_core.runtime.tasks import SingleFlight, Tasks, gather_in_turns
from magnetar_core.runtime.turns import Rank, Turns
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import ManagedLedgerError, ManagedLedgerNotFound
from managed_ledger.ledger import ManagedLedger
from managed_ledger.ledgers.holdings import Changes, Holdings
from managed_ledger.ledgers.tails import Tails
from managed_ledger.reading.entry_cache import EntryCache

log = logging.getLogger(__name__)

# Topics whose opening begins at the same time. What hundreds ask of the metadata store and of bookies goes in few
# requests, so fewer at a time take longer in all (with 500 topics, 48 at a time: half as long again); of thousands the
# first ones are there when the last ones begin. An opening that storage keeps waiting for so long goes on beside the
# next ones.
OPENED_AT_ONCE: Final = 1_000
OPENING_TURN_S: Final = 2.0

# Namespaces for which a warning was logged already. With more, some get it again.
WARNED_MAX: Final = 10_000


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


NewTopic = Callable[[TopicName, ManagedLedger, NamespacePolicies, Callable[[Topic], None]], Topic]
"""Makes a topic over its ledger; the function is called when it has ended by itself."""


class Opening:
    """The topics of one broker: those that are being opened, are open, and are being closed."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        ownership: Ownership,
        ledgers: Ledgers,
        in_force: InForce,
        creation: Creation,
        arrivals: Arrivals,
        topics: OpenTopics,
        non_persistent: NonPersistentTopics,
        tasks: Tasks,
        new_topic: NewTopic,
    ) -> None:
        self._config = config
        self._clock = clock
        self._ownership = ownership
        self._ledgers = ledgers
        self._in_force = in_force
        self._creation = creation
        self._arrivals = arrivals
        self._topics = topics
        self._non_persistent = non_persistent
        self._tasks = tasks
        self._new_topic = new_topic
        self.load_times = Distribution()
        """Milliseconds until topics were open, the time in which they waited for their turn included."""
        self.loads_failed = 0
        self.expected: dict[TopicName, int] = {}
        """Topics that come to this broker from another one → their traffic there (`broker.transfer.rosters.roster`)."""
        self._loading: SingleFlight[TopicName, Topic] = SingleFlight(tasks, "open")
        self._ending: dict[TopicName, asyncio.Task[Any]] = {}
        self._loads_max = config.max_concurrent_topic_loads
        self._load_slots = asyncio.Semaphore(self._loads_max)
        self._openings = Turns(OPENED_AT_ONCE, OPENING_TURN_S, clock)
        self._is_stopping = False
        self._warned: dict[str, str] = {}
        """Namespaces that Apache's brokers replicate → the other clusters, as the log has named them."""

    def stop(self) -> None:
        """Open no topic any more."""
        self._is_stopping = True

    def use(self, loads_max: int) -> None:
        """So many topics are opened at the same time from now on."""
        if loads_max != self._loads_max:
            self._loads_max = loads_max
            self._load_slots = asyncio.Semaphore(loads_max)  # those that are being opened keep their old ones

    @property
    def under_way(self) -> Collection[TopicName]:
        """Topics that are being opened, or wait for it."""
        return self._loading.under_way

    async def exists(self, topic: TopicName) -> bool:
        """Whether the topic is open here or stored. Raises MetadataFailure."""
        if topic in self._topics or self._non_persistent.get(topic) is not None:
            return True
        with metadata_errors():
            return topic.is_persistent and await self._ledgers.exists(topic.managed_ledger_name)

    async def topic(self, name: TopicName, *, create: bool, missing: str) -> Topic | NonPersistentTopic:
        """The open topic; it is made if *create* and policies allow it, else the error has the text *missing*.

        Raises BrokerError.
        """
        loaded = self._topics.get(name) or self._non_persistent.get(name)
        if loaded is not None and not loaded.is_closed:
            self._check_here(name)  # rule 2
            return loaded
        if self._is_stopping:
            raise NotReady("This broker is stopping")
        if name.is_persistent and not self._config.enable_persistent_topics:
            raise NotAllowed(f"{name}: this broker has enablePersistentTopics=false", way_out="ask its operator")
        policies = await self._policies(name)
        await self._check_owned(name)
        if name.is_persistent:
            with contextlib.suppress(_NotStored):
                return await self._load(name, policies, create=False)
        if not await self._may_make(name, policies, create):
            raise TopicNotFound(missing)
        return await self._make(name)

    async def persistent(self, name: TopicName, *, create: bool = False) -> Topic:
        """As `topic`, for callers that need what is stored. Raises BrokerError."""
        topic = await self.topic(name, create=create, missing=f"Topic {name} does not exist")
        if isinstance(topic, NonPersistentTopic):
            raise NotAllowed(f"{name} is non-persistent; only the binary protocol serves such topics", way_out="")
        return topic

    async def _make(self, name: TopicName) -> Topic | NonPersistentTopic:
        """Make a new topic, when it is its turn. Raises BrokerError."""
        async with self._arrivals.making():
            await self._creation.check_new(name)
            # While it waited a bundle may have been given away, and no change reaches a non-persistent topic before
            # it is there.
            policies = await self._policies(name)
            await self._check_owned(name)
            if name.is_persistent:
                return await self._load(name, policies)
            return self._open_non_persistent(name, policies)

    async def _policies(self, name: TopicName) -> NamespacePolicies:
        return await self._in_force.namespaces.policies(name.namespace)

    async def _check_owned(self, name: TopicName) -> None:
        """Raises NotReady unless the topic's bundle is ours, or comes to us now; MetadataFailure."""
        if self._ownership.owns(name):
            return
        with metadata_errors():
            is_ours = await self._ownership.is_coming(name)
        if not is_ours:
            raise _not_here(name)

    def _check_here(self, name: TopicName) -> None:
        """Raises NotReady unless the topic's bundle is ours."""
        if not self._ownership.owns(name):
            raise _not_here(name)

    async def _may_make(self, name: TopicName, policies: NamespacePolicies, create: bool) -> bool:
        if name.partition >= 0:
            partitions = await self._creation.partitions_of_base(name)
            if partitions:
                return name.partition < partitions
        elif await self._creation.partitions_of_base(name):
            return True
        return create and (name.is_system or self._creation.automatic(policies).allowed)

    async def _load(
        self, name: TopicName, policies: NamespacePolicies, *, create: bool = True, is_awaited: bool = True
    ) -> Topic:
        """The open topic; it is opened if it is not (rule 1). Topics that a client waits for are opened first, then
        those with more traffic. Raises _NotStored if it is not to be made."""
        # Another request may have opened it since the caller looked. A second object on the same ledger would share the
        # cursors with the first, so that each delivers only part of the entries; and it would get the answers to
        # messages that were published through the first.
        loaded = self._topics.get(name)
        if loaded is not None and not loaded.is_closed:
            return loaded
        rank = (0 if is_awaited else 1, -self.expected.get(name, 0))
        self._openings.hurry(name, rank)
        try:
            async with asyncio.timeout(self._config.topic_load_s):
                while True:
                    try:
                        return await self._loading.do(name, lambda: self._open(name, policies, create, rank))
                    except _NotStored:
                        if not create:
                            raise
                        # It waited with a caller that only looked whether there is such a topic; now it is made.
        except TimeoutError:  # it is opened all the same, for callers that come later
            raise NotReady(f"Failed to load topic {name} within {self._config.topic_load_s} s; retry") from None

    async def prepare(self, name: TopicName, *, is_dead: bool, held: Holdings | None) -> None:
        """Begin to get what opening a topic will need, whose owner is dead or will close it. *held*: what the
        owner's log holds of the topic.

        Raises BrokerError.
        """
        if name.is_persistent and name not in self._topics and not self._is_stopping:
            policies = await self._in_force.policies_of(name)
            settings = ledger_config(self._config, policies, is_system=name.is_system)
            self._ledgers.prepare(name.managed_ledger_name, settings, is_dead=is_dead, held=held)

    async def recover_ahead(self, name: TopicName) -> None:
        """Begin to close the last ledger of a topic whose owner's process is gone, before its session ends.

        Raises BrokerError.
        """
        if name.is_persistent and name not in self._topics and not self._is_stopping:
            policies = await self._in_force.policies_of(name)
            self._ledgers.recover(
                name.managed_ledger_name, ledger_config(self._config, policies, is_system=name.is_system)
            )

    async def open_again(self, name: TopicName) -> None:
        """Open a topic that another broker served, if it is still there and ours. Raises BrokerError."""
        with contextlib.suppress(_NotStored):
            if self._ownership.owns(name) and not self._is_stopping:
                await self._load(name, await self._policies(name), create=False, is_awaited=False)

    def holdings(self, name: TopicName) -> Holdings | None:
        """What a successor needs of a topic that is open here; None: nothing is known."""
        topic = self._topics.get(name)
        return None if topic is None else topic.ledger.holdings()

    async def _open(self, name: TopicName, policies: NamespacePolicies, create: bool, rank: Rank) -> Topic:
        """Open a topic, and note how long that took. Raises BrokerError."""
        began_s = self._clock.monotonic()
        try:
            topic = await self._open_in_turn(name, policies, create, rank)
        except _NotStored:
            raise
        except Exception:
            self.loads_failed += 1
            raise
        self.load_times.add((self._clock.monotonic() - began_s) * 1000)
        return topic

    async def _open_in_turn(self, name: TopicName, policies: NamespacePolicies, create: bool, rank: Rank) -> Topic:
        """Open a topic when it is its turn. Checks before and after that it may be served here (rules 2 and 3). Raises
        BrokerError."""
        while (ending := self._ending.get(name)) is not None:  # rule 3
            await asyncio.wait([ending])
        policies = await self._in_force.policies_of_new(name, policies)
        async with self._load_slots, self._openings.turn(name, rank):
            try:
                settings = ledger_config(self._config, policies, is_system=name.is_system)
                ledger = await self._ledgers.open(name.managed_ledger_name, settings, create=create)
            except ManagedLedgerNotFound as error:
                raise _NotStored(f"Topic {name} does not exist") from error
            except ManagedLedgerError as error:
                log.warning("%s cannot be opened: %s", name, error)
                raise storage_error(error) from error
            except MetadataError as error:
                log.warning("%s cannot be opened: %s", name, error)
                raise MetadataFailure(str(error)) from error
            topic = self._new_topic(name, ledger, policies, self._on_dropped)
            try:
                await topic.load()
                if not self._ownership.owns(name) or self._is_stopping:  # rule 2
                    raise NotReady(f"The bundle of {name} was lost while it was opened; look it up again")
                if topic.is_closed or not (ledger.is_open or ledger.is_terminated):
                    raise NotReady(f"{name} was taken over by another broker while it was opened")
            except BrokerError:
                topic.abandon("it was not opened")
                await topic.finish()
                raise
            opening = self._topics.get(name)
            assert opening is None or opening.is_closed, "a topic is opened once at a time (rule 1)"
            self._in_force.join(topic)
            self._topics[name] = topic
            self._creation.forget(name)
            self.expected.pop(name, None)
            self._warn_of_other_clusters(name, policies)
            # Opening may have waited for its turn: what changed meanwhile did not reach this topic.
            await self._in_force.bring_up_to_date(topic, policies)
            return topic

    def _warn_of_other_clusters(self, name: TopicName, policies: NamespacePolicies) -> None:
        """Say once of a namespace that an Apache broker would send its messages to other clusters."""
        clusters = policies.raw.get("replication_clusters")
        other_clusters = (
            [cluster for cluster in clusters if cluster != self._config.cluster_name]
            if isinstance(clusters, list)
            else []
        )
        names = ", ".join(map(str, other_clusters))
        if not other_clusters or self._warned.get(name.namespace) == names:
            return
        if len(self._warned) >= WARNED_MAX:
            self._warned.clear()
        self._warned[name.namespace] = names
        log.warning(
            "namespace %s is to be replicated to %s. This broker does not do that: what is published stays in this "
            "cluster, and cursors pulsar.repl.… of its topics hold their ledgers, until an Apache broker goes on",
            name.namespace, names,
        )  # fmt: skip

    def _open_non_persistent(self, name: TopicName, policies: NamespacePolicies) -> NonPersistentTopic:
        """Raises NotAllowed."""
        topic = self._non_persistent.open(name, policies)
        self._in_force.join(topic)
        return topic

    def end(self, name: TopicName, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[Any]:
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
        if self._topics.get(topic.name) is topic:
            del self._topics[topic.name]
        self.end(topic.name, topic.finish(), "drop")

    def on_lost(self, bundles: list[str]) -> None:
        """The topics of these bundles stop at once, before anything else is written (ownership rule 3)."""
        lost = BundleSet(bundles)
        self._non_persistent.drop_lost(lost)
        for name, topic in list(self._topics.items()):
            if lost.has(name) or not self._ownership.owns(name):
                topic.abandon("its bundle is not ours any more")
                self._on_dropped(topic)

    async def unload(self, name: TopicName, next_broker: NextBroker = NOT_KNOWN) -> None:
        """Close a topic; its clients go on at *next_broker*, or look it up. Does nothing if it is not open."""
        await self._loading.settle(name)
        topic = self._topics.pop(name, None)
        if topic is not None:
            await self.end(name, topic.close(next_broker), "close")

    async def unload_bundle(self, bundle: str, next_broker: NextBroker = NOT_KNOWN) -> None:
        """Close all topics of `tenant/namespace/range`, as `unload`."""
        here = BundleSet([bundle])
        names = [name for name in self._topics if here.has(name)]
        await asyncio.gather(
            gather_in_turns(self.unload(name, next_broker) for name in names),
            self._non_persistent.close_bundle(bundle, next_broker),
        )

    async def create_topic(self, name: TopicName) -> Topic:
        """Make and open a persistent topic, even where policies forbid automatic creation. Raises BrokerError."""
        async with self._arrivals.making():
            await self._creation.check_new(name)
            policies = await self._policies(name)
            self._check_here(name)
            return await self._load(name, policies)

    async def stored_topic(self, name: TopicName) -> Topic:
        """The open persistent topic; opened if it is stored, and never made. Raises BrokerError."""
        policies = await self._policies(name)
        self._check_here(name)
        try:
            return await self._load(name, policies, create=False)
        except _NotStored:
            raise TopicNotFound(f"Topic {name} not found") from None

    async def open_non_persistent(self, name: TopicName) -> NonPersistentTopic:
        """Make a non-persistent topic, even where policies forbid automatic creation. Raises BrokerError."""
        async with self._arrivals.making():
            policies = await self._policies(name)
            self._check_here(name)
            return self._open_non_persistent(name, policies)


def _not_here(name: TopicName) -> NotReady:
    return NotReady(f"The bundle of {name} is not owned by this broker; look it up again")
