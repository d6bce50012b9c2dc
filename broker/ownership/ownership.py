"""Which bundles this broker has, and where the others are: the parts that work on it, and what all of them share.

    members    which brokers live, and who leads            bundle     the phases of a bundle, and what a lookup does
    ranking    which of them shall have a bundle            entries    what is known of each bundle
    keeper     takes bundles, keeps them, gives them back   finder     lookups

The nodes have Apache's format, so brokers of both kinds find each other's topics.

Where the metadata store stands still, nobody can know whose a bundle is. By `zookeeperSessionExpiredPolicy` its owner
goes on with what is open, and takes it up again when the store is back, unless another broker was faster; or it sends
no receipt, and stops when its session has ended. Both are safe: who takes a topic over fences its ledgers before it
reads them, so that of two owners one cannot write (I2, I11).
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from broker.names import Bundles
from broker.ownership.bundle import Phase
from broker.ownership.entries import Entries
from broker.ownership.finding import TAKEOVER_WAIT_S, Finder
from broker.ownership.keeping import Keeper
from broker.ownership.membership import Membership
from broker.ownership.nodes import NAMESPACE, decode_owner
from broker.ownership.placing.group_records import GroupRecords
from broker.ownership.placing.ranking import Ranking
from broker.ownership.probing import Prober, Probes, Sign
from broker.ownership.rules import BrokerAddress, Located, session_has_time
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataStore, SessionEvent
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.topics.topic_name import TopicName


class BundleOwnership:
    """The ownership side of one broker. Implements `broker.ownership.rules.Ownership`."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        *,
        bundles_of: Callable[[str], Awaitable[Bundles]],
        bundles_now: Callable[[str], Awaitable[Bundles]] | None = None,
        version: str,
        cluster: str = "",
        persistent: bool = True,
        non_persistent: bool = True,
        takeover_wait_s: float = TAKEOVER_WAIT_S,
        knows_domains: Callable[[], bool] = lambda: False,
        on_expired: Callable[[], None] | None = None,
        probes: Callable[[Tasks], Probes] | None = None,
    ) -> None:
        """*bundles_of* gives a namespace's bundles or raises what clients are told; *bundles_now* reads them anew.

        *cluster*: the one whose isolation policies say which brokers may serve a namespace; empty: there are none.

        *persistent*, *non_persistent*: the kinds of topics that this broker serves. *knows_domains*: anti-affinity
        groups are spread over failure domains first (`failureDomainsEnabled`).

        *on_expired*: stops this broker, whose session has ended; None: what it owned is taken up again.

        *probes*: asks whether other brokers live; None: at their ports.
        """
        self._store = store
        self._clock = clock
        self._bundles_of = bundles_of
        self._on_expired = on_expired
        self._tasks = Tasks("ownership")
        self._lost_callbacks: list[Callable[[list[str]], None]] = []
        self._cancel_session: Cancel | None = None
        bundles_now = bundles_now or bundles_of
        kinds = {"persistent": persistent, "non_persistent": non_persistent}
        groups = GroupRecords(store, clock, cluster, knows_domains=knows_domains)
        self.probes: Probes = (probes or partial(Prober, clock))(self._tasks)
        self.members = Membership(store, clock, self._tasks, version, kinds)
        self.ranking = Ranking(store, self.members, groups, self.probes, cluster)
        self._entries = Entries(store, clock)
        self.keeper = Keeper(
            store,
            clock,
            self._tasks,
            self._entries,
            self.members,
            bundles_now,
            self._on_lost,
            resumes=on_expired is None,
        )
        self.finder = Finder(
            clock,
            self._tasks,
            self._entries,
            self.members,
            self.ranking,
            self.keeper,
            self.probes,
            bundles_of,
            bundles_now,
            takeover_wait_s,
        )

    async def start(self, broker_id: str, address: BrokerAddress) -> None:
        """Register this broker as living at *address*; its id is `host:web port`. Raises StoreUnavailable."""
        self._cancel_session = self._store.watch_session(self._on_session)
        await self.members.start(broker_id, address)

    async def stop(self) -> None:
        """Release every bundle and unregister; topics must be closed before."""
        if self._cancel_session is not None:
            self._cancel_session()
        await self.keeper.give_all_back(self.members.stop())
        await self.ranking.stop()

    async def leave(self) -> bool:
        """Take no more bundles, and stop being a broker that others send clients to; what is owned stays so for now.

        Whether there are others. Raises MetadataError.
        """
        await self.members.leave()
        return await self.has_others()

    async def has_others(self) -> bool:
        """Whether another broker is registered and answers. Raises MetadataError."""
        brokers = await self.members.brokers()
        others = [address for broker_id, address in brokers.items() if broker_id != self.broker_id]
        return any([await self.answers(address) for address in others])

    @property
    def broker_id(self) -> str:
        """`host:web port`."""
        return self.members.broker_id

    @property
    def address(self) -> BrokerAddress:
        """How this broker is reached."""
        return self.members.address

    async def brokers(self) -> dict[str, BrokerAddress]:
        """The registered brokers by id; some may have just died. Raises MetadataError, Corruption."""
        return await self.members.brokers()

    def owns(self, topic: TopicName) -> bool:
        """Whether the topic's bundle is ours now, and is not being given back."""
        entry = self._entries.get(self._entries.bundle_of(topic) or "")
        return entry is not None and entry.is_served

    def bundle_of(self, topic: TopicName) -> str | None:
        """The bundle of a topic whose namespace was asked for before."""
        return self._entries.bundle_of(topic)

    @property
    def owned_bundles(self) -> list[str]:
        return sorted(entry.name for entry in self._entries if entry.is_owned)

    @property
    def under_way(self) -> list[str]:
        """Bundles with which something is being done, or for which something waits."""
        return sorted(
            entry.name for entry in self._entries if entry.phase is not Phase.OWNED or entry.users or entry.is_resuming
        )

    def may_acknowledge(self) -> bool:
        """The session rule (`rules.session_has_time`), where a broker stops whose session has ended."""
        return self._on_expired is None or session_has_time(
            self._clock.monotonic(), self._store.last_answer, self._store.session_timeout_s
        )

    def watch_lost(self, lost: Callable[[list[str]], None]) -> Callable[[], None]:
        """Call *lost* with the names of bundles that this broker does not own any more; returns how to stop."""
        self._lost_callbacks.append(lost)
        return lambda: self._lost_callbacks.remove(lost)

    async def is_coming(self, topic: TopicName) -> bool:
        """Whether the topic's bundle is ours, after waiting for it if it is being given to this broker, or taken by it;
        or after taking it where its node names this broker, as that of a process that died here a moment ago."""
        bundle = (await self._bundles_of(topic.namespace)).bundle_of(topic)
        entry = self._entries.get(bundle)
        if entry is not None and entry.phase is not Phase.AWAY:
            return self.owns(topic)
        if (entry is not None and entry.takers) or await self.is_owned_by(bundle, self.address):
            return (await self.locate(topic, authoritative=True)).here
        return False

    async def owner_of(self, bundle: str) -> BrokerAddress | None:
        """The owner of a bundle; None if it is free. Acquires nothing. Raises StoreUnavailable, Corruption."""
        entry = self._entries.get(bundle)
        if entry is not None and entry.is_owned:
            return self.address
        node = await self._store.get(f"{NAMESPACE}/{bundle}")
        return None if node is None or not node.value else decode_owner(node.value, node.path)[0]

    async def is_owned_by(self, bundle: str, broker: BrokerAddress) -> bool:
        """Whether the bundle is that broker's, which is not giving it back. Raises MetadataError, Corruption."""
        node = await self._entries.owner_node(bundle)
        return node is not None and node.owner.native_url == broker.native_url and not node.is_unloading

    async def answers(self, broker: BrokerAddress) -> bool:
        """Whether the process at *broker*'s address answers (`probing`)."""
        return await self.probes.sign(broker) is Sign.ANSWERS

    async def locate(self, topic: TopicName, *, authoritative: bool) -> Located:
        """As `Finder.locate`."""
        return await self.finder.locate(topic, authoritative=authoritative)

    @contextlib.contextmanager
    def promised(self, bundle: str, destination: BrokerAddress) -> Iterator[None]:
        """Inside the `with`, clients that ask for the bundle while nobody owns it are sent to *destination*."""
        with self._entries.using(bundle) as entry:
            entry.promised = destination
            try:
                yield
            finally:
                entry.promised = None

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.LOST:
            self.members.is_leader = False
            self.keeper.on_session_lost()
            if self._on_expired is not None:
                self._on_expired()

    def _on_lost(self, bundles: list[str]) -> None:
        for callback in list(self._lost_callbacks):
            callback(bundles)
