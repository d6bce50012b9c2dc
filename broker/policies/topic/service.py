"""The policies of single topics: read from the system topic of their namespace, kept in memory, changed by messages.

    of(topic) ──▶ the namespace's `__change_events` is read to its end, once; then it is followed
    change(topic) ──▶ a message; when it is stored it holds here, and a moment later at every other broker

With `topicPoliciesServiceClassName=…MetadataStoreTopicPoliciesService` (5.0) they are nodes of the metadata store
(`nodes`) in each namespace that has no such system topic, as Apache's `LegacyAwareTopicPoliciesService` has it.

Rules:

1. A topic is opened with policies that are at least as new as the end of the system topic at that moment. If they
   cannot be read the topic is not opened: it would serve clients by wrong rules.
2. Once read, they stay in force while the system topic cannot be followed; a follower that ended begins anew.
3. Of the messages of one key the one with the highest position counts. A change that this broker has stored holds at
   once; reading older messages later does not take it back. What is read anew holds when all is read.
4. A namespace without a system topic costs one look into the metadata store and a watch on the place where it would be.
5. An event that cannot be read is passed over and logged, also one of a schema that is not there: it never keeps a
   namespace closed. A broker that cannot be asked for a schema now is asked again: an event that can be read counts.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from itertools import islice
from typing import Final

from broker.errors import MetadataFailure, NotReady, metadata_errors
from broker.policies.topic.events import (
    CHANGES,
    SCHEMA,
    SCHEMA_PROPERTIES,
    Change,
    Unreadable,
    changes_in,
    encode,
    event_metadata,
    parse_schema,
)
from broker.policies.topic.nodes import Place, folder, node_of, path_of, place_of, read_node
from broker.policies.topic.record import NONE_SET, SUBSCRIPTION_CREATION, Record
from broker.system_client import NoSuchSchema, SystemClient, SystemClientError
from broker.wire import pulsar_pb2 as wire
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Cancel,
    CannotWatch,
    MetadataError,
    MetadataStore,
    Node,
    NoNode,
    VersionConflict,
)
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.pauses import GrowingPause
from magnetar_core.runtime.tasks import Bell, Tasks
from magnetar_core.runtime.types import KIB, Corruption
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import messages_in, metadata_of, split_entry
from managed_ledger.messages_pb2 import KeyValue
from managed_ledger.position import Position
from managed_ledger.records.paths import ledger_path
from managed_ledger.schemas.avro import AvroType

log = logging.getLogger(__name__)

# How long the opening of a topic waits for the policies of its namespace. Clients wait 30 s for an answer.
READ_S: Final = 15.0

# The first and the longest pause before a system topic that could not be followed is tried again.
RETRY_FIRST_S: Final = 0.1
RETRY_LONGEST_S: Final = 10.0

# Entries of a system topic that are larger, also unpacked, are read on another thread; an event has some hundred bytes,
# and one of this size may hold the loop 30 ms.
INLINE_BYTES_MAX: Final = 8 * KIB

# Events of one batch after which others have their turn.
EVENTS_PER_TURN: Final = 100

# How often nodes are read again where the metadata store has no watch of a tree (ZooKeeper before 3.6).
LOOK_S: Final = 30.0

# Schemas with which the events of one topic were written; each is asked for. Brokers of one version have one.
SCHEMAS_MAX: Final = 1_000

Changed = Callable[[TopicName], None]

_Key = tuple[TopicName, bool]
"""A topic, and whether its policies are those for all clusters."""


class TopicPolicies:
    """The policies of the topics that this broker serves."""

    def __init__(
        self,
        client: SystemClient,
        store: MetadataStore,
        clock: Clock,
        cluster: str,
        changed: Changed,
        *,
        is_on: bool,
        uses_nodes: bool = False,
    ) -> None:
        """*changed* is called with a topic (for a partitioned one: with its base) whose policies have changed.
        *uses_nodes*: namespaces without a system topic have them in the metadata store."""
        self._client = client
        self._store = store
        self._clock = clock
        self._cluster = cluster
        self._changed = changed
        self.is_on = is_on
        self._uses_nodes = uses_nodes
        self.unreadable = 0
        """Events that could not be read, since the start."""
        self._tasks = Tasks("topic policies")
        self._namespaces: dict[str, _Namespace] = {}

    async def records_of(self, topic: TopicName) -> list[Record]:
        """The policies in force for *topic*, or for the partitioned topic that it belongs to: those for all clusters,
        and those of this cluster, which go over them. Raises NotReady.

        (As Apache's brokers have it since 4.0: a value of the topic, else its global one, else its namespace's. Whether
        consumers create subscriptions is asked of this cluster's alone.)
        """
        local = await self.stored(topic, is_global=False)
        everywhere = await self.stored(topic, is_global=True)
        if everywhere is not None:
            everywhere = {name: value for name, value in everywhere.items() if name != SUBSCRIPTION_CREATION}
        return [record for record in (everywhere, local) if record]

    async def stored(self, topic: TopicName, *, is_global: bool) -> Record | None:
        """What was set for *topic*, or the partitioned topic that it belongs to: for this cluster, or for all
        (*is_global*). Raises NotReady."""
        if not self.is_on or topic.is_system or not topic.is_persistent:
            return None
        entry = (await self._read(topic.namespace)).known.get((topic.base, is_global))
        return None if entry is None else entry[1]

    async def change(self, topic: TopicName, change: Callable[[Record], Record | None], *, is_global: bool) -> None:
        """Store what *change* makes of the topic's policies; None removes all. It may refuse by raising.

        Raises NotReady, MetadataFailure.
        """
        base = topic.base
        namespace = await self._read(base.namespace)
        async with namespace.lock:
            if namespace.has_nodes:
                await self._change_node(namespace, Place(base, is_global), change)
                return
            entry = namespace.known.get((base, is_global))
            former = None if entry is None else entry[1]
            changed = change(NONE_SET if former is None else former)
            if changed is None and former is None:
                return
            value = b"" if changed is None else encode(base, changed, is_global=is_global, cluster=self._cluster)
            metadata = event_metadata(base, is_global=is_global, cluster=self._cluster, is_removal=changed is None)
            try:
                position = await self._client.publish(_changes_of(base.namespace), _SCHEMA, metadata, value)
            except SystemClientError as error:
                raise MetadataFailure(f"the policies of {base} could not be stored: {error}") from error
            namespace.note((base, is_global), position, changed, is_own=True)

    async def _change_node(
        self, namespace: "_Namespace", place: Place, change: Callable[[Record], Record | None]
    ) -> None:
        """`change` in the metadata store. Raises MetadataFailure."""
        path = path_of(place.topic, is_global=place.is_global)
        with metadata_errors():
            while True:
                node = await self._store.get(path)
                former = None if node is None else self._read_node(namespace, node)
                changed = change(NONE_SET if former is None else former)
                if changed is None and node is None:
                    return
                try:
                    if changed is None:
                        assert node is not None
                        await self._store.delete(path, node.version)
                    else:
                        version = NO_NODE if node is None else node.version
                        await self._store.put(path, node_of(changed, is_global=place.is_global), version)
                except (VersionConflict, NoNode):
                    continue  # another broker was quicker: its value is changed
                namespace.note(place, namespace.next_place(), changed, is_own=True)
                return

    async def forget(self, topic: TopicName) -> None:
        """Remove what is stored of a topic that was deleted. Raises NotReady, MetadataFailure."""
        if not self.is_on or topic.is_system or not topic.is_persistent or topic.partition >= 0:
            return
        for is_global in (False, True):
            if await self.stored(topic, is_global=is_global) is not None:
                await self.change(topic, lambda _: None, is_global=is_global)

    def keep_only(self, used: Collection[str]) -> None:
        """Follow no namespaces but those in *used* and those asked for since the last call."""
        for name, namespace in list(self._namespaces.items()):
            if name not in used and not namespace.is_wanted:
                del self._namespaces[name]
                namespace.task.cancel()
            namespace.is_wanted = False

    async def close(self) -> None:
        """End all followers."""
        self._namespaces.clear()
        await self._tasks.cancel()

    # -------------------------------------------------------------------------------- reading

    async def _read(self, name: str) -> "_Namespace":
        """The policies in a namespace, read to the end (rule 1). Raises NotReady."""
        namespace = self._namespaces.get(name)
        if namespace is None:
            if self._tasks.is_closed:
                raise NotReady("the broker is stopping")
            namespace = self._namespaces[name] = _Namespace(self._changed)
            namespace.task = self._tasks.spawn(self._follow(name, namespace), name)
        namespace.is_wanted = True
        if not namespace.is_read and not await namespace.bell.until(lambda: namespace.is_read, self._clock, READ_S):
            raise NotReady(
                f"the policies of the topics in {name} cannot be read now: {namespace.problem or 'no answer yet'}"
            )
        return namespace

    async def _follow(self, name: str, namespace: "_Namespace") -> None:
        """Follow the policies of one namespace for ever: in its system topic, or in nodes while it has none."""
        topic = _changes_of(name)
        pause = GrowingPause(RETRY_FIRST_S, RETRY_LONGEST_S)
        while True:
            appeared = asyncio.Event()
            # The watch is set before the look, so that no topic is missed that is made in between.
            cancel: Cancel = self._store.watch_node(ledger_path(topic.managed_ledger_name), appeared.set)
            try:
                if not await self._store.exists(ledger_path(topic.managed_ledger_name)):
                    if self._uses_nodes:
                        await self._follow_nodes(name, namespace, appeared)
                        continue
                    namespace.begin()  # it may have been deleted: what it said does not hold any more
                    namespace.on_read()
                    await appeared.wait()
                    continue
                namespace.has_nodes = False
                await self._follow_topic(topic, namespace)
            except (SystemClientError, MetadataError) as error:
                if namespace.problem:  # a first failure is not logged: topics are given to other brokers
                    log.warning("%s: the policies of its topics cannot be followed: %s", name, error)
                namespace.problem = str(error)
            finally:
                cancel()
            await self._clock.sleep(pause.next_s())
            if namespace.has_advanced:
                pause.reset()

    async def _follow_nodes(self, name: str, namespace: "_Namespace", appeared: asyncio.Event) -> None:
        """Follow the policies in the metadata store until there is a system topic. Raises MetadataError."""
        namespace.forget_events()
        changes, cancels = _Changes(), list[Cancel]()

        async def wait_for_topic() -> None:
            await appeared.wait()
            changes.bell.ring()

        waiting = asyncio.create_task(wait_for_topic())
        can_watch = True
        try:
            for is_global in (False, True):
                try:
                    cancels.append(await self._store.watch_tree(folder(name, is_global=is_global), changes.note))
                except CannotWatch:
                    can_watch = False
            while not appeared.is_set():
                paths = changes.take()
                async with namespace.lock:
                    if paths is None:
                        await self._read_nodes(name, namespace)
                    for path in sorted(paths or ()):
                        await self._look_at(path, name, namespace)
                await changes.bell.until(lambda: appeared.is_set() or changes.are_there, self._clock, LOOK_S)
                if not can_watch:
                    changes.note(None)
        finally:
            waiting.cancel()
            for cancel in cancels:
                cancel()

    async def _read_nodes(self, name: str, namespace: "_Namespace") -> None:
        """All policies of a namespace's topics. Raises MetadataError."""
        namespace.begin()
        for is_global in (False, True):
            above = folder(name, is_global=is_global)
            for child in await self._store.children(above):
                await self._look_at(f"{above}/{child}", name, namespace)
        namespace.has_nodes = True
        namespace.on_read()

    async def _look_at(self, path: str, name: str, namespace: "_Namespace") -> None:
        """Note what a node says. Raises MetadataError."""
        if (place := place_of(path, name)) is not None:
            node = await self._store.get(path)
            policies = None if node is None else self._read_node(namespace, node)
            namespace.note(place, namespace.next_place(), policies)

    def _read_node(self, namespace: "_Namespace", node: Node) -> Record | None:
        """One that cannot be read counts as none, and is logged (rule 5)."""
        try:
            return read_node(node.value, node.path)
        except Corruption as error:
            self._pass_over(namespace, f"the node {node.path}", str(error))
            return None

    async def _follow_topic(self, topic: TopicName, namespace: "_Namespace") -> None:
        """Read the system topic from its beginning on, for ever. Raises SystemClientError, MetadataError."""
        writers: dict[bytes, AvroType | Unreadable] = {b"": parse_schema(_SCHEMA.schema_data)}
        namespace.begin()

        async def on_entry(position: Position, entry: memoryview) -> None:
            try:
                async for change in self._changes(topic, entry, writers):
                    if isinstance(change, Unreadable):
                        self._pass_over(namespace, f"{topic}: the event at {position}", change.problem)
                    else:
                        namespace.note((change.topic, change.is_global), position, change.policies)
            except Corruption as error:
                self._pass_over(namespace, f"{topic}: the event at {position}", str(error))

        await self._client.follow(topic, _SCHEMA, on_entry, namespace.on_read)

    async def _changes(
        self, topic: TopicName, entry: memoryview, writers: dict[bytes, AvroType | Unreadable]
    ) -> AsyncIterator[Change | Unreadable]:
        """What an entry of the system topic holds; others get their turn meanwhile. Raises Corruption,
        SystemClientError."""
        parts = split_entry(entry)
        metadata = metadata_of(parts)
        version = metadata.schema_version[:8]  # old clients send 64 bytes
        if version not in writers:
            writers[version] = await self._writer(topic, version, len(writers))
        is_large = max(len(entry), metadata.uncompressed_size) > INLINE_BYTES_MAX
        open_entry = partial(messages_in, parts, metadata)
        messages = await asyncio.to_thread(open_entry) if is_large else open_entry()
        changes = changes_in(metadata, messages, writers[version])
        while True:
            take: Callable[[], list[Change | Unreadable]] = partial(list, islice(changes, EVENTS_PER_TURN))
            run = await asyncio.to_thread(take) if is_large else take()
            for change in run:
                yield change
            if len(run) < EVENTS_PER_TURN:
                return
            await asyncio.sleep(0)

    async def _writer(self, topic: TopicName, version: bytes, known: int) -> AvroType | Unreadable:
        """The schema with which events were written (rule 5). Raises SystemClientError."""
        if known >= SCHEMAS_MAX:
            return Unreadable(f"events of {topic} have more than {SCHEMAS_MAX} schemas")
        try:
            schema = await self._client.schema(topic, version)
        except NoSuchSchema as error:
            return Unreadable(f"its schema is not there: {error}")
        return await asyncio.to_thread(parse_schema, schema.schema_data)

    def _pass_over(self, namespace: "_Namespace", what: str, problem: str) -> None:
        """Tell of what cannot be read: the first of a namespace in the log, all by their number."""
        self.unreadable += 1
        if not namespace.has_unreadable:
            log.error(
                "%s is passed over, and those like it are counted "
                "(magnetar_topic_policies_unreadable_events_total): %s",
                what, problem,
            )  # fmt: skip
        namespace.has_unreadable = True


class _Changes:
    """Nodes that have to be looked at; all at first."""

    def __init__(self) -> None:
        self.bell = Bell()
        self._paths: set[str] | None = None

    @property
    def are_there(self) -> bool:
        return self._paths is None or bool(self._paths)

    def note(self, paths: Collection[str] | None) -> None:
        """None: each may have changed."""
        self._paths = None if paths is None or self._paths is None else self._paths.union(paths)
        self.bell.ring()

    def take(self) -> set[str] | None:
        """What was noted since the last call; None: all."""
        paths, self._paths = self._paths, set()
        return paths


class _Namespace:
    """What is known of the policies of topics in one namespace."""

    task: "asyncio.Task[None]"

    def __init__(self, changed: Changed) -> None:
        self._changed = changed
        self.known: dict[_Key, tuple[Position, Record | None]] = {}
        self.lock = asyncio.Lock()
        self.bell = Bell()
        self.is_read = False
        self.is_wanted = True
        self.has_advanced = False
        self.has_unreadable = False
        """An event could not be read, which was logged."""
        self.problem = ""
        self.has_nodes = False
        """Its policies are in the metadata store."""
        self._nodes_read = 0
        self._last_read: Position | None = None
        """Since reading began. A change of this broker at or before it was read before its answer came."""
        self._not_read_again: set[_Key] = set()
        """Known from before, and not seen since reading began anew: the compaction of the topic has removed them."""
        self._read_anew: dict[_Key, tuple[Position, Record | None]] | None = None
        """What was read since reading began anew, until all is read: the first of it may have been removed since."""

    def begin(self) -> None:
        """The system topic is read from its beginning."""
        self._not_read_again = set(self.known)
        self._read_anew = {} if self.is_read else None
        self._last_read = None
        self.has_advanced = False

    def next_place(self) -> Position:
        """In place of a position, for what was read of a node: later ones count, and each event counts more."""
        self._nodes_read += 1
        return Position(-1, self._nodes_read)

    def forget_events(self) -> None:
        """The system topic is not there any more, with all that it said."""
        if not self.has_nodes and self.known:
            self._not_read_again = set(self.known)
            self._read_anew = None
            self.on_read()

    def note(self, key: _Key, position: Position, policies: Record | None, *, is_own: bool = False) -> None:
        """A message was read, or, with *is_own*, stored by this broker (rule 3)."""
        if not is_own:
            self._last_read = max(position, self._last_read or position)
        elif self._read_anew is None and self._last_read is not None and position <= self._last_read:
            return
        self._not_read_again.discard(key)
        self.has_advanced = True
        if self._read_anew is not None and not is_own:
            self._read_anew[key] = (position, policies)
            return
        position_before, before = self.known.get(key, (None, None))
        if position_before is not None and position_before > position:
            return
        if policies is None and not is_own:
            self.known.pop(key, None)
        else:
            # Also the removal of policies is kept, until it is read: older messages may come before that.
            self.known[key] = (position, policies)
        if before != policies and self.is_read:
            self._changed(key[0])

    def on_read(self) -> None:
        """All is read that was there when reading began."""
        self.is_read = True
        self.problem = ""
        read_anew, self._read_anew = self._read_anew or {}, None
        for key, (position, policies) in read_anew.items():
            self.note(key, position, policies)
        for key in self._not_read_again:
            _, policies = self.known.pop(key)
            if policies is not None:
                self._changed(key[0])
        self._not_read_again.clear()
        self.bell.ring()


_SCHEMA: Final = wire.Schema(
    name=CHANGES,
    schema_data=SCHEMA.encode(),
    type=wire.Schema.Avro,
    properties=[KeyValue(key=name, value=value) for name, value in SCHEMA_PROPERTIES.items()],
)


def _changes_of(namespace: str) -> TopicName:
    return TopicName.parse(f"persistent://{namespace}/{CHANGES}")
