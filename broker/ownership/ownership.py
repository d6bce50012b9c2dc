"""Acquires bundles, keeps them while the session lasts, and finds the owners of other bundles.

    /loadbalance/brokers/<id>                 ephemeral: a living broker
    /loadbalance/leader                       ephemeral: the leader, which tools ask about the cluster
    /namespace/<tenant>/<namespace>/<range>   ephemeral: the owner of a bundle

The nodes have Apache's format, so brokers of both kinds find each other's topics. `bundle_assignment` decides which
broker should take a bundle. A lookup for a bundle whose owner does not answer waits here until the owner's session has
ended: a client that is refused backs off, and loses more time than this wait takes.

Where the metadata store stands still, nobody can know whose a bundle is. By `zookeeperSessionExpiredPolicy` its owner
goes on with what is open, and takes it up again when the store is back, unless another broker was faster; or it sends
no receipt, and stops when its session has ended. Both are safe: who takes a topic over fences its ledgers before it
reads them, so that of two owners one cannot write (I2, I11).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from broker.errors import NotReady
from broker.names import Bundles
from broker.ownership.anti_affinity import Spread, may_move, spread_of
from broker.ownership.bundle_assignment import (
    decode_leader,
    decode_loaded_broker,
    decode_owner,
    encode_broker,
    encode_leader,
    encode_owner,
    expected_usage,
    preference,
    session_has_time,
)
from broker.ownership.group_records import GroupRecords
from broker.ownership.isolation import IsolationPolicy, candidates, host_of, isolation_path, parse_isolation
from broker.ownership.load.report import BrokerLoad
from broker.ownership.probing import Prober, Sign
from broker.ownership.rules import BrokerAddress, Located, NoBrokerAvailable
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Cancel,
    MetadataError,
    MetadataStore,
    Node,
    NoNode,
    OutcomeUnknown,
    SessionEvent,
    SessionLost,
    StoreUnavailable,
    VersionConflict,
)
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import SingleFlight, Tasks
from magnetar_core.runtime.types import Corruption
from managed_ledger.topic_name import TopicName

log = logging.getLogger(__name__)

BROKERS: Final = "/loadbalance/brokers"
LEADER: Final = "/loadbalance/leader"
NAMESPACE: Final = "/namespace"

# How long a lookup waits for the end of a dead owner's session. Clients wait 30 s for a lookup. Sessions take 2 s in a
# developer's cluster and 30 s in Apache's configuration; there the client has to retry.
TAKEOVER_WAIT_S: Final = 20.0

# An owner that has not answered by then is waited for beside the end of its session.
QUICKLY_S: Final = 0.25

# An owner that did not answer is tested again after so long: it may have been busy, or have been started again.
PROBE_AGAIN_S: Final = 1.0

_RETRY_S: Final = 1.0


class _StillAway(NoBrokerAvailable, code=NoBrokerAvailable.code):
    """A bundle was waited for and is not served yet; another lookup may wait longer."""


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
    ) -> None:
        """*bundles_of* gives a namespace's bundles or raises what clients are told; *bundles_now* reads them anew.

        *cluster*: the one whose isolation policies say which brokers may serve a namespace; empty: there are none.

        *persistent*, *non_persistent*: the kinds of topics that this broker serves. *knows_domains*: anti-affinity
        groups are spread over failure domains first (`failureDomainsEnabled`).

        *on_expired*: stops this broker, whose session has ended; None: what it owned is taken up again.
        """
        self._store = store
        self._clock = clock
        self.broker_id = ""
        self.address = BrokerAddress("")
        self._bundles_of = bundles_of
        self._bundles_now = bundles_now or bundles_of
        self._version = version
        self._cluster = cluster
        self._groups = GroupRecords(store, clock, cluster, knows_domains=knows_domains)
        self._kinds = {"persistent": persistent, "non_persistent": non_persistent}
        self._load: Mapping[str, Any] | None = None  # as it was told last
        self._started_ms = clock.wall_ms()
        self._bundles: dict[str, Bundles] = {}  # namespaces that were asked for
        self._owned: dict[str, Cancel] = {}  # bundle → how to stop watching its node
        self._acquiring: dict[str, asyncio.Lock] = {}
        self._splitting: set[str] = set()
        self._returning: set[str] = set()  # parts of a split that failed, whose nodes are being removed
        self.promised: dict[str, BrokerAddress] = {}
        """Bundles that are being moved → who shall have them: whoever asks for one that nobody owns is sent there."""
        self._unloading: dict[str, asyncio.Event] = {}  # bundle → set when it has been given back
        self._on_expired = on_expired
        self._sessions = 0  # that have ended
        self._resuming: set[str] = set()  # bundles that were ours in a session that has ended: to be taken up again
        self._coming: set[str] = set()  # bundles that this broker waits for, to take them
        self._lost_callbacks: list[Callable[[list[str]], None]] = []
        self._tasks = Tasks("ownership")
        self._prober = Prober(clock, self._tasks)
        self._locating: SingleFlight[tuple[str, bool], Located | bool] = SingleFlight(
            self._tasks, "finding the owner of"
        )
        self.on_awaited: Callable[[TopicName], None] = lambda topic: None
        """Called with a topic that is asked for, whose owner does not answer and which this broker will take."""
        self._asked: dict[str, set[TopicName]] = {}  # bundle → topics for which its owner is being looked for
        self._away: set[str] = set()  # those of them whose owner does not answer and which will be ours
        self.takeover_wait_s = takeover_wait_s
        """Seconds that a lookup waits for a bundle whose owner is gone, or gives it back."""
        self._cancel_session: Cancel | None = None
        self._cancel_leader: Cancel | None = None
        self.is_leader = False
        self._is_leaving = False  # and gives its bundles to others

    async def start(self, broker_id: str, address: BrokerAddress) -> None:
        """Register this broker as living at *address*; its id is `host:web port`. Raises StoreUnavailable."""
        self.broker_id, self.address = broker_id, address
        self._cancel_session = self._store.watch_session(self._on_session)
        self._cancel_leader = self._store.watch_node(LEADER, self._on_leader_changed)
        await self._register()
        await self._campaign()

    async def stop(self) -> None:
        """Release every bundle and unregister; topics must be closed before."""
        for cancel in (self._cancel_session, self._cancel_leader):
            if cancel is not None:
                cancel()
        await self._tasks.cancel()
        await self._groups.stop()
        paths = [self._path(bundle) for bundle in self._owned]
        for cancel in self._owned.values():
            cancel()
        self._owned.clear()
        for path in [*paths, f"{BROKERS}/{self.broker_id}", *([LEADER] if self.is_leader else [])]:
            try:
                await self._give_back(path)
            except (StoreUnavailable, SessionLost) as error:
                log.warning("what this broker owns is free when its session ends: %s", error)
                return  # each further node would wait as long for the same failure
            except MetadataError as error:
                log.warning("%s stays until the session ends: %s", path, error)

    async def leave(self) -> bool:
        """Take no bundle any more, and be no broker that others send clients to; what is owned stays so for now.

        Whether there are others. Raises MetadataError.
        """
        self._is_leaving = True
        self.is_leader = False
        await self._give_back(f"{BROKERS}/{self.broker_id}")
        await self._give_back(LEADER)
        return await self.has_others()

    async def has_others(self) -> bool:
        """Whether another broker is registered and answers. Raises MetadataError."""
        others = [address for broker_id, address in (await self.brokers()).items() if broker_id != self.broker_id]
        return any([await self.answers(address) for address in others])

    async def _give_back(self, path: str) -> None:
        """Remove a node if it is still ours; another broker may own it by now. Raises StoreUnavailable."""
        node = await self._store.get(path)
        if node is not None and node.own:
            with contextlib.suppress(NoNode, VersionConflict):
                await self._store.delete(path, node.version)

    # ------------------------------------------------------------------------------- questions

    def owns(self, topic: TopicName) -> bool:
        """Whether the topic's bundle is ours now, and is not being given back."""
        bundle = self.bundle_of(topic)
        return bundle in self._owned and bundle not in self._unloading

    def bundle_of(self, topic: TopicName) -> str | None:
        """The bundle of a topic whose namespace was asked for before."""
        bundles = self._bundles.get(topic.namespace)
        return None if bundles is None else bundles.bundle_of(topic)

    @property
    def owned_bundles(self) -> list[str]:
        return sorted(self._owned)

    @property
    def is_leaving(self) -> bool:
        """Whether this broker takes no bundles any more, and gives away those that it has."""
        return self._is_leaving

    def may_acknowledge(self) -> bool:
        """The session rule (see `bundle_assignment`), where a broker stops whose session has ended."""
        return self._on_expired is None or session_has_time(
            self._clock.monotonic(), self._store.last_answer, self._store.session_timeout_s
        )

    def watch_lost(self, lost: Callable[[list[str]], None]) -> Callable[[], None]:
        """Call *lost* with the names of bundles that this broker does not own any more; returns how to stop."""
        self._lost_callbacks.append(lost)
        return lambda: self._lost_callbacks.remove(lost)

    async def is_coming(self, topic: TopicName) -> bool:
        """Whether the topic's bundle is ours, after waiting for it if it is being given to this broker."""
        bundle = (await self._bundles_of(topic.namespace)).bundle_of(topic)
        if bundle in self._coming and bundle not in self._owned:
            return (await self.locate(topic, authoritative=True)).here
        return self.owns(topic)

    async def owner_of(self, bundle: str) -> BrokerAddress | None:
        """The owner of a bundle; None if it is free. Acquires nothing. Raises StoreUnavailable, Corruption."""
        if bundle in self._owned:
            return self.address
        node = await self._store.get(self._path(bundle))
        return None if node is None or not node.value else decode_owner(node.value, node.path)[0]

    async def brokers(self) -> dict[str, BrokerAddress]:
        """The registered brokers by id; some may have just died. Raises Corruption."""
        return {broker_id: address for broker_id, (address, _) in (await self.loaded_brokers()).items()}

    async def loaded_brokers(self) -> dict[str, tuple[BrokerAddress, BrokerLoad]]:
        """The registered brokers by id, and the load that each has told. Raises Corruption."""
        ids = await self._store.children(BROKERS)
        nodes = await asyncio.gather(*(self._store.get(f"{BROKERS}/{broker_id}") for broker_id in ids))
        return {
            broker_id: decode_loaded_broker(node.value, node.path)
            for broker_id, node in zip(ids, nodes, strict=True)
            if node is not None
        }

    @property
    def report(self) -> bytes:
        """What this broker tells of itself."""
        return self.report_of(self._load)

    def report_of(self, load: Mapping[str, Any] | None) -> bytes:
        """What it would tell with this load."""
        return encode_broker(self.address, self._version, self._started_ms, load, **self._kinds)

    async def tell_load(self, load: Mapping[str, Any]) -> None:
        """Tell the other brokers the load of this one (`load_report.encode_load`). Raises MetadataError."""
        self._load = load
        node = await self._store.get(f"{BROKERS}/{self.broker_id}")
        if node is not None and node.own:  # else it is told when this broker registers again
            await self._store.put(node.path, self.report, node.version, ephemeral=True)

    async def leader(self) -> tuple[str, str]:
        """(broker id, HTTP URL) of the leader; empty texts while there is none. Raises Corruption."""
        node = await self._store.get(LEADER)
        return ("", "") if node is None else decode_leader(node.value, node.path)

    async def locate(self, topic: TopicName, *, authoritative: bool) -> Located:
        """Find the broker that serves *topic*; acquires its bundle if this broker comes first.

        Waits for the end of a dead owner's session and for a bundle that is being given back. Raises
        NoBrokerAvailable, StoreUnavailable, Corruption, and what *bundles_of* raises for a namespace that does not
        exist.
        """
        if not self.broker_id:
            raise NoBrokerAvailable("This broker is starting")
        bundles = self._bundles[topic.namespace] = await self._bundles_of(topic.namespace)
        bundle = bundles.bundle_of(topic)
        deadline = self._clock.monotonic() + self.takeover_wait_s
        while bundle not in self._owned or bundle in self._unloading:
            # After a failure thousands of lookups wait for the same few bundles: one for each bundle asks for all.
            self._asked.setdefault(bundle, set()).add(topic)
            if bundle in self._away:
                self.on_awaited(topic)
            try:
                found = await self._locating.do(
                    (bundle, authoritative), partial(self._locate_bundle, bundle, authoritative, deadline)
                )
            except _StillAway as error:
                if self._clock.monotonic() >= deadline:
                    raise NoBrokerAvailable(f"No broker was available to own {topic}: {error}") from error
                continue  # another lookup has waited for as long as it may; this one came later
            if isinstance(found, Located):
                return found
            if not found:
                bundles = self._bundles[topic.namespace] = await self._bundles_now(topic.namespace)
                bundle = bundles.bundle_of(topic)
        return Located(here=True, broker=self.address)

    async def _locate_bundle(self, bundle: str, authoritative: bool, deadline: float) -> Located | bool:
        """Find the broker that serves a bundle, or make it this one.

        False: there is no such bundle any more. Raises NoBrokerAvailable, _StillAway at *deadline*.
        """
        try:
            return await self._find_or_take(bundle, authoritative, deadline)
        finally:
            self._away.discard(bundle)
            self._asked.pop(bundle, None)

    async def _find_or_take(self, bundle: str, authoritative: bool, deadline: float) -> Located | bool:
        while bundle not in self._owned or bundle in self._unloading:
            given_back = self._unloading.get(bundle)
            if given_back is not None:
                if not await self._wait(given_back, deadline):
                    raise _StillAway(f"Namespace bundle {bundle} is being unloaded")
                continue
            node = await self._store.get(self._path(bundle))
            if node is None:
                promised = self.promised.get(bundle)
                if promised is not None and promised.native_url != self.address.native_url:
                    return Located(here=False, broker=promised, redirect=True, authoritative=True)
                elsewhere = None if authoritative and not self._is_leaving else await self.better_broker(bundle)
                if elsewhere is not None:
                    return Located(here=False, broker=elsewhere[1], redirect=True, authoritative=True)
                if not await self._acquire(bundle):
                    return False
                continue
            owner, unloading = decode_owner(node.value, node.path)
            if node.own and not unloading:
                if not await self._acquire(bundle):
                    return False
            elif node.own or owner.native_url == self.address.native_url:
                await self._remove_former(node)  # not released at an unload, or left by a dead process at our address
            elif unloading:
                if not await self._wait_for_change(node, deadline):
                    raise _StillAway(f"Namespace bundle {bundle} is being unloaded by {owner.native_url}")
            elif is_alive := await self._answers_while(owner, node):
                return Located(here=False, broker=owner)
            elif is_alive is None:
                continue
            elif bundle not in self._away and await self._will_be_ours(bundle):
                self._away.add(bundle)
                for topic in self._asked.get(bundle, ()):
                    self.on_awaited(topic)
            elif await self._wait_for_change(node, min(deadline, self._clock.monotonic() + PROBE_AGAIN_S)):
                self._prober.forget(owner)  # it may be back
            elif self._clock.monotonic() >= deadline:
                raise _StillAway(f"{owner.native_url} does not answer")
        return True

    # ----------------------------------------------------------------------------------- bundles

    async def isolation(self) -> tuple[IsolationPolicy, ...]:
        """The isolation policies of the cluster. Raises MetadataError, Corruption."""
        if not self._cluster:
            return ()
        node = await self._store.get(isolation_path(self._cluster))
        return () if node is None else parse_isolation(node.value, node.path)

    async def better_broker(self, bundle: str) -> tuple[str, BrokerAddress] | None:
        """Id and address of the living broker that comes before this one in the bundle's order, in which a broker that
        leaves has no place; None if this one is first.

        Raises NoBrokerAvailable: there is none, or isolation policies leave none of those that live; MetadataError,
        Corruption.
        """
        loaded = await self.loaded_brokers()
        brokers = {broker_id: address for broker_id, (address, _) in loaded.items()}
        namespace = bundle.rpartition("/")[0]
        owners = await self._owned_by(namespace, brokers)
        owned = {broker_id: len(bundles) for broker_id, bundles in owners.items()}
        usage = expected_usage(namespace, {broker_id: load for broker_id, (_, load) in loaded.items()}, owners)
        free = self._free_of(namespace, owners)
        spread = await self._spread_of(namespace, brokers, owners)
        candidate_ids = brokers if self._is_leaving else (*brokers, self.broker_id)
        hosts = {broker_id: host_of(broker_id) for broker_id in candidate_ids}
        policies = await self.isolation()
        while True:
            allowed = candidates(namespace, hosts, policies)
            for broker_id in preference(bundle, allowed, owned, usage, free, spread):
                if broker_id == self.broker_id:
                    return None
                if await self.answers(brokers[broker_id]):
                    return broker_id, brokers[broker_id]
            if not policies or not allowed:
                break
            for broker_id in allowed:  # dead ones: without them secondary brokers may have to serve
                del hosts[broker_id]
        if self._is_leaving:
            raise NoBrokerAvailable(f"No broker was available to own {bundle}: this one is stopping")
        raise NoBrokerAvailable(
            f"No broker was available to own {bundle}: isolation policies leave none of {', '.join(sorted(brokers))}"
        )

    async def _spread_of(
        self, namespace: str, brokers: Mapping[str, BrokerAddress], owners: Mapping[str, Collection[str]]
    ) -> Spread | None:
        """Who serves the anti-affinity group of *namespace*, whose own bundles *owners* have; None: it is in none."""
        members = await self._groups.members(namespace)
        if not members:
            return None

        async def serving(member: str) -> Collection[str]:
            if member == namespace:
                return owners.keys()
            try:
                return (await self._owned_by(member, brokers)).keys()
            except Corruption as error:  # of a namespace that nobody asked for
                log.warning("who serves %s is not known: %s", member, error)
                return ()

        found = await asyncio.gather(*map(serving, members))
        return spread_of(namespace, dict(zip(members, found, strict=True)), await self._groups.domains())

    async def may_move(self, bundle: str, source: str, destination: str) -> bool:
        """Whether a bundle may go from one broker to another, both by id, as far as the anti-affinity group of its
        namespace is concerned. Raises MetadataError, Corruption."""
        namespace = bundle.rpartition("/")[0]
        if not await self._groups.members(namespace):
            return True
        brokers = await self.brokers()
        owners = await self._owned_by(namespace, brokers)
        spread = await self._spread_of(namespace, brokers, owners)
        allowed = candidates(namespace, {one: host_of(one) for one in brokers}, await self.isolation())
        is_last = owners.get(source, set()) <= {bundle}
        return spread is None or may_move(spread, source, destination, allowed, is_last=is_last)

    def _free_of(self, namespace: str, owners: Mapping[str, set[str]]) -> frozenset[str]:
        """The bundles of a namespace that no living broker owns."""
        bundles = self._bundles.get(namespace)
        if bundles is None:
            return frozenset()
        return frozenset(f"{namespace}/{text}" for text in bundles.ranges).difference(*owners.values())

    async def _owned_by(self, namespace: str, brokers: Mapping[str, BrokerAddress]) -> dict[str, set[str]]:
        """The bundles of a namespace that each broker owns."""
        ids = {address.native_url: broker_id for broker_id, address in brokers.items()}
        owned: dict[str, set[str]] = {}
        bundles = [f"{namespace}/{text}" for text in await self._store.children(f"{NAMESPACE}/{namespace}")]
        nodes = await asyncio.gather(*(self._store.get(self._path(bundle)) for bundle in bundles))
        for bundle, node in zip(bundles, nodes, strict=True):
            if node is not None and node.value:
                owner = ids.get(decode_owner(node.value, node.path)[0].native_url)
                if owner is not None:
                    owned.setdefault(owner, set()).add(bundle)
        return owned

    async def acquire(self, bundle: str) -> bool:
        """Own a bundle that is free; whether it is ours now. Raises StoreUnavailable and the like."""
        return not self._is_leaving and await self._acquire(bundle) and bundle in self._owned

    async def _will_be_ours(self, bundle: str) -> bool:
        """As `would_take`, for a lookup that waits: what is wrong with it is told when the bundle is free."""
        try:
            return await self.would_take(bundle)
        except (NoBrokerAvailable, MetadataError, Corruption):
            return False

    async def would_take(self, bundle: str) -> bool:
        """Whether this broker is the one that shall have the bundle once it is free. Raises MetadataError, Corruption,
        NoBrokerAvailable."""
        return not self._is_leaving and await self.better_broker(bundle) is None

    async def take_when_free(self, bundle: str, wait_s: float) -> bool:
        """Own a bundle, for which `would_take` has said yes, as soon as its owner has given it back or is dead.

        Whether it is ours; False if another broker was quicker, or after *wait_s*. Raises MetadataError, Corruption.
        """
        deadline = self._clock.monotonic() + wait_s
        self._coming.add(bundle)
        try:
            while bundle not in self._owned:
                node = await self._store.get(self._path(bundle))
                if node is None:
                    return await self.acquire(bundle)
                if not await self._wait_for_change(node, deadline):
                    return False
            return True
        finally:
            self._coming.discard(bundle)

    async def _acquire(self, bundle: str) -> bool:
        """Try to become the owner. The caller then reads the node again to see which broker is.

        False: there is no such bundle any more. That is asked when the node is ours: whoever splits a bundle stores
        the new ones before the node of the old one goes, so an answer that comes after our node cannot be outdated.
        """
        async with self._acquiring.setdefault(bundle, asyncio.Lock()):
            if bundle in self._owned:
                return True
            session = self._sessions
            if not await self._claim_bundle(bundle):
                node = await self._store.get(self._path(bundle))
                if node is None or not node.own or decode_owner(node.value, node.path)[1]:
                    return True
            try:
                namespace, _, text = bundle.rpartition("/")
                bundles = await self._bundles_now(namespace)
            except BaseException:
                await self._give_back(self._path(bundle))
                raise
            if text not in bundles.ranges:
                await self._give_back(self._path(bundle))
                return False
            self._bundles[namespace] = bundles  # so that it is known which topics are ours, before any is asked for
            self._adopt([bundle], session)
            log.info("owning %s", bundle)
            return True

    async def _claim_bundle(self, bundle: str) -> bool:
        """Make the owner's node; False: it is there, or may be."""
        try:
            await self._store.put(self._path(bundle), encode_owner(self.address), NO_NODE, ephemeral=True)
        except (VersionConflict, OutcomeUnknown):
            return False
        return True

    def _adopt(self, bundles: Sequence[str], session: int) -> None:
        """Own *bundles*, whose nodes were made in *session*; if that has ended, the nodes are gone, or not ours."""
        for bundle in bundles:
            if bundle not in self._owned:
                self._owned[bundle] = self._store.watch_node(self._path(bundle), partial(self._on_node, bundle))
        if session != self._sessions:
            self._go_on_without_nodes(bundles)

    async def _remove_former(self, node: Node) -> None:
        with contextlib.suppress(NoNode, VersionConflict, OutcomeUnknown):
            await self._store.delete(node.path, node.version)

    async def split(self, bundle: str, after: Bundles, store: Callable[[], Awaitable[None]]) -> list[str]:
        """Own the bundles that *after* has in the place of *bundle*, and release that. Its topics stay open.

            nodes of the parts ──▶ *store*: the namespace has the bundles *after* ──▶ the node of the whole goes

        At each moment every broker finds an owner: this one. Returns the parts. Raises NotReady (the bundle is not
        ours, or is being given back), MetadataError and what *store* raises; nothing has changed then.
        """
        namespace, _, text = bundle.rpartition("/")
        low, _, high = text.partition("_")
        inside = [one for one in after.ranges if low <= one.partition("_")[0] and one.partition("_")[2] <= high]
        parts = [f"{namespace}/{one}" for one in inside]
        assert text not in after.ranges, f"{bundle} is not split"
        assert parts, f"{bundle} has no parts"
        if bundle not in self._owned or bundle in self._unloading or bundle in self._splitting:
            raise NotReady(f"Namespace bundle {bundle} is not served by this broker, or is being moved or split; retry")
        self._splitting.add(bundle)
        session = self._sessions
        made: list[str] = []
        try:
            for part in parts:
                if part in self._returning:
                    raise NotReady(f"{part}, a part of {bundle}, is being given back; retry")
                made.append(part)  # before it is known: what is not ours is not given back
                if not await self._claim_bundle(part):
                    node = await self._store.get(self._path(part))
                    if node is None or not node.own:
                        raise NotReady(f"{part}, a part of {bundle}, has an owner already; retry")
            await self._store_parts(namespace, after, store)
            self._adopt(parts, session)
            self._bundles[namespace] = after
            cancel = self._owned.pop(bundle, None)
            if cancel is not None:
                cancel()
        except BaseException:
            for part in made:
                self._returning.add(part)
                self._tasks.spawn(self._give_back_later(part), f"give back {part}")
            raise
        finally:
            self._splitting.discard(bundle)
        log.info("split %s into %s", bundle, ", ".join(inside))
        self._tasks.spawn(self._give_back_later(bundle), f"give back {bundle}")
        return parts

    async def _store_parts(self, namespace: str, after: Bundles, store: Callable[[], Awaitable[None]]) -> None:
        """Run *store*; where its outcome is not known, look. Raises what it raises."""
        try:
            await store()
        except MetadataError:
            if (await self._bundles_now(namespace)).boundaries != after.boundaries:
                raise

    async def unload(self, bundle: str, close_topics: Callable[[], Awaitable[None]]) -> None:
        """Release a bundle: take no new clients, close its topics with *close_topics*, remove its node.

        If closing fails, the bundle is reported as lost and the error is passed on. Raises MetadataError.
        """
        under_way = self._unloading.get(bundle)
        if under_way is not None:
            await under_way.wait()
            return
        if bundle not in self._owned:
            return
        if bundle in self._splitting:
            raise NotReady(f"Namespace bundle {bundle} is being split; retry")
        given_back = self._unloading[bundle] = asyncio.Event()
        try:
            path = self._path(bundle)
            node = await self._store.get(path)
            if node is None or not node.own:
                return  # lost meanwhile; the watch reports it
            with contextlib.suppress(OutcomeUnknown):  # it may be told, and others wait then: going on is right anyhow
                await self._store.put(path, encode_owner(self.address, disabled=True), node.version, ephemeral=True)
            try:
                await close_topics()
            except BaseException:
                self._lose([bundle])
                raise
            finally:
                cancel = self._owned.pop(bundle, None)
                if cancel is not None:
                    cancel()
                try:
                    await self._give_back(path)
                except MetadataError as error:
                    log.warning("%s is not served any more and could not be given back yet: %s", bundle, error)
                    self._tasks.spawn(self._give_back_later(bundle), f"give back {bundle}")
        finally:
            del self._unloading[bundle]
            given_back.set()

    async def _give_back_later(self, bundle: str) -> None:
        try:
            while bundle not in self._owned:  # stop if this broker has acquired it again meanwhile
                try:
                    await self._give_back(self._path(bundle))
                    return
                except MetadataError:
                    await self._clock.sleep(_RETRY_S)
        finally:
            self._returning.discard(bundle)

    def _on_node(self, bundle: str) -> None:
        if bundle in self._owned:
            self._tasks.spawn(self._check_owned(bundle), f"check {bundle}")

    async def _check_owned(self, bundle: str) -> None:
        with contextlib.suppress(MetadataError):
            node = await self._store.get(self._path(bundle))
            if (node is None or not node.own) and bundle in self._owned and bundle not in self._resuming:
                self._lose([bundle])

    def _lose(self, bundles: list[str]) -> None:
        for bundle in bundles:
            cancel = self._owned.pop(bundle, None)
            if cancel is not None:
                cancel()
        if bundles:
            log.warning("not owning %s any more", ", ".join(bundles))
            for callback in list(self._lost_callbacks):
                callback(bundles)

    async def _wait_for_change(self, node: Node, deadline: float) -> bool:
        """Wait until the owner's node is removed or changed; False at *deadline*."""
        changed = asyncio.Event()
        cancel = self._store.watch_node(node.path, changed.set)
        try:
            now = await self._store.get(node.path)  # it may have been removed before the watch was set
            if now is None or now.version != node.version:
                return True
            return await self._wait(changed, deadline)
        finally:
            cancel()

    async def _wait(self, event: asyncio.Event, deadline: float) -> bool:
        """Wait for *event*; False at *deadline*."""
        try:
            async with asyncio.timeout(max(deadline - self._clock.monotonic(), 0)):
                await event.wait()
        except TimeoutError:
            return False
        return True

    async def answers(self, broker: BrokerAddress) -> bool:
        """Whether the process at *broker*'s address answers (`probing`)."""
        return await self._prober.sign(broker) is Sign.ANSWERS

    async def sign_of(self, broker: BrokerAddress) -> Sign:
        """What the process at *broker*'s address shows of itself now."""
        return await self._prober.sign(broker)

    async def is_gone(self, broker: BrokerAddress) -> bool:
        """Whether the process at *broker*'s address is gone for certain (`probing`)."""
        return await self._prober.is_gone(broker)

    async def is_owned_by(self, bundle: str, broker: BrokerAddress) -> bool:
        """Whether the bundle is that broker's, which is not giving it back. Raises MetadataError, Corruption."""
        node = await self._store.get(self._path(bundle))
        if node is None:
            return False
        owner, is_unloading = decode_owner(node.value, node.path)
        return owner.native_url == broker.native_url and not is_unloading

    async def _answers_while(self, owner: BrokerAddress, node: Node) -> bool | None:
        """As `answers`; None as soon as *node*, which names the owner, changes: that one hangs takes long to find."""
        try:
            async with asyncio.timeout(QUICKLY_S):
                return await self.answers(owner)
        except TimeoutError:
            asking: asyncio.Task[bool] = self._tasks.spawn(self.answers(owner), f"ask {owner.native_url}", awaited=True)
        while not asking.done():
            if await self._wait_for_change(node, self._clock.monotonic() + QUICKLY_S):
                return None
        return asking.result()

    @staticmethod
    def _path(bundle: str) -> str:
        return f"{NAMESPACE}/{bundle}"

    # ------------------------------------------------------------------------- session and leader

    def _on_session(self, event: SessionEvent) -> None:
        if event is not SessionEvent.LOST:
            return
        self.is_leader = False
        self._sessions += 1
        self._go_on_without_nodes(self._owned)
        if self._on_expired is not None:
            self._on_expired()

    def _go_on_without_nodes(self, bundles: Iterable[str]) -> None:
        """The session in which the nodes of *bundles* were made has ended."""
        if self._on_expired is not None or self._is_leaving:
            self._lose(sorted(bundles))
        else:
            self._resuming.update(bundles)
            self._tasks.spawn(self._go_on(), "taking up again what was owned")

    async def _go_on(self) -> None:
        """In a new session."""
        await self._register_again()
        while self._resuming:
            bundle = min(self._resuming)
            try:
                is_ours = await self._take_up_again(bundle)
            except MetadataError as error:
                log.warning("whether %s is still ours is not known: %s", bundle, error)
                await self._clock.sleep(_RETRY_S)
                continue
            self._resuming.discard(bundle)
            if not is_ours and bundle in self._owned:
                self._lose([bundle])

    async def _take_up_again(self, bundle: str) -> bool:
        """Whether the bundle is ours in this session. Raises MetadataError."""
        while bundle in self._owned and bundle not in self._unloading:
            if await self._claim_bundle(bundle):
                log.info("still owning %s", bundle)
                return True
            node = await self._store.get(self._path(bundle))
            if node is not None:
                return node.own
        return False

    async def _register_again(self) -> None:
        while True:
            try:
                await self._register()
                await self._campaign()
                return
            except MetadataError as error:
                log.warning("cannot register this broker again yet: %s", error)
                await self._clock.sleep(_RETRY_S)

    async def _register(self) -> None:
        await self._claim(f"{BROKERS}/{self.broker_id}", self.report)

    async def _claim(self, path: str, value: bytes) -> None:
        """Create an ephemeral node at a path that no other living broker uses; removes that of a dead process."""
        while True:
            try:
                await self._store.put(path, value, NO_NODE, ephemeral=True)
                return
            except (VersionConflict, OutcomeUnknown):
                node = await self._store.get(path)
                if node is not None and node.own:
                    return
                if node is not None:
                    await self._remove_former(node)

    async def _campaign(self) -> None:
        value = encode_leader(self.broker_id, self.address)
        try:
            await self._store.put(LEADER, value, NO_NODE, ephemeral=True)
            self.is_leader = True
        except (VersionConflict, OutcomeUnknown):
            node = await self._store.get(LEADER)
            self.is_leader = node is not None and node.own

    def _on_leader_changed(self) -> None:
        if self._is_leaving:
            return
        self._tasks.spawn(self._campaign_quietly(), "leader")

    async def _campaign_quietly(self) -> None:
        with contextlib.suppress(MetadataError):
            await self._campaign()
